"""Files written whole or not at all, whatever ends the process that writes them. Which files is not decided here."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from data.paths import shown_path
from errors import CheckpointError

TEMPORARY_NAME = re.compile(r"\.(?P<target>.*)\.[0-9]+\.tmp")  # what a killed process leaves behind


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes otherwise.

    Raises `CheckpointError` where the disk refuses; what stood at `path` is then still there. A link stays one.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            yield temporary
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{shown_path(path)}: could not be written: {error.strerror or error}; what was there before is untouched"
        ) from error
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the system lets folders be synced."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):  # some file systems do not; the rename itself has succeeded
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Replace a small text file atomically."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
