"""Writing text beside nanoGPT, and the measurements behind the constants of engine/row_products.py and generation.py.

Run: python bench/sample.py --nanogpt FOLDER [--run RUN] [--rounds 3] [--quick] [PART ...]

Parts (those that the given options allow, where none is named):
    beside    tokens per second of whole texts, nanoGPT's `generate` and ours in turn (--nanogpt)
    step      microseconds of one step of the decoder, and how fast its weights are read
    products  microseconds of a product of one row, or a few, with a matrix, by MKL and by oneDNN
    rows      tokens per second with more and more texts side by side
    loss      val loss of a trained run with exact, bf16 and int8 weights (--run)
    alone     texts of a trained run that are the same alone and among others (--run)
    start     time from the start of sample.py to its first character (--run)

Weights are random but in the last three parts, which does not change the speed. Texts begin with one token; temperature
0.8 and top_k 200, which are nanoGPT's. Both sides run in one process, in turn, in every round; figures are medians, and
tokens per second are those of all texts together. nanoGPT computes as it does without its --compile, with as many
threads as suit it best. All parts together take more than a quarter of an hour.
"""

import argparse
import contextlib
import importlib.util
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from common import ROOT, Shape, alternate, machine, print_table

import torch  # isort: skip
import torch.nn.functional as F  # isort: skip
from torch import Tensor, nn  # isort: skip
from config.schema import RuntimeConfig  # isort: skip
from data.dataset import Split, evaluation_windows  # isort: skip
from data.tokenizer import CharTokenizer  # isort: skip
from engine import generation  # isort: skip
from engine.choice import SamplingSettings, sample_generator  # isort: skip
from engine.decoder import Decoder  # isort: skip
from engine.generation import Draft, generate  # isort: skip
from engine.loading import TrainedModel, load_model  # isort: skip
from engine.products import install_fast_products, multiply  # isort: skip
from engine.row_products import RowFunction, has_onednn, round_to_int8, transposed_product  # isort: skip
from engine.runtime import choose_runtime  # isort: skip
from engine.writing import new_texts, write_on  # isort: skip
from evaluate import evaluate, own_split  # isort: skip
from model import GPT  # isort: skip

PARTS = ("beside", "step", "products", "rows", "loss", "alone", "start")
NEEDS = {"beside": "nanogpt", "loss": "run", "alone": "run", "start": "run"}  # parts that need an option
TOKENIZER = CharTokenizer("".join(map(chr, range(32, 96))))  # 64 characters and the end: 65 ids, as of Tiny Shakespeare
TEMPERATURE, TOP_K = 0.8, 200  # the defaults of nanoGPT's sample.py
SLOW_SECONDS = 60  # what takes longer than that is measured once
CALLS = 20  # of what takes microseconds, for one measurement
TEXTS = (1, 16)
WIDTHS = (96, 128, 192, 256, 320, 384, 512)
MATRICES = 48  # of (d, d), as many weights as four blocks have
MORE_TEXTS = (1, 4, 8, 16, 32, 64)
STARTS = 5
WEIGHTS = ("exact", "bf16", "int8")
TEXTS_ALONE = 100

Run = Callable[[], object]
Key = TypeVar("Key", bound=Hashable)


SHAPES = (Shape(4, 4, 128, 64, repeats=3), Shape(6, 6, 384, 256, repeats=1))


@dataclass(frozen=True)
class Kind:
    """A way of ours to compute, as `load_model` prepares it."""

    architecture: str
    weights: str  # exact, bf16 or int8

    def __str__(self) -> str:
        return f"ours, {self.architecture}, {self.weights}"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.weights == "bf16" else torch.float32

    def model(self, shape: Shape) -> GPT:
        """A model with random weights."""
        model = GPT(shape.config(self.architecture), TOKENIZER.vocab_size).eval()
        precision: Literal["bf16", "fp32"] = "bf16" if self.weights == "bf16" else "fp32"
        runtime = choose_runtime(RuntimeConfig(device="cpu", precision=precision), 0)
        if self.weights == "int8":
            round_to_int8(model)
        install_fast_products(model, runtime)
        return model

    def decoder(self, model: GPT, rows: int) -> Decoder:
        return Decoder(model, rows, model.config.context_length, dtype=self.dtype, int8=self.weights == "int8")

    def write(self, model: GPT, rows: int, tokens: int) -> None:
        """Write so many new tokens to each of so many texts."""
        for _ in generate(
            model,
            TOKENIZER,
            [Draft([0], sample_generator(0, row)) for row in range(rows)],
            max_new_tokens=tokens,
            settings=SamplingSettings(temperature=TEMPERATURE, top_k=TOP_K),
            stops_at_end=False,
            dtype=self.dtype,
            int8=self.weights == "int8",
        ):
            pass


