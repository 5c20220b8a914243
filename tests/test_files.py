"""Files that are written whole or not at all."""

import pytest

from engine.files import replacing, write_text
from errors import CheckpointError


def one_line(error: pytest.ExceptionInfo[BaseException]) -> bool:
    return len(str(error.value).splitlines()) == 1


def test_a_file_is_replaced_only_when_the_block_ends_well(tmp_path):
    path = tmp_path / "file"
    path.write_text("old", encoding="utf-8")
    for exception in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(exception), replacing(path) as temporary:  # noqa: PT012
            temporary.write_text("half", encoding="utf-8")
            assert path.read_text(encoding="utf-8") == "old"
            raise exception
        assert [(p.name, p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()] == [("file", "old")]
    write_text(path, "new\r\n–")
    assert path.read_bytes() == "new\r\n–".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_what_the_disk_refuses_is_one_line_and_leaves_the_old_file(tmp_path):
    (tmp_path / "file").write_text("old", encoding="utf-8")
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    targets = [tmp_path / "file" / "below", tmp_path / "nowhere" / "file", tmp_path / "folder", tmp_path / ("x" * 255)]
    for path in targets:
        with pytest.raises(CheckpointError, match=r"could not be written: .+; what was there before") as error:
            write_text(path, "new")
        assert one_line(error)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_link_stays_a_link_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real", tmp_path / "link"
    real.write_text("old", encoding="utf-8")
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text(encoding="utf-8") == "new"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(CheckpointError, match="loop/file: could not be written"):
        write_text(loop / "file", "new")
