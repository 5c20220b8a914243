"""What the benchmarks share: the machine in words, alternating timings, tables in Markdown."""

import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
# So that `python bench/X.py` finds the rooms, and the command `train`, not the script of that name here.
sys.path[:] = [str(ROOT), *(path for path in sys.path if path != str(ROOT))]

from config.schema import ModelConfig  # noqa: E402 - found by the line above


@dataclass(frozen=True)
class Shape:
    """A model's measures, the same for all that are compared."""

    num_layers: int
    num_heads: int
    d_model: int
    context_length: int
    repeats: int  # of every round, since a short time is a noisy one

    def __str__(self) -> str:
        return f"{self.num_layers} layers, d {self.d_model}, context {self.context_length}"

    def config(self, architecture: str) -> ModelConfig:
        """The settings of such a model."""
        return model_config(architecture, (self.context_length, self.d_model, self.num_heads, self.num_layers, 1))


def machine() -> str:
    """Processor, cores, system and torch, in one line."""
    capabilities = torch.cpu.get_capabilities()
    name = capabilities.get("cpu_name") or platform.processor() or platform.machine()
    bf16 = "with bf16" if any(capabilities.get(key) for key in ("avx512_bf16", "amx_bf16", "bf16")) else "without bf16"
    return f"{name} {bf16}, {torch.get_num_threads()} threads, {platform.system()}, torch {torch.__version__}"


def alternate(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each contender, all of them called in turn in every round, so that noise hits all alike."""
    for run in contenders.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def model_config(architecture: str, size: tuple[int, int, int, int, int]) -> ModelConfig:
    """The settings of a model for a row of a benchmark's table, which also says with how many sequences."""
    context_length, d_model, num_heads, num_layers, _ = size
    return ModelConfig(
        architecture=architecture,
        context_length=context_length,
        d_model=d_model,
        num_heads=num_heads,
        num_layers=num_layers,
    )


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A Markdown table on stdout."""
    print("| " + " | ".join(header) + " |")
    print("|" + " --- |" * len(header))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
