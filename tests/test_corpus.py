"""Under which name the cache keeps the tokens of a corpus."""

from pathlib import Path
from typing import Any

import pytest
from prepared import prepared_from, tokens_of

from data.cuts import EARLIER_PATTERN
from data.tokenizer import CharTokenizer, Tokenizer
from errors import DataError

TEXT = "some text\nand cafe\u0301\n" * 9


def test_a_setting_that_changes_the_tokens_prepares_anew(tmp_path: Path) -> None:
    folders = [
        prepared_from(tmp_path, TEXT, **settings)[0].folder
        for settings in (
            {},
            {"documents": "line"},
            {"unicode": "NFC"},
            {"min_char_count": 10},
            {"newlines": "keep"},
            {"encoding": "latin-1"},
            {"val": "some text"},
            {"documents": "none"},
            {"tokenizer": "byte"},
            {"tokenizer": "bpe", "bpe_vocab_size": 258},
            {"tokenizer": "bpe", "bpe_vocab_size": 259},
            {"given": CharTokenizer(TEXT)},
            {"given": CharTokenizer(TEXT), "unknown": "drop"},
            {"given": CharTokenizer(TEXT + "z")},
        )
    ]
    assert len(set(folders)) == len(folders)


def test_byte_pairs_that_an_earlier_version_has_prepared_are_learnt_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: tuple[dict[str, Any], ...] = ({}, {"tokenizer": "bpe", "bpe_vocab_size": 258})
    now = [prepared_from(tmp_path, TEXT, **settings)[0].folder for settings in kinds]
    monkeypatch.setattr("data.corpus.LEARNT_PATTERN", EARLIER_PATTERN)
    before = [prepared_from(tmp_path, TEXT, **settings)[0].folder for settings in kinds]
    assert [a == b for a, b in zip(now, before, strict=True)] == [True, False]


@pytest.mark.parametrize(
    "settings",
    [{"bpe_vocab_size": 4096}, {"unknown": "drop"}, {"val_fraction": 0.3}, {"encoding": "UTF8"}, {"encoding": "U8"}],
)
def test_a_setting_without_effect_on_the_tokens_does_not(tmp_path: Path, settings: dict[str, Any]) -> None:
    first, _ = prepared_from(tmp_path, TEXT)
    second, said = prepared_from(tmp_path, TEXT, **settings)
    assert first.folder == second.folder
    assert not any("prepared" in line for line in said)


def files_below(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("base", [CharTokenizer("some"), CharTokenizer("some", has_unknown=True)])
def test_a_run_that_extended_a_vocabulary_finds_its_tokens_again(tmp_path: Path, base: CharTokenizer) -> None:
    """The first time its tokenizer is that of the model it starts from, on resume its own."""
    first, said = prepared_from(tmp_path, TEXT, given=base, unknown="extend")
    assert any("they are added to its vocabulary" in line for line in said)
    before = files_below(tmp_path / "cache")
    for given in (first.tokenizer, base):
        again, said = prepared_from(tmp_path, TEXT, given=given, unknown="extend")
        assert said == []
        assert again.folder == first.folder
        assert again.fingerprint == first.fingerprint
        assert files_below(tmp_path / "cache") == before
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == [first.folder.name]


def test_two_models_that_are_extended_to_the_same_vocabulary_share_the_tokens(tmp_path: Path) -> None:
    first, second = (
        prepared_from(tmp_path, TEXT, given=CharTokenizer(base), unknown="extend")[0] for base in ("some", "text")
    )
    assert first.folder == second.folder
    assert tokens_of(second) == list(TEXT)


def test_tokens_that_somebody_removed_are_made_again(tmp_path: Path) -> None:
    base: Tokenizer = CharTokenizer("some")
    first, _ = prepared_from(tmp_path, TEXT, given=base, unknown="extend")
    for path in first.folder.iterdir():
        path.unlink()
    first.folder.rmdir()
    second, said = prepared_from(tmp_path, TEXT, given=base, unknown="extend")
    assert second.folder == first.folder
    assert any("prepared in" in line for line in said)
    assert tokens_of(second) == list(TEXT)


MIXED = (
    "which is not {}; it may be {}, but '{}' is not, and all files are read in one encoding: convert '{}' to UTF-8, "
)


@pytest.mark.parametrize("first", ["plain\n", "été déjà\n"])
def test_where_texts_differ_in_encoding_it_is_said_which_one_to_convert(tmp_path: Path, first: str) -> None:
    a, b = tmp_path / "0.txt", tmp_path / "1.txt"
    texts = [first + "Ýes, naïve à Ítaca\n", "Le café était fermé".encode("cp1252")]
    with pytest.raises(DataError) as error:
        prepared_from(tmp_path, *texts)
    assert str(error.value).startswith(f"{b}: byte 6 (")
    assert MIXED.format("UTF-8", "cp1252", a, b) in str(error.value)
    with pytest.raises(DataError) as error:
        prepared_from(tmp_path, *texts, encoding="cp1252")
    assert str(error.value).startswith(f"{a}: byte ")
    assert MIXED.format("CP1252", "utf-8", b, b) in str(error.value)


def test_of_texts_in_utf16_the_plain_one_differs_too(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"it may be utf-16, but '.*0\.txt' is not, and .* convert '.*1\.txt' to UTF-8"):
        prepared_from(tmp_path, "plain", "anna".encode("utf-16"))


def test_where_they_do_not_differ_the_setting_is_advised(tmp_path: Path) -> None:
    texts = [word.encode("cp1252") for word in ("Le café était déjà fermé.\n", "naïve\n", "plain\n")]
    with pytest.raises(DataError, match=r"it may be cp1252: try data\.encoding=cp1252, or convert the file to UTF-8"):
        prepared_from(tmp_path, *texts)
