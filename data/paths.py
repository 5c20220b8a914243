"""Names of files, sizes and foreign messages as people read and write them, each within one line.

What the files hold is not looked at. Imports no torch.
"""

import os
import unicodedata
from pathlib import Path


def local_path(name: str) -> Path:
    """The path of a name from a recipe or the command line, in UTF-8 whatever the locale; `~` is the home folder."""
    path = Path(os.fsdecode(name.encode("utf-8", "surrogateescape")))
    try:
        return path.expanduser()
    except RuntimeError:  # the ~ of a user that there is not: then it is part of a name like any other
        return path


def path_name(path: Path) -> str:
    """The path as a name for a recipe or the command line, the inverse of `local_path`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def shown_path(path: Path) -> str:
    """The path as text for people."""
    return escaped(path_name(path))


def escaped(text: str) -> str:
    """The text with what would end a line or drive the terminal escaped."""
    return "".join(c if unicodedata.category(c) not in ("Cc", "Zl", "Zp") else repr(c)[1:-1] for c in text)


def one_line(message: object) -> str:
    """What another program has said, in one line."""
    return escaped(" ".join(str(message).split()))


def counted(number: int, singular: str, plural: str = "") -> str:
    """The number of things with their name: 1 file, 1,000 files."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def format_size(num_bytes: int) -> str:
    """The size for people, in the decimal units that `ls` and file managers show."""
    if num_bytes < 1000:
        return counted(num_bytes, "byte")
    size = float(num_bytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"
