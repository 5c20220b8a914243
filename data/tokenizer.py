"""Text to token ids and back: one interface, `Tokenizer`, and its kinds.

Where the text comes from and where the ids are kept is not this file's concern. Imports no torch.
"""

import codecs
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from errors import DataError

END_OF_TEXT = "<|endoftext|>"  # the name of `end_id`; in a text these characters are text like any other

TokenArray = npt.NDArray[np.unsignedinteger[Any]]

_FORMAT = 1
_NUM_CODE_POINTS = 0x110000
_SURROGATES = range(0xD800, 0xE000)  # halves of UTF-16 pairs: code points, but no characters
_MAX_LISTED = 10


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest of uint8, uint16 and uint32 that holds every id below `vocab_size`."""
    for dtype in (np.uint8, np.uint16):
        if vocab_size - 1 <= np.iinfo(dtype).max:
            return np.dtype(dtype)
    return np.dtype(np.uint32)


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """The text as an array of code points, lone surrogates included."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


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


class Tokenizer(ABC):
    """Encodes any text it knows, and decodes it back exactly. The last id is always `<|endoftext|>`.

    Attributes are the same for the life of the object; two tokenizers with one `fingerprint` are equal.
    """

    kind: str

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The number of ids, `end_id` included."""

    @property
    def end_id(self) -> int:
        """The id of `<|endoftext|>`, which ends a document. `encode` never gives it, `decode` skips it."""
        return self.vocab_size - 1

    @abstractmethod
    def encode(self, text: str) -> TokenArray:
        """The ids of the text, shape (number of tokens,), in the smallest dtype that fits the vocabulary.

        Raises `DataError` that lists the characters which the vocabulary lacks.
        """

    @abstractmethod
    def unknown(self, text: str) -> list[tuple[int, str]]:
        """Every (position, character) that cannot be encoded; positions count from 0."""

    @abstractmethod
    def to_json(self) -> str:
        """The tokenizer as one JSON object, the same for equal tokenizers; see `tokenizer_from_json`."""

    @cached_property
    @abstractmethod
    def pieces(self) -> Sequence[bytes]:
        """The UTF-8 bytes of every token, in the order of ids; b"" for `end_id`."""

    def decode(self, ids: Iterable[int] | npt.NDArray[np.integer[Any]]) -> str:
        """The text of the ids; bytes that are not UTF-8 become U+FFFD. Raises `ValueError` for other ids."""
        array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.int64)
        if array.size and (array.min() < 0 or array.max() >= self.vocab_size):
            raise ValueError(f"ids from {array.min()} to {array.max()}, vocabulary of {self.vocab_size}")
        return self._decode(array[array != self.end_id])

    def _decode(self, ids: npt.NDArray[np.int64]) -> str:
        return b"".join([self.pieces[i] for i in ids.tolist()]).decode("utf-8", "replace")

    def decoder(self) -> StreamDecoder:
        """A fresh decoder for tokens that come one by one."""
        return StreamDecoder(self.pieces)

    @cached_property
    def chars_per_token(self) -> npt.NDArray[np.int64]:
        """How many characters start in each token, shape (vocab_size,); 0 for `end_id`."""
        starts = [sum(byte & 0xC0 != 0x80 for byte in piece) for piece in self.pieces]
        return np.array(starts, dtype=np.int64)

    @cached_property
    def bytes_per_token(self) -> npt.NDArray[np.int64]:
        """How many bytes of UTF-8 each token stands for, shape (vocab_size,); 0 for `end_id`."""
        return np.array([len(piece) for piece in self.pieces], dtype=np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of `to_json`, in hex."""
        return hashlib.sha256(self.to_json().encode("utf-8")).hexdigest()


class CharTokenizer(Tokenizer):
    """One id per Unicode code point, in the order of code points."""

    kind = "char"

    def __init__(self, characters: str) -> None:
        codes = np.unique(code_points(characters))
        if not codes.size or _num_surrogates(codes):
            raise ValueError("a vocabulary of characters needs at least one, and no lone surrogates")
        self._codes = codes
        # `end_id` stands at every code point that is not in the vocabulary, and in one more row behind the
        # highest known one, to which `take` clips all that lie above.
        self._ids = np.full(int(codes[-1]) + 2, self.end_id, dtype=token_dtype(self.vocab_size))
        self._ids[codes] = np.arange(len(codes))

    @property
    def vocab_size(self) -> int:
        return len(self._codes) + 1

    @property
    def characters(self) -> str:
        """The vocabulary without `<|endoftext|>`, in the order of ids."""
        return self._codes.tobytes().decode("utf-32-le")

    def encode(self, text: str) -> TokenArray:
        ids = self._ids.take(code_points(text), mode="clip")
        unknown = np.flatnonzero(ids == self.end_id)
        if unknown.size:
            raise _unknown_characters(text, unknown)
        return ids

    def unknown(self, text: str) -> list[tuple[int, str]]:
        ids = self._ids.take(code_points(text), mode="clip")
        return [(position, text[position]) for position in np.flatnonzero(ids == self.end_id).tolist()]

    def _decode(self, ids: npt.NDArray[np.int64]) -> str:
        return self._codes[ids].tobytes().decode("utf-32-le")

    @cached_property
    def pieces(self) -> Sequence[bytes]:
        return [*(character.encode("utf-8") for character in self.characters), b""]

    def to_json(self) -> str:
        return _canonical_json({"format": _FORMAT, "kind": self.kind, "characters": self.characters})


