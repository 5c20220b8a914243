"""Training beside nanoGPT: time to a loss, loss in equal time, speed at equal shapes; and the ten-minute recipe.

Run: python bench/train.py --text tinyshakespeare.txt --nanogpt FOLDER [--rounds 3] [PART ...]

Parts (all of them where none is named):
    loss         wall time until val loss is at most 1.886: a recipe of ours, and nanoGPT's command for CPUs
    equal_time   val loss and wall time of config/shakespeare_char.yaml, and of nanoGPT's command for CPUs
    throughput   tokens per second at equal architecture and batch, in two sizes
    ten_minutes  two seeds of the ten-minute recipe: val loss, wall time, MFU, Muon's share
    profile      where the time of that recipe's steps goes

Wall time is that of a whole process, imports, evaluations and checkpoints included; ours prepares the text from an
empty cache, nanoGPT's text is prepared before; our dashboard is on, but for `loss` (nanoGPT's is off). Both sides run
in turn, in every round; figures are medians over the rounds, ours with another seed in each (nanoGPT has one). Val loss
is nats per character over the whole validation split, in windows that do not overlap, in fp32, measured afterwards by a
process of its own on the weights at the end of the run. nanoGPT runs in a copy of its folder, which is left as it is.
`--text stdlib` is the source code of Python's own library, as one text for both sides.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import ROOT, machine, print_table
from steps import MUON, print_costs
from steps import measure as measure_steps

from data.sources import STDLIB, stdlib_sources  # isort: skip
from data.text import read_text  # isort: skip

PARTS = ("loss", "equal_time", "throughput", "ten_minutes", "profile")
CONFIG = ROOT / "config"
TARGET_LOSS = 1.886
# What reaches the target, and with which settings.
LOSS_RECIPE = CONFIG / "shakespeare_char.yaml"
LOSS_OVERRIDES = (
    *("train.max_steps=null", "train.max_minutes=0.15", "train.batch_size=16", "tracking.wandb=disabled"),
    *("model.num_layers=2", "model.d_model=128", "model.num_heads=4"),
    *("optim.warmup_steps=10", "optim.muon_learning_rate=0.02"),
)
EQUAL_TIME_RECIPE = CONFIG / "shakespeare_char.yaml"
GPT2_RECIPE = CONFIG / "shakespeare_char_gpt2.yaml"
TEN_MINUTES_RECIPE = CONFIG / "shakespeare_char_10min.yaml"
TEN_MINUTES_SEEDS = (1337, 1338)
NANOGPT_CONFIG = "config/train_shakespeare_char.py"
# As its README says for a CPU. It keeps a checkpoint only where its rough estimate has improved; here always, so that
# the weights at the end can be measured.
NANOGPT_CPU = (
    *("--device=cpu", "--compile=False", "--eval_iters=20", "--log_interval=1", "--block_size=64", "--batch_size=12"),
    *("--n_layer=4", "--n_head=4", "--n_embd=128", "--dropout=0.0", "--always_save_checkpoint=True"),
)
# Without evaluations but the one before the first step; with biases, as in our gpt2 architecture.
NANOGPT_SPEED = (
    *("--device=cpu", "--compile=False", "--eval_iters=1", "--eval_interval=1000000", "--log_interval=1"),
    *("--bias=True", "--dtype=float32"),
)
SPEED_WARM_UP = 10  # steps, not counted

NANOGPT_EVALUATION = """
import sys
import numpy as np
import torch
from model import GPT, GPTConfig

checkpoint = torch.load(sys.argv[1], weights_only=True)
model = GPT(GPTConfig(**checkpoint["model_args"]))
model.load_state_dict(checkpoint["model"])
model.eval()
ids = torch.from_numpy(np.fromfile("data/shakespeare_char/val.bin", dtype=np.uint16).astype(np.int64))
size, total = model.config.block_size, 0.0
with torch.inference_mode():
    full = (len(ids) - 1) // size * size  # what fills windows; the rest is one shorter window
    idx, targets = ids[:full].view(-1, size), ids[1 : full + 1].view(-1, size)
    batches = [*zip(idx.split(64), targets.split(64))]
    if full < len(ids) - 1:
        batches.append((ids[full:-1][None], ids[full + 1 :][None]))
    for idx, targets in batches:
        total += model(idx, targets)[1].item() * targets.numel()
