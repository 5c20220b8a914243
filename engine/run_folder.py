"""Run folders: created once, found again, and every file in them written whole or not at all.

What a checkpoint file holds is `engine.checkpoint`'s concern. No torch here: a mistyped run is reported at once.
"""

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path

from config.load import config_to_yaml
from config.schema import Config
from data.sources import local_path, shown_path
from errors import CheckpointError, ConfigError

CHECKPOINT_NAME = re.compile(r"step_[0-9]{8,}\.pt")
STALE_SECONDS = 3600  # a temporary file of this age was left behind by a process that was killed
TEMPORARY_NAME = re.compile(r"\..*\.[0-9]+\.tmp")
# What --overwrite may delete.
RUN_PARTS = {
    "config.yaml",
    "tokenizer.json",
    "metrics.jsonl",
    "samples.txt",
    "best.json",
    "checkpoints",
    "wandb",
    "tensorboard",
}


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


@dataclass(frozen=True)
class Best:
    """The best evaluation of a run."""

    step: int
    val_loss: float  # nats per token


@dataclass(frozen=True)
class RunFolder:
    """`runs/NAME/` and where things lie in it."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def tokenizer_file(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def samples_file(self) -> Path:
        return self.path / "samples.txt"

    @property
    def best_file(self) -> Path:
        return self.path / "best.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint_file(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:08d}.pt"

    def start(self, config: Config, tokenizer_json: str) -> None:
        """Write what describes the run, before its first checkpoint, and clear away what a killed process left."""
        try:
            self.checkpoints.mkdir(exist_ok=True)
            for left in (*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp")):
                if time.time() - left.stat().st_mtime > STALE_SECONDS:  # a younger one may still be written
                    left.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{shown_path(self.checkpoints)}: {error.strerror or error}; make it writable"
            ) from error
        write_text(self.config_file, config_to_yaml(config))
        write_text(self.tokenizer_file, tokenizer_json)

    def note_best(self, best: Best | None) -> None:
        """Record which checkpoint is the best; it is kept. Without one, or without its file, the last one counts."""
        if best is not None and self.checkpoint_file(best.step).is_file():
            write_text(self.best_file, json.dumps(asdict(best)) + "\n")
        else:
            self.best_file.unlink(missing_ok=True)

    def thin_out(self, keep: int, *, last_step: int) -> None:
        """Drop all checkpoints but the best and the `keep` newest.

        Those later than `last_step` go first: the run was resumed from an earlier one and makes them anew.
        """
        best = self.best()
        files = checkpoint_files(self.checkpoints)
        abandoned = [path for path in files if step_of(path) > last_step]
        for path in [*abandoned, *files[: len(files) - len(abandoned)][:-keep]]:
            if best is None or path != self.checkpoint_file(best.step):
                with contextlib.suppress(OSError):  # somebody reads it, on Windows: the next save tries again
                    path.unlink()

    def best(self) -> Best | None:
        """The best evaluation so far, or None before the first one."""
        try:
            content = json.loads(self.best_file.read_text(encoding="utf-8"))
            return Best(int(content["step"]), float(content["val_loss"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
            raise CheckpointError(
                f"{shown_path(self.best_file)}: damaged; delete it to go on with the last checkpoint as the best"
            ) from error

    def find(self, which: str) -> Path:
        """The checkpoint file that `best`, `last` or a path names. Raises `CheckpointError` where it is missing."""
        files = checkpoint_files(self.checkpoints)
        if which not in ("best", "last"):
            path = given_path(which)
            found = next((file for file in (path, self.checkpoints / path) if file.is_file()), None)
            if found is None:
                raise CheckpointError(f"--checkpoint {which}: no such file; use best, last or one of {names_of(files)}")
            return found
        if not files:
            raise CheckpointError(
                f"{shown_path(self.path)}: holds no checkpoint yet; start that run again, with --overwrite"
            )
        best = self.best() if which == "best" else None  # a run goes on from its last one whatever best.json holds
        if best is None:
            return files[-1]
        path = self.checkpoint_file(best.step)
        if not path.is_file():
            raise CheckpointError(
                f"{shown_path(path)}: the best checkpoint is missing; use --checkpoint last or {names_of(files)}"
            )
        return path


def names_of(files: list[Path]) -> str:
    return ", ".join(map(shown_path, files)) or "none, since the run has no checkpoint"


def checkpoint_files(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted((path for path in folder.glob("step_*.pt") if CHECKPOINT_NAME.fullmatch(path.name)), key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(checkpoint.stem.removeprefix("step_"))


def create_run(runs_dir: Path, name: str | None, stem: str, *, overwrite: bool) -> RunFolder:
    """A new, empty run folder: `name`, or the first free one of `stem`, `stem-2`, `stem-3`, …

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
            return RunFolder(first_free_folder(runs_dir, stem))
        if overwrite and os.path.lexists(path):
            delete_run(path)
        path.mkdir()
    except FileExistsError as error:
        raise name_is_taken(path) from error
    except OSError as error:
        raise ConfigError(refusal(path, error)) from error
    return RunFolder(path)


