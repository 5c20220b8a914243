"""What a run has logged so far, read back from its own files: for the curve at its end, and for a dashboard.

Writing these files is the tracker's business.
"""

import contextlib
import json
import re
from pathlib import Path

from engine.run_folder import RunFolder

HEADING = re.compile(r"^--- step ([0-9]+) ---\n", re.MULTILINE)  # of a sample, as the tracker writes it
SAMPLE_END = "\n\n"


def read_lines(metrics: Path) -> list[dict[str, float]]:
    """What was measured. A file that somebody has removed or damaged is no reason to end a run badly."""
    lines: list[dict[str, float]] = []
    with contextlib.suppress(OSError, ValueError):
        lines += [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return lines


def read_samples(folder: RunFolder, steps: set[int]) -> dict[int, str]:
    """What the model wrote at these steps."""
    samples: dict[int, str] = {}
    with contextlib.suppress(OSError, ValueError), folder.samples_file.open(encoding="utf-8", newline="") as file:
        text = file.read()
        start, last = 0, -1
        for heading in HEADING.finditer(text):
            step = int(heading[1])
            if step not in steps or step <= last:
                continue  # no heading of ours: the model wrote it
            samples[last] = text[start : heading.start()].removesuffix(SAMPLE_END)
            start, last = heading.end(), step
        samples[last] = text[start:].removesuffix(SAMPLE_END)
    samples.pop(-1, None)
    return samples
