"""Which vocabulary a text gets, and what becomes of characters that a given one lacks."""

from pathlib import Path
from typing import Any

import pytest
from prepared import prepared_from, tokens_of

from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from errors import DataError


class TestLearnt:
    def test_rare_characters_share_a_token_that_is_never_generated(self, tmp_path: Path) -> None:
        prepared, said = prepared_from(tmp_path, "aaabbbxyz", min_char_count=2)
        assert "".join(tokens_of(prepared)) == "aaabbb\ufffd\ufffd\ufffd"
        assert prepared.tokenizer.vocab_size == 4
        assert list(prepared.tokenizer.never_generated) == [2]
        assert any("3 characters that occur less than 2 times share one token (33.33% of the text)" in s for s in said)

    def test_a_count_that_no_character_reaches_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"data\.min_char_count=9: no character of the text occurs so often"):
            prepared_from(tmp_path, "abc", min_char_count=9)

    def test_byte_pairs_are_learnt_from_the_text_and_their_number_is_chosen(self, tmp_path: Path) -> None:
        text = "the cat and the dog and the cow\n" * 200
        prepared, _ = prepared_from(tmp_path, text, tokenizer="bpe", bpe_vocab_size=262)
        assert prepared.tokenizer.vocab_size == 262
        assert prepared.num_tokens < len(text)
        assert "".join(tokens_of(prepared)) == text

    def test_byte_pairs_are_those_of_the_text_to_train_on_in_normal_form(self, tmp_path: Path) -> None:
        text = "cafe\u0301 " * 100
        settings: dict[str, Any] = {"tokenizer": "bpe", "bpe_vocab_size": 300, "unicode": "NFC"}
        with_val, _ = prepared_from(tmp_path, text, val="quite another text " * 100, **settings)
        alone, _ = prepared_from(tmp_path, text, **settings)
        assert with_val.tokenizer.fingerprint == alone.tokenizer.fingerprint
        assert "caf\u00e9".encode() in alone.tokenizer.pieces
        assert b"another" not in alone.tokenizer.pieces

    def test_a_vocabulary_too_large_for_the_text_is_warned_about(self, tmp_path: Path) -> None:
        text = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))
        _, said = prepared_from(tmp_path, text)
        assert sum("1,000 different characters in 1,000 are too many" in line for line in said) == 1
        (tmp_path / "long").mkdir()
        _, said = prepared_from(tmp_path / "long", text * 101)
        assert not any("too many" in line for line in said)

    def test_fewer_byte_pairs_than_asked_for_are_told(self, tmp_path: Path) -> None:
        text = "the cat and the dog\n" * 20
        prepared, said = prepared_from(tmp_path, text, tokenizer="bpe", bpe_vocab_size=5000)
        line = (
            f"the text has so few different words that it gives only {prepared.tokenizer.vocab_size} tokens, not the "
            "5,000 of data.bpe_vocab_size"
        )
        assert said.count(line) == 1
        _, said = prepared_from(tmp_path, text, tokenizer="bpe", bpe_vocab_size=258)
        assert not any("so few" in line for line in said)

    def test_one_rare_character_is_one(self, tmp_path: Path) -> None:
        _, said = prepared_from(tmp_path, "aabbc", min_char_count=2)
        assert any("1 character that occurs less than 2 times shares one token" in line for line in said)


class TestGiven:
    GIVEN = CharTokenizer("\n abc")

    def test_it_encodes_what_it_knows(self, tmp_path: Path) -> None:
        prepared, _ = prepared_from(tmp_path, "cab", given=self.GIVEN)
        assert prepared.tokenizer.fingerprint == self.GIVEN.fingerprint
        assert "".join(tokens_of(prepared)) == "cab"

    def test_unknown_characters_are_counted_and_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError) as error:
            prepared_from(tmp_path, "abxyxab", given=self.GIVEN)
        assert str(error.value) == (
            "2 of the text's characters are unknown to the model (how often): 'x' (2), 'y' (1); "
            "data.unknown=drop leaves them out, data.unknown=extend learns them too"
        )
        assert not (tmp_path / "cache").exists()

    def test_unknown_characters_are_left_out(self, tmp_path: Path) -> None:
        prepared, said = prepared_from(tmp_path, "abxyxab", given=self.GIVEN, unknown="drop")
        assert "".join(tokens_of(prepared)) == "abab"
        assert any("'x' (2), 'y' (1); they are left out (42.86% of the text)" in line for line in said)

    def test_many_unknown_characters_are_counted_so_that_one_can_read_it(self, tmp_path: Path) -> None:
        foreign = "".join(map(chr, range(0x4E00, 0x4E00 + 2000)))
        _, said = prepared_from(tmp_path, "ab" + foreign, given=self.GIVEN, unknown="drop")
        (line,) = [line for line in said if "left out" in line]
        assert line.startswith("2,000 of the text's characters are unknown")
        assert " and 1,990 more; they are left out (99.90% of the text)" in line

    def test_unknown_characters_are_added(self, tmp_path: Path) -> None:
        prepared, said = prepared_from(tmp_path, "abxyxab", given=self.GIVEN, unknown="extend")
        assert "".join(tokens_of(prepared)) == "abxyxab"
        assert isinstance(prepared.tokenizer, CharTokenizer)
        assert prepared.tokenizer.characters == "\n abcxy"
        assert any("they are added to its vocabulary" in line for line in said)

    def test_of_lines_only_the_unknown_characters_are_left_out(self, tmp_path: Path) -> None:
        given = CharTokenizer("abc")
        prepared, _ = prepared_from(tmp_path, "ax\nb\nx\nc", given=given, unknown="drop", documents="line")
        assert "".join(tokens_of(prepared)) == "a|b|c|"