def check_name(runs_dir: Path, name: str | None, *, overwrite: bool) -> None:
    """Raise the `ConfigError` that `create_run` would raise for an explicit name, before any work is done."""
    if name is not None and not overwrite and os.path.lexists(runs_dir / local_name(name)):
        raise name_is_taken(runs_dir / local_name(name))


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


def delete_run(path: Path) -> None:
    """Delete a run, and refuse to delete anything in which there is more than a run."""
    foreign = "it is a link" if path.is_symlink() else "it is not a folder" if not path.is_dir() else foreign_part(path)
    if foreign is not None:
        raise ConfigError(
            f"{shown_path(path)}: not the folder of a run and nothing else ({foreign}), "
            "so --overwrite leaves it alone; choose another name=…"
        )
    shutil.rmtree(path)


def foreign_part(folder: Path) -> str | None:
    """Why a folder is not a run's, or None where it is one, or empty."""
    names = {path.name for path in folder.iterdir()}
    if names and RunFolder(folder).config_file.name not in names:
        return "it holds no config.yaml"
    others = sorted(name for name in names - RUN_PARTS if not TEMPORARY_NAME.fullmatch(name))
    checkpoints = RunFolder(folder).checkpoints
    for path in sorted(checkpoints.iterdir()) if checkpoints.is_dir() else []:
        if not CHECKPOINT_NAME.fullmatch(path.name) and not TEMPORARY_NAME.fullmatch(path.name):
            others.append(f"{checkpoints.name}/{path.name}")
    return f"it holds {shown_path(Path(others[0]))}" if others else None


def find_run(run: str | None, runs_dir: Path = Path("runs")) -> tuple[RunFolder, Path | None]:
    """The run that a command was given, and the checkpoint file if that was named instead of the folder.

    Without one it is the run that was saved last. Raises `CheckpointError` where there is none.
    """
    if run is None:
        return newest_run(runs_dir), None
    path = given_path(run)
    if path.is_file():
        return RunFolder(folder_of(path)), path
    folder = RunFolder(path)
    if folder.config_file.is_file():
        return folder, None
    near = nearest_run(path, runs_dir)
    advice = f"did you mean {shown_path(near)}?" if near else "give a folder such as runs/NAME, or a checkpoint file"
    if path.is_dir():
        raise CheckpointError(f"{shown_path(path)}: not the folder of a run (it holds no config.yaml); {advice}")
    raise CheckpointError(f"{shown_path(path)}: no such run; {advice}")


def given_path(name: str) -> Path:
    """The path that a user named, where the system takes it for one at all; otherwise `CheckpointError`."""
    try:
        path = local_path(name)
        path.is_file()  # it raises for names too long, and for folders that may not be looked into
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error)
        raise CheckpointError(f"{name}: {reason}; give a folder such as runs/NAME, or a checkpoint file") from error
    return path


def folder_of(checkpoint: Path) -> Path:
    """The run folder that a checkpoint file lies in."""
    folder = checkpoint.parent.parent
    return folder if len(checkpoint.parts) > 2 else checkpoint.absolute().parent.parent


def nearest_run(path: Path, runs_dir: Path) -> Path | None:
    """The run that was probably meant: the one that `path` is part of, or one with a name like it."""
    if RunFolder(path.parent).config_file.is_file():
        return path.parent
    for folder in (path.parent, runs_dir):
        runs = {shown_path(Path(file.parent.name)): file.parent for file in folder.glob("*/config.yaml")}
        near = get_close_matches(shown_path(Path(path.name)), runs, n=1, cutoff=0.5)
        if near:
            return runs[near[0]]
    return None


def newest_run(runs_dir: Path) -> RunFolder:
    """The run with the newest checkpoint."""
    ages = {}
    for folder in runs_dir.glob("*/checkpoints"):
        for file in checkpoint_files(folder):
            with contextlib.suppress(FileNotFoundError):  # a run that is training has just dropped it
                ages[file] = file.stat().st_mtime_ns
    if not ages:
        raise CheckpointError(
            f"{shown_path(runs_dir)}: no run with a checkpoint in it; train one with: python train.py"
        )
    return RunFolder(max(ages, key=ages.__getitem__).parent.parent)
