"""What a run loses when it is killed: nothing. `python bench/crashes.py --kills 100 --seed 0`

Trains a tiny model, kills the process with SIGKILL at random moments (above all while it saves), resumes it, and so
on, and compares each finished run with one that was never killed. After every kill, all that is there must be whole.
Most processes are forked from this one, which has imported torch already; some are real commands, some with wandb.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from common import ROOT, machine

import train
from engine.checkpoint import load_checkpoint
from engine.run_folder import RunFolder, checkpoint_files, step_of
from errors import CheckpointError, run_command

STEPS = 40
TEXT = "the quick brown fox jumps over the lazy dog, and the dog does not mind.\n" * 12
SETTINGS = (
    "data.source=text.txt",
    "data.cache_dir=cache",
    "model.d_model=16",
    "model.num_heads=2",
    "model.num_layers=2",
    "model.context_length=8",
    "model.dropout=0.1",
    "train.batch_size=4",
    "train.grad_accum_steps=2",
    f"train.max_steps={STEPS}",
    "train.eval_interval=3",
    "train.checkpoint_interval=2",
    "train.log_interval=1",
    "train.keep_checkpoints=2",
    "optim.warmup_steps=2",
    "runtime.device=cpu",
    "runtime.precision=fp32",
    "runtime.compile=false",
    "runtime.threads=1",
    "tracking.wandb=disabled",
)
# What is waited for before the kill, and how often it is drawn: seconds, a temporary file, a new checkpoint, a new note
# of the best, a new line of metrics. The more interesting, the more often.
MOMENTS = {"time": 3, "temporary": 6, "checkpoint": 4, "best": 3, "line": 2}
EVERY_REAL, EVERY_WANDB = 10, 25  # of so many kills, one is of a real command, or one with wandb
MAX_SECONDS = 120.0  # that a process may live


@dataclass
class Tally:
    """What happened."""

    kills: Counter[str] = field(default_factory=Counter)
    in_save: int = 0
    finished: int = 0
    resumed: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Count what happened elsewhere, too."""
        self.kills += other.kills
        self.in_save += other.in_save
        self.finished += other.finished
        self.resumed += other.resumed
        self.faults += other.faults


class Run:
    """A run that is killed and goes on, and what is known of it."""

    def __init__(self, name: str, whole: Path, tally: Tally) -> None:
        self.folder = RunFolder(Path("runs") / name)
        self.whole = RunFolder(whole)
        self.tally = tally
        self.last_step = -1
        self.best = float("inf")
        self.losses = {line["step"]: line["val/loss"] for line in metrics(self.whole) if "val/loss" in line}

    def arguments(self) -> list[str]:
        """How it is started, or goes on where it can."""
        if checkpoint_files(self.folder.checkpoints):
            self.tally.resumed += 1
            return ["--resume", str(self.folder.path), "--quiet"]
        self.last_step, self.best = -1, float("inf")
        return [*SETTINGS, f"name={self.folder.path.name}", "--overwrite", "--quiet"]

    def fault(self, words: str) -> None:
        """Note that something is not as promised."""
        self.tally.faults.append(f"{self.folder.path.name}: {words}")

    def check_killed(self) -> None:
        """After a kill: every checkpoint is whole, and neither the last nor the best has gone back."""
        files = checkpoint_files(self.folder.checkpoints)
        for file in files:
            try:
                load_checkpoint(file)
            except CheckpointError as error:
                self.fault(str(error))
        last = step_of(files[-1]) if files else -1
        if last < self.last_step:
            self.fault(f"was at step {self.last_step} already, but its last checkpoint is of step {last}")
        self.last_step = last
        try:
            best = self.folder.best()
            if best is None:
                if self.best < float("inf"):
                    self.fault("the best was noted before, and is not any more")
                return
            if best.val_loss > self.best or best.val_loss != self.losses.get(best.step):
                self.fault(f"the best is {best}, but was {self.best}, and really is {self.losses.get(best.step)}")
            self.best = best.val_loss
            load_checkpoint(self.folder.find("best"))
        except CheckpointError as error:
            self.fault(str(error))

    def check_finished(self) -> None:
        """At the end: all is as in the run that was never killed."""
        self.tally.finished += 1
        for name in ("samples.txt", "best.json"):
            if (self.folder.path / name).read_bytes() != (self.whole.path / name).read_bytes():
                self.fault(f"another {name}")
        if without_speed(metrics(self.folder)) != without_speed(metrics(self.whole)):
            self.fault("another metrics.jsonl")
        names = [sorted(path.name for path in run.checkpoints.iterdir()) for run in (self.folder, self.whole)]
        if names[0] != names[1]:
            self.fault(f"checkpoints {names[0]} instead of {names[1]}")
        ours, theirs = (load_checkpoint(run.checkpoint_file(STEPS)) for run in (self.folder, self.whole))
        for part in ("model", "optimizers", "generators", "progress", "data"):
            if not equal(getattr(ours, part), getattr(theirs, part)):
                self.fault(f"another {part} in the last checkpoint")
        if list(self.folder.path.glob("**/.*.tmp")):
            self.fault("temporary files left")