print("VAL", total / (len(ids) - 1), len(ids) - 1)
"""


@dataclass(frozen=True)
class Run:
    """A whole run, measured."""

    seconds: float
    loss: float  # nats per token over the whole validation split, of the weights at the end
    tokens: int  # predicted in that
    step: int


@dataclass(frozen=True)
class Ours:
    """Our side: runs of train.py, each in an empty folder of its own."""

    text: Path
    extra: tuple[str, ...]  # settings for all of them, the last word

    def train(self, folder: str, recipe: Path, *overrides: str) -> tuple[float, Path]:
        """Train; the seconds it took, and the run."""
        places = [f"data.source={self.text}", f"data.cache_dir={folder}/cache", f"runs_dir={folder}", "name=run"]
        command = [sys.executable, str(ROOT / "train.py"), str(recipe), *places, *overrides, *self.extra]
        seconds, _ = timed(command, Path(folder))
        return seconds, Path(folder) / "run"

    def measure(self, recipe: Path, *overrides: str) -> Run:
        """Train and evaluate."""
        with tempfile.TemporaryDirectory() as folder:
            seconds, run = self.train(folder, recipe, *overrides)
            facts = evaluation(run, "last")
            return Run(seconds, facts["loss"], int(facts["tokens"]), int(facts["step"]))

    def speed(self, *overrides: str, steps: int) -> float:
        """The median tokens per second of the steps after the warm-up."""
        limits = [f"train.max_steps={steps}", f"train.eval_interval={steps}", "train.eval_tokens=64"]
        with tempfile.TemporaryDirectory() as folder:
            settings = [*limits, "train.log_interval=1", "tracking.wandb=disabled"]
            _, run = self.train(folder, GPT2_RECIPE, *settings, *overrides)
            return statistics.median(line["perf/tokens_per_second"] for line in metrics(run)[SPEED_WARM_UP:])


class NanoGPT:
    """Their side, in a copy of a checkout whose data is prepared with its own script."""

    def __init__(self, checkout: Path, text: Path, folder: Path) -> None:
        self.folder = folder / "nanogpt"
        shutil.copytree(checkout, self.folder, ignore=shutil.ignore_patterns(".git", "out*"))
        data = self.folder / "data" / "shakespeare_char"
        shutil.copy(text, data / "input.txt")
        (self.folder / "stubs").mkdir()
        (self.folder / "stubs" / "requests.py").touch()  # the script imports it for a download that is not needed
        stubs = os.environ | {"PYTHONPATH": str(self.folder / "stubs")}
        timed([sys.executable, str(data / "prepare.py")], self.folder, environment=stubs)

    def train(self, *settings: str) -> tuple[float, str]:
        """Run its train.py; the seconds, and what it printed."""
        return timed([sys.executable, "train.py", NANOGPT_CONFIG, *settings], self.folder)

    def measure(self, steps: int) -> Run:
        """Its command for CPUs from start to end, and the loss it has reached."""
        limits = [f"--max_iters={steps}", f"--lr_decay_iters={steps}", f"--eval_interval={min(250, steps)}"]
        seconds, _ = self.train(*NANOGPT_CPU, *limits, "--out_dir=out")
        checkpoint = self.folder / "out" / "ckpt.pt"
        _, said = timed([sys.executable, "-c", NANOGPT_EVALUATION, str(checkpoint)], self.folder)
        shutil.rmtree(checkpoint.parent)
        _, loss, tokens = said.split()[-3:]
        return Run(seconds, float(loss), int(tokens), steps)

    def speed(self, *settings: str, tokens_per_step: int, steps: int) -> float:
        """The median tokens per second of the steps after the warm-up."""
        _, said = self.train(*NANOGPT_SPEED, *settings, f"--max_iters={steps}", "--out_dir=out-speed")
        milliseconds = [float(found) for found in re.findall(r"^iter \d+: .* time ([\d.]+)ms", said, re.MULTILINE)]
        return tokens_per_step / statistics.median(milliseconds[SPEED_WARM_UP:]) * 1e3


def timed(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> tuple[float, str]:
    """A process from start to end: seconds, and its stdout."""
    if environment is None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return seconds, done.stdout


def whole_stdlib(folder: Path) -> Path:
    """The modules of Python's library that `data.source=stdlib` means, as one file."""
    path = folder / "stdlib.txt"
    with path.open("w", encoding="utf-8") as file:
        for source in stdlib_sources(Path(sysconfig.get_path("stdlib"))):
            file.writelines(read_text(source))
    return path


