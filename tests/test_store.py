import hashlib
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from data.store import (
    FORMAT,
    METADATA_FILE,
    TOKENIZER_FILE,
    TOKENS_FILE,
    DamagedFolderError,
    Metadata,
    TextFacts,
    install,
    load_folder,
    new_folder,
    note_same,
    same_folder,
    write_facts,
)
from data.tokenizer import CharTokenizer

TOKENIZER = CharTokenizer("abc")
TOKENS = TOKENIZER.encode("abcabc").tobytes()
METADATA = Metadata(
    format=FORMAT,
    folder="done",
    text=TextFacts(num_documents=1, num_chars=6, num_bytes=6),
    val_text=None,
    num_tokens=6,
    train_tokens=None,
    start_id=0,
    tokens_sha256=hashlib.sha256(TOKENS).hexdigest(),
    tokenizer_fingerprint=TOKENIZER.fingerprint,
)


def fill(folder: Path, tokens: bytes = TOKENS, metadata: Metadata = METADATA) -> None:
    (folder / TOKENS_FILE).write_bytes(tokens)
    write_facts(folder, metadata, tokenizer=TOKENIZER)


def write(cache: Path) -> Path:
    with new_folder(cache) as made:
        fill(made)
        install(made, cache / "done")
    return cache / "done"


def test_a_folder_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder = write(tmp_path / "cache")
    facts = load_folder(folder)
    assert facts is not None
    assert facts[0] == METADATA
    assert facts[1].fingerprint == TOKENIZER.fingerprint
    assert list(folder.parent.iterdir()) == [folder]


def test_a_folder_that_is_not_there_is_none_and_no_error(tmp_path: Path) -> None:
    assert load_folder(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (TOKENS_FILE, TOKENS[:-1]),
        (TOKENS_FILE, TOKENS + b"\0"),
        (TOKENS_FILE, b"\xff" + TOKENS[1:]),
        (TOKENS_FILE, TOKENS[::-1]),
        (TOKENS_FILE, None),
        (METADATA_FILE, b"{"),
        (METADATA_FILE, b"{}"),
        (METADATA_FILE, b"\xff"),
        (METADATA_FILE, METADATA.model_copy(update={"num_tokens": 5}).model_dump_json().encode()),
        (METADATA_FILE, METADATA.model_copy(update={"train_tokens": 7}).model_dump_json().encode()),
        (METADATA_FILE, METADATA.model_copy(update={"start_id": 4}).model_dump_json().encode()),
        (METADATA_FILE, METADATA.model_copy(update={"format": FORMAT + 1}).model_dump_json().encode()),
        (METADATA_FILE, None),
        (TOKENIZER_FILE, CharTokenizer("abd").to_json().encode()),
        (TOKENIZER_FILE, b"[]"),
        (TOKENIZER_FILE, None),
    ],
)
def test_every_damage_is_recognised(tmp_path: Path, name: str, content: bytes | None) -> None:
    folder = write(tmp_path)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(DamagedFolderError) as error:
        load_folder(folder)
    assert "\n" not in str(error.value)
    assert "pydantic" not in str(error.value)
    assert name in str(error.value) or content not in (None, b"{", b"{}", b"\xff", b"[]")


def test_a_copy_of_another_folder_is_not_taken_for_the_one_that_was_asked_for(tmp_path: Path) -> None:
    folder = write(tmp_path)
    shutil.copytree(folder, tmp_path / "other")
    with pytest.raises(DamagedFolderError, match=r"^they are those of another text, or of other settings$"):
        load_folder(tmp_path / "other")


def test_an_id_beyond_the_vocabulary_is_recognised_whatever_the_sum_says(tmp_path: Path) -> None:
    folder = write(tmp_path)
    foreign = TOKENS[:-1] + b"\x04"
    fill(folder, foreign, METADATA.model_copy(update={"tokens_sha256": hashlib.sha256(foreign).hexdigest()}))
    with pytest.raises(DamagedFolderError, match="an id of 4, beyond the vocabulary"):
        load_folder(folder)


def test_what_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path) as made:  # noqa: PT012
        (made / TOKENS_FILE).write_bytes(TOKENS)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_an_intact_folder_of_another_process_is_kept(tmp_path: Path) -> None:
    folder = write(tmp_path)
    inode = (folder / TOKENS_FILE).stat().st_ino
    assert write(tmp_path) == folder
    assert (folder / TOKENS_FILE).stat().st_ino == inode
    assert list(tmp_path.iterdir()) == [folder]


def test_a_damaged_folder_in_the_way_is_replaced(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / TOKENS_FILE).write_bytes(b"")
    write(tmp_path)
    assert load_folder(folder) is not None
    assert list(tmp_path.iterdir()) == [folder]


def test_what_killed_processes_left_is_removed_after_a_day(tmp_path: Path) -> None:
    old, recent = tmp_path / ".part-old", tmp_path / ".part-recent"
    for left in (old, recent):
        left.mkdir()
        (left / TOKENS_FILE).write_bytes(np.zeros(4, dtype=np.uint8).tobytes())
    download = tmp_path / "downloads" / ".part-old"
    download.parent.mkdir()
    download.write_bytes(b"half of it")
    two_days_ago = time.time() - 48 * 3600
    for left in (old, download):
        os.utime(left, (two_days_ago, two_days_ago))
    write(tmp_path)
    assert not old.exists()
    assert not download.exists()
    assert recent.exists()


def test_a_name_may_stand_for_another_folder(tmp_path: Path) -> None:
    folder, other = tmp_path / "char-1", tmp_path / "char-2"
    assert same_folder(folder) == folder
    note_same(folder, other)
    assert same_folder(folder) == other
    assert same_folder(other) == other


@pytest.mark.parametrize("content", [b"", b"../c", b"..", b"\xff", b"a" * 101, b"a\n", b"char-2"])
def test_what_is_no_name_of_a_folder_stands_for_none(tmp_path: Path, content: bytes) -> None:
    note_same(tmp_path / "char-1", tmp_path / "char-2")
    (note,) = tmp_path.iterdir()
    for text in (content, b"char-1 " + content if content != b"char-2" else b"char-3 char-2"):
        note.write_bytes(text)
        assert same_folder(tmp_path / "char-1") == tmp_path / "char-1"