EXACT = Kind("gpt2", "exact")
KINDS = (EXACT, Kind("qwen3", "exact"), Kind("gpt2", "bf16"), Kind("gpt2", "int8"))


class NanoGPT:
    """Their side: the model of a checkout, whose module has the name of one of ours."""

    def __init__(self, checkout: Path) -> None:
        spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
        if spec is None or spec.loader is None or not (checkout / "model.py").is_file():
            raise SystemExit(f"--nanogpt {checkout}: there is no model.py")
        self.module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = self.module
        spec.loader.exec_module(self.module)

    def model(self, shape: Shape) -> nn.Module:
        """A model with random weights."""
        config = self.module.GPTConfig(
            block_size=shape.context_length,
            vocab_size=TOKENIZER.vocab_size,
            n_layer=shape.num_layers,
            n_head=shape.num_heads,
            n_embd=shape.d_model,
            bias=True,
        )
        with contextlib.redirect_stdout(sys.stderr):  # it prints its size
            model: nn.Module = self.module.GPT(config)
        return model.eval()

    def write(self, model: Any, rows: int, tokens: int) -> None:
        """Write so many new tokens to each of so many texts."""
        model.generate(torch.zeros(rows, 1, dtype=torch.int64), tokens, temperature=TEMPERATURE, top_k=TOP_K)

    def best_threads(self, model: Any, rows: int, threads: Sequence[int]) -> int:
        """With how many threads a token behind a full window comes soonest."""
        window = torch.zeros(rows, model.config.block_size, dtype=torch.int64)
        runs = {str(count): with_threads(count, lambda: model.generate(window, 2, top_k=TOP_K)) for count in threads}
        seconds = alternate(runs, rounds=3)
        return min(threads, key=lambda count: seconds[str(count)])


def with_threads(threads: int, run: Run) -> Run:
    """The same with so many threads."""

    def runs() -> None:
        torch.set_num_threads(threads)
        run()

    return runs


def repeated(times: int, run: Run) -> Run:
    """The same so many times."""

    def runs() -> None:
        for _ in range(times):
            run()

    return runs