def evaluation(run: Path, checkpoint: str) -> dict[str, float]:
    """What evaluate.py says of a checkpoint in fp32."""
    script = [sys.executable, str(ROOT / "evaluate.py"), str(run), "--checkpoint", checkpoint]
    _, said = timed([*script, "--precision", "fp32", "--json"], run)
    return dict(json.loads(said))


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def whole_runs(parts: Sequence[str], ours: Ours, nanogpt: NanoGPT, *, rounds: int, nanogpt_steps: int) -> None:
    """Print wall time and val loss of both sides, in turn: the parts `loss` and `equal_time`."""
    theirs = f"nanoGPT, its command for CPUs, {nanogpt_steps} steps"
    contenders: dict[str, Callable[[int], Run]] = {}
    if "loss" in parts:
        name = f"ours, {LOSS_RECIPE.name} with the settings for `loss`"
        contenders[name] = lambda seed: ours.measure(LOSS_RECIPE, *LOSS_OVERRIDES, f"seed={seed}")
    contenders[theirs] = lambda _: nanogpt.measure(nanogpt_steps)  # it has one seed
    if "equal_time" in parts:
        contenders[f"ours, {EQUAL_TIME_RECIPE.name}"] = lambda seed: ours.measure(EQUAL_TIME_RECIPE, f"seed={seed}")
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, measure in contenders.items():
            runs[name].append(measure(1337 + number))
            run = runs[name][-1]
            said = f"{run.seconds:.1f} s, val loss {run.loss:.4f}"
            print(f"round {number + 1}, {name}: {said}", file=sys.stderr, flush=True)
    reference = statistics.median(run.seconds for run in runs[theirs])
    rows = []
    for name, its in runs.items():
        seconds = statistics.median(run.seconds for run in its)
        losses = sorted(run.loss for run in its)
        rows.append(
            [
                name,
                f"{statistics.median(run.step for run in its):.0f}",
                f"{seconds:.1f} s",
                f"{seconds / reference:.3f}",
                f"{statistics.median(losses):.4f}",
                f"{losses[0]:.4f} to {losses[-1]:.4f}",
                f"{sum(loss <= TARGET_LOSS for loss in losses)} of {rounds}",
                f"{its[0].tokens:,}",
            ]
        )
    header = [
        "whole process",
        "steps",
        "wall time",
        "÷ nanoGPT's",
        "val loss",
        "from … to",
        f"≤ {TARGET_LOSS}",
        "tokens",
    ]
    print(f"\nloss and time, median of {rounds} in turn\n")
    print_table(header, rows)


