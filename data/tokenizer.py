"""Text to token ids and back: one interface, `Tokenizer`, and its kinds.

Where the text comes from and where the ids are kept is not this file's concern. Imports no torch.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from data.unicode import (
    StreamDecoder,
    UnicodeForm,
    characters_of,
    code_points,
    is_surrogate,
    lines_with_content,
    normalized,
    unknown_characters,
    without_positions,
)

END_OF_TEXT = "<|endoftext|>"  # the name of `end_id`; in a text these characters are text like any other

TokenArray = npt.NDArray[np.unsignedinteger[Any]]

FORMAT = 1  # of what `to_json` writes
_REPLACEMENT = "\ufffd"  # what an unknown character looks like


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest of uint8, uint16 and uint32 that holds every id below `vocab_size`."""
    for dtype in (np.uint8, np.uint16):
        if vocab_size - 1 <= np.iinfo(dtype).max:
            return np.dtype(dtype)
    return np.dtype(np.uint32)


class Tokenizer(ABC):
    """Encodes any text it knows, and decodes it back exactly (in normal form, where `unicode` names one).

    Attributes are the same for the life of the object; two tokenizers with one `fingerprint` are equal.
    """

    kind: str
    unicode: UnicodeForm = "none"  # the normal form that every text is brought to before it is encoded
    never_generated: Sequence[int] = ()  # ids that stand for no text; `end_id` is not among them

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The number of ids, `end_id` included."""

    @property
    def end_id(self) -> int:
        """The id of `<|endoftext|>`, which ends a document. `encode` never gives it, `decode` skips it."""
        return self.vocab_size - 1

    @abstractmethod
    def to_json(self) -> str:
        """The tokenizer as one JSON object, the same for equal tokenizers; `data.saved_tokenizer` reads it."""

    @cached_property
    @abstractmethod
    def pieces(self) -> Sequence[bytes]:
        """The UTF-8 bytes of every token, in the order of ids; b"" for `end_id`."""

    @abstractmethod
    def _encode(self, text: str) -> TokenArray:
        """`encode` for a text in normal form."""

    @abstractmethod
    def _encode_lines(self, block: str) -> TokenArray:
        """The ids of lines in normal form, with `end_id` in the place of every newline."""

    def _missing(self, text: str) -> npt.NDArray[np.intp]:
        """The positions of what cannot be encoded in a text in normal form."""
        return np.flatnonzero(is_surrogate(code_points(text)))

    def normalize(self, text: str) -> str:
        """The text in the normal form that `unicode` names."""
        return "".join(normalized([text], self.unicode))

    def encode(self, text: str) -> TokenArray:
        """The ids of the text, shape (number of tokens,), in the smallest dtype that fits the vocabulary.

        Raises `DataError` that lists the characters which the vocabulary lacks.
        """
        return self._encode(self.normalize(text))

    def encode_stream(self, chunks: Iterable[str], *, drop_unknown: bool = False) -> Iterator[TokenArray]:
        """The ids of a text in chunks; joined, they are those of the whole text, however it was cut.

        Characters that the vocabulary lacks raise `DataError`, or are left out where `drop_unknown`; so are then those
        for which it has only the token that they would share.
        """
        texts = normalized(chunks, self.unicode)
        yield from self._encode_chunks(map(self._without_strangers, texts) if drop_unknown else texts)

    def _encode_chunks(self, chunks: Iterable[str]) -> Iterator[TokenArray]:
        return map(self._encode, chunks)

    def encode_lines(
        self, chunks: Iterable[str], *, drop_unknown: bool = False, name: str = "the text"
    ) -> Iterator[TokenArray]:
        """The ids of every line that is not blank, without its newline, each followed by `end_id`.

        However the text, called `name`, is cut into chunks. `drop_unknown` as in `encode_stream`. Raises `DataError`
        for a line that is too long for the memory.
        """
        texts = normalized(chunks, self.unicode)
        if drop_unknown:
            texts = (self._without_strangers(text, but="\n") for text in texts)
        for block in lines_with_content(texts, name=name):
            yield self._encode_lines(block)

    def _strangers(self, text: str) -> npt.NDArray[np.intp]:
        """The positions of what has no id of its own in a text in normal form."""
        return self._missing(text)

    def _without_strangers(self, text: str, *, but: str = "") -> str:
        strangers = self._strangers(text)
        if but and strangers.size:
            strangers = strangers[code_points(text)[strangers] != ord(but)]
        return without_positions(text, strangers)

    def unknown(self, text: str) -> list[tuple[int, str]]:
        """Every (position, character) of `normalize(text)` that cannot be encoded; positions count from 0."""
        text = self.normalize(text)
        return [(position, text[position]) for position in self._missing(text).tolist()]

    def known(self, text: str) -> str:
        """`normalize(text)` without the characters that cannot be encoded."""
        text = self.normalize(text)
        while (shorter := self.normalize(without_positions(text, self._missing(text)))) != text:
            text = shorter  # what now stands side by side may have become a character that is unknown in turn
        return text

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
        """How many bytes of UTF-8 each token stands for, shape (vocab_size,); 0 for `end_id`.

        1, the least there is, for the one that rare characters share: bits per byte are never shown too low.
        """
        sizes = np.array([len(piece) for piece in self.pieces], dtype=np.int64)
        sizes[list(self.never_generated)] = np.minimum(sizes[list(self.never_generated)], 1)
        return sizes

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of `to_json`, in hex."""
        return hashlib.sha256(self.to_json().encode("utf-8")).hexdigest()

    def _json(self, **fields: object) -> str:
        """The fields as JSON; those that came later than the format stand there only where they say something."""
        if self.unicode != "none":
            fields["unicode"] = self.unicode
        return json.dumps({"format": FORMAT, "kind": self.kind, **fields}, sort_keys=True, ensure_ascii=True)


