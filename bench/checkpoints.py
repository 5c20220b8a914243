"""What a checkpoint costs: seconds to write and to read, size, and its share of a run that writes one per evaluation.

Run: python bench/checkpoints.py [--rounds 10] [RECIPE ...]
"""

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path

from common import ROOT, machine, print_table

from config.load import load_config
from data.prepare import prepare
from engine.checkpoint import load_checkpoint, save_to_run
from engine.lock import RunLock
from engine.new_run import create_run
from engine.runtime import choose_runtime
from engine.state import TrainingState
from engine.tracking import Console
from model import count_parameters
from train import Trainer


def measure(recipe: str, folder: Path, rounds: int) -> list[object]:
    """A row of the table: the recipe's model and optimizers after some steps, on the standard library's text."""
    settings = ["data.source=stdlib", f"data.cache_dir={folder / 'cache'}", "train.eval_tokens=16384"]
    config = load_config(ROOT / "config" / f"{recipe}.yaml", settings)
    prepared = prepare(config.data, report=lambda line: None)
    num_parameters = count_parameters(config.model, prepared.tokenizer.vocab_size)
    state = TrainingState(config, prepared, choose_runtime(config.runtime, num_parameters))
    run_seconds = Trainer(state, Console(silent=True), peak=math.inf).estimate()[0]
    with RunLock(print) as lock:
        run = create_run(folder / "runs", None, recipe, overwrite=False, lock=lock)
    run.start(config, prepared.tokenizer.to_json())
    saves, loads = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        path = save_to_run(run, state.checkpoint({"metrics": 0, "samples": 0}), keep=2)
        saves.append(time.perf_counter() - start)
        state.progress.step += 1
        start = time.perf_counter()
        load_checkpoint(path)
        loads.append(time.perf_counter() - start)
    save = statistics.median(saves)
    number = math.ceil(config.train.max_steps / config.train.eval_interval)
    return [
        f"{recipe}.yaml",
        f"{num_parameters:,}",
        f"{path.stat().st_size / 1e6:.1f} MB",
        f"{save:.3f} s",
        f"{statistics.median(loads):.3f} s",
        f"{number} in {run_seconds:.0f} s",
        f"{number * save / run_seconds:.2%}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", default=["quickstart", "shakespeare_char", "shakespeare_char_gpu"])
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_intermixed_args()
    print(machine())
    print()
    with tempfile.TemporaryDirectory() as name:
        rows = [measure(recipe, Path(name), options.rounds) for recipe in options.recipes]
    print_table(["recipe", "parameters", "size", "to write", "to read", "of a run (estimated)", "share"], rows)


if __name__ == "__main__":
    main()
