"""Who trains in a run folder: one process at a time.

The lock is the operating system's, on a file that stays where it is: it ends with its process, however that ends, and
a file without a process means nothing. What stands in the file is for people only.
"""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from filelock import lock_descriptor

from data.paths import shown_path
from errors import CheckpointError

LOCK_NAME = ".lock"
# A killed process holds its lock until the system has taken its memory back; then it is resumed without a complaint.
WAIT_SECONDS = 2.0
POLL_SECONDS = 0.05
FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class RunLock:
    """Within this context, the run folder that is taken belongs to this process. `say` hears where none can be."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.handle: int | None = None

    def __enter__(self) -> "RunLock":
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.close)  # else a child would hold it when this process is killed
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def take(self, folder: Path) -> None:
        """Make `folder` ours. Raises `CheckpointError` where another process trains in it, and touches nothing."""
        assert self.handle is None, "one run at a time"
        try:
            self.handle = os.open(folder / LOCK_NAME, FLAGS | os.O_CREAT, 0o666)
            is_ours = acquire(self.handle)
        except OSError as error:
            self.close()
            self.say(
                f"warning  {shown_path(folder)} cannot be locked ({error.strerror or error}): "
                "see to it that no other process trains in it"
            )
            return
        if not is_ours:
            self.close()
            raise is_taken(folder)
        note_holder(self.handle)

    def close(self) -> None:
        """Let go of the folder, or, in a forked child, of its parent's handle, which locks it further on."""
        handle, self.handle = self.handle, None
        if handle is not None:
            os.close(handle)


def check_free(folder: Path) -> None:
    """Raise the error of `RunLock.take` where another process trains in a folder, before any work is done."""
    try:
        handle = os.open(folder / LOCK_NAME, FLAGS)
    except OSError:  # never trained in, or not to be locked, which `take` says
        return
    try:
        is_free = acquire(handle)
    except OSError:
        return
    finally:
        os.close(handle)
    if not is_free:
        raise is_taken(folder)


def acquire(handle: int) -> bool:
    """Lock an open file, and give whether that succeeded in a short while."""
    end = time.monotonic() + WAIT_SECONDS
    while not lock_descriptor(handle, blocking=False):
        if time.monotonic() > end:
            return False
        time.sleep(POLL_SECONDS)
    return True


def note_holder(handle: int) -> None:
    """Write who we are. The first byte stays blank: on Windows nobody else can read what is locked, which is that."""
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f" process {os.getpid()} on {socket.gethostname()}\n".encode())
    except OSError:  # a full disk: it is locked all the same
        return


def is_taken(folder: Path) -> CheckpointError:
    """The error that names who trains in a folder."""
    try:
        with (folder / LOCK_NAME).open("rb") as file:
            file.seek(1)
            holder = file.read(300).decode("utf-8", "replace").strip()
    except OSError:
        holder = ""
    return CheckpointError(
        f"{shown_path(folder)}: {holder or 'another process'} is training in this folder; "
        "wait until it has finished or stop it, or start a run of another name="
    )