class TestGivenWithATokenForRareCharacters:
    """Into which all of a foreign text would vanish."""

    GIVEN = CharTokenizer("abc", has_unknown=True)

    def test_unknown_characters_are_counted_and_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError) as error:
            prepared_from(tmp_path, "абвааb", given=self.GIVEN)
        assert str(error.value) == (
            "3 of the text's characters are unknown to the model (how often): 'а' (3), 'б' (1), 'в' (1); "
            "all of them would become its one token for rare characters; "
            "data.unknown=drop leaves them out, data.unknown=extend learns them too"
        )

    @pytest.mark.parametrize("documents", ["file", "line", "none"])
    def test_unknown_characters_are_left_out(self, tmp_path: Path, documents: str) -> None:
        prepared, said = prepared_from(tmp_path, "aбb", "xcб", given=self.GIVEN, unknown="drop", documents=documents)
        assert "".join(tokens_of(prepared)) == {"file": "ab|c|", "line": "ab|c|", "none": "abc"}[documents]
        assert any("'б' (2), 'x' (1); they are left out" in line for line in said)

    def test_unknown_characters_are_added(self, tmp_path: Path) -> None:
        prepared, said = prepared_from(tmp_path, "aбb", given=self.GIVEN, unknown="extend")
        assert "".join(tokens_of(prepared)) == "aбb"
        assert isinstance(prepared.tokenizer, CharTokenizer)
        assert prepared.tokenizer.characters == "abcб"
        assert prepared.tokenizer.has_unknown
        assert any("'б' (1); they are added to its vocabulary" in line for line in said)

    def test_a_text_that_it_knows_is_encoded_without_a_word(self, tmp_path: Path) -> None:
        prepared, said = prepared_from(tmp_path, "cab", given=self.GIVEN)
        assert "".join(tokens_of(prepared)) == "cab"
        assert len(said) == 2  # the text, and how long it took


class TestNothingToLearn:
    """What is long enough to be taken for a text, and still gives no token."""

    BLANK = " \n" * (1 << 15)

    @pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe"])
    @pytest.mark.parametrize("blank", [BLANK, "\n" * (1 << 16)], ids=["spaces", "newlines"])
    def test_lines_without_content(self, tmp_path: Path, tokenizer: str, blank: str) -> None:
        with pytest.raises(DataError, match=r"^data\.source: the text has no line with content; name a text") as error:
            prepared_from(tmp_path, blank, blank, tokenizer=tokenizer, documents="line")
        assert "min_char_count" not in str(error.value)
        with pytest.raises(DataError, match=r"^data\.source: the text has no line with content"):
            prepared_from(tmp_path, blank, val="anna", tokenizer=tokenizer, documents="line")

    @pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe"])
    def test_lines_without_content_to_validate_on(self, tmp_path: Path, tokenizer: str) -> None:
        with pytest.raises(DataError, match=r"^data\.val_source: the text has no line with content; name a text"):
            prepared_from(tmp_path, "anna\nbob", val=self.BLANK, tokenizer=tokenizer, documents="line")

    @pytest.mark.parametrize("given", [CharTokenizer("abc"), CharTokenizer("abc", has_unknown=True)])
    @pytest.mark.parametrize(
        ("texts", "val", "setting"),
        [
            (["xyz"], None, "data.source"),
            (["xyz", "x"], None, "data.source"),
            (["xyz", "x"], "abc", "data.source"),
            (["abc"], "xyz", "data.val_source"),
            (["abc", "a"], "xyz", "data.val_source"),
        ],
    )
    @pytest.mark.parametrize("documents", ["file", "line", "none"])
    def test_nothing_but_unknown_characters_that_are_left_out(
        self, tmp_path: Path, given: Tokenizer, texts: list[str], val: str | None, setting: str, documents: str
    ) -> None:
        with pytest.raises(DataError) as error:
            prepared_from(tmp_path, *texts, given=given, val=val, unknown="drop", documents=documents)
        assert str(error.value) == (
            f"{setting}: the model knows none of the text's characters, and data.unknown=drop leaves them out; "
            "use data.unknown=extend"
        )
        assert list((tmp_path / "cache").iterdir()) == []


class TestSettingsWithoutEffect:
    @pytest.mark.parametrize(
        ("settings", "line"),
        [
            ({"tokenizer": "byte", "min_char_count": 2}, "data.min_char_count=2 has no effect: it is for data.tokeni"),
            ({"bpe_vocab_size": 300}, "data.bpe_vocab_size=300 has no effect: it is for data.tokenizer=bpe, not char"),
            ({"unknown": "drop"}, "data.unknown=drop has no effect: it is for train.init_from, and this model learns"),
            (
                {"unknown": "drop", "given": ByteTokenizer()},
                "data.unknown=drop has no effect: a model with data.tokenizer=byte knows all characters",
            ),
            ({"val": "abc", "val_fraction": 0.2}, "data.val_fraction=0.2 has no effect: data.val_source names"),
        ],
    )
    def test_each_is_told_in_a_line(self, tmp_path: Path, settings: dict[str, Any], line: str) -> None:
        for _ in range(2):  # also where the tokens are in the cache
            _, said = prepared_from(tmp_path, "abc", **settings)
            assert [told for told in said if "effect" in told] == [said[0]]
            assert said[0].startswith(line)

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"min_char_count": 2},
            {"tokenizer": "bpe", "bpe_vocab_size": 300},
            {"unknown": "extend", "given": CharTokenizer("a")},
            {"val_fraction": 0.2},
            {"val": "abc"},
        ],
    )
    def test_nothing_is_said_of_those_that_have_one(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        _, said = prepared_from(tmp_path, "aabbcc", **settings)
        assert not any("effect" in line for line in said)
