"""Run folders: what lies in them, what of it is kept, and how they are found again.

What a checkpoint file holds is `engine.checkpoint`'s concern. No torch here: a mistyped run is reported at once.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path

from config.load import config_to_yaml
from config.schema import Config
from data.paths import local_path, shown_path
from engine.files import TEMPORARY_NAME, replacing, write_text
from engine.lock import LOCK_NAME
from errors import CheckpointError

CHECKPOINT_NAME = re.compile(r"step_[0-9]{8,}\.pt")
# Later ones, when a run has gone back to an earlier one: kept, but no longer its last.
SET_ASIDE_NAME = re.compile(r"step_[0-9]{8,}\.old(-[0-9]+)?\.pt")
# All that a run leaves.
RUN_PARTS = {
    LOCK_NAME,
    "config.yaml",
    "tokenizer.json",
    "metrics.jsonl",
    "samples.txt",
    "best.json",
    "checkpoints",
    "wandb",
    "tensorboard",
}


@dataclass(frozen=True)
class Best:
    """The best evaluation of a run."""

    step: int
    val_loss: float  # nats per token
    file: str | None = None  # its name, where it was set aside


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

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def wandb(self) -> Path:
        return self.path / "wandb"

    @property
    def wandb_id_file(self) -> Path:
        return self.wandb / "run_id.txt"

    def checkpoint_file(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:08d}.pt"

    def start(self, config: Config, tokenizer_json: str) -> None:
        """Write what describes the run, before its first checkpoint."""
        self.clear_leftovers()
        try:
            self.checkpoints.mkdir(exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{shown_path(self.checkpoints)}: {error.strerror or error}; make it writable"
            ) from error
        write_text(self.config_file, config_to_yaml(config))
        write_text(self.tokenizer_file, tokenizer_json)

    def clear_leftovers(self) -> None:
        """Delete what a killed process had half written. The run is locked: nobody else is writing these files."""
        for left in (*self.path.glob(".*.tmp"), *self.path.glob("*/.*.tmp")):
            name = TEMPORARY_NAME.fullmatch(left.name)
            if name and (name["target"] in {*RUN_PARTS, "run_id.txt"} or CHECKPOINT_NAME.fullmatch(name["target"])):
                with contextlib.suppress(OSError):  # the next process tries again
                    left.unlink()

    def note_best(self, best: Best | None) -> None:
        """Record which checkpoint is the best; it is kept. One that is better already stays the best.

        Without any, or without its file, the last one counts.
        """
        known = self.known_best()
        if known is not None and self.file_of(known).is_file() and (best is None or known.val_loss < best.val_loss):
            return
        if best is not None and self.file_of(best).is_file():
            if best != known:
                content = {name: value for name, value in asdict(best).items() if value is not None}
                write_text(self.best_file, json.dumps(content) + "\n")
        else:
            self.best_file.unlink(missing_ok=True)

    def known_best(self) -> Best | None:
        """The same as `best`, and None where the note is damaged: to write it anew."""
        try:
            return self.best()
        except CheckpointError:
            return None

    def file_of(self, best: Best) -> Path:
        """Where the checkpoint of the best evaluation lies."""
        return self.checkpoint_file(best.step) if best.file is None else self.checkpoints / best.file

    def thin_out(self, keep: int) -> None:
        """Drop all checkpoints but the best and the `keep` newest. What was set aside stays."""
        best = self.known_best()
        for path in checkpoint_files(self.checkpoints)[:-keep]:
            if best is None or path != self.file_of(best):
                with contextlib.suppress(OSError):  # somebody reads it, on Windows: the next save tries again
                    path.unlink()

    def later_than(self, step: int) -> list[Path]:
        """The checkpoints that the run leaves behind when it goes back to a step."""
        return [path for path in checkpoint_files(self.checkpoints) if step_of(path) > step]

    def set_aside(self, path: Path) -> Path:
        """Give a checkpoint another name, under which it is kept for good, and is the best if it was."""
        numbers = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
        names = (path.with_name(f"{path.stem}.old{number}.pt") for number in numbers)
        aside = next(name for name in names if not os.path.lexists(name))
        best = self.known_best()
        try:
            if best is not None and path == self.file_of(best):  # at every moment one of the names is there
                copy_file(path, aside)
                write_text(self.best_file, json.dumps(asdict(best) | {"file": aside.name}) + "\n")
                path.unlink()
            else:
                path.rename(aside)
        except OSError as error:
            raise CheckpointError(
                f"{shown_path(path)}: {error.strerror or error}; it must be renamed to go back to an earlier step"
            ) from error
        return aside

    def best(self) -> Best | None:
        """The best evaluation so far, or None before the first one."""
        try:
            content = json.loads(self.best_file.read_text(encoding="utf-8"))
            file = content.get("file")
            if file is not None and not SET_ASIDE_NAME.fullmatch(file):
                raise ValueError(file)
            return Best(int(content["step"]), float(content["val_loss"]), file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
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
        path = self.file_of(best)
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


def copy_file(path: Path, copy: Path) -> None:
    """The same file under a second name, or, where the file system knows no such thing, a copy of it."""
    try:
        os.link(path, copy)
    except OSError:
        with replacing(copy) as temporary:
            shutil.copyfile(path, temporary)


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
    if folder.config_file.is_file() or checkpoint_files(folder.checkpoints):  # which hold the config, too
        return folder, None
    if (path / LOCK_NAME).is_file():
        raise CheckpointError(
            f"{shown_path(path)}: ended before its first checkpoint; start that run again, with --overwrite"
        )
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