class ByteTokenizer(Tokenizer):
    """One id per byte of UTF-8: the id is the byte. Knows every text."""

    kind = "byte"

    @property
    def vocab_size(self) -> int:
        return 257

    def encode(self, text: str) -> TokenArray:
        try:
            encoded = text.encode("utf-8")
        except UnicodeEncodeError as error:
            positions = np.array([position for position, _ in self.unknown(text)])
            raise _unknown_characters(text, positions) from error
        return np.frombuffer(encoded, dtype=np.uint8).astype(token_dtype(self.vocab_size))

    def unknown(self, text: str) -> list[tuple[int, str]]:
        codes = code_points(text)
        lone = np.flatnonzero((codes >= _SURROGATES.start) & (codes < _SURROGATES.stop))
        return [(position, text[position]) for position in lone.tolist()]

    def _decode(self, ids: npt.NDArray[np.int64]) -> str:
        return ids.astype(np.uint8).tobytes().decode("utf-8", "replace")

    @cached_property
    def pieces(self) -> Sequence[bytes]:
        return [*(bytes([byte]) for byte in range(256)), b""]

    def to_json(self) -> str:
        return _canonical_json({"format": _FORMAT, "kind": self.kind})


class CharacterCounts:
    """How often each character occurs in a text that comes in chunks; from it the vocabulary is made."""

    def __init__(self) -> None:
        self._counts = np.zeros(_NUM_CODE_POINTS, dtype=np.int64)

    def add(self, text: str) -> None:
        """Count the characters of the next chunk. Raises `DataError` for lone surrogates."""
        counts = np.bincount(code_points(text))
        self._counts[: len(counts)] += counts
        if counts[_SURROGATES.start : _SURROGATES.stop].any():
            raise _unknown_characters(text, np.array([i for i, _ in ByteTokenizer().unknown(text)]))

    @property
    def num_chars(self) -> int:
        return int(self._counts.sum())

    @property
    def num_bytes(self) -> int:
        """Size of the text in UTF-8."""
        limits = (0, 0x80, 0x800, 0x10000)  # from each of these on, a code point takes one byte more
        return int(sum(self._counts[limit:].sum() for limit in limits))

    @property
    def characters(self) -> str:
        """The distinct characters, in the order of code points."""
        return np.flatnonzero(self._counts).astype("<u4").tobytes().decode("utf-32-le")

    @property
    def usual_start(self) -> str:
        """Where a text may begin: a newline if there is one, else the most frequent character."""
        return "\n" if self._counts[ord("\n")] else chr(int(self._counts.argmax()))


def tokenizer_from_json(text: str, where: str) -> Tokenizer:
    """The tokenizer that `to_json` described. Raises `DataError`, naming `where`, for anything else."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not a tokenizer file: {error}") from error
    if not isinstance(fields, dict):
        raise DataError(f"{where}: not a tokenizer file: expected a JSON object, found {_excerpt(fields)}")
    if type(fields.get("format")) is not int or fields["format"] != _FORMAT:
        raise DataError(f"{where}: expected tokenizer format {_FORMAT}, found {_excerpt(fields.get('format'))}")
    if fields.get("kind") == CharTokenizer.kind:
        _expect_keys(fields, {"format", "kind", "characters"}, where)
        return _char_tokenizer(fields["characters"], where)
    if fields.get("kind") == ByteTokenizer.kind:
        _expect_keys(fields, {"format", "kind"}, where)
        return ByteTokenizer()
    raise DataError(f"{where}: kind must be char or byte, found {_excerpt(fields.get('kind'))}")


def _char_tokenizer(characters: object, where: str) -> CharTokenizer:
    if not isinstance(characters, str) or not characters:
        raise DataError(f"{where}: characters must be a text of at least one, found {_excerpt(characters)}")
    codes = code_points(characters)
    if _num_surrogates(codes) or (codes[1:] <= codes[:-1]).any():
        raise DataError(f"{where}: characters must be in the order of code points, each once; the file is damaged")
    return CharTokenizer(characters)


def _expect_keys(fields: dict[str, object], expected: set[str], where: str) -> None:
    if fields.keys() != expected:
        found, wanted = ", ".join(sorted(fields)), ", ".join(sorted(expected))
        raise DataError(f"{where}: expected the keys {wanted}, found {found[:200]!r}")


def _excerpt(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _num_surrogates(codes: npt.NDArray[np.uint32]) -> int:
    return int(((codes >= _SURROGATES.start) & (codes < _SURROGATES.stop)).sum())


def _canonical_json(fields: dict[str, object]) -> str:
    return json.dumps(fields, sort_keys=True, ensure_ascii=True)


def _unknown_characters(text: str, positions: npt.NDArray[np.intp]) -> DataError:
    """One line with the distinct characters at these positions, each with the first places it occurs at."""
    characters = code_points(text)[positions]
    distinct, first, counts = np.unique(characters, return_index=True, return_counts=True)
    listed = []
    for which in np.argsort(first)[:_MAX_LISTED]:
        places = positions[characters == distinct[which]][:3].tolist()
        more = ", …" if counts[which] > len(places) else ""
        listed.append(f"{chr(distinct[which])!r} at {', '.join(map(str, places))}{more}")
    rest = f"; and {len(distinct) - _MAX_LISTED} more" if len(distinct) > _MAX_LISTED else ""
    return DataError(
        f"the vocabulary lacks {len(distinct)} of the text's characters (position counted from 0): "
        f"{'; '.join(listed)}{rest}; leave them out or replace them"
    )
