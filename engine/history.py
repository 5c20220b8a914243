"""What a run has logged so far, read back from its own files: for the curve at its end, and for a dashboard.

Writing these files is the tracker's business.
"""

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from engine.run_folder import RunFolder

HEADING = re.compile(r"^--- step ([0-9]+) ---\n", re.MULTILINE)  # of a sample, as the tracker writes it
SAMPLE_END = "\n\n"


def read_lines(metrics: Path) -> list[dict[str, float]]:
    """What was measured, as far as it can be read: a damaged line is no reason to end a run badly."""
    try:
        written = metrics.read_bytes().splitlines()
    except OSError:
        return []
    return [line for line in map(read_line, written) if line is not None]


def read_line(written: bytes) -> dict[str, float] | None:
    """The step and the numbers (or None) of a line; None for one that the tracker has not written."""
    with contextlib.suppress(ValueError, RecursionError):
        line = json.loads(written)
        if isinstance(line, dict) and type(line.get("step")) is int:
            numbers = (value is None or isinstance(value, int | float) for value in line.values())
            return line if all(numbers) else None
    return None


def read_samples(folder: RunFolder, steps: Sequence[int]) -> dict[int, str]:
    """What the model wrote at these steps, which are all that were evaluated, in their order."""
    samples: dict[int, str] = {}
    with contextlib.suppress(OSError, ValueError), folder.samples_file.open(encoding="utf-8", newline="") as file:
        text = file.read()
        start, last, expected = 0, -1, iter(steps)
        step = next(expected, None)
        for heading in HEADING.finditer(text):
            if int(heading[1]) != step:
                continue  # no heading of ours: the model wrote it
            samples[last] = text[start : heading.start()].removesuffix(SAMPLE_END)
            start, last, step = heading.end(), step, next(expected, None)
        samples[last] = text[start:].removesuffix(SAMPLE_END)
    samples.pop(-1, None)
    return samples
