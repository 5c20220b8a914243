"""The lock of a run folder: one holder, who is named, and nothing left of it when its process is gone."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import pytest

from engine import lock
from engine.lock import LOCK_NAME, RunLock, check_free
from errors import CheckpointError

ROOT = Path(__file__).resolve().parents[1]
HOLD = """
import os, subprocess, sys, time
from pathlib import Path
from engine.lock import RunLock
with RunLock(print) as lock:
    lock.take(Path(sys.argv[1]))
    child = None
    if "fork" in sys.argv and (child := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    if "spawn" in sys.argv:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid
    print(child or os.getpid(), flush=True)
    sys.stdin.read()
"""
Hold = Callable[..., tuple[subprocess.Popen[bytes], int]]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Lets a process hold the lock; gives it, and the number that it prints."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> tuple[subprocess.Popen[bytes], int]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, tmp_path, *words], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def take(folder: Path) -> list[str]:
    """Take the lock and let it go; what was said."""
    said: list[str] = []
    with RunLock(said.append) as ours:
        ours.take(folder)
    return said


def test_a_second_process_is_told_who_holds_it_and_touches_nothing(tmp_path: Path, hold: Hold) -> None:
    process, _ = hold()
    before = (tmp_path / LOCK_NAME).read_bytes()
    for second in (take, check_free):
        with pytest.raises(CheckpointError) as error:
            second(tmp_path)
        assert str(error.value) == (
            f"{tmp_path}: process {process.pid} on {socket.gethostname()} is training in this folder; "
            "wait until it has finished or stop it, or start a run of another name="
        )
    assert (tmp_path / LOCK_NAME).read_bytes() == before
    assert process.poll() is None


def test_it_is_free_again_when_it_was_let_go(tmp_path: Path) -> None:
    for _ in range(2):
        check_free(tmp_path)
        assert take(tmp_path) == []
    assert str(os.getpid()) in (tmp_path / LOCK_NAME).read_text(encoding="utf-8")


def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    check_free(tmp_path)
    check_free(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("child", [(), ("spawn",), ("fork",)], ids=["alone", "spawn", "fork"])
def test_a_killed_process_holds_nothing_even_where_its_children_live_on(
    tmp_path: Path, hold: Hold, child: tuple[str, ...]
) -> None:
    process, number = hold(*child)
    try:
        with pytest.raises(CheckpointError, match=f"process {process.pid} on"):
            take(tmp_path)
        process.kill()
        assert take(tmp_path) == [], "without a pause: a process that is being killed is waited for"
        if child:
            os.kill(number, 0)  # it does live on
    finally:
        if child:
            os.kill(number, signal.SIGKILL)


def test_a_holder_that_goes_in_a_moment_is_waited_for(tmp_path: Path, hold: Hold) -> None:
    process, _ = hold()
    assert process.stdin is not None
    process.stdin.close()
    start = time.monotonic()
    assert take(tmp_path) == []
    assert time.monotonic() - start < lock.WAIT_SECONDS


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_nothing_can_be_locked_that_is_said_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(handle: int, *, blocking: bool) -> bool:
        raise OSError(number, os.strerror(number))

    assert lock.lock_descriptor is filelock.lock_descriptor
    monkeypatch.setattr(lock, "lock_descriptor", refuse)  # what such a file system makes of it
    (said,) = take(tmp_path)
    assert said.startswith(f"warning  {tmp_path} cannot be locked ({os.strerror(number)}): see to it that no other")
    check_free(tmp_path)


def test_a_lock_file_that_cannot_be_opened_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).mkdir()
    (said,) = take(tmp_path)
    assert "cannot be locked (Is a directory)" in said


def test_a_link_in_its_place_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text", encoding="utf-8")
    (tmp_path / LOCK_NAME).symlink_to(tmp_path / "precious")
    assert len(take(tmp_path)) == 1
    assert (tmp_path / "precious").read_text(encoding="utf-8") == "text"


def test_a_holder_that_wrote_nothing_is_another_process(tmp_path: Path, hold: Hold) -> None:
    hold()
    (tmp_path / LOCK_NAME).write_bytes(b"")
    with pytest.raises(CheckpointError, match=": another process is training in this folder"):
        check_free(tmp_path)
