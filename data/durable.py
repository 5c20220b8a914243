"""Files that are whole and on the disk for good, or not there at all; those of the cache under the name of its setting.

What is in them, and where they belong, is not decided here. Imports no torch.
"""

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from data.memory import is_out_of_memory
from data.paths import one_line, shown_path
from errors import DataError

PART = ".part-"  # how the names of half-made files and folders of the cache begin


@dataclass
class KeptFile:
    """A file in the making. It is kept under `name`, which has to be known when it is complete."""

    file: IO[bytes]
    folder: Path
    name: str

    @property
    def path(self) -> Path:
        """Where the file is, once the block of `kept_file` has ended well."""
        return self.folder / self.name


@contextlib.contextmanager
def kept_file(folder: Path, name: str = "", *, purpose: str) -> Iterator[KeptFile]:
    """A new file, renamed to `folder / name` when the block ends well, and gone otherwise.

    Raises `DataError` where the disk refuses; `purpose` says what for, such as "keep the text in".
    """
    with cache_errors(folder, purpose):
        folder.mkdir(parents=True, exist_ok=True)
        part = part_path(folder)
        try:
            with part.open("xb") as file:
                kept = KeptFile(file, folder, name)
                yield kept
                _sync(file)
            part.replace(kept.path)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
        sync_folder(folder)


@contextlib.contextmanager
def cache_errors(folder: Path, purpose: str) -> Iterator[None]:
    """Turn what the file system refuses inside into a `DataError` that names the cache and the setting."""
    try:
        yield
    except OSError as error:
        if is_out_of_memory(error):
            raise
        raise DataError(
            f"data.cache_dir: cannot {purpose} {shown_path(folder)!r}: {one_line(error.strerror or error)}; "
            "make room there, or name another folder with data.cache_dir"
        ) from error


def part_path(folder: Path) -> Path:
    """A new name in the folder, for what is not whole yet: nobody looks it up, and it is removed some day."""
    return folder / f"{PART}{uuid.uuid4().hex}"


def write_durably(path: Path, text: str) -> None:
    """Write a text file, in UTF-8 and with line ends as they are, down to the disk. Raises `OSError`."""
    with path.open("wb") as file:
        file.write(text.encode("utf-8"))
        _sync(file)


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


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
