"""A grid of settings, each combination a run of train.py, and a table of what they reach.

Run: python bench/sweep.py config/shakespeare_char.yaml model.d_model=128,160 optim.muon_learning_rate=0.01,0.02
         [--seeds 2] [--fixed key=value ...] [--out FOLDER]

Values are separated by commas; commas within brackets or quotation marks belong to the value:
    data.source=[a.txt,b.txt],[c.txt]     train.sample_prompt='"Well, then","No"'
Settings that change together are separated by slashes, and so are their values; no value may hold a slash then:
    model.d_model/model.num_heads=128/4,160/5
The runs and what they printed lie in FOLDER. A sweep that was interrupted goes on where it stood: finished runs are not
run again, the one that was interrupted is resumed, those that failed are tried again; where any failed, the exit code
is 1. A run is known by its settings and by what the recipe says, not by the code: after a change of the code, take
another FOLDER.
"""

import argparse
import hashlib
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from common import ROOT, machine, print_table

from config.load import load_config
from errors import UserError, command_boundary

FIRST_SEED = 1337
OPENING, CLOSING = "[{(", "]})"
Setting = tuple[str, str]  # dotted name, value as on the command line


@dataclass(frozen=True)
class Result:
    """What a run has come to, in the units of metrics.jsonl; `error` is empty where it has finished."""

    error: str
    step: int = 0
    final: float = 0.0
    best: float = 0.0
    bits_per_char: float = 0.0
    seconds: float = 0.0
    tokens_per_second: float = 0.0


class Sweep:
    """The runs of a grid in one folder."""

    def __init__(self, recipe: Path, fixed: Sequence[str], out: Path) -> None:
        self.recipe = recipe
        self.fixed = tuple(fixed)
        self.out = out

    def name(self, settings: Sequence[Setting]) -> str:
        """A folder's name that says the settings, and changes with whatever else makes the run what it is."""
        identity = json.dumps([self.recipe.read_text(encoding="utf-8"), self.fixed, settings])
        words = re.sub(r"[^A-Za-z0-9_=.,+-]+", "-", label(settings))[:100].lstrip("-.")
        return f"{words}-{hashlib.sha256(identity.encode()).hexdigest()[:6]}"

    def run(self, settings: Sequence[Setting]) -> Result:
        """Train with these settings, or go on, or only read what has finished before."""
        name = self.name(settings)
        folder, marker = self.out / name, self.out / f"{name}.finished"
        if not marker.is_file():
            arguments = ["--resume", str(folder)]
            if not any(folder.glob("checkpoints/*.pt")):
                overrides = ["tracking.wandb=disabled", *self.fixed, *("=".join(setting) for setting in settings)]
                place = [f"name={name}", f"runs_dir={self.out}"]
                arguments = [str(self.recipe), "--overwrite", *overrides, *place]
            log = self.out / f"{name}.log"
            code = train(arguments, log)
            if code != 0:
                return Result(error_line(log) or f"exit code {code}")
            marker.touch()
        return read_result(folder / "metrics.jsonl")


def train(arguments: Sequence[str], log: Path) -> int:
    """A process of train.py, its output in `log`; the exit code. Whoever interrupts us lets it save first."""
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"}
    with log.open("ab") as file:
        # In a session of its own, so that Ctrl-C reaches it once, through us.
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def error_line(log: Path) -> str:
    """The line that says why a run has failed."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
    return next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])


def read_result(metrics: Path) -> Result:
    """What a run's metrics say at its end."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    evaluations = [line for line in lines if "val/loss" in line]
    return Result(
        error="",
        step=lines[-1]["step"],
        final=evaluations[-1]["val/loss"],
        best=min(line["val/loss"] for line in evaluations),
        bits_per_char=evaluations[-1]["val/bits_per_char"],
        seconds=lines[-1]["perf/seconds"],
        tokens_per_second=statistics.median(line["perf/tokens_per_second"] for line in lines),
    )


def split_values(text: str) -> list[str]:
    """The values between the commas, but for commas within brackets or quotation marks."""
    values, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and (depth > 0 or not values[-1]):  # an apostrophe within a word is none
            quote = character
        elif character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
        elif character == "," and depth == 0:
            values.append("")
            continue
        values[-1] += character
    return values


def axis(argument: str) -> list[list[Setting]]:
    """What one argument of the command line varies: for each of its values, the settings it stands for."""
    names, equals, texts = argument.partition("=")
    if not equals:
        raise UserError(f"{argument!r} is not of the form section.key=value,value")
    keys = names.removeprefix("--").split("/")
    points = []
    for text in split_values(texts):
        values = text.split("/") if len(keys) > 1 else [text]
        if len(values) != len(keys):
            raise UserError(f"{argument!r}: {text!r} has {len(values)} values for {len(keys)} settings")
        points.append(list(zip(keys, values, strict=True)))
    return points


