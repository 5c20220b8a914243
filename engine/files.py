"""Files written whole or not at all, whatever ends the process that writes them. Which files is not decided here."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from data.durable import sync_folder, write_durably
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
            f"{shown_path(path)}: could not be written: {error.strerror or error}; "
            "what was there before is untouched; make room and try again"
        ) from error
    sync_folder(target.parent)


def refused(path: Path, error: OSError) -> CheckpointError:
    """The error of a disk that does not take what a run appends to a file."""
    return CheckpointError(f"{shown_path(path)}: could not be written: {error.strerror or error}; make room and resume")


def write_text(path: Path, text: str) -> None:
    """Replace a small text file atomically."""
    with replacing(path) as temporary:
        write_durably(temporary, text)
