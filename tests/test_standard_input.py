import hashlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.standard_input import keep
from errors import DataError

PROGRAM = (
    "import sys; from pathlib import Path; from errors import command_boundary\n"
    "with command_boundary() as arguments:\n"
    "    from data.standard_input import keep, standard_input\n"
    "    print(keep(standard_input('data.source'), Path(arguments[0]), setting='data.source'))"
)


def run(folder: Path, *, stdin: int | None = None, content: bytes | None = None, close: bool = False):
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    if close:
        command = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    return subprocess.run(
        command,
        cwd=Path(__file__).parent.parent,
        stdin=stdin,
        input=content,
        capture_output=True,
        check=False,
        timeout=60,  # seconds; it must not wait for more than it gets
    )


def test_what_is_piped_is_kept_under_its_sum(tmp_path: Path) -> None:
    content = "naïve — 你好 🙂\r\n".encode() * 50_000 + b"\xff\0"
    result = run(tmp_path / "cache" / "stdin", content=content)
    path = tmp_path / "cache" / "stdin" / f"{hashlib.sha256(content).hexdigest()}.txt"
    assert (result.stdout.decode().strip(), result.stderr) == (str(path), b"")
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_the_same_text_again_is_the_same_file(tmp_path: Path) -> None:
    first, second = (keep(io.BytesIO(b"text"), tmp_path, setting="data.source") for _ in range(2))
    assert first == second
    assert list(tmp_path.iterdir()) == [first]


def test_an_empty_pipe_is_an_error_and_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.val_source: standard input is empty; pipe a text into the command"):
        keep(io.BytesIO(), tmp_path, setting="data.val_source")
    assert list(tmp_path.iterdir()) == []


class Broken(io.BufferedIOBase):
    """Gives some bytes, then fails as a disk or a user does."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.left = [b"text"]

    def read1(self, size: int = -1) -> bytes:
        if self.left:
            return self.left.pop()
        raise self.error


def test_a_pipe_that_fails_is_one_line_and_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read standard input: Input/output error"):
        keep(Broken(OSError(5, "Input/output error")), tmp_path, setting="data.source")
    with pytest.raises(KeyboardInterrupt):
        keep(Broken(KeyboardInterrupt()), tmp_path, setting="data.source")
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(DataError, match=r"data\.cache_dir: cannot keep standard input"):
        keep(io.BytesIO(b"text"), tmp_path / "file" / "stdin", setting="data.source")


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
def test_closed_standard_input_is_an_error(tmp_path: Path) -> None:
    result = run(tmp_path, close=True)
    assert result.returncode == 2
    assert b"error: data.source: standard input is closed; pipe a text" in result.stderr


def test_standard_input_that_is_only_written_to_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        result = run(tmp_path / "cache", stdin=file.fileno())
    assert result.returncode == 2
    assert result.stderr.startswith(b"error: data.source: cannot read standard input: ")
    assert result.stderr.count(b"\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="needs pseudo-terminals")
def test_from_a_terminal_it_says_how_to_end_the_text(tmp_path: Path) -> None:
    main, terminal = os.openpty()
    try:
        os.write(main, b"typed\n\x04")
        result = run(tmp_path, stdin=terminal)
    finally:
        os.close(main)
        os.close(terminal)
    assert b"reading the text from the terminal until Ctrl-D" in result.stderr
    assert Path(result.stdout.decode().strip()).read_bytes() == b"typed\n"
