"""Files that are whole and on the disk, or not there at all."""

import os
from pathlib import Path

import pytest

from data.durable import cache_errors, kept_file, sync_folder, write_durably
from errors import DataError


def test_a_file_is_there_under_its_name_when_the_block_has_ended_and_not_before(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "downloads"
    with kept_file(folder, "text.txt", purpose="keep a text in") as kept:
        kept.file.write(b"some text")
        assert not kept.path.exists()
    assert kept.path == folder / "text.txt"
    assert kept.path.read_bytes() == b"some text"
    assert list(folder.iterdir()) == [kept.path]


def test_the_name_may_be_found_while_writing_and_what_has_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "sum.txt").write_bytes(b"old")
    with kept_file(tmp_path, purpose="keep a text in") as kept:
        kept.file.write(b"new")
        kept.name = "sum.txt"
    assert kept.path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [tmp_path / "sum.txt"]


@pytest.mark.parametrize("exception", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_fails_half_way_leaves_nothing_but_what_was_there(tmp_path: Path, exception: type[BaseException]) -> None:
    (tmp_path / "text.txt").write_bytes(b"old")
    with pytest.raises(exception), kept_file(tmp_path, "text.txt", purpose="keep a text in") as kept:  # noqa: PT012
        kept.file.write(b"half")
        raise exception
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("text.txt", b"old")]


def test_what_the_file_system_refuses_is_one_line_with_the_folder_and_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    folder = tmp_path / "file" / "naïve"
    reason = rf"^data\.cache_dir: cannot keep a text in '{folder}': Not a directory; make room there, or name another"
    with pytest.raises(DataError, match=reason), kept_file(folder, "name", purpose="keep a text in"):
        pass
    with pytest.raises(DataError, match=reason), cache_errors(folder, "keep a text in"):
        folder.mkdir()


@pytest.mark.skipif(os.name != "posix", reason="elsewhere names are no bytes")
def test_a_folder_whose_name_is_not_utf8_can_be_named(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.write_bytes(b"in the way")
    with pytest.raises(DataError, match=r"caf\\\\xe9': File exists") as error, kept_file(folder, purpose="use"):
        pass
    str(error.value).encode("utf-8")


def test_a_text_is_written_as_it_is(tmp_path: Path) -> None:
    write_durably(tmp_path / "text", "a\r\nb\n–")
    assert (tmp_path / "text").read_bytes() == "a\r\nb\n–".encode()


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path: Path) -> None:
    """The rename before it has succeeded. Here the folder is missing; some file systems refuse every one."""
    sync_folder(tmp_path / "nowhere")
