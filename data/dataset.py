"""Tokens to batches: random windows to train on, and every token in fixed order to evaluate on.

Legend of shapes: B batch (windows), T `context_length` (or less, in the last window of an evaluation),
N targets that a window adds to those of the windows before it, at its end.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from data.paths import counted
from data.prepare import PreparedData
from data.tokenizer import TokenArray
from errors import DataError

RESIDENT_LIMIT = 1 << 26  # bytes of a mapped file that a split keeps in memory, about
_BYTES_PER_FAULT = 1 << 16  # Linux maps as much around the byte that is read

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Split:
    """A stretch of token ids, in memory or memory-mapped from a file."""

    name: str
    tokens: TokenArray
    mapping: mmap.mmap | None = None  # the file behind `tokens`
    touched_bytes: int = 0  # of the mapping, since pages were last given back

    def __len__(self) -> int:
        return len(self.tokens)

    def note_reads(self, num_reads: int, num_bytes: int) -> None:
        """Give pages of the file back to the system after so many reads of so many bytes each, now and then.

        Otherwise a long run would end up with all of a large file in its resident memory. What is read again
        soon comes from the system's cache of files.
        """
        if self.mapping is None or not hasattr(self.mapping, "madvise"):  # Windows
            return
        self.touched_bytes += num_reads * max(num_bytes, _BYTES_PER_FAULT)
        if self.touched_bytes > RESIDENT_LIMIT:
            self.mapping.madvise(mmap.MADV_DONTNEED)
            self.touched_bytes = 0


def open_split(prepared: PreparedData, name: Literal["train", "val"]) -> Split:
    """The split's tokens, read-only, mapped from the prepared file."""
    with prepared.tokens_path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tokens = np.frombuffer(mapping, dtype=prepared.dtype)
    boundary = prepared.train_tokens
    return Split(name, tokens[:boundary] if name == "train" else tokens[boundary:], mapping)


def check_long_enough(prepared: PreparedData, context_length: int) -> None:
    """Raise `DataError` if a split is shorter than one window and the target of its last token."""
    needed = context_length + 1
    lengths = {"train": prepared.train_tokens, "val": prepared.val_tokens}
    name, length = min(lengths.items(), key=lambda item: item[1])
    if length >= needed:
        return
    largest = length - 1
    advice = [f"set model.context_length to {largest} or less"] if largest >= 1 else []
    has_own_val = prepared.val_source is not None
    if not has_own_val and prepared.num_tokens >= 2 * needed:
        advice.append(f"change data.val_fraction so that both splits have {needed:,} tokens")
    advice.append("use a longer text")
    is_val_text = has_own_val and name == "val"
    where = f"data.val_source={prepared.val_title}" if is_val_text else f"data.source={prepared.title}"
    what = "it" if has_own_val else f"its {name} split"
    raise DataError(
        f"{where}: the text is too short: {what} has {counted(length, 'token')}, but "
        f"model.context_length={context_length} needs {needed} (context_length + 1); {', or '.join(advice)}"
    )


def draw_starts(generator: torch.Generator, num_windows: int, batch_size: int) -> torch.Tensor:
    """Starts of random windows, each of `num_windows` equally likely, with replacement. Shape (B,), int64."""
    return torch.randint(num_windows, (batch_size,), generator=generator)


def windows_at(split: Split, starts: torch.Tensor, context_length: int) -> Batch:
    """The windows that begin at `starts` (B,), and these shifted by one: idx and targets, (B, T), int64."""
    offsets = np.arange(context_length + 1)
    split.note_reads(len(starts), len(offsets) * split.tokens.itemsize)
    block = torch.from_numpy(split.tokens[starts.numpy()[:, None] + offsets].astype(np.int64))  # (B, T + 1)
    return block[:, :-1].contiguous(), block[:, 1:].contiguous()  # (B, T)


def sample_batch(
    split: Split,
    generator: torch.Generator,
    batch_size: int,
    context_length: int,
    *,
    rows: slice = slice(None),
) -> Batch:
    """Random windows of the split: idx and targets, (B, T), int64. Only `generator` decides which.

    All `batch_size` of them are drawn, and those in `rows` read: what one process takes of a common batch. The split
    must be longer than `context_length` (`check_long_enough`).
    """
    starts = draw_starts(generator, len(split) - context_length, batch_size)[rows]
    return windows_at(split, starts, context_length)


def evaluation_windows(
    split: Split, context_length: int, batch_size: int, max_tokens: int | None = None
) -> Iterator[Batch]:
    """All windows of the split in order, without overlap: idx and targets, (B, T), int64.

    Every token but the first is a target exactly once, or the first `max_tokens` of these. What does not fill
    a window comes last, as a batch of one shorter window.
    """
    num_targets = _num_targets(split, max_tokens)
    num_windows = num_targets // context_length
    for first in range(0, num_windows, batch_size):
        size = min(batch_size, num_windows - first)
        yield _windows(split, first * context_length, rows=size, length=context_length, stride=context_length)
    rest = num_targets - num_windows * context_length
    if rest:
        yield _windows(split, num_windows * context_length, rows=1, length=rest, stride=context_length)


def sliding_windows(
    split: Split, context_length: int, batch_size: int, *, stride: int, max_tokens: int | None = None
) -> Iterator[Batch]:
    """Windows that overlap, and the targets that each adds: idx (B, T), targets of its last N positions (B, N), int64.

    Every token but the first is a target exactly once, in order, or the first `max_tokens` of these. The first window
    adds all its targets, each later one begins `stride` tokens (1 to `context_length`) after the one before and adds
    as many, and the last one is moved back to end where the text ends, and adds what remains. So every target is
    predicted from at least `context_length - stride + 1` tokens, or from all that precede it. With a stride of
    `context_length` these are the `evaluation_windows`, but for that last one, which is shorter there.
    """
    assert 1 <= stride <= context_length
    num_targets = _num_targets(split, max_tokens)
    length = min(context_length, num_targets)
    if length:
        yield _windows(split, 0, rows=1, length=length, stride=stride)
    num_later = (num_targets - length) // stride
    for first in range(0, num_later, batch_size):
        size = min(batch_size, num_later - first)
        idx, targets = _windows(split, (first + 1) * stride, rows=size, length=length, stride=stride)
        yield idx, targets[:, -stride:]
    rest = num_targets - length - num_later * stride
    if rest:
        idx, targets = _windows(split, num_targets - length, rows=1, length=length, stride=stride)
        yield idx, targets[:, -rest:]


def _num_targets(split: Split, max_tokens: int | None) -> int:
    num_targets = max(len(split) - 1, 0)
    return num_targets if max_tokens is None else min(num_targets, max_tokens)


def _windows(split: Split, start: int, *, rows: int, length: int, stride: int) -> Batch:
    """Windows from `start` on, each `stride` tokens after the one before: inputs and targets, (rows, length)."""
    span = (rows - 1) * stride + length
    split.note_reads(1, (span + 1) * split.tokens.itemsize)
    block = torch.from_numpy(split.tokens[start : start + span + 1].astype(np.int64))
    return block[:-1].unfold(0, length, stride), block[1:].unfold(0, length, stride)