def throughput(ours: Ours, nanogpt: NanoGPT, *, rounds: int, steps: int) -> None:
    """Print tokens per second of both sides at equal shapes.

    On a CPU nanoGPT computes in fp32 whatever its --dtype says: it has no autocast there, so that is its best.
    """
    small = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "batch_size": 12}
    large = {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "batch_size": 8}
    cases = [("fp32 on both sides", small, "fp32"), ("each side's best precision", large, "auto")]
    rows = []
    for precisions, shape, precision in cases:
        theirs = [f"--{key}={value}" for key, value in {**shape, "dropout": 0.0}.items()]
        mine = [
            f"model.num_layers={shape['n_layer']}",
            f"model.num_heads={shape['n_head']}",
            f"model.d_model={shape['n_embd']}",
            f"model.context_length={shape['block_size']}",
            f"train.batch_size={shape['batch_size']}",
            f"runtime.precision={precision}",
        ]
        tokens = shape["block_size"] * shape["batch_size"]
        mine_speeds, their_speeds = [], []
        for _ in range(rounds):
            mine_speeds.append(ours.speed(*mine, steps=steps))
            their_speeds.append(nanogpt.speed(*theirs, tokens_per_step=tokens, steps=steps))
        our_median, their_median = statistics.median(mine_speeds), statistics.median(their_speeds)
        rows.append(
            [
                f"{shape['n_layer']} layers, d {shape['n_embd']}, context {shape['block_size']}, "
                f"batch {shape['batch_size']}; {precisions}",
                f"{our_median:,.0f}",
                f"{their_median:,.0f}",
                f"{our_median / their_median:.2f}",
            ]
        )
    print(f"\nthroughput of the gpt2 architecture, {steps} steps, median of {rounds} in turn\n")
    print_table(["model", "ours, tokens/s", "nanoGPT, tokens/s", "ours ÷ nanoGPT"], rows)


def ten_minutes(ours: Ours, muon_share: float) -> None:
    """Print what the ten-minute recipe reaches with each seed."""
    rows = []
    for seed in TEN_MINUTES_SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            seconds, run = ours.train(folder, TEN_MINUTES_RECIPE, f"seed={seed}")
            last, best, lines = evaluation(run, "last"), evaluation(run, "best"), metrics(run)
        rows.append(
            [
                seed,
                int(last["step"]),
                f"{seconds:.0f} s",
                f"{last['loss']:.4f}",
                f"{best['loss']:.4f} (step {int(best['step'])})",
                f"{last['bits_per_char']:.3f}",
                f"{statistics.median(line['perf/tokens_per_second'] for line in lines):,.0f}",
                f"{statistics.median(line['perf/mfu'] for line in lines):.1%}",
                f"{muon_share:.1%}",
            ]
        )
    header = [
        "seed",
        "steps",
        "wall time",
        "val loss at the end",
        "best",
        "bits/char",
        "tokens/s",
        "MFU",
        "Muon's share",
    ]
    print(f"\n{TEN_MINUTES_RECIPE.name}; Muon's share is that of a step's time, on the clock\n")
    print_table(header, rows)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--text", type=Path, required=True, help="Tiny Shakespeare, or stdlib")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of karpathy/nanoGPT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="of throughput")
    parser.add_argument("--profile-steps", type=int, default=20)
    parser.add_argument("--nanogpt-steps", type=int, default=2000, help="fewer only to try this script")
    parser.add_argument("--set", nargs="+", default=[], metavar="section.key=value", help="for all runs of ours")
    options = parser.parse_intermixed_args()
    parts = options.parts or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    beside = {"loss", "equal_time", "throughput"} & set(parts)
    if beside and options.nanogpt is None:
        parser.error(f"{', '.join(sorted(beside))}: name a checkout of nanoGPT with --nanogpt")
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        text = whole_stdlib(Path(folder)) if str(options.text) == STDLIB else options.text.resolve()
        ours = Ours(text, tuple(options.set))
        if beside:
            nanogpt = NanoGPT(options.nanogpt.resolve(), text, Path(folder))
            if beside != {"throughput"}:
                whole_runs(parts, ours, nanogpt, rounds=options.rounds, nanogpt_steps=options.nanogpt_steps)
            if "throughput" in parts:
                throughput(ours, nanogpt, rounds=options.rounds, steps=options.steps)
        if {"ten_minutes", "profile"} & set(parts):
            settings = [f"data.source={text}", *options.set]
            costs = measure_steps(TEN_MINUTES_RECIPE, settings, options.profile_steps)
            if "ten_minutes" in parts:
                ten_minutes(ours, costs.optimizers.get(MUON, 0.0))
            if "profile" in parts:
                print(f"\na step of {TEN_MINUTES_RECIPE.name}\n")
                print_costs(costs)


if __name__ == "__main__":
    main()