def equal(a: object, b: object) -> bool:
    """Bit for bit, but for the time spent and the sizes of files with times in them."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        keys = a.keys() - {"seconds", "seconds_before_training", "file_sizes"}
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[key], b[key]) for key in keys)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(equal, a, b))
    return a == b


def metrics(run: RunFolder) -> list[dict[str, float]]:
    """The lines of metrics.jsonl; a torn one is an error."""
    return [json.loads(line) for line in run.metrics_file.read_text(encoding="utf-8").split("\n")[:-1]]


def without_speed(lines: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """What two equal runs share."""
    return [{name: value for name, value in line.items() if not name.startswith("perf/")} for line in lines]


def start_fork(arguments: Sequence[str], log: Path) -> int:
    """Run train.py in a copy of this process; its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = ["train.py", *arguments]
        run_command(train.main)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start_command(arguments: Sequence[str], log: Path, wandb: str) -> int:
    """Run the real train.py; its id, which is also that of its process group."""
    environment = {**os.environ, "WANDB_MODE": wandb, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(ROOT / "train.py"), *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, env=environment, start_new_session=True)
    process.returncode = 0  # waited for elsewhere
    return process.pid


def names_in(folder: Path) -> list[str]:
    """What lies in a folder."""
    return [path.name for path in folder.iterdir()]


def look(run: RunFolder, moment: str) -> object:
    """What changes when the moment has come."""
    with contextlib.suppress(OSError):
        if moment == "temporary":
            folders = (run.checkpoints, run.path)
            return frozenset(name for folder in folders for name in names_in(folder) if name.endswith(".tmp"))
        if moment == "checkpoint":
            return frozenset(name for name in names_in(run.checkpoints) if name.startswith("step_"))
        if moment == "best":
            return run.best_file.stat().st_mtime_ns
        if moment == "line":
            return run.metrics_file.stat().st_size
    return None


def changes(run: RunFolder, moment: str) -> Iterator[bool]:
    """Look again and again: whether the moment has just come."""
    before = look(run, moment)
    while True:
        now = look(run, moment)
        yield now is not None and now != before and not (moment == "temporary" and not now)
        before = now


def kill_at(child: int, run: RunFolder, chance: random.Random, *, scale: float) -> str | None:
    """Kill the process at a moment that is drawn. Gives its name, or None where the process has ended before."""
    (moment,) = chance.choices([*MOMENTS], [*MOMENTS.values()])
    end = chance.uniform(0, scale) if moment == "time" else MAX_SECONDS
    count, delay = chance.randrange(1, 10), chance.choice([0.0, chance.uniform(0, 0.01)])
    started = time.monotonic()
    for has_come in changes(run, moment):
        count -= has_come
        if count == 0 or time.monotonic() - started > end:
            time.sleep(delay)
            break
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return None
        time.sleep(0.0002)
    os.kill(child, signal.SIGKILL)
    return moment


