"""The parts of a run on Weights & Biases: in its folder wandb/, one folder for each process that has trained it.

What is written into them is wandb's business, and what is reported to it the dashboard's.
"""

import contextlib
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from engine.run_folder import RunFolder


def last_sent(folder: RunFolder, run_id: str) -> int | None:
    """The last step of the run that a server has: -1 where nothing was sent, None where nobody can tell."""
    last = -1
    for part in parts(folder, run_id):
        if was_sent(part):
            step = last_step(part)
            if step is None:
                return None
            last = max(last, step)
    return last


def unsent(folder: RunFolder, run_id: str) -> list[Path]:
    """The parts that no server has seen."""
    return [part for part in parts(folder, run_id) if not was_sent(part)]


def drop(parts: Iterable[Path]) -> None:
    """Delete parts, as far as the system lets us."""
    for part in parts:
        shutil.rmtree(part, ignore_errors=True)


def parts(folder: RunFolder, run_id: str) -> list[Path]:
    """The parts of one run, oldest first."""
    # wandb adds a number where two begin in the same second.
    name = re.compile(rf"(offline-)?run-[0-9]{{8}}_[0-9]{{6}}-{re.escape(run_id)}(-[0-9])?")
    return sorted(path for path in folder.wandb.glob("*run-*") if name.fullmatch(path.name) and path.is_dir())


def was_sent(part: Path) -> bool:
    """Whether a server may have it: it was online, or `wandb sync` has begun with it."""
    return part.name.startswith("run-") or any(part.glob("*.wandb.sync*"))


def last_step(part: Path) -> int | None:
    """The last step in the summary that wandb leaves where it has sent a part; None without any."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        content = json.loads((part / "files" / "wandb-summary.json").read_text(encoding="utf-8"))
        return int(content.get("_step", -1))
    return None
