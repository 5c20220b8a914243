"""What several processes give: the same gradients and losses as one with the larger batch, and which speed.

Run: python bench/processes.py [--processes 2] [--steps 60]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from common import ROOT, machine, print_table

SETTINGS = ("train.eval_interval=20", "train.eval_tokens=16384", "train.log_interval=1", "tracking.wandb=disabled")


def train(folder: Path, name: str, processes: int, *settings: str) -> list[dict[str, float]]:
    """The metrics of a run by so many processes, which share the machine's cores."""
    starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(starter if processes > 1 else []), str(ROOT / "train.py"), f"name={name}", "--quiet"]
    threads = max(1, len(os.sched_getaffinity(0)) // processes)
    done = subprocess.run(
        [*command, *SETTINGS, f"runtime.threads={threads}", *settings],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    lines = (folder / "runs" / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    many = options.processes
    print(f"{machine()}; quickstart.yaml, {options.steps} steps\n")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for precision in ("fp32", "bf16"):
            common = (f"runtime.precision={precision}", f"train.max_steps={options.steps}")
            runs = {}
            for processes in (1, many):
                batch = f"train.batch_size={16 * many // processes}"
                runs[processes] = train(folder, f"{precision}-{processes}", processes, batch, *common)
            differences = {
                metric: max(abs(a[metric] - b[metric]) for a, b in zip(runs[1], runs[many], strict=True) if metric in a)
                for metric in ("train/loss", "val/loss")
            }
            speeds = [median(line["perf/tokens_per_second"] for line in lines[5:]) for lines in runs.values()]
            rows.append(
                [
                    precision,
                    f"{differences['train/loss']:.1e}",
                    f"{differences['val/loss']:.1e}",
                    *(f"{speed:,.0f}" for speed in speeds),
                    f"{speeds[1] / speeds[0]:.2f}",
                ]
            )
    header = ["precision", "largest difference of train loss", "of val loss", "tokens/s, 1 process", f"{many}", "ratio"]
    print_table(header, rows)


if __name__ == "__main__":
    main()
