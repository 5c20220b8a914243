"""Where a text may be cut so that byte-pair encoding gives the same tokens for the parts as for the whole.

Byte pairs are merged only within pretokens, the matches of a pattern. `PATTERNS` are all that a tokenizer may
have: for these the cuts are known to be safe, and no text makes them slow. Imports no torch.
"""

import functools
import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from data.unicode import code_points

# Of learnt vocabularies: GPT-4's, but that marks are parts of words, and digits come one by one. This is the one of
# Qwen 3.5 in all that it tells apart, and therefore one that llama.cpp knows by name (see interop/gguf.py).
LEARNT_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What they are learnt by: the same, but that nothing is longer than 32 characters. An unbroken run of a single letter
# would else become tokens of thousands of bytes.
LEARNING_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]{1,32}|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]{1,32}[\r\n]{0,32}|\s{0,32}[\r\n]|\s{1,32}(?!\S)|\s{1,32}"
)
# Of vocabularies that were learnt by earlier versions, which go on to be read.
EARLIER_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]{1,32}|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{M}\p{N}]{1,32}[\r\n]{0,32}|\s{0,32}[\r\n]|\s{1,32}(?!\S)|\s{1,32}"
)
# Those of tiktoken: gpt2, r50k and p50k; cl100k; o200k.
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
GPT4_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"""
    r"""| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
GPT4O_PATTERN = "|".join(
    [
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)
PATTERNS = (LEARNT_PATTERN, EARLIER_PATTERN, GPT2_PATTERN, GPT4_PATTERN, GPT4O_PATTERN)

MAX_WINDOW = 1 << 16  # characters that are encoded at once; far below what makes a pattern give up
_APOSTROPHES = "'\u2019"


def windows(chunks: Iterable[str], max_window: int = MAX_WINDOW) -> Iterator[str]:
    """The text in parts of at most `max_window` characters, the same however it was cut into chunks.

    Each ends at the last safe cut within reach; only where there is none (an unbroken run of Chinese) within
    `max_window` characters of the cut before, it ends there all the same.
    """
    waiting: list[str] = []
    length = 0
    for chunk in chunks:
        waiting.append(chunk)
        length += len(chunk)
        if length > 2 * max_window:
            text = "".join(waiting)
            cuts = _cuts(text, max_window)
            yield from map(text.__getitem__, map(slice, cuts, cuts[1:]))
            waiting = [text[cuts[-1] :]]
            length = len(waiting[0])
    text = "".join(waiting)
    cuts = [*_cuts(text, max_window), len(text)]
    yield from filter(None, map(text.__getitem__, map(slice, cuts, cuts[1:])))


def _cuts(text: str, max_window: int) -> list[int]:
    """Where the windows begin, up to the first that more text might change."""
    cuts = [0]
    while len(text) - cuts[-1] > max_window:
        stop = cuts[-1] + max_window
        cuts.append(_last_safe_cut(text, cuts[-1], stop=stop) or stop)
    return cuts


def _last_safe_cut(text: str, start: int, *, stop: int) -> int | None:
    """The last safe cut behind `start`, up to `stop`, which is before the text's end."""
    reach = 64
    while True:
        first = max(start, stop - reach)
        cuts = safe_cuts(text[first : stop + 1])
        if cuts.size:
            return first + int(cuts[-1])
        if first == start:
            return None
        reach *= 16


def safe_cuts(text: str) -> npt.NDArray[np.intp]:
    """Every place between a letter or digit and a space or punctuation mark (but apostrophes, for the 's of o200k).

    In none of the patterns does a pretoken go on there: what may follow letters in one are letters, marks and
    apostrophes, and what may follow digits are digits. The part before ends in no space, so it matters to no
    lookahead that the next one is gone; the part behind begins where a match would begin anyway.
    """
    codes = code_points(text)
    before, after = _cut_tables()
    is_cut = before.take(codes[:-1], mode="clip") & after.take(codes[1:], mode="clip")
    return np.flatnonzero(is_cut) + 1


@functools.cache
def _cut_tables() -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """For every code point, whether a safe cut may come behind it, and before it.

    Only characters that have been what they are since Unicode 3.2: Python, tiktoken and rustbpe know different
    versions, and where one sees a letter another may not.
    """
    before, after = np.zeros((2, 0x30001), dtype=np.bool_)  # in none of the two lies what is clipped to the last
    for code in range(0x30000):
        character = chr(code)
        old, now = unicodedata.ucd_3_2_0.category(character)[0], unicodedata.category(character)[0]
        before[code] = old == now and now in "LN"
        after[code] = ((old == now and now in "PZ") or character in "\t\n\v\f\r") and character not in _APOSTROPHES
    return before, after
