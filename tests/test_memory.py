"""A memory that is used up is one line, in real processes with a limit."""

import errno
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data.memory import MemoryBoundary, check_available
from errors import DataError

ROOT = Path(__file__).parents[1]
LINE = "the memory was used up while the text was prepared; close other programs or raise the limit"


class PanicException(BaseException):
    """Stands for the one of pyo3, which is made anew for every library."""


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
def test_who_noticed_it_does_not_matter(error: Exception) -> None:
    with pytest.raises(DataError, match=LINE), MemoryBoundary():
        raise error


def test_of_numpy_and_of_the_system_too() -> None:
    with pytest.raises(DataError, match=LINE), MemoryBoundary():
        np.zeros(1 << 60, dtype=np.uint8)
    with pytest.raises(DataError, match=LINE), MemoryBoundary():
        check_available(1 << 60)
    check_available(1 << 20)


def test_a_panic_of_a_library_is_one_line_with_its_reason() -> None:
    reason = r"gave up .* \(no thread: EAGAIN\), as one does that gets no memory"
    with pytest.raises(DataError, match=reason), MemoryBoundary():
        raise PanicException("no thread:\n  EAGAIN")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), ValueError("x"), OSError(errno.EIO, "x")])
def test_all_else_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as found, MemoryBoundary():
        raise error
    assert found.value is error


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the address space, and to know what is in use")
@pytest.mark.parametrize(
    ("spare_megabytes", "settings"), [(24, ["data.documents=line"]), (24, []), (100, ["data.tokenizer=bpe"])]
)
def test_under_a_limit_preparing_ends_with_one_line(tmp_path: Path, spare_megabytes: int, settings: list[str]) -> None:
    text = tmp_path / "a.txt"
    text.write_text("the quick brown fox " * 1_000_000, encoding="utf-8")
    program = (
        "import resource; from pathlib import Path; from errors import run_command; from data.prepare import main\n"
        "import tiktoken, rustbpe\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (used + {spare_megabytes} * 2**20,) * 2)\n"
        "run_command(main)"
    )
    command = [sys.executable, "-c", program, f"data.source={text}", f"data.cache_dir={tmp_path / 'cache'}", *settings]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: {LINE}"), done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in (tmp_path / "cache").glob("*")] == []
