"""What a recipe gives on this machine: val loss, wall time, speed, peak memory. And how soon the first step is done.

Run: python bench/recipes.py [--seeds 2] [--text FILE for the recipes on Tiny Shakespeare] [RECIPE ...]
     python bench/recipes.py --startup
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT, machine, print_table

DEFAULT_RECIPES = ("quickstart", "shakespeare_char")
STARTUP_ROUNDS = 5


def start(folder: str, *arguments: str) -> subprocess.Popen[str]:
    """train.py in a folder of its own, its stderr readable line by line."""
    command = [sys.executable, str(ROOT / "train.py"), *arguments, f"data.cache_dir={folder}/cache"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def measure(recipe: str, overrides: list[str]) -> dict[str, float]:
    """Train a recipe once, from nothing, and read what it says about itself."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        process = start(folder, str(ROOT / "config" / f"{recipe}.yaml"), "name=bench", *overrides)
        assert process.stderr is not None
        output = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            raise SystemExit(output)
        seconds = time.perf_counter() - begin
        run = Path(folder) / "runs" / "bench"
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        speeds = [line["perf/tokens_per_second"] for line in lines]
        final = lines[-1]
        best = min(line["val/loss"] for line in lines if "val/loss" in line)
        return {
            "val loss": final["val/loss"],
            "best": best,
            "bits per character": final["val/bits_per_char"],
            "wall time": seconds,
            "tokens/s": statistics.median(speeds),
            "peak memory": usage.ru_maxrss / 1024,  # Linux counts in KiB
        }


def measure_recipes(recipes: list[str], text: str | None, seeds: int) -> None:
    """Print a row for every recipe and seed."""
    rows = []
    for recipe in recipes:
        for seed in range(1337, 1337 + seeds):
            source = [f"data.source={Path(text).resolve()}"] if text and recipe.startswith("shakespeare") else []
            result = measure(recipe, [f"seed={seed}", *source])
            rows.append(
                [
                    f"{recipe}.yaml",
                    seed,
                    f"{result['val loss']:.4f}",
                    f"{result['best']:.4f}",
                    f"{result['bits per character']:.3f}",
                    f"{result['wall time']:.0f} s",
                    f"{result['tokens/s']:,.0f}",
                    f"{result['peak memory']:.0f} MiB",
                ]
            )
    names = ["recipe", "seed", "final val loss", "best val loss", "bits/char", "wall time", "tokens/s", "peak memory"]
    print_table(names, rows)


def measure_startup() -> None:
    """Print the median seconds from process start to the first step, with prepared data, and what torch takes of it."""
    first_step, imports = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(STARTUP_ROUNDS + 1):
            begin = time.perf_counter()
            process = start(folder, "train.max_steps=1", "train.log_interval=1", "train.eval_tokens=128")
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("step 1/1"):
                    break
            seconds = time.perf_counter() - begin
            process.stderr.read()
            process.wait()
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", "import torch"], check=True)
            if number > 0:  # the first one prepares the data
                first_step.append(seconds)
                imports.append(time.perf_counter() - begin)
    rows = [
        ["process start to the end of the first step of quickstart.yaml", f"{statistics.median(first_step):.2f} s"],
        ["of which `python -c 'import torch'`", f"{statistics.median(imports):.2f} s"],
    ]
    print_table(["what", f"median of {STARTUP_ROUNDS}"], rows)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=DEFAULT_RECIPES)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--text", help="a local copy of Tiny Shakespeare, instead of the download")
    parser.add_argument("--startup", action="store_true")
    options = parser.parse_intermixed_args()
    print(machine() + "\n")
    if options.startup:
        measure_startup()
    else:
        measure_recipes(list(options.recipes), options.text, options.seeds)


if __name__ == "__main__":
    main()
