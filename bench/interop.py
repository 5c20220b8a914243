"""Exports and what others make of them: time, size, the largest difference of a logit, and the speed of writing text.

Run: python bench/interop.py [--rounds 3] [--quick] [PART ...]

Parts (all, where none is named):
    exports   seconds and bytes of each format, and how far logits there are from ours
    speed     tokens per second of our sampling, of transformers' `generate` and of llama.cpp, in turn

Needs what requirements-dev.txt installs. Weights are random, twice as large as fresh ones; the tokenizer has 64
characters and the end. Texts begin with one token and fill the window but for 8 tokens, at temperature 0.8 without any
other limit; nobody may end earlier. Each contender has the number of threads that suits it best of --threads, found
out once per shape. llama.cpp is asked as a server within this process, 16 texts at once as 16 requests, with its own
settings, and started anew for every round. For the differences it is also told to leave out flash attention and to keep
keys and values in f32 ("exact").
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from common import Shape, machine, print_table

import torch  # isort: skip
from config.schema import Config, ModelConfig  # isort: skip
from data.tokenizer import CharTokenizer  # isort: skip
from engine.checkpoint import Checkpoint  # isort: skip
from engine.choice import SamplingSettings  # isort: skip
from engine.loading import load_model  # isort: skip
from engine.writing import new_texts, write_on  # isort: skip
from export import size_of  # isort: skip
from interop.gguf import write_gguf  # isort: skip
from interop.huggingface_folder import write_folder  # isort: skip
from interop.opening import open_model  # isort: skip
from model import GPT  # isort: skip

PARTS = ("exports", "speed")
ARCHITECTURES = ("gpt2", "qwen3")
TOKENIZER = CharTokenizer("".join(map(chr, range(32, 96))))
TEMPERATURE = 0.8
TEXTS = (1, 16)
Run = Callable[[], object]
Make = Callable[[int], Run]  # of a number of threads
MARGIN = 8  # tokens of the window that are left free


SHAPES = (Shape(4, 4, 128, 128, repeats=4), Shape(6, 6, 384, 256, repeats=1))
TINY_SHAPES = (Shape(2, 2, 16, 32, repeats=1),)


def make_checkpoint(config: ModelConfig) -> Checkpoint:
    """A model with random weights, of a text that was one document."""
    torch.manual_seed(0)
    weights = {name: 2 * w if w.dim() == 2 else w for name, w in GPT(config, TOKENIZER.vocab_size).state_dict().items()}
    if config.tie_embeddings:
        weights["lm_head.weight"] = weights["token_embedding.weight"]
    facts = {"fingerprint": "", "num_documents": 1, "start_id": 0}
    progress = {"best_step": None, "best_val_loss": 0.0}
    return Checkpoint(
        step=0, config=Config(model=config), tokenizer=TOKENIZER, model=weights, data=facts, progress=progress
    )


class Llama:
    """llama.cpp as a server in this process."""

    def __init__(self, path: Path, shape: Shape, *, texts: int, threads: int, exact: bool = False) -> None:
        import xllamacpp

        options = xllamacpp.CommonParams()
        options.model.path = str(path)
        options.n_ctx, options.n_parallel = shape.context_length * texts, texts
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
        options.verbosity, options.n_threads_http = -1, texts + 1
        if exact:
            options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
            options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = xllamacpp.Server(options)
        self.pool = ThreadPoolExecutor(texts)

    def ask(self, **fields: Any) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.server.listening_address}/completion", json.dumps(fields).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as response:
            return dict(json.load(response))

    def log_probabilities(self, ids: Sequence[int]) -> dict[int, float]:
        found = self.ask(prompt=ids, n_predict=1, n_probs=TOKENIZER.vocab_size, temperature=0.0, cache_prompt=False)
        return {top["id"]: top["logprob"] for top in found["completion_probabilities"][0]["top_logprobs"]}

    def write(self, texts: int, tokens: int) -> None:
        settings = {"n_predict": tokens, "temperature": TEMPERATURE, "samplers": ["temperature"], "ignore_eos": True}
        jobs = [
            self.pool.submit(self.ask, prompt=[0], cache_prompt=False, seed=seed, **settings) for seed in range(texts)
        ]
        for job in jobs:
            found = job.result()["tokens_predicted"]
            assert found == tokens, found


def exports(folder: Path, shapes: Sequence[Shape], *, rounds: int) -> None:
    """Print what exports cost, and how exact they are."""
    rows = []
    for shape in shapes:
        for architecture in ARCHITECTURES:
            checkpoint = make_checkpoint(shape.config(architecture))
            for form in ("hf", "gguf"):
                for dtype in ("f32", "f16"):
                    seconds, path = export(folder, checkpoint, form, dtype, rounds=rounds)
                    differences, largest = distance(checkpoint, path, form, shape)
                    apart = " / ".join(f"{difference:.1e}" for difference in differences)
                    cells = [f"{seconds:.2f} s", f"{size_of(path) / 1e6:.1f} MB", apart, f"{largest:.1f}"]
                    rows.append([str(shape), architecture, form, dtype, *cells])
    what = "of logits; in gguf of log-probabilities, exact / by default"
    print(f"\nexports: time and size, and the largest difference from ours ({what})\n")
    print_table(["model", "architecture", "format", "dtype", "time", "size", "difference", "largest logit"], rows)


def export(folder: Path, checkpoint: Checkpoint, form: str, dtype: str, *, rounds: int) -> tuple[float, Path]:
    """Median seconds, and where the last one is."""
    seconds, path = [], folder / f"{form}-{dtype}"
    for number in range(rounds):
        path = (
            folder / f"{checkpoint.config.model.architecture}-{checkpoint.config.model.d_model}-{dtype}-{number}.{form}"
        )
        start = time.perf_counter()
        if form == "hf":
            write_folder(path, checkpoint, dtype=dtype)
        else:
            write_gguf(path, checkpoint, dtype=dtype, report=lambda line: None)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), path


@torch.no_grad()
def distance(checkpoint: Checkpoint, path: Path, form: str, shape: Shape) -> tuple[list[float], float]:
    """The largest difference of a logit over a window (in llama.cpp exact, and by default); the largest logit."""
    generator = torch.Generator().manual_seed(0)
    idx = torch.randint(len(TOKENIZER.characters), (1, shape.context_length), generator=generator)
    ours = checkpoint.make_model(torch.device("cpu"))(idx)[0]
    largest = float(ours.abs().max())
    if form == "hf":
        theirs = transformers_model(path)(idx).logits[0].float()
        return [float((theirs - ours).abs().max())], largest
    worst = []
    for exact in (True, False):
        llama = Llama(path, shape, texts=1, threads=1, exact=exact)
        worst.append(0.0)
        for length in range(1, shape.context_length, shape.context_length // 8):
            expected = torch.log_softmax(ours[length - 1], dim=-1)
            found = llama.log_probabilities(idx[0, :length].tolist())
            differences = [abs(found[i] - float(expected[i])) for i in range(len(expected) - 1)]
            worst[-1] = max(worst[-1], *differences)
    return worst, largest


def transformers_model(path: Path) -> Any:
    """The folder as transformers opens it."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return transformers.AutoModelForCausalLM.from_pretrained(path).eval()


