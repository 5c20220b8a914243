"""Run folders: created once, found again, and every file in them written whole or not at all.

What a checkpoint file holds is `engine.checkpoint`'s concern. No torch here: a mistyped run is reported at once.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path

from config.load import config_to_yaml
from config.schema import Config
from data.sources import local_path
from errors import CheckpointError, ConfigError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes otherwise.

    Raises `CheckpointError` where the disk refuses; what stood at `path` is then still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"{path}: could not be written: {error.strerror or error}; what was saved before is untouched"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the system lets folders be synced."""
    if os.name != "posix":
        return
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
        """Write what describes the run, before its first checkpoint."""
        self.checkpoints.mkdir(exist_ok=True)
        write_text(self.config_file, config_to_yaml(config))
        write_text(self.tokenizer_file, tokenizer_json)

    def note_best(self, best: Best) -> None:
        """Record the best evaluation; its checkpoint is kept."""
        write_text(self.best_file, json.dumps(asdict(best)) + "\n")

    def thin_out(self, keep: int) -> None:
        """Drop all checkpoints but the best and the `keep` newest."""
        best = self.best()
        for path in checkpoint_files(self.checkpoints)[:-keep]:
            if best is None or path != self.checkpoint_file(best.step):
                path.unlink(missing_ok=True)

    def best(self) -> Best | None:
        """The best evaluation so far, or None before the first one."""
        try:
            content = json.loads(self.best_file.read_text(encoding="utf-8"))
            return Best(int(content["step"]), float(content["val_loss"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{self.best_file}: damaged; delete it to go on with the last checkpoint as the best"
            ) from error

    def find(self, which: str) -> Path:
        """The checkpoint file that `best`, `last` or a path names. Raises `CheckpointError` where it is missing."""
        files = checkpoint_files(self.checkpoints)
        if which not in ("best", "last"):
            candidates = [local_path(which), self.checkpoints / which]
            found = next((path for path in candidates if path.is_file()), None)
            if found is None:
                raise CheckpointError(f"--checkpoint {which}: no such file; use best, last or one of {names_of(files)}")
            return found
        if not files:
            raise CheckpointError(f"{self.path}: holds no checkpoint; train it with train.py first")
        best = self.best()
        if which == "last" or best is None:
            return files[-1]
        path = self.checkpoint_file(best.step)
        if not path.is_file():
            raise CheckpointError(f"{path}: the best checkpoint is missing; use --checkpoint last or {names_of(files)}")
        return path


def names_of(files: list[Path]) -> str:
    return ", ".join(str(path) for path in files) or "none, since the run has no checkpoint"


def checkpoint_files(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob("step_*.pt") if re.fullmatch(r"step_\d{8,}\.pt", path.name))


def create_run(runs_dir: Path, name: str | None, stem: str, *, overwrite: bool) -> RunFolder:
    """A new, empty run folder: `name`, or the first free one of `stem`, `stem-2`, `stem-3`, …

    An explicit name that exists is a `ConfigError`, unless `overwrite` allows to delete that run.
    """
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        if name is None:
            return RunFolder(first_free_folder(runs_dir, stem))
        path = runs_dir / name
        if path.exists() and overwrite:
            delete_run(path)
        path.mkdir()
    except FileExistsError as error:
        raise ConfigError(
            f"{error.filename}: exists already; resume it (--resume {error.filename}), "
            "replace it (--overwrite), or choose another name=…"
        ) from error
    except OSError as error:
        raise ConfigError(f"{error.filename or runs_dir}: {error.strerror}; choose another runs_dir=…") from error
    return RunFolder(path)


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
    """Delete a run, and refuse to delete a folder that is not one."""
    is_run = path.is_dir() and ((path / "config.yaml").is_file() or not any(path.iterdir()))
    if not is_run:
        raise ConfigError(f"{path}: not the folder of a run, so --overwrite leaves it alone; choose another name=…")
    shutil.rmtree(path)


def find_run(run: str | None, runs_dir: Path = Path("runs")) -> tuple[RunFolder, Path | None]:
    """The run that a command was given, and the checkpoint file if that was named instead of the folder.

    Without one it is the run that was saved last. Raises `CheckpointError` where there is none.
    """
    if run is None:
        return newest_run(runs_dir), None
    path = local_path(run)
    if path.is_file():
        return RunFolder(path.parent.parent), path
    folder = RunFolder(path)
    if folder.config_file.is_file():
        return folder, None
    if path.is_dir():
        raise CheckpointError(f"{path}: not the folder of a run (it holds no config.yaml)")
    siblings = [str(other) for other in path.parent.glob("*")] if path.parent.is_dir() else []
    near = get_close_matches(run, siblings, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]}?" if near else "give a folder such as runs/NAME, or a checkpoint file"
    raise CheckpointError(f"{run}: no such run; {advice}")


def newest_run(runs_dir: Path) -> RunFolder:
    """The run with the newest checkpoint."""
    files = [file for folder in runs_dir.glob("*/checkpoints") for file in checkpoint_files(folder)]
    if not files:
        raise CheckpointError(f"{runs_dir}: no run with a checkpoint in it; train one with: python train.py")
    return RunFolder(max(files, key=lambda file: file.stat().st_mtime_ns).parent.parent)