def in_turn(contenders: Mapping[Key, Run], rounds: int) -> tuple[dict[Key, float], dict[Key, int]]:
    """Median seconds of each, and in how many rounds: without a warm-up, and a slow one only once."""
    seconds: dict[Key, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            if seconds[name] and seconds[name][0] > SLOW_SECONDS:
                continue
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return medians, {name: len(times) for name, times in seconds.items()}


def in_words(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def beside(nanogpt: NanoGPT, threads: Sequence[int], *, rounds: int, tokens: int) -> None:
    """Print tokens per second of both sides."""
    rows: list[Sequence[object]] = []
    for shape, texts in itertools.product(SHAPES, TEXTS):
        theirs = nanogpt.model(shape)
        best = nanogpt.best_threads(theirs, texts, threads)
        runs: dict[tuple[Kind | None, int], Run] = {
            (None, best): with_threads(best, partial(nanogpt.write, theirs, texts, tokens))
        }
        for kind in KINDS:
            model = kind.model(shape)
            kind.write(model, texts, tokens=20)  # to warm up
            for count in threads:
                runs[kind, count] = with_threads(count, partial(kind.write, model, texts, tokens))
        seconds, times = in_turn(runs, rounds * shape.repeats)
        name = "nanoGPT" if times[None, best] > 1 else "nanoGPT, one round"
        reference = seconds[None, best]
        cells = [f"{texts * tokens / reference:,.0f}" if count == best else "" for count in threads]
        rows.append([shape, texts, name, *cells, "1"])
        for kind in KINDS:
            its = [seconds[kind, count] for count in threads]
            cells = [f"{texts * tokens / one:,.0f}" for one in its]
            rows.append([shape, texts, kind, *cells, f"{reference / min(its):.1f}"])
    print(f"\ntokens per second, {tokens} new tokens for each text\n")
    print_table(["model", "texts", "contender", *map(in_words, threads), "best ÷ nanoGPT"], rows)


def steps(threads: Sequence[int], *, rounds: int) -> None:
    """Print what one step of the decoder takes, with half a window before it."""
    rows = []
    for shape, texts in itertools.product(SHAPES, TEXTS):
        models = {kind: kind.model(shape) for kind in KINDS}
        runs: dict[tuple[Kind, int], Run] = {}
        for kind, model in models.items():
            one = one_step(kind.decoder(model, texts), texts, shape.context_length // 2)
            runs |= {(kind, count): with_threads(count, repeated(CALLS, one)) for count in threads}
        for run in runs.values():
            run()
        seconds, _ = in_turn(runs, 5 * rounds)
        for kind, model in models.items():
            num_bytes, cells = weight_bytes(model, kind), []
            for count in threads:
                one_seconds = seconds[kind, count] / CALLS
                cells += [f"{one_seconds * 1e6:,.0f}", f"{num_bytes / one_seconds / 1e9:.1f}"]
            rows.append([shape, texts, kind, f"{num_bytes / 1e6:.1f}", *cells])
    columns = [f"{words}, {unit}" for words in map(in_words, threads) for unit in ("µs", "GB/s")]
    print("\none step of the decoder, and the weights that it reads in a second\n")
    print_table(["model", "texts", "contender", "MB of weights", *columns], rows)


def one_step(decoder: Decoder, texts: int, position: int) -> Run:
    """The step of this position, which can be repeated."""
    tokens = torch.zeros(texts, dtype=torch.int64)

    def run() -> None:
        decoder.lengths = [position] * texts
        decoder.decode(tokens)

    return run


def weight_bytes(model: GPT, kind: Kind) -> int:
    """The size of all matrices that a step multiplies with."""
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    return weights * {"exact": 4, "bf16": 2, "int8": 1}[kind.weights]


def products(threads: Sequence[int], *, rounds: int) -> None:
    """Print what the product with one matrix takes, of as many one after the other as a model has."""
    table, names = [], list(ways_to_multiply([torch.zeros(1, 1)]))
    for width, wider, rows in itertools.product(WIDTHS, (1, 4), TEXTS):
        count = MATRICES // wider
        up_and_down = [(wider * width, width), (width, wider * width)] * (count // 2)
        weights, x = [torch.randn(*shape) / shape[1] ** 0.5 for shape in up_and_down], torch.randn(rows, width)
        runs = {
            (name, number): with_threads(number, repeated(CALLS, partial(through, functions, x)))
            for name, functions in ways_to_multiply(weights).items()
            for number in threads
        }
        for run in runs.values():
            run()
        seconds, _ = in_turn(runs, 3 * rounds)
        microseconds = {key: its / CALLS / count * 1e6 for key, its in seconds.items()}
        cells = [" / ".join(f"{microseconds[name, number]:.1f}" for number in threads) for name in names]
        path = [width, wider * width, width] if wider > 1 else [width, width]
        table.append([f"{rows} × {' → '.join(map(str, path))}", f"{wider * width**2:,}", *cells])
    print(f"\none product of many in a row, in fp32, µs; {' / '.join(map(in_words, threads))}\n")
    print_table(["rows × width", "weights of one", *names], table)


def ways_to_multiply(weights: Sequence[Tensor]) -> dict[str, list[RowFunction]]:
    """Products with these weights: MKL's, with the weights as they are and transposed, and oneDNN's."""
    biases = [torch.zeros(len(weight)) for weight in weights]
    pairs = list(zip(weights, biases, strict=True))
    ways: dict[str, list[RowFunction]] = {
        "F.linear": [partial(F.linear, weight=weight, bias=bias) for weight, bias in pairs],
        "transposed": [transposed_product(weight, bias) for weight, bias in pairs],
    }
    if has_onednn(weights[0]):
        ways["oneDNN"] = [partial(multiply, weight=weight, bias=bias) for weight, bias in pairs]
    return ways


@torch.inference_mode()
def through(functions: Sequence[RowFunction], x: Tensor) -> None:
    """The rows through one product after the other: (rows, d)."""
    for function in functions:
        x = function(x)


def side_by_side(threads: int, *, rounds: int, tokens: int) -> None:
    """Print tokens per second with more and more texts side by side."""
    generation.MAX_ROWS["cpu"] = max(MORE_TEXTS)  # the limit that is in question
    table = []
    for shape, kind in itertools.product(SHAPES, KINDS):
        model = kind.model(shape)
        kind.write(model, 1, tokens=20)  # to warm up
        runs = {texts: with_threads(threads, partial(kind.write, model, texts, tokens)) for texts in MORE_TEXTS}
        seconds, _ = in_turn(runs, rounds)
        table.append([shape, kind, *(f"{texts * tokens / its:,.0f}" for texts, its in seconds.items())])
    print(f"\ntokens per second of so many texts side by side, {in_words(threads)}, {tokens} new tokens for each\n")
    print_table(["model", "contender", *map(str, MORE_TEXTS)], table)


def losses(run: str) -> None:
    """Print what weights of fewer bits cost in val loss."""
    rows, exact = [], (0.0, 0.0)
    for weights in WEIGHTS:
        trained = load_with(run, weights)
        split = own_split(trained, "val")
        result = evaluate(trained.model, split, trained.tokenizer, trained.runtime)
        pair = result.loss, decoder_loss(trained.model, split, Kind(trained.model.config.architecture, weights))
        exact = pair if weights == "exact" else exact
        cells = [f"{its:.5f} ({its - reference:+.5f})" for its, reference in zip(pair, exact, strict=True)]
        rows.append([weights, *cells])
    print(f"\nval loss over {result.tokens:,} tokens, nats per token (difference from exact)\n")
    print_table(["weights", "by evaluate.py", "by the decoder, as text is written"], rows)


def load_with(run: str, weights: str) -> TrainedModel:
    """A trained run with exact, bf16 or int8 weights."""
    precision = "bf16" if weights == "bf16" else "fp32"
    return load_model(run, device="cpu", precision=precision, weights="int8" if weights == "int8" else "exact")


def alone(run: str, *, tokens: int) -> None:
    """Print how many texts of a trained run are the same alone and beside others."""
    table = []
    for weights in WEIGHTS:
        trained = load_with(run, weights)
        together, apart = (new_texts(trained, [""], seed=1, num_samples=TEXTS_ALONE) for _ in range(2))
        for texts in (together, *([text] for text in apart)):
            for _ in write_on(trained, texts, max_new_tokens=tokens):
                pass
        same = sum(a.new_ids == b.new_ids for a, b in zip(together, apart, strict=True))
        table.append([weights, f"{same} of {len(apart)}"])
    print(f"\ntexts of {tokens} tokens that are the same alone as beside {TEXTS_ALONE - 1} others\n")
    print_table(["weights", "the same"], table)


@torch.inference_mode()
def decoder_loss(model: GPT, split: Split, kind: Kind) -> float:
    """Nats per token of the split, in windows that do not overlap, of which the decoder reads many side by side."""
    total, count = 0.0, 0
    for idx, targets in evaluation_windows(split, model.config.context_length, 512):
        decoder = kind.decoder(model, len(idx))
        for tokens, after in zip(idx.t(), targets.t(), strict=True):  # of one position in all windows
            total += F.cross_entropy(decoder.decode(tokens.contiguous()), after, reduction="sum").item()
        count += targets.numel()
    return total / count


def starts(run: str) -> None:
    """Print the time to the first character, beside that which torch takes to load."""
    sample = [sys.executable, str(ROOT / "sample.py"), run, "--max-new-tokens", "1"]
    commands = {
        "`sample.py RUN --max-new-tokens 1`, to its first character": sample,
        "`import torch; print(flush=True)`, likewise": [sys.executable, "-c", "import torch; print(flush=True)"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(STARTS):
        for name, command in commands.items():
            seconds[name].append(seconds_to_output(command))
    print(f"\ntime from the start of the process, median of {STARTS} in turn\n")
    print_table(["what", "seconds"], [[name, f"{statistics.median(its):.2f}"] for name, its in seconds.items()])


def seconds_to_output(command: Sequence[str]) -> float:
    """Until the process has written its first byte, or closed its output without one."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - start
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: ended with {process.returncode}")
    return seconds


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--nanogpt", type=Path, help="a checkout of karpathy/nanoGPT")
    parser.add_argument("--run", help="a trained run of ours")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=500, help="of each text")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="to try (1 2)")
    parser.add_argument("--quick", action="store_true", help="one round of 20 tokens, only to try this script")
    options = parser.parse_intermixed_args()
    given = {name for name in ("nanogpt", "run") if getattr(options, name) is not None}
    parts = options.parts or [part for part in PARTS if NEEDS.get(part) in (None, *given)]
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    for part in parts:
        if NEEDS.get(part) not in (None, *given):
            parser.error(f"{part}: name what it is to be measured on with --{NEEDS[part]}")
    rounds, tokens = (1, 20) if options.quick else (options.rounds, options.tokens)
    print(machine())
    if "beside" in parts:
        beside(NanoGPT(options.nanogpt), options.threads, rounds=rounds, tokens=tokens)
    if "step" in parts:
        steps(options.threads, rounds=rounds)
    if "products" in parts:
        products(options.threads, rounds=rounds)
    if "rows" in parts:
        side_by_side(max(options.threads), rounds=rounds, tokens=tokens)
    torch.set_num_threads(max(options.threads))
    if "loss" in parts:
        losses(options.run)
    if "alone" in parts:
        alone(options.run, tokens=tokens)
    if "start" in parts:
        starts(options.run)


if __name__ == "__main__":
    main()
