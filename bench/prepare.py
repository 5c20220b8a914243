"""What preparing a text costs: whole-process time, throughput, peak memory; beside nanoGPT's where it is at hand.

Run: python bench/prepare.py --text tinyshakespeare.txt [--nanogpt FOLDER] [--rounds 3] [--large-copies 900]
Needs some gigabytes in the folder for temporary files.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common import ROOT, machine, print_table

COPIES = 100  # of the text: about 110 MB of Tiny Shakespeare
CHINESE_BYTES = 100_000_000


@dataclass(frozen=True)
class Cost:
    """Of one process."""

    seconds: float
    peak_mib: float


# A process begins with the peak memory of the one that starts it, so a small one stands between us and the measured.
STARTER = """
import os, sys, time
begin = time.perf_counter()
pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print(status, time.perf_counter() - begin, usage.ru_maxrss / 1024, file=sys.stderr)
"""


def run(command: Sequence[str], folder: Path) -> Cost:
    """A process from start to end."""
    started = subprocess.run(
        [sys.executable, "-c", STARTER, *command], cwd=folder, capture_output=True, text=True, check=True
    )
    status, seconds, peak_mib = started.stderr.splitlines()[-1].split()  # Linux counts in KiB
    if status != "0":
        raise SystemExit(started.stderr)
    return Cost(float(seconds), float(peak_mib))


def prepare(text: Path, *settings: str) -> Cost:
    """Our preparation, from an empty cache."""
    with tempfile.TemporaryDirectory(dir=text.parent) as cache:
        command = [sys.executable, "-m", "data.prepare", f"data.source={text}", f"data.cache_dir={cache}", *settings]
        return run(command, ROOT)


def prepare_like_nanogpt(text: Path, nanogpt: Path) -> Cost:
    """nanoGPT's own script on the same text."""
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        script = Path(folder) / "prepare.py"
        shutil.copy(nanogpt / "data" / "shakespeare_char" / "prepare.py", script)
        os.link(text, Path(folder) / "input.txt")
        return run([sys.executable, str(script)], Path(folder))


def repeat(source: Path, target: Path, copies: int) -> Path:
    """A file of several copies of another one."""
    content = source.read_bytes()
    with target.open("wb") as file:
        for _ in range(copies):
            file.write(content)
    return target


def write_chinese(target: Path) -> Path:
    """Text like Chinese: sentences of 3,000 characters, few of them frequent (Zipf's law), and no spaces."""
    draw = random.Random(1)
    characters = [chr(0x4E00 + number) for number in draw.sample(range(20_000), 3000)]
    weights = [1 / rank for rank in range(1, len(characters) + 1)]
    sentences = []
    for _ in range(20_000):
        sentences.append(
            "".join(draw.choices(characters, weights, k=draw.randint(5, 40))) + "，。！？"[draw.randrange(4)]
        )
    with target.open("w", encoding="utf-8", newline="\n") as file:
        while file.tell() < CHINESE_BYTES:
            file.write("".join(draw.choices(sentences, k=5)) + "\n")
    return target


def medians(costs: Sequence[Cost]) -> Cost:
    return Cost(statistics.median(c.seconds for c in costs), statistics.median(c.peak_mib for c in costs))


def beside_nanogpt(text: Path, nanogpt: Path, rounds: int) -> None:
    """Print both sides, run in turn, and their ratios."""
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(prepare(text))
        theirs.append(prepare_like_nanogpt(text, nanogpt))
    mine, its = medians(ours), medians(theirs)
    print(f"\nchar, {text.stat().st_size / 1e6:.0f} MB, median of {rounds} in turn\n")
    rows = [
        ["ours", f"{mine.seconds:.2f} s", f"{mine.peak_mib:.0f} MiB"],
        ["nanoGPT", f"{its.seconds:.2f} s", f"{its.peak_mib:.0f} MiB"],
        ["nanoGPT ÷ ours", f"{its.seconds / mine.seconds:.1f}", f"{its.peak_mib / mine.peak_mib:.1f}"],
    ]
    print_table(["", "whole process", "peak memory"], rows)


def all_kinds(cases: Sequence[tuple[str, Path, Sequence[str]]]) -> None:
    """Print a row for every text and tokenizer."""
    rows = []
    for name, text, settings in cases:
        cost, size = prepare(text, *settings), text.stat().st_size
        rows.append(
            [
                name,
                f"{size / 1e6:.0f} MB",
                f"{cost.seconds:.1f} s",
                f"{size / 1e6 / cost.seconds:.0f} MB/s",
                f"{cost.peak_mib:.0f} MiB",
            ]
        )
    print()
    print_table(["text and tokenizer", "size", "whole process", "throughput", "peak memory"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True, help="Tiny Shakespeare")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of karpathy/nanoGPT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large-copies", type=int, default=900, help="of the text in the large one; 0: none")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = repeat(options.text, folder / "shakespeare.txt", COPIES)
        if options.nanogpt is not None:
            beside_nanogpt(text, options.nanogpt, options.rounds)
        chinese = write_chinese(folder / "chinese.txt")
        bpe = [["data.tokenizer=bpe", f"data.bpe_vocab_size={size}"] for size in (1024, 4096)]
        cases = [
            ("Shakespeare, char", text, []),
            ("Shakespeare, byte", text, ["data.tokenizer=byte"]),
            ("Shakespeare, a document per line", text, ["data.documents=line"]),
            ("Shakespeare, bpe 1024", text, bpe[0]),
            ("Shakespeare, bpe 4096", text, bpe[1]),
            ("Chinese, char", chinese, []),
            ("Chinese, char, NFC", chinese, ["data.unicode=NFC"]),
            ("Chinese, bpe 1024", chinese, bpe[0]),
            ("Chinese, bpe 4096", chinese, bpe[1]),
        ]
        if options.large_copies:
            large = repeat(options.text, folder / "large.txt", options.large_copies)
            cases += [("large, char", large, []), ("large, bpe 4096", large, bpe[1])]
        all_kinds(cases)


if __name__ == "__main__":
    main()
