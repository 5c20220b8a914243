"""What the two passes make of a corpus: its vocabulary, its documents, its tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from config.schema import DataConfig
from data.prepare import PreparedData, prepare
from data.tokenizer import CharTokenizer, Tokenizer
from errors import DataError


def prepared_from(
    folder: Path, *texts: str | bytes, given: Tokenizer | None = None, val: str | None = None, **settings: Any
) -> tuple[PreparedData, list[str]]:
    """Some texts as files, prepared; and what was said."""
    names = []
    for number, text in enumerate(texts):
        path = folder / f"{number}.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        names.append(str(path))
    if val is not None:
        (folder / "val.txt").write_text(val, encoding="utf-8", newline="")
        settings["val_source"] = str(folder / "val.txt")
    said: list[str] = []
    config = DataConfig(source=names, cache_dir=str(folder / "cache"), **settings)
    return prepare(config, report=said.append, tokenizer=given), said


def tokens_of(prepared: PreparedData) -> list[str]:
    """The tokens as text, `<|endoftext|>` as |."""
    tokenizer = prepared.tokenizer
    ids = np.fromfile(prepared.tokens_path, dtype=prepared.dtype).tolist()
    return ["|" if token == tokenizer.end_id else tokenizer.pieces[token].decode("utf-8", "replace") for token in ids]


class TestDocuments:
    def test_a_file_is_a_document(self, tmp_path: Path) -> None:
        prepared, _ = prepared_from(tmp_path, "ab\nc", "d\n")
        assert "".join(tokens_of(prepared)) == "ab\nc|d\n|"
        assert prepared.num_documents == 2
        assert prepared.start_id == prepared.tokenizer.end_id

    @pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe"])
    def test_a_line_is_a_document_and_blank_ones_are_none(self, tmp_path: Path, tokenizer: str) -> None:
        prepared, _ = prepared_from(tmp_path, "anna\n\n  \nbob", "carla\n", documents="line", tokenizer=tokenizer)
        assert "".join(tokens_of(prepared)) == "anna|bob|carla|"
        assert prepared.num_documents == 3
        assert prepared.num_chars == len("anna\n\n  \nbob") + len("carla\n")

    def test_of_lines_the_newline_is_no_character(self, tmp_path: Path) -> None:
        prepared, _ = prepared_from(tmp_path, "anna\nbob\n", documents="line")
        assert isinstance(prepared.tokenizer, CharTokenizer)
        assert prepared.tokenizer.characters == "abno"

    def test_without_documents_texts_follow_each_other(self, tmp_path: Path) -> None:
        prepared, _ = prepared_from(tmp_path, "ab", "cd\n", documents="none")
        assert "".join(tokens_of(prepared)) == "abcd\n"
        assert prepared.num_documents == 1
        assert prepared.tokenizer.decode([prepared.start_id]) == "\n"

    def test_a_lone_line_has_no_end(self, tmp_path: Path) -> None:
        prepared, _ = prepared_from(tmp_path, "\nanna\n", documents="line")
        assert "".join(tokens_of(prepared)) == "anna"
        assert prepared.num_documents == 1


class TestValidationText:
    def test_it_stands_behind_the_text_to_train_on_whatever_the_fraction(self, tmp_path: Path) -> None:
        prepared, _ = prepared_from(tmp_path, "abab", "ba", val="bbb", val_fraction=0.5)
        assert "".join(tokens_of(prepared)) == "abab|ba|bbb|"
        assert (prepared.train_tokens, prepared.val_tokens) == (8, 4)

    def test_where_training_knows_no_end_validation_has_none(self, tmp_path: Path) -> None:
        (tmp_path / "more.txt").write_text("ba", encoding="utf-8")
        prepared, _ = prepared_from(tmp_path, "abab", val="bbb")
        assert "".join(tokens_of(prepared)) == "ababbbb"
        assert prepared.train_tokens == 4
        assert prepared.num_documents == 1

    def test_its_characters_are_in_the_vocabulary(self, tmp_path: Path) -> None:
        prepared, _ = prepared_from(tmp_path, "abab", val="xyz")
        assert isinstance(prepared.tokenizer, CharTokenizer)
        assert prepared.tokenizer.characters == "abxyz"

    def test_the_same_tokens_split_elsewhere_are_other_data(self, tmp_path: Path) -> None:
        first, _ = prepared_from(tmp_path, "abab", val="bbb")
        (tmp_path / "moved").mkdir()
        second, _ = prepared_from(tmp_path / "moved", "ababb", val="bb")
        assert tokens_of(first) == tokens_of(second)
        assert first.fingerprint != second.fingerprint


class TestReading:
    def test_line_ends_become_newlines_which_is_said(self, tmp_path: Path) -> None:
        prepared, said = prepared_from(tmp_path, "a\r\nb\rc\n")
        assert "".join(tokens_of(prepared)) == "a\nb\nc\n"
        assert [line for line in said if "line ends" in line] == [
            f"{tmp_path / '0.txt'}: line ends \\r\\n or \\r are read as \\n (data.newlines=keep leaves them)"
        ]

    def test_line_ends_may_be_kept(self, tmp_path: Path) -> None:
        prepared, said = prepared_from(tmp_path, "a\r\nb\n", newlines="keep")
        assert "".join(tokens_of(prepared)) == "a\r\nb\n"
        assert not [line for line in said if "line ends" in line]

    def test_other_encodings_are_read(self, tmp_path: Path) -> None:
        prepared, _ = prepared_from(tmp_path, "naïve café".encode("cp1252"), encoding="cp1252")
        assert "".join(tokens_of(prepared)) == "naïve café"

    def test_accents_are_joined_to_their_letters_and_prompts_too(self, tmp_path: Path) -> None:
        prepared, _ = prepared_from(tmp_path, "cafe\u0301 cafe\u0301", unicode="NFC")
        assert "".join(tokens_of(prepared)) == "caf\u00e9 caf\u00e9"
        assert prepared.tokenizer.encode("e\u0301").tolist() == prepared.tokenizer.encode("\u00e9").tolist()


class TestVocabulary:
    def test_rare_characters_share_a_token_that_is_never_generated(self, tmp_path: Path) -> None:
        prepared, said = prepared_from(tmp_path, "aaabbbxyz", min_char_count=2)
        assert "".join(tokens_of(prepared)) == "aaabbb\ufffd\ufffd\ufffd"
        assert prepared.tokenizer.vocab_size == 4
        assert list(prepared.tokenizer.never_generated) == [2]
        assert any("3 characters that occur less than 2 times share one token (33.33% of the text)" in s for s in said)

    def test_a_count_that_no_character_reaches_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"data\.min_char_count=9: no character"):
            prepared_from(tmp_path, "abc", min_char_count=9)

    def test_byte_pairs_are_learnt_from_the_text_and_their_number_is_chosen(self, tmp_path: Path) -> None:
        text = "the cat and the dog and the cow\n" * 200
        prepared, _ = prepared_from(tmp_path, text, tokenizer="bpe", bpe_vocab_size=262)
        assert prepared.tokenizer.vocab_size == 262
        assert prepared.num_tokens < len(text)
        assert "".join(tokens_of(prepared)) == text

    def test_a_vocabulary_too_large_for_the_text_is_warned_about(self, tmp_path: Path) -> None:
        text = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))
        _, said = prepared_from(tmp_path, text)
        assert sum("1,001 different characters in 1,000 are too many" in line for line in said) == 1
        (tmp_path / "long").mkdir()
        _, said = prepared_from(tmp_path / "long", text * 101)
        assert not any("too many" in line for line in said)


class TestAGivenTokenizer:
    GIVEN = CharTokenizer("\n abc")

    def test_it_encodes_what_it_knows(self, tmp_path: Path) -> None:
        prepared, _ = prepared_from(tmp_path, "cab", given=self.GIVEN)
        assert prepared.tokenizer.fingerprint == self.GIVEN.fingerprint
        assert "".join(tokens_of(prepared)) == "cab"

    def test_unknown_characters_are_counted_and_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError) as error:
            prepared_from(tmp_path, "abxyxab", given=self.GIVEN)
        assert str(error.value).startswith(
            "2 of the text's characters are unknown to the model (how often): 'x' (2), 'y' (1)"
        )
        assert "data.unknown=drop" in str(error.value)
        assert not (tmp_path / "cache").exists()

    def test_unknown_characters_are_left_out(self, tmp_path: Path) -> None:
        prepared, said = prepared_from(tmp_path, "abxyxab", given=self.GIVEN, unknown="drop")
        assert "".join(tokens_of(prepared)) == "abab"
        assert any("'x' (2), 'y' (1); they are left out" in line for line in said)

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

    def test_a_text_of_nothing_but_unknown_characters_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="none of the text's characters"):
            prepared_from(tmp_path, "xyz", given=self.GIVEN, unknown="drop")


class TestTheCache:
    def test_a_setting_that_changes_the_tokens_prepares_anew(self, tmp_path: Path) -> None:
        text = "some text\nand cafe\u0301\n" * 9
        folders = [
            prepared_from(tmp_path, text, **settings)[0].folder
            for settings in (
                {},
                {"documents": "line"},
                {"unicode": "NFC"},
                {"min_char_count": 10},
                {"newlines": "keep"},
                {"val": "some text"},
                {"documents": "none"},
                {"tokenizer": "byte"},
                {"tokenizer": "bpe", "bpe_vocab_size": 258},
                {"tokenizer": "bpe", "bpe_vocab_size": 259},
            )
        ]
        assert len(set(folders)) == len(folders)

    def test_a_setting_without_effect_on_the_tokens_does_not(self, tmp_path: Path) -> None:
        first, _ = prepared_from(tmp_path, "some text")
        second, said = prepared_from(tmp_path, "some text", bpe_vocab_size=4096, unknown="drop", val_fraction=0.3)
        assert first.folder == second.folder
        assert said == []
