"""Where the time of a training step goes: matrix products, attention, the optimizers, the rest; and MFU.

Run: python bench/steps.py [RECIPE.yaml] [section.key=value ...] [--steps 20]

For CPUs. The shares of Muon and AdamW are measured directly, by a clock around them; the others by torch's profiler,
which itself costs something for each of many small operations.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import ROOT, machine, print_table
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from config.load import is_override, load_config
from data.prepare import prepare
from engine.muon import Muon
from engine.peak import describe_flops, peak_flops
from engine.runtime import choose_runtime, compile_model
from engine.state import TrainingState
from engine.tracking import Console
from errors import command_boundary
from model import count_parameters, flops_per_token
from train import Trainer

WARM_UP_STEPS = 5
MUON, ADAMW = "Muon", "AdamW"
# Of the model, batched products and softmax are attention's alone.
ATTENTION = ("bmm", "softmax", "scaled_dot_product", "flash_attention")
PRODUCTS = ("mm", "linear", "mkldnn", "onednn")


@dataclass(frozen=True)
class StepCosts:
    """What a step takes, and the shares of it."""

    seconds: float
    tokens_per_second: float
    peak: float  # floating-point operations per second
    mfu: float
    optimizers: dict[str, float]  # by a clock
    parts: dict[str, float]  # by the profiler
    muon_products: float  # by the profiler: Newton-Schulz, a part of Muon's share


class Clock:
    """Adds up the seconds that a function takes; under the profiler its name is seen."""

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self.name = name
        self.function = function
        self.seconds = 0.0

    def __call__(self) -> object:
        start = time.perf_counter()
        with record_function(self.name):
            result = self.function()
        self.seconds += time.perf_counter() - start
        return result


def measure(recipe: Path, overrides: Sequence[str], steps: int) -> StepCosts:
    """Train a few steps of a recipe, on the clock and then under the profiler."""
    with tempfile.TemporaryDirectory() as cache:
        config = load_config(recipe, [f"data.cache_dir={cache}", *overrides])
        prepared = prepare(config.data, report=lambda line: None)
        runtime = choose_runtime(config.runtime, count_parameters(config.model, prepared.tokenizer.vocab_size))
        peak = peak_flops(runtime)
        state = TrainingState(config, prepared, runtime)
        trainer = Trainer(state, Console(silent=True), peak=peak)
        forward = compile_model(state.model, runtime, (config.train.batch_size, config.model.context_length))
        clocks = {}
        for member in state.optimizers.members:
            name = MUON if isinstance(member, Muon) else ADAMW
            clocks[name] = member.step = Clock(name, member.step)  # type: ignore[method-assign,assignment]
        for _ in range(WARM_UP_STEPS):
            trainer.update(forward)
        seconds, shares = on_the_clock(trainer, forward, clocks, steps)
        parts, muon_products = profiled(trainer, forward, steps)
    train = config.train
    tokens_per_second = train.batch_size * config.model.context_length * train.grad_accum_steps / seconds
    mfu = tokens_per_second * flops_per_token(config.model, prepared.tokenizer.vocab_size) / peak
    return StepCosts(seconds, tokens_per_second, peak, mfu, shares, parts, muon_products)


def on_the_clock(
    trainer: Trainer, forward: nn.Module, clocks: dict[str, Clock], steps: int
) -> tuple[float, dict[str, float]]:
    """The median seconds of a step, and the share of all steps that each optimizer takes."""
    before = {name: clock.seconds for name, clock in clocks.items()}
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        trainer.update(forward)
        seconds.append(time.perf_counter() - start)
    shares = {name: (clock.seconds - before[name]) / sum(seconds) for name, clock in clocks.items()}
    return statistics.median(seconds), shares


def profiled(trainer: Trainer, forward: nn.Module, steps: int) -> tuple[dict[str, float], float]:
    """The share of each part, and that of the products within Muon."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        start = time.perf_counter()
        for _ in range(steps):
            trainer.update(forward)
        total = (time.perf_counter() - start) * 1e6  # the profiler counts in microseconds
    parts: dict[str, float] = defaultdict(float)
    muon_products = 0.0
    for event in profiler.events():
        ancestor, owner = event, None
        while ancestor is not None and owner is None:
            owner = ancestor.name if ancestor.name in (MUON, ADAMW) else None
            ancestor = ancestor.cpu_parent
        if owner == MUON and is_product(event.name):
            muon_products += event.self_cpu_time_total / total
        parts[owner or part_of_model(event.name)] += event.self_cpu_time_total / total
    parts["Python between them"] += 1 - sum(parts.values())
    return dict(parts), muon_products


def part_of_model(name: str) -> str:
    """Which part of forward, backward or clipping an operation belongs to."""
    if "log_softmax" not in name and any(word in name for word in ATTENTION):
        return "attention"
    if is_product(name):
        return "matrix products"
    if name.startswith(("aten::", "graph_", "triton_", "## Call CompiledFxGraph")):
        return "elementwise, norms, loss, copies"
    return "Python between them"


def is_product(name: str) -> bool:
    """Whether an operation multiplies matrices."""
    return any(word in name.removeprefix("aten::") for word in PRODUCTS)


def print_costs(costs: StepCosts) -> None:
    """Tables of what was measured."""
    print(
        f"step {costs.seconds * 1e3:.1f} ms, {costs.tokens_per_second:,.0f} tokens/s, "
        f"MFU {costs.mfu:.1%} of {describe_flops(costs.peak)}\n"
    )
    print_table(["optimizer, by the clock", "share"], [[name, f"{x:.1%}"] for name, x in costs.optimizers.items()])
    print()
    rows = []
    for name, share in sorted(costs.parts.items(), key=lambda part: -part[1]):
        rows.append([name, f"{share:.1%}"])
        if name == MUON:
            rows.append(["of which Newton-Schulz's matrix products", f"{costs.muon_products:.1%}"])
    print_table(["part, by the profiler", "share"], rows)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="RECIPE.yaml section.key=value")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_intermixed_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    recipes = [Path(word) for word in options.settings if not is_override(word)]
    if len(recipes) > 1:
        parser.error("one recipe at a time")
    print(machine() + "\n")
    recipe = recipes[0] if recipes else ROOT / "config" / "quickstart.yaml"
    print_costs(measure(recipe, [word for word in options.settings if is_override(word)], options.steps))


if __name__ == "__main__":
    with command_boundary():
        main()
