"""Where results go, and where they never go."""

import os
from pathlib import Path

import pytest
from run_folders import make_run

from engine.output import output_path, run_of, write_output
from errors import UserError


def refused(name: str, **inputs: str | None) -> str:
    with pytest.raises(UserError) as error:
        output_path(name, "--out", inputs=inputs)
    return str(error.value)


def test_standard_output_is_nowhere_else(tmp_path: Path) -> None:
    assert output_path(None, "--out", inputs={}) is None
    assert output_path("-", "--out", inputs={"--text-file": "-"}) is None
    assert output_path(str(tmp_path / "a.txt"), "--out", inputs={"RUN": None}) == tmp_path / "a.txt"


def test_what_a_command_reads_it_does_not_write_to(tmp_path: Path) -> None:
    read = tmp_path / "read.txt"
    read.write_bytes(b"")
    (tmp_path / "link").symlink_to(read)
    for name in (read, tmp_path / "link", tmp_path / "." / "read.txt"):
        assert refused(str(name), **{"--text-file": str(read)}).endswith(
            ": this is the --text-file; name another place"
        )


@pytest.mark.parametrize("part", ["checkpoints/step_00000001.pt", "config.yaml", "tokenizer.json", "wandb/new.txt"])
def test_nothing_in_a_run_is_written_over(tmp_path: Path, part: str) -> None:
    run = make_run(tmp_path / "runs", steps=(1,))
    (run.path / "wandb").mkdir()
    assert refused(str(run.path / part)).endswith(f": this belongs to the run {run.path}; name another place")
    (tmp_path / "link").symlink_to(run.path / part)
    assert "belongs to the run" in refused(str(tmp_path / "link"))


def test_a_file_of_ones_own_in_a_run_folder_is_allowed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    assert output_path(str(run.path / "page.html"), "--out", inputs={}) == run.path / "page.html"
    assert run_of(tmp_path / "checkpoints" / "a.pt") is None


def test_a_place_that_cannot_be_is_said_in_one_line(tmp_path: Path) -> None:
    assert refused("x" * 300).endswith("File name too long; name another place")
    assert "name another place" in refused("a\x00b")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert refused(str(tmp_path / "a")).endswith("; name another place")
    (tmp_path / "dangling").symlink_to(tmp_path / "none" / "x")
    assert f"there is no folder {tmp_path / 'none'}; make it first" in refused(str(tmp_path / "dangling"))
    assert "this is a folder; name a file in it" in refused("")
    assert "this is a folder" in refused(str(tmp_path))


def test_a_link_stays_one_and_a_device_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write_output(tmp_path / "link", "né\n")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == "né\n".encode()
    write_output(Path(os.devnull), "x")
    if Path("/dev/full").exists():
        with pytest.raises(UserError, match=r"^/dev/full: could not be written: .*; name another file$"):
            write_output(Path("/dev/full"), "x")