def speed(folder: Path, shapes: Sequence[Shape], threads: Sequence[int], *, rounds: int) -> None:
    """Print tokens per second of all contenders."""
    rows = []
    for shape in shapes:
        for architecture in ("qwen3",):  # that of the quickstart
            checkpoint = make_checkpoint(shape.config(architecture))
            hf, f32, f16 = (folder / f"speed-{architecture}-{shape.d_model}.{kind}" for kind in ("hf", "f32", "f16"))
            write_folder(hf, checkpoint)
            for path in (f32, f16):
                write_gguf(path, checkpoint, dtype=path.suffix[1:], report=lambda line: None)
            for texts in TEXTS:
                tokens = shape.context_length - MARGIN
                contenders = all_contenders((hf, f32, f16), shape, texts, tokens, threads)
                times: dict[str, list[float]] = {name: [] for name in contenders}
                for _ in range(rounds):
                    for name, make in contenders.items():  # one at a time: an idle server keeps a core busy
                        times[name].append(timed(make(), shape.repeats))
                seconds = {name: statistics.median(its) for name, its in times.items()}
                for name, its in seconds.items():
                    per_second = shape.repeats * texts * tokens / its
                    ratio = seconds["sample.py"] / its
                    rows.append([str(shape), architecture, texts, name, f"{per_second:,.0f}", f"{ratio:.2f}"])
                    print(*rows[-1], file=sys.stderr)
    print(f"\ntokens per second, medians of {rounds} rounds in turn\n")
    print_table(["model", "architecture", "texts", "written by", "tokens/s", "÷ ours"], rows)


