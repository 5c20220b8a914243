"""Where a command's result goes: a file that somebody named, and never one that is needed. No torch here."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from data.paths import local_path, shown_path
from engine.files import write_text
from engine.run_folder import RUN_PARTS, RunFolder
from errors import UserError


def output_path(name: str | None, option: str, *, inputs: Mapping[str, str | None]) -> Path | None:
    """Where a command writes what the `option` names; None for standard output, which is also -.

    Raises `UserError` for what cannot be written to, is part of a run, or is one of the command's own `inputs`, which
    stand under their options.
    """
    if name is None or name == "-":  # as - is standard input elsewhere
        return None
    path = local_path(name)
    where = f"{option} {shown_path(path)}"
    check_unused(path, option, inputs=inputs)
    try:
        folder = path.resolve().parent if path.is_symlink() else path.parent
        if not folder.is_dir():
            raise UserError(f"{where}: there is no folder {shown_path(folder)}; make it first")
        if path.is_dir():
            raise UserError(f"{where}: this is a folder; name a file in it")
    except OSError as error:
        raise UserError(f"{where}: {error.strerror or error}; name another file") from error
    return path


def check_unused(path: Path, option: str, *, inputs: Mapping[str, str | None]) -> None:
    """Raise `UserError` for a place that cannot be, is part of a run, or is one of the command's own inputs."""
    where = f"{option} {shown_path(path)}"
    try:
        target = path.resolve()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            target.lstat()
        for input_option, given in inputs.items():
            if given not in (None, "-") and target == local_path(given).resolve():
                raise UserError(f"{where}: this is the {input_option}; name another place")
    except (OSError, ValueError, RuntimeError) as error:  # a name that is too long, or holds a NUL; a loop of links
        raise UserError(f"{where}: {getattr(error, 'strerror', None) or error}; name another place") from error
    run = run_of(target)
    if run is not None:
        raise UserError(f"{where}: this belongs to the run {shown_path(run)}; name another place")


def run_of(path: Path) -> Path | None:
    """The run folder that a file is a part of, or would be; None where it is in none."""
    for folder in path.parents:
        if path.relative_to(folder).parts[0] in RUN_PARTS and RunFolder(folder).config_file.is_file():
            return folder
    return None


def write_output(path: Path, text: str) -> None:
    """Write a command's result to a file, whole or not at all; through a link, or to a device, as it is.

    Raises `UserError` where that is refused.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        try:
            with path.open("w", encoding="utf-8", newline="") as file:
                file.write(text)
        except OSError as error:
            raise UserError(
                f"{shown_path(path)}: could not be written: {error.strerror or error}; name another file"
            ) from error
    else:
        write_text(path, text)
