"""The files in a folder, and those that a pattern matches: in an order that is the same everywhere.

Only names and kinds of files are looked at; what the files hold is not this file's concern. Imports no torch.
"""

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from pathlib import Path

_MAX_NAMED = 3
_ANY_DEPTH = "**"
_MARKS_OF_A_RUN = {"config.yaml", "checkpoints"}
Identity = tuple[int, int] | str


class Skip(Enum):
    """Why something is left out, as it is called alone and with others of its kind."""

    BINARY = ("binary file", "binary files")
    EMPTY = ("empty file", "empty files")
    REPEATED = ("file that is named twice", "files that are named twice")
    BROKEN = ("broken link", "broken links")
    LINKED = ("link to a folder", "links to folders")
    SPECIAL = ("special file", "special files")
    RUN = ("folder of a run", "folders of runs")
    CACHE = ("folder that is data.cache_dir", "folders that are data.cache_dir")


@dataclass
class Skipped:
    """What has been left out, to be told in one line for each reason."""

    names: dict[Skip, dict[str, None]] = field(default_factory=dict)

    def add(self, why: Skip, name: str) -> None:
        """Note one, once."""
        self.names.setdefault(why, {})[name] = None

    def tell(self, report: Callable[[str], None], where: str) -> None:
        """Report how many there are of each kind, and name some."""
        for why, names in self.names.items():
            named = ", ".join(islice(names, _MAX_NAMED)) + (", …" if len(names) > _MAX_NAMED else "")
            report(f"{where}: skipped {len(names):,} {why.value[len(names) > 1]}: {named}")


@dataclass(frozen=True)
class Search:
    """A walk through folders. Hidden files and folders are not seen; folders behind links are not entered.

    Nor is the cache, nor a folder of a run, so that nobody trains on what training has written.
    All methods raise `OSError` for a folder that cannot be listed.
    """

    cache: Path
    show: Callable[[Path], str]  # a path as text for people
    skipped: Skipped

    def files_below(self, folder: Path) -> list[Path]:
        """The files in the folder and in all folders in it, sorted."""
        folders = self._folders_below(folder)
        return _sorted(
            path for inner in folders for path in _listed(inner) if not path.is_dir() and self._is_file(path)
        )

    def matches(self, pattern: Path) -> list[Path]:
        """The files that the pattern matches, and those below the folders that it matches, sorted.

        A part of the pattern that exists as it is written is no pattern. `**` is any number of folders.
        """
        parts = pattern.parts[bool(pattern.anchor) :]
        found = [Path(pattern.anchor)]
        for number, part in enumerate(parts, start=1):
            if part != _ANY_DEPTH:
                found = [path for base in found for path in self._matching(base, part)]
            elif number < len(parts):  # as the last part it adds nothing: a folder is walked through anyway
                found = [path for base in found if base.is_dir() for path in self._folders_below(base)]
            found = list(dict.fromkeys(found))
        files: dict[Path, None] = {}
        for path in found:
            files |= dict.fromkeys(self.files_below(path) if path.is_dir() else [path] if self._is_file(path) else [])
        return _sorted(files)

    def excluded(self, folder: Path) -> Skip | None:
        """Why this folder is not for training, if it is not."""
        if {path.name for path in folder.iterdir()} >= _MARKS_OF_A_RUN and (folder / "checkpoints").is_dir():
            return Skip.RUN
        if self.cache.is_dir() and self.cache.samefile(folder):
            return Skip.CACHE
        return None

    def _folders_below(self, folder: Path) -> list[Path]:
        """The folder and all in it that may be entered, none twice: junctions and mounts may lead in a circle."""
        found, left, seen = [], [folder], set()
        while left:
            inner = left.pop()
            if identity(inner) not in seen:
                seen.add(identity(inner))
                found.append(inner)
                left += [path for path in _listed(inner) if path.is_dir() and self._may_enter(path)]
        return found

    def _matching(self, base: Path, part: str) -> list[Path]:
        if not has_pattern(part) or os.path.lexists(base / part):
            return [base / part] if os.path.lexists(base / part) else []
        if not base.is_dir():
            return []
        names = re.compile(fnmatch.translate(os.path.normcase(part)))
        listed = _listed(base, and_hidden=part.startswith("."))
        found = [path for path in listed if names.match(os.path.normcase(path.name))]
        return [path for path in found if not path.is_dir() or self._may_enter(path)]

    def _may_enter(self, folder: Path) -> bool:
        why = Skip.LINKED if folder.is_symlink() else self.excluded(folder)
        if why is not None:
            self.skipped.add(why, self.show(folder))
        return why is None

    def _is_file(self, path: Path) -> bool:
        try:
            mode = path.stat().st_mode
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):  # ELOOP: links that lead to each other
                raise
            mode = None
        if mode is None or not stat.S_ISREG(mode):
            self.skipped.add(Skip.BROKEN if mode is None else Skip.SPECIAL, self.show(path))
            return False
        return True


def has_pattern(name: str) -> bool:
    """Whether a name has characters that make it a pattern."""
    return any(character in name for character in "*?[")


def identity(path: Path) -> Identity:
    """What is equal for two names of one file or folder, and for nothing else. Raises `OSError`."""
    status = path.stat()
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.normcase(os.path.realpath(path))


def _listed(folder: Path, *, and_hidden: bool = False) -> list[Path]:
    return [path for path in folder.iterdir() if and_hidden or not path.name.startswith(".")]


def _sorted(paths: Iterable[Path]) -> list[Path]:
    """By their parts as bytes: the separator, the locale and the system's own order do not matter."""
    return sorted(paths, key=lambda path: [os.fsencode(part) for part in path.parts])