def all_contenders(
    paths: tuple[Path, Path, Path], shape: Shape, texts: int, tokens: int, threads: Sequence[int]
) -> dict[str, Callable[[], Run]]:
    """Who writes, each with the number of threads that suits it."""
    hf, f32, f16 = paths
    return {
        "sample.py": best(lambda count: ours(hf, texts, tokens, count), threads),
        "transformers": best(lambda count: theirs(hf, texts, tokens, count), threads),
        "llama.cpp f32": best(lambda count: llamas(f32, shape, texts, tokens, count), threads),
        "llama.cpp f16": best(lambda count: llamas(f16, shape, texts, tokens, count), threads),
    }


def best(make: Make, threads: Sequence[int]) -> Callable[[], Run]:
    """The contender with the number of threads that is fastest for it, to be made anew for every round."""
    seconds = {count: timed(make(count)) for count in threads}
    return partial(make, min(threads, key=seconds.__getitem__))


def timed(run: Run, repeats: int = 1) -> float:
    """Seconds of so many runs, after one that does not count."""
    run()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return time.perf_counter() - start


def ours(path: Path, texts: int, tokens: int, threads: int) -> Run:
    """Our sampling, from the exported folder."""
    trained = load_model(path, device="cpu", precision="fp32", open_model=open_model)

    def write() -> None:
        torch.set_num_threads(threads)
        settings = SamplingSettings(temperature=TEMPERATURE)
        written = new_texts(trained, [TOKENIZER.decode([0])], seed=0, num_samples=texts)
        for _ in write_on(trained, written, max_new_tokens=tokens, settings=settings):
            pass
        assert all(len(text.new_ids) == tokens for text in written)

    return write


def theirs(path: Path, texts: int, tokens: int, threads: int) -> Run:
    """transformers' `generate`, which keeps a cache by default."""
    model = transformers_model(path)
    idx = torch.zeros(texts, 1, dtype=torch.int64)
    settings = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0, "min_new_tokens": tokens}

    def write() -> None:
        torch.set_num_threads(threads)
        found = model.generate(
            idx, attention_mask=torch.ones_like(idx), max_new_tokens=tokens, pad_token_id=0, **settings
        )
        assert found.shape == (texts, tokens + 1)

    return write


def llamas(path: Path, shape: Shape, texts: int, tokens: int, threads: int) -> Run:
    """llama.cpp's completions."""
    llama = Llama(path, shape, texts=texts, threads=threads)
    return lambda: llama.write(texts, tokens)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="to try (1 2)")
    parser.add_argument("--quick", action="store_true", help="one round of a tiny model, only to try this script")
    options = parser.parse_intermixed_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    parts = options.parts or PARTS
    if options.quick:
        options.rounds = 1
    shapes = TINY_SHAPES if options.quick else SHAPES
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        if "exports" in parts:
            exports(Path(folder), shapes, rounds=options.rounds)
        if "speed" in parts:
            speed(Path(folder), shapes, options.threads, rounds=options.rounds)


if __name__ == "__main__":
    main()