class CharTokenizer(Tokenizer):
    """One id per Unicode code point, in the order of code points; behind them, where `has_unknown`, one for the rest.

    What has no id is encoded as that one, which decodes to U+FFFD; without it, it is an error.
    """

    kind = "char"

    def __init__(self, characters: str, *, has_unknown: bool = False, unicode: UnicodeForm = "none") -> None:
        codes = np.unique(code_points(characters))
        if not codes.size or is_surrogate(codes).any():
            raise ValueError("a vocabulary of characters needs at least one, and no lone surrogates")
        self.unicode = unicode
        self.has_unknown = has_unknown
        self.characters = characters_of(codes)  # in the order of ids
        self.never_generated = (len(codes),) if has_unknown else ()
        self._vocab_size = len(codes) + has_unknown + 1
        self._codes = np.append(codes, ord(_REPLACEMENT)) if has_unknown else codes
        # `missing` stands at every code point that is not in the vocabulary, and in one more row behind the
        # highest known one, to which `take` clips all that lie above.
        self._missing_id = len(codes)
        self._ids = np.full(int(codes[-1]) + 2, self._missing_id, dtype=token_dtype(self.vocab_size))
        self._ids[codes] = np.arange(len(codes))

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def _encode(self, text: str) -> TokenArray:
        ids = self._ids.take(code_points(text), mode="clip")
        if (ids == self._missing_id).any() and (missing := self._missing(text)).size:
            raise unknown_characters(text, missing)
        return ids

    def _encode_lines(self, block: str) -> TokenArray:
        codes = code_points(block)
        ids = self._ids.take(codes, mode="clip")
        is_end = codes == ord("\n")
        ids[is_end] = self.end_id
        if ((ids == self._missing_id) & ~is_end).any():
            missing = self._missing(block)
            if (missing := missing[~is_end[missing]]).size:
                raise unknown_characters(block, missing)
        return ids

    def _missing(self, text: str) -> npt.NDArray[np.intp]:
        return super()._missing(text) if self.has_unknown else self._strangers(text)

    def _strangers(self, text: str) -> npt.NDArray[np.intp]:
        return np.flatnonzero(self._ids.take(code_points(text), mode="clip") == self._missing_id)

    def _decode(self, ids: npt.NDArray[np.int64]) -> str:
        return characters_of(self._codes[ids])

    @cached_property
    def pieces(self) -> Sequence[bytes]:
        return [*(character.encode("utf-8") for character in characters_of(self._codes)), b""]

    def to_json(self) -> str:
        fields = {"has_unknown": True} if self.has_unknown else {}
        return self._json(characters=self.characters, **fields)

    def extended(self, characters: str) -> "CharTokenizer":
        """The same with these characters too; ids move, see `ids_of`."""
        return CharTokenizer(self.characters + characters, has_unknown=self.has_unknown, unicode=self.unicode)

    def ids_of(self, other: "CharTokenizer") -> npt.NDArray[np.int64]:
        """For each id of a tokenizer with fewer characters the id of the same here, shape (other.vocab_size,).

        Raises `ValueError` if there is none.
        """
        ids = self._ids.take(code_points(other.characters), mode="clip").astype(np.int64)
        if (ids == self._missing_id).any() or (other.has_unknown and not self.has_unknown):
            raise ValueError("the other vocabulary has characters that this one lacks")
        return np.array([*ids, *[self._missing_id] * other.has_unknown, self.end_id], dtype=np.int64)


class ByteTokenizer(Tokenizer):
    """One id per byte of UTF-8: the id is the byte. Knows every text."""

    kind = "byte"

    def __init__(self, *, unicode: UnicodeForm = "none") -> None:
        self.unicode = unicode

    @property
    def vocab_size(self) -> int:
        return 257

    def _encode(self, text: str) -> TokenArray:
        try:
            encoded = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise unknown_characters(text, self._missing(text)) from error
        return np.frombuffer(encoded, dtype=np.uint8).astype(token_dtype(self.vocab_size))

    def _encode_lines(self, block: str) -> TokenArray:
        ids = self._encode(block)
        ids[ids == ord("\n")] = self.end_id
        return ids

    def _decode(self, ids: npt.NDArray[np.int64]) -> str:
        return ids.astype(np.uint8).tobytes().decode("utf-8", "replace")

    @cached_property
    def pieces(self) -> Sequence[bytes]:
        return [*(bytes([byte]) for byte in range(256)), b""]

    def to_json(self) -> str:
        return self._json()
