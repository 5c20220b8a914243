"""How well a run ends on time: `train.max_minutes` beside the seconds from the start of the process to its exit.

    python bench/minutes.py [RECIPE.yaml] [section.key=value ...] [--minutes 0.2 0.5 1] [--rounds 2]

The dashboard is on, as the recipe has it, whatever `WANDB_MODE` says. What others do on the machine counts: nothing
should run beside it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT, machine, print_table


def measure(arguments: list[str], minutes: float) -> list[object]:
    """A row of the table, of one run in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        places = [f"runs_dir={folder}", "name=run", "train.max_steps=null", f"train.max_minutes={minutes}"]
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, str(ROOT / "train.py"), *arguments, *places, "--quiet"],
            check=True,
            env={name: value for name, value in os.environ.items() if name != "WANDB_MODE"},
            stdout=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - begin
        last = json.loads((Path(folder) / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return [
        f"{60 * minutes:g} s",
        f"{seconds:.2f} s",
        f"{seconds / (60 * minutes) - 1:+.2%}",
        f"{last['step']:,}",
        f"{last['val/loss']:.4f}",
    ]


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arguments", nargs="*", help="those of train.py")
    parser.add_argument("--minutes", type=float, nargs="+", default=[0.2, 0.5, 1.0])
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_intermixed_args()
    print(machine() + "\n")
    rows = [measure(options.arguments, minutes) for minutes in options.minutes for _ in range(options.rounds)]
    print_table(["budget", "whole process", "beside the budget", "steps", "val loss"], rows)


if __name__ == "__main__":
    main()
