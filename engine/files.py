"""Files written whole or not at all, whatever ends the process that writes them. Which files is not decided here."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from data.durable import sync_folder, write_durably
from data.paths import local_path, shown_path
from errors import CheckpointError, UserError

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


def output_path(name: str | None, option: str, *, inputs: Mapping[str, str | None]) -> Path | None:
    """Where a command writes what the `option` names; None for standard output, which is also -.

    Raises `UserError` for what cannot be written to, or is one of the command's own `inputs`, by their options.
    """
    if name is None or name == "-":  # as - is standard input elsewhere
        return None
    path = local_path(name)
    for input_option, given in inputs.items():
        if given not in (None, "-") and path.resolve() == local_path(given).resolve():
            raise UserError(f"{option} {path}: this is the {input_option}; name another file")
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise UserError(f"{option} {path}: this is a folder; name a file in it")
    return path


def write_output(path: Path, text: str) -> None:
    """Write a command's result to a file, whole or not at all; through a link, or to a device, as it is."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
    else:
        write_text(path, text)
