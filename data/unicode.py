"""Text that comes in chunks: its normal form, lines, counts of characters, and bytes back to text.

What does not fit in memory at once passes through here. Ids are not this file's concern. Imports no torch.
"""

import codecs
import functools
import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from errors import DataError

UnicodeForm = Literal["none", "NFC"]

NUM_CODE_POINTS = 0x110000
MAX_LINE = 64 << 20  # characters; as code points, ids and text they take a gigabyte of memory
_SURROGATES = range(0xD800, 0xE000)  # halves of UTF-16 pairs: code points, but no characters
_HANGUL_VOWELS_AND_FINALS = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))
_MAX_RUN = 1024  # characters that may all combine: the Stream-Safe Text Format of Unicode (UAX #15) stops at 30
_MAX_LISTED = 10


class UnknownCharactersError(DataError):
    """A text has characters that its vocabulary lacks."""


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """The text as an array of code points, lone surrogates included."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def characters_of(codes: npt.NDArray[np.integer[Any]]) -> str:
    """The text that has these code points."""
    return codes.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def without_positions(text: str, positions: npt.NDArray[np.intp]) -> str:
    """The text without the characters at these positions."""
    return characters_of(np.delete(code_points(text), positions)) if positions.size else text


def is_surrogate(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Which of the code points are lone halves of UTF-16 pairs, that no encoding can write."""
    return (codes >= _SURROGATES.start) & (codes < _SURROGATES.stop)


def normalized(chunks: Iterable[str], form: UnicodeForm) -> Iterator[str]:
    """The text in normal form; joined, it is the same however the text was cut into chunks.

    What follows the last character that cannot combine with its predecessor is held back until the next one.
    A run of combining characters (marks without a letter, say) is cut after every 1024 of them, so that neither
    memory nor the time to sort them grows with its length; up to there the text is that of `unicodedata`.
    """
    if form == "none":
        yield from chunks
        return
    held_back = ""
    for chunk in chunks:
        text = held_back + chunk
        cuts = _safe_cuts(text)
        for start, stop in itertools.pairwise([0, *cuts]):
            yield unicodedata.normalize(form, text[start:stop])
        held_back = text[cuts[-1] :] if cuts else text
    if held_back:
        yield unicodedata.normalize(form, held_back)


def _safe_cuts(text: str) -> list[int]:
    """Where the text may be cut and the parts be normalised alone: within overlong runs, and at the last place."""
    if text.isascii():
        return [len(text) - 1] if len(text) > 1 else []
    starts = np.flatnonzero(~_combines_backward().take(code_points(text)))  # each begins a run
    runs = np.concatenate(([0], starts, [len(text)]))
    forced = [
        cut
        for run in np.flatnonzero(np.diff(runs) > _MAX_RUN).tolist()
        for cut in range(int(runs[run]) + _MAX_RUN, int(runs[run + 1]), _MAX_RUN)
    ]
    last = [int(starts[-1])] if starts.size and starts[-1] > 0 else []
    return sorted({*forced, *last})


@functools.cache
def _combines_backward() -> npt.NDArray[np.bool_]:
    """For every code point, whether it may move before, or become one with, what precedes it in NFC.

    These are the marks that are sorted, the second parts of composed characters (among them vowel signs that
    are not sorted, vowels and finals of Hangul), and the characters that decompose into something beginning so.
    """
    table = np.zeros(NUM_CODE_POINTS, dtype=np.bool_)
    table[list(_HANGUL_VOWELS_AND_FINALS)] = True
    composed = []
    for character in map(chr, range(NUM_CODE_POINTS)):
        if unicodedata.combining(character):
            table[ord(character)] = True
        parts = unicodedata.decomposition(character)
        if parts and not parts.startswith("<"):  # <...>: a compatible character, not an equal one
            composed.append(character)
            table[[int(part, 16) for part in parts.split()[1:]]] = True
    for character in composed:
        table[ord(character)] |= table[ord(unicodedata.normalize("NFD", character)[0])]
    return table


