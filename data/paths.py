"""Names of files and sizes as people read and write them. What the files hold is not looked at. Imports no torch."""

import os
from pathlib import Path


def local_path(name: str) -> Path:
    """The path of a name from a recipe or the command line, in UTF-8 whatever the locale; `~` is the home folder."""
    path = Path(os.fsdecode(name.encode("utf-8", "surrogateescape")))
    try:
        return path.expanduser()
    except RuntimeError:  # the ~ of a user that there is not: then it is part of a name like any other
        return path


def shown_path(path: Path) -> str:
    """The path as text for people, the inverse of `local_path`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def format_size(num_bytes: int) -> str:
    """The size for people, in the decimal units that `ls` and file managers show."""
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    size = float(num_bytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"