def label(settings: Sequence[Setting]) -> str:
    """Settings in a few characters."""
    return ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in settings) or "as-it-is"


def row(settings: Sequence[Setting], results: Sequence[Result]) -> list[str]:
    """A line of the table: means over the seeds, and how far their final val losses lie apart."""
    done = [result for result in results if not result.error]
    errors = "; ".join(dict.fromkeys(result.error for result in results if result.error)).replace("|", "\\|")
    cells = [value.replace("|", "\\|") for _, value in settings]
    if not done:
        return [*cells, *["–"] * 7, errors]
    finals = [result.final for result in done]
    return [
        *cells,
        f"{statistics.mean(result.step for result in done):.0f}",
        f"{statistics.mean(finals):.4f}",
        f"{max(finals) - min(finals):.4f}" if len(finals) > 1 else "–",
        f"{statistics.mean(result.best for result in done):.4f}",
        f"{statistics.mean(result.bits_per_char for result in done):.3f}",
        f"{statistics.mean(result.seconds for result in done):.1f}",
        f"{statistics.mean(result.tokens_per_second for result in done):,.0f}",
        errors,
    ]


def print_results(axes: Sequence[str], table: Sequence[tuple[Sequence[Setting], Sequence[Result]]]) -> None:
    """The table, the lowest final val loss first, those without one at the end."""

    def order(entry: tuple[Sequence[Setting], Sequence[Result]]) -> float:
        return statistics.mean([result.final for result in entry[1] if not result.error] or [float("inf")])

    keys = [key for argument in axes for key in argument.partition("=")[0].removeprefix("--").split("/")]
    header = [*keys, "steps", "final val loss", "spread", "best", "bits/char", "seconds", "tokens/s", "error"]
    rows = [row(settings, results) for settings, results in sorted(table, key=order)]
    # Columns in which there is nothing to see: no seeds, no errors.
    empty = {
        number for number in (len(header) - 6, len(header) - 1) if all(cells[number] in ("", "–") for cells in rows)
    }
    kept = [number for number in range(len(header)) if number not in empty]
    print_table([header[number] for number in kept], [[cells[number] for number in kept] for cells in rows])


def check(sweep: Sweep, combinations: Sequence[Sequence[Setting]]) -> None:
    """Make the folder. Raises `UserError` where it cannot be, or where not one combination is a valid recipe."""
    try:
        sweep.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {sweep.out}: {error.strerror}; name a folder that can be made") from error
    first: UserError | None = None
    for settings in combinations:
        try:
            load_config(sweep.recipe, [*sweep.fixed, *("=".join(setting) for setting in settings)])
            return
        except UserError as error:
            first = first or error
    if first is not None:
        raise first


def stop(*_: object) -> Never:
    raise KeyboardInterrupt


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, metavar="RECIPE.yaml")
    parser.add_argument("axes", nargs="*", metavar="section.key=value,value", help="what is varied")
    parser.add_argument("--seeds", type=int, help="every combination with this many seeds, from 1337 on")
    parser.add_argument("--fixed", nargs="+", default=[], metavar="section.key=value", help="the same in all runs")
    parser.add_argument("--out", type=Path, default=Path("runs/sweep"), metavar="FOLDER")
    options = parser.parse_intermixed_args()
    if not options.recipe.is_file():
        parser.error(f"{options.recipe}: no such recipe")
    if options.seeds is not None and options.seeds < 1:
        parser.error(f"--seeds must be at least 1, not {options.seeds}")
    seeds = [[("seed", str(FIRST_SEED + number))] for number in range(options.seeds or 0)] or [[]]
    grid = [list(itertools.chain(*points)) for points in itertools.product(*map(axis, options.axes))]
    sweep = Sweep(options.recipe, options.fixed, options.out.resolve())
    check(sweep, [[*settings, *seed] for settings in grid for seed in seeds])
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), stop)
    table: list[tuple[Sequence[Setting], list[Result]]] = [(settings, []) for settings in grid]
    number, total = 0, len(grid) * len(seeds)
    try:
        for settings, results in table:
            for seed in seeds:
                number += 1
                result = sweep.run([*settings, *seed])
                results.append(result)
                outcome = result.error or f"val loss {result.final:.4f} at step {result.step}, {result.seconds:.1f} s"
                print(f"[{number}/{total}] {label([*settings, *seed])}: {outcome}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        print(machine() + "\n")
        print_results(options.axes, [entry for entry in table if entry[1]])
    if any(result.error for _, results in table for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    with command_boundary():
        main()