def lines_with_content(chunks: Iterable[str], *, name: str = "the text") -> Iterator[str]:
    """The lines that are not blank, in blocks of whole ones, each line with a newline behind it.

    The last line gets one if it has none. A line must fit in memory: one that goes on for more than `MAX_LINE`
    characters raises a `DataError` that `name`s the text.
    """
    unfinished: list[str] = []
    length = 0
    for chunk in chunks:
        end = chunk.rfind("\n") + 1
        length += chunk.find("\n") if end else len(chunk)
        if length > MAX_LINE:
            raise DataError(f"{name}: there is a line of more than {MAX_LINE:,} characters; use data.documents=file")
        if end:
            yield from _without_blank_lines("".join([*unfinished, chunk[:end]]))
            unfinished = []
            length = len(chunk) - end
        if end < len(chunk):
            unfinished.append(chunk[end:])
    if unfinished:
        yield from _without_blank_lines("".join(unfinished) + "\n")


def _without_blank_lines(block: str) -> Iterator[str]:
    codes = code_points(block)
    ends = np.flatnonzero(codes == ord("\n")) + 1
    starts = np.concatenate(([0], ends[:-1]))
    is_blank = np.logical_and.reduceat(_is_space().take(codes), starts)
    if not is_blank.any():
        yield block
    elif not is_blank.all():
        yield characters_of(codes[np.repeat(~is_blank, ends - starts)])


@functools.cache
def _is_space() -> npt.NDArray[np.bool_]:
    """For every code point, whether `str.strip` takes it away."""
    return np.array([chr(code).isspace() for code in range(NUM_CODE_POINTS)])


class CharacterCounts:
    """How often each character occurs in a text that comes in chunks; from it the vocabulary is made."""

    def __init__(self) -> None:
        self._counts = np.zeros(NUM_CODE_POINTS, dtype=np.int64)

    def add(self, text: str) -> None:
        """Count the characters of the next chunk. Raises `DataError` for lone surrogates."""
        counts = np.bincount(code_points(text))
        self._counts[: len(counts)] += counts
        if counts[_SURROGATES.start : _SURROGATES.stop].any():
            raise unknown_characters(text, np.flatnonzero(is_surrogate(code_points(text))))

    def count(self, character: str) -> int:
        """How often this character has been seen."""
        return int(self._counts[ord(character)])

    def forget(self, character: str) -> None:
        """Count this character as never seen."""
        self._counts[ord(character)] = 0

    @property
    def num_chars(self) -> int:
        return int(self._counts.sum())

    @property
    def num_bytes(self) -> int:
        """Size of the text in UTF-8."""
        limits = (0, 0x80, 0x800, 0x10000)  # from each of these on, a code point takes one byte more
        return int(sum(self._counts[limit:].sum() for limit in limits))

    def characters(self, min_count: int = 1) -> str:
        """The distinct characters that occur so often or more (at least once), in the order of code points."""
        return characters_of(np.flatnonzero(self._counts >= max(min_count, 1)))

    def num_rare(self, min_count: int) -> tuple[int, int]:
        """How many distinct characters occur less often, and how often all of these together."""
        rare = self._counts[(self._counts > 0) & (self._counts < min_count)]
        return len(rare), int(rare.sum())

    def usual_start(self, min_count: int = 1) -> str:
        """Where a text may begin: a newline if it occurs so often, else the most frequent character."""
        return "\n" if self._counts[ord("\n")] >= max(min_count, 1) else chr(int(self._counts.argmax()))


class StreamDecoder:
    """Decodes token by token; what it has given out, joined, equals `decode` of all the ids at once.

    A character whose bytes are spread over several tokens comes out with its last one.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; often "" in the middle of a character."""
        return self._utf8.decode(self._pieces[token_id])

    def finish(self) -> str:
        """What was still held back: "" or one U+FFFD for a character that never became whole."""
        return self._utf8.decode(b"", final=True)


def unknown_characters(text: str, positions: npt.NDArray[np.intp]) -> UnknownCharactersError:
    """One line with the distinct characters at these positions, each with the first places it occurs at."""
    characters = code_points(text)[positions]
    distinct, first, counts = np.unique(characters, return_index=True, return_counts=True)
    listed = []
    for which in np.argsort(first)[:_MAX_LISTED]:
        places = positions[characters == distinct[which]][:3].tolist()
        more = ", …" if counts[which] > len(places) else ""
        listed.append(f"{chr(distinct[which])!r} at {', '.join(map(str, places))}{more}")
    rest = f"; and {len(distinct) - _MAX_LISTED:,} more" if len(distinct) > _MAX_LISTED else ""
    return UnknownCharactersError(
        f"the vocabulary lacks {len(distinct):,} of the text's characters (position counted from 0): "
        f"{'; '.join(listed)}{rest}; leave them out or replace them"
    )
