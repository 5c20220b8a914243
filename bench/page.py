"""How long the page of visualize.py takes to make and to use, and how large it becomes: the reasons for its limits.

Run: python bench/page.py

Weights are random, and so is the text, of so many different characters. The browser is a Chromium without a window, on
the same machine; it needs requirements-dev.txt and a Chromium. `open`: from the address to the drawn page. `select`:
from a key to the drawn page, the median of the keys ← and ↑.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from common import machine, model_config, print_table

import torch  # isort: skip
from config.schema import Config, RuntimeConfig  # isort: skip
from data.tokenizer import CharTokenizer  # isort: skip
from engine.checkpoint import Checkpoint  # isort: skip
from engine.inspection import inspect  # isort: skip
from engine.loading import TrainedModel  # isort: skip
from engine.page import page  # isort: skip
from engine.runtime import choose_runtime  # isort: skip
from model import GPT  # isort: skip
from playwright.sync_api import Browser, Page  # isort: skip
from tests.browser import open_browser, open_page  # isort: skip

TOKENIZER = CharTokenizer("".join(map(chr, range(32, 96))))  # 64 characters
MANY = CharTokenizer("".join(map(chr, range(0x20000, 0x20000 + 42_000))))  # 42,000 Chinese characters
SIZES = ((128, 128, 4, 4, 1), (256, 384, 6, 6, 1), (1024, 768, 12, 12, 1))  # context, d_model, heads, layers
LENGTHS = (100, 1_000, 10_000)  # of the texts, in tokens
KEYS = 6

# Two frames later the page has been drawn.
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def random_model(size: tuple[int, int, int, int, int], tokenizer: CharTokenizer) -> TrainedModel:
    """A model of this size that has learnt nothing."""
    config = model_config("qwen3", size)
    model = GPT(config, tokenizer.vocab_size).eval()
    runtime = choose_runtime(RuntimeConfig(device="cpu", precision="fp32"), 0)
    checkpoint = Checkpoint(0, Config(model=config), tokenizer, model.state_dict(), {}, {}, path=Path("random.pt"))
    return TrainedModel(model, tokenizer, runtime, checkpoint)


def seconds_to_open(page: Page, file: Path) -> float:
    """From the address to the drawn page."""
    started = time.perf_counter()
    page.goto(file.as_uri())
    page.evaluate(DRAWN)
    return time.perf_counter() - started


def seconds_to_select(page: Page) -> float:
    """From a key to the drawn page."""
    page.locator("#text [aria-selected=true]").focus()
    times = []
    for key in ["ArrowLeft", "ArrowUp"] * (KEYS // 2):
        started = time.perf_counter()
        page.keyboard.press(key)
        page.evaluate(DRAWN)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def measure(
    browser: Browser, size: tuple[int, int, int, int, int], length: int, tokenizer: CharTokenizer = TOKENIZER
) -> list[str]:
    """A row of the table."""
    trained = random_model(size, tokenizer)
    known = tokenizer.vocab_size - 1
    ids = torch.randint(known, (length,), generator=torch.Generator().manual_seed(1)).tolist()
    inspect(trained, ids[:10])
    started = time.perf_counter()
    seen = inspect(trained, ids)
    made = page(trained, seen, tokenizer.decode(ids))
    seconds = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder, open_page(browser) as opened:
        file = Path(folder) / "page.html"
        file.write_text(made, encoding="utf-8")
        times = [seconds_to_open(opened, file), seconds_to_select(opened)]
    context_length, d_model, heads, layers, _ = size
    recorded = seen.attention.q.shape[2]
    row = [f"{layers} × {heads} heads, d {d_model}, context {context_length}", f"{known:,}"]
    row += [f"{length:,}", f"{recorded:,}"]
    return [*row, f"{len(made) / 1e6:.1f} MB", f"{seconds:.2f} s", *(f"{each:.2f} s" for each in times)]


def main() -> None:
    """All sizes with all lengths."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(machine())
    with open_browser() as browser:
        rows = [measure(browser, size, length) for size in SIZES for length in LENGTHS]
        rows.append(measure(browser, SIZES[1], LENGTHS[-1], MANY))
    print_table(["model", "characters", "tokens", "with attention", "page", "make", "open", "select"], rows)


if __name__ == "__main__":
    main()
