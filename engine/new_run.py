"""The folder of a new run: made, or cleared of an older run where that was asked for, and of nothing else.

No torch here: a name that is taken is reported at once.
"""

import os
import shutil
from pathlib import Path

from data.paths import shown_path
from engine.files import TEMPORARY_NAME
from engine.lock import LOCK_NAME, RunLock, check_free
from engine.run_folder import CHECKPOINT_NAME, RUN_PARTS, SET_ASIDE_NAME, RunFolder
from errors import ConfigError


def create_run(runs_dir: Path, name: str | None, stem: str, *, overwrite: bool, lock: RunLock) -> RunFolder:
    """A new, empty run folder that is ours: `name`, or the first free one of `stem`, `stem-2`, `stem-3`, …

    An explicit name that exists is a `ConfigError`, unless `overwrite` allows to delete that run.
    """
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ConfigError(f"{shown_path(runs_dir)}: not a folder; choose another runs_dir=…") from error
    except OSError as error:
        raise ConfigError(refusal(runs_dir, error)) from error
    path = runs_dir / (local_name(name) if name else stem)
    try:
        if name is None:
            path = first_free_folder(runs_dir, stem)
        elif overwrite and os.path.lexists(path):
            check_is_run(path)
        else:
            path.mkdir()
        lock.take(path)
        if overwrite:
            empty_run(path)
    except FileExistsError as error:
        raise name_is_taken(path) from error
    except OSError as error:
        raise ConfigError(refusal(path, error)) from error
    return RunFolder(path)


def check_name(runs_dir: Path, name: str | None, *, overwrite: bool) -> None:
    """Raise the error that `create_run` would raise for an explicit name, before any work is done."""
    if name is None or not os.path.lexists(runs_dir / local_name(name)):
        return
    if not overwrite:
        raise name_is_taken(runs_dir / local_name(name))
    check_free(runs_dir / local_name(name))


def local_name(name: str) -> str:
    """The name as the file system takes it, in UTF-8 whatever the locale."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def name_is_taken(path: Path) -> ConfigError:
    shown = shown_path(path)
    return ConfigError(
        f"{shown}: exists already; resume it (--resume {shown}), replace it (--overwrite), or choose another name=…"
    )


def refusal(path: Path, error: OSError) -> str:
    return f"{shown_path(path)}: {error.strerror or error}; choose another runs_dir=…"


def first_free_folder(runs_dir: Path, stem: str) -> Path:
    number = 1
    while True:
        path = runs_dir / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()  # not exists(): of two processes that start at once, one gets the name
        except FileExistsError:
            number += 1
        else:
            return path


def check_is_run(path: Path) -> None:
    """Refuse to delete anything in which there is more than a run."""
    foreign = "it is a link" if path.is_symlink() else "it is not a folder" if not path.is_dir() else foreign_part(path)
    if foreign is not None:
        raise ConfigError(
            f"{shown_path(path)}: not the folder of a run and nothing else ({foreign}), "
            "so --overwrite leaves it alone; choose another name=…"
        )


def foreign_part(folder: Path) -> str | None:
    """Why a folder is not a run's, or None where it is one, or empty."""
    names = {path.name for path in folder.iterdir()}
    if names and not names & {RunFolder(folder).config_file.name, LOCK_NAME}:
        return "it holds no config.yaml"
    others = sorted(name for name in names - RUN_PARTS if not TEMPORARY_NAME.fullmatch(name))
    checkpoints = RunFolder(folder).checkpoints
    for path in sorted(checkpoints.iterdir()) if checkpoints.is_dir() else []:
        if not any(pattern.fullmatch(path.name) for pattern in (CHECKPOINT_NAME, SET_ASIDE_NAME, TEMPORARY_NAME)):
            others.append(f"{checkpoints.name}/{path.name}")
    return f"it holds {shown_path(Path(others[0]))}" if others else None


def empty_run(folder: Path) -> None:
    """Delete what a run has left in a folder, but for the lock, which is held. Killed on the way, it is still a run."""
    for part in sorted(folder.iterdir(), key=lambda path: path.name == RunFolder(folder).config_file.name):
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part)
        elif part.name != LOCK_NAME:
            part.unlink()
