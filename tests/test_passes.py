"""What the two passes make of a corpus: its documents and their tokens."""

from pathlib import Path
from typing import Literal

import pytest
from prepared import prepared_from, tokens_of

from config.schema import DataConfig
from data.corpus import Corpus, Text
from data.passes import survey, write_tokens
from data.sources import file_source
from data.store import TextFacts
from data.text import content_digest
from data.tokenizer import CharTokenizer
from errors import DataError


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
        assert (prepared.num_documents, prepared.num_chars) == (2, 6)
        assert prepared.metadata.val_text == TextFacts(num_documents=1, num_chars=3, num_bytes=3)

    def test_where_training_knows_no_end_validation_has_none(self, tmp_path: Path) -> None:
        prepared, _ = prepared_from(tmp_path, "abab", val="bbb")
        assert "".join(tokens_of(prepared)) == "ababbbb"
        assert prepared.train_tokens == 4
        assert prepared.num_documents == 1

    def test_nor_has_it_between_several_documents_which_are_counted(self, tmp_path: Path) -> None:
        prepared, _ = prepared_from(tmp_path, "anna", val="bo\n\ncarla\n", documents="line")
        assert "".join(tokens_of(prepared)) == "annabocarla"
        assert prepared.metadata.val_text == TextFacts(num_documents=2, num_chars=10, num_bytes=10)

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

    @pytest.mark.parametrize("documents", ["file", "line", "none"])
    def test_a_file_that_changes_between_the_passes_is_named(
        self, tmp_path: Path, documents: Literal["file", "line", "none"]
    ) -> None:
        names = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
        for name in names:
            Path(name).write_text("anna\n", encoding="utf-8")
        config = DataConfig(source=names, documents=documents, cache_dir=str(tmp_path))
        texts = [Text(source, content_digest(source)) for source in map(file_source, names)]
        corpus = Corpus(config, texts, [], None)
        tokenizer = survey(corpus, print, show_progress=False).tokenizer
        Path(names[1]).write_text("annΩ\n", encoding="utf-8")
        with pytest.raises(DataError, match=r"^/.*b\.txt: the file was changed while it was being read; run the"):
            write_tokens(tmp_path / "tokens", corpus, tokenizer=tokenizer, show_progress=False)

    def test_a_line_too_long_for_the_memory_is_refused_with_its_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"1\.txt: there is a line of more than 67,108,864 characters; use"):
            prepared_from(tmp_path, "anna", b"a" * (64 << 20) + b"b\n", documents="line", tokenizer="byte")
