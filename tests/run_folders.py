"""Run folders without a model in them, for the tests of what happens to their files."""

from pathlib import Path

import pytest

from config.schema import Config
from engine.lock import RunLock
from engine.new_run import create_run
from engine.run_folder import Best, RunFolder, checkpoint_files


def create(runs_dir: Path, name: str | None, stem: str = "", *, overwrite: bool = False) -> RunFolder:
    """An empty one, locked only while it is made."""
    with RunLock(print) as lock:
        return create_run(runs_dir, name, stem, overwrite=overwrite, lock=lock)


def make_run(runs_dir: Path, name: str = "tiny", steps: tuple[int, ...] = (), best: int | None = None) -> RunFolder:
    """One with empty checkpoints of these steps."""
    run = create(runs_dir, name)
    run.start(Config(), '{"a": 1}')
    for step in steps:
        run.checkpoint_file(step).write_bytes(b"")
    run.note_best(None if best is None else Best(best, 1.5))
    return run


def kept_steps(run: RunFolder) -> list[int]:
    """The steps whose checkpoints are there."""
    return [int(path.stem[5:]) for path in checkpoint_files(run.checkpoints)]


def one_line(error: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether a message is one."""
    return len(str(error.value).splitlines()) == 1
