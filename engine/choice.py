"""Which token comes next: from the model's logits of all tokens to one of them.

On the CPU and in float64, whatever the model computed on and in: the draws of one generator then mean the same
everywhere, and no device draws a token of probability zero.

Shapes in the comments are those of `model.py`; B are texts that are written side by side, k candidates that are left.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from errors import CheckpointError, UserError

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SamplingSettings:
    """How the next token is chosen, in this order: repetition_penalty, temperature, top_k, top_p, min_p, one draw.

    repetition_penalty: what the logits of tokens in the window are divided by, or multiplied where they are negative
    (1: none; CTRL, arXiv:1909.05858, section 4.1). temperature: above 1 flatter, below 1 sharper, 0 always the
    likeliest token. top_k: only the k likeliest (None or 0: all). top_p: only the likeliest tokens that together reach
    this share of what is left (1: all; arXiv:1904.09751, section 3.1). min_p: only tokens at least this share as
    likely as the likeliest one (0: all; arXiv:2407.01082, section 3).
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        # Written so that nan fails too.
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"--temperature must be 0 (greedy) or a larger number, got {self.temperature}")
        if self.top_k is not None and self.top_k < 0:
            raise UserError(f"--top-k must be a whole number from 1 on, or 0 for all tokens, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"--top-p must be above 0 and at most 1 (all tokens), got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"--min-p must be from 0 (all tokens) to 1, got {self.min_p}")
        if not 0.001 <= self.repetition_penalty <= 1000:
            raise UserError(f"--repetition-penalty must be from 0.001 to 1000 (1: none), got {self.repetition_penalty}")


def sample_generator(seed: int, index: int = 0, prompt: str = "") -> np.random.Generator:
    """The generator of the sample with this number: one seed repeats them all, those of every prompt differ."""
    return np.random.default_rng((seed, index, zlib.crc32(prompt.encode("utf-8", "surrogatepass"))))


def choose(
    logits: Floats,
    settings: SamplingSettings,
    draws: Sequence[float],
    *,
    never: Sequence[int] = (),
    windows: Sequence[Sequence[int]] = (),
) -> tuple[Ids, Floats]:
    """The next token of every row, and its log-probability in nats: logits (B, V) → (B), (B).

    The log-probability is the model's own, before anything that the settings change. `draws` are numbers from 0 to 1,
    one of each row's generator. `never` are ids that are not chosen; neither is one at -inf. `windows` are the ids that
    the repetition penalty is for, of each row. Raises `CheckpointError` for logits that are not numbers.
    """
    own = logits - highest(logits)  # (B, V)
    own -= np.log(np.exp(own).sum(axis=1, keepdims=True))
    if never:
        logits = logits.copy()
        logits[:, never] = -np.inf
    if settings.repetition_penalty != 1:
        logits = penalized(logits, windows, settings.repetition_penalty)
    best = highest(logits)
    if settings.temperature == 0:
        ids = logits.argmax(axis=1)
    else:
        ids = draw(candidates(logits - best, settings), np.array(draws))
    return ids, own[np.arange(len(ids)), ids]


def highest(logits: Floats) -> Floats:
    """The largest logit of each row, (B, 1). Raises `CheckpointError` where it is not a number."""
    largest: Floats = logits.max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        raise CheckpointError("the model's output is not a number: its weights are damaged; use another --checkpoint")
    return largest


def penalized(logits: Floats, windows: Sequence[Sequence[int]], penalty: float) -> Floats:
    """The logits with those of the tokens in each row's window made smaller (for a penalty above 1)."""
    logits = logits.copy()
    for row, window in zip(logits, windows, strict=True):
        ids = np.unique(window)
        row[ids] = np.where(row[ids] > 0, row[ids] / penalty, row[ids] * penalty)
    return logits


def candidates(logits: Floats, settings: SamplingSettings) -> Floats:
    """How likely each token is beside the likeliest, which is at 1, and 0 for those left out: (B, V) → (B, V).

    The largest of the logits is 0.
    """
    with np.errstate(over="ignore"):  # at a tiny temperature, to -inf, which is right
        likely: Floats = np.exp(logits / settings.temperature)
    k = min(settings.top_k or likely.shape[1], likely.shape[1])
    if k < likely.shape[1] or settings.top_p < 1:
        order = likeliest(likely, k)  # (B, k)
        kept = np.take_along_axis(likely, order, axis=1)
        before = kept.cumsum(axis=1) - kept
        kept[before >= settings.top_p * kept.sum(axis=1, keepdims=True)] = 0
        likely = np.zeros_like(likely)
        np.put_along_axis(likely, order, kept, axis=1)
    likely[likely < settings.min_p] = 0
    return likely


def likeliest(likely: Floats, k: int) -> Ids:
    """The ids of the k likeliest tokens, likeliest first: (B, V) → (B, k)."""
    if k == likely.shape[1]:
        return np.argsort(-likely, axis=1, kind="stable")
    chosen = np.argpartition(-likely, k - 1, axis=1)[:, :k]  # so that only these need to be sorted
    order = np.argsort(-np.take_along_axis(likely, chosen, axis=1), axis=1, kind="stable")
    return np.take_along_axis(chosen, order, axis=1)


def draw(likely: Floats, draws: Floats) -> Ids:
    """The token of each row where the running sum passes the drawn share of the whole: (B, V), (B) → (B).

    In the order of ids, so that a difference in the last digits, as between batches, hardly ever changes the token.
    """
    sums = likely.cumsum(axis=1)  # (B, V)
    totals = sums[:, -1]  # (B)
    targets = np.minimum(draws * totals, np.nextafter(totals, 0))  # the product may be rounded up to the whole
    passed: Ids = (sums <= targets[:, None]).sum(axis=1)
    return passed
