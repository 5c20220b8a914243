"""Standard input as a file in the cache, so that it can be read several times, and found again on resume.

Imports no torch.
"""

import hashlib
import io
import os
import re
import sys
from pathlib import Path
from typing import cast

from data.durable import kept_file
from data.memory import is_out_of_memory
from data.paths import one_line
from errors import DataError
from terminal import tell

FOLDER = "stdin"  # of the cache

_CHUNK_BYTES = 1 << 18
_COPY = re.compile(r"[0-9a-f]{64}\.txt")
_ADVICE = "pipe a text into the command, or name a file instead of -"


def standard_input(setting: str) -> io.BufferedIOBase:
    """The bytes that are piped into the command or typed. `setting` asks for them. Raises `DataError` if closed."""
    if sys.stdin is None:
        raise DataError(f"{setting}: standard input is closed; {_ADVICE}")
    if sys.stdin.isatty():
        end = "Ctrl-Z and Enter" if os.name == "nt" else "Ctrl-D at the beginning of a line"
        tell(f"{setting}: reading the text from the terminal until {end}")
    return cast(io.BufferedIOBase, sys.stdin.buffer)


def keep(stream: io.BufferedIOBase, folder: Path, *, setting: str) -> Path:
    """The file in `folder` that holds all of the stream, named by its sha256: whole, or not there at all.

    Raises `DataError` where the stream is empty or cannot be read, and where the folder cannot be written.
    """
    digest = hashlib.sha256()
    with kept_file(folder, purpose="keep standard input in") as kept:
        while chunk := _read(stream, setting):
            digest.update(chunk)
            kept.file.write(chunk)
        if not kept.file.tell():
            raise DataError(f"{setting}: standard input is empty; {_ADVICE}")
        kept.name = f"{digest.hexdigest()}.txt"
    return kept.path


def is_copy(path: Path) -> bool:
    """Whether `keep` has given out such a path, as far as its name says."""
    return path.parent.name == FOLDER and _COPY.fullmatch(path.name) is not None


def _read(stream: io.BufferedIOBase, setting: str) -> bytes:
    try:
        return stream.read1(_CHUNK_BYTES)  # read would ask a terminal for a second Ctrl-D
    except (OSError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        reason = one_line(getattr(error, "strerror", None) or error)
        raise DataError(f"{setting}: cannot read standard input: {reason}; {_ADVICE}") from error