def live(run: Run, chance: random.Random, number: int, groups: list[int], *, is_last: bool) -> bool:
    """Let the run live once more; whether it has come to its end."""
    log = run.folder.path.with_suffix(".log")
    log.parent.mkdir(exist_ok=True)
    wandb = "offline" if number % EVERY_WANDB == EVERY_WANDB - 1 else "disabled"
    is_real = wandb == "offline" or number % EVERY_REAL == EVERY_REAL - 1
    arguments = run.arguments()
    child = start_command(arguments, log, wandb) if is_real else start_fork(arguments, log)
    if is_real:
        groups.append(child)
    moment = None if is_last else kill_at(child, run.folder, chance, scale=6.0 if is_real else 0.6)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, -signal.SIGKILL):
        run.fault(f"train.py ended with {code}: {log.read_text(encoding='utf-8')[-300:]}")
    if code == 0:
        return True
    run.tally.kills[f"{moment}{', with wandb' if wandb == 'offline' else ', a real command' if is_real else ''}"] += 1
    run.tally.in_save += any(run.folder.path.glob("**/.*.tmp"))
    run.check_killed()
    return False


def crash(kills: int, seed: int, job: int, jobs: int) -> Tally:
    """One job's share of the kills, in as many runs as that takes."""
    chance, tally = random.Random(f"{seed} {job}"), Tally()
    groups: list[int] = []
    run = Run(f"job{job}-0", Path("runs/whole"), tally)
    while len(tally.faults) < 20:
        number = job + jobs * tally.kills.total()
        is_last = number >= kills
        if live(run, chance, number, groups, is_last=is_last):
            run.check_finished()
            if is_last:
                break
            run = Run(f"job{job}-{tally.finished}", Path("runs/whole"), tally)
    for group in groups:  # what wandb may have left running
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    return tally


def crash_in_parallel(kills: int, seed: int, jobs: int) -> Tally:
    """The same in several processes."""
    readers = []
    for job in range(jobs):
        reader, writer = os.pipe()
        if os.fork() == 0:
            tally = crash(kills, seed, job, jobs)
            with os.fdopen(writer, "w", encoding="utf-8") as file:
                json.dump(vars(tally), file)
            os._exit(0)
        os.close(writer)
        readers.append(reader)
    sum_of_all = Tally()
    for reader in readers:
        with os.fdopen(reader, encoding="utf-8") as file:
            content = json.load(file)
        sum_of_all.add(Tally(**{**content, "kills": Counter(content["kills"])}))
    return sum_of_all


def main() -> int:
    """The measurement; 1 where a promise was not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=4, help="runs at the same time; they mostly wait for the disk")
    options = parser.parse_args()
    torch.set_num_threads(1)  # no threads that a fork would lose
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("runs").mkdir()
        Path("text.txt").write_text(TEXT, encoding="utf-8")
        child = start_fork([*SETTINGS, "name=whole", "--quiet"], Path("whole.log"))
        if os.waitpid(child, 0)[1] != 0:
            raise SystemExit(Path("whole.log").read_text(encoding="utf-8"))
        tally = crash_in_parallel(options.kills, options.seed, options.jobs)
    for fault in tally.faults:
        print(f"fault    {fault}")
    print(machine())
    print(f"moments  {', '.join(f'{name}: {count}' for name, count in tally.kills.most_common())}")
    print(
        f"kills {tally.kills.total()} (temporary file left: {tally.in_save}), resumed {tally.resumed}, "
        f"runs finished {tally.finished}, faults {len(tally.faults)}, {time.monotonic() - start:.0f} s"
    )
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
