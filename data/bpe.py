"""Byte-pair encoding: the tokenizer, its training on a text, and the check of what a file says it is.

tiktoken encodes, rustbpe trains; both are imported where they are needed. Imports no torch.
"""

import base64
import binascii
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from config.values import MAX_VOCAB_SIZE
from data.cuts import LEARNING_PATTERN, LEARNT_PATTERN, PATTERNS, windows
from data.memory import check_available
from data.tokenizer import TokenArray, Tokenizer, token_dtype
from data.unicode import UnicodeForm, code_points, is_surrogate, unknown_characters
from errors import DataError

TRAINING_BYTES = 16 << 20  # trained on at most; rustbpe takes 35 times as much memory for unbroken Chinese

# What rustbpe has been seen to take at most: buffers, 64 MiB of addresses for each thread, and the counts of different
# words, which unbroken Chinese has most of. Without memory it hangs or aborts the process, which nobody could report.
_LEARNER_BYTES, _PER_THREAD, _PER_BYTE, _PER_BYTE_BEYOND_ASCII = 96 << 20, 72 << 20, 2, 50
_MAX_TOKEN_BYTES = 1024
_KIND = re.compile(r"bpe|tiktoken:[A-Za-z0-9_.-]{1,64}")


class BpeTokenizer(Tokenizer):
    """Byte-level BPE with tiktoken's ids: knows every text, in which `<|endoftext|>` is plain text.

    `tokens` are the bytes of every id; b"" for `end_id`, for other special ids and for gaps. Raises `ValueError`
    for what is no such vocabulary.
    """

    def __init__(
        self, tokens: Sequence[bytes], *, pattern: str, end_id: int, kind: str = "bpe", unicode: UnicodeForm = "none"
    ) -> None:
        _check_vocabulary(tokens, end_id)
        if pattern not in PATTERNS:
            raise ValueError("the pattern is none that is known")
        self.kind = kind
        self.unicode = unicode
        self.never_generated = tuple(i for i, token in enumerate(tokens) if not token and i != end_id)
        self._tokens = tokens
        self.pattern = pattern
        self._end_id = end_id

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    @property
    def end_id(self) -> int:
        return self._end_id

    @cached_property
    def pieces(self) -> Sequence[bytes]:
        return self._tokens

    @cached_property
    def _encode_window(self) -> Callable[[str], list[int]]:
        import tiktoken

        ranks = {token: rank for rank, token in enumerate(self._tokens) if token}
        encoding = tiktoken.Encoding(self.kind, pat_str=self.pattern, mergeable_ranks=ranks, special_tokens={})
        return encoding.encode_ordinary

    def _encode(self, text: str) -> TokenArray:
        return np.concatenate([np.zeros(0, self._dtype), *self._encode_chunks([text])])

    def _encode_chunks(self, chunks: Iterable[str]) -> Iterator[TokenArray]:
        for window in windows(map(_without_surrogates, chunks)):
            yield np.array(self._encode_window(window), dtype=self._dtype)

    def _encode_lines(self, block: str) -> TokenArray:
        ids: list[int] = []
        for line in _without_surrogates(block).removesuffix("\n").split("\n"):
            for window in windows([line]):
                ids += self._encode_window(window)
            ids.append(self._end_id)
        return np.array(ids, dtype=self._dtype)

    @cached_property
    def _dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        return token_dtype(self.vocab_size)

    def to_json(self) -> str:
        return self._saved

    @cached_property
    def _saved(self) -> str:
        tokens = [base64.b64encode(token).decode("ascii") for token in self._tokens]
        return self._json(tokens=tokens, pattern=self.pattern, end_id=self._end_id)


def train_bpe(chunks: Iterable[str], vocab_size: int, *, unicode: UnicodeForm = "none") -> BpeTokenizer:
    """A vocabulary of the 256 bytes, of the strings of bytes that are most frequent in the text, and of the end.

    A text with few words gives fewer tokens than `vocab_size`. Of one larger than 16 MiB, parts that are evenly
    spread and make up 8 to 16 MiB are learnt from. The same text gives the same vocabulary, whatever its chunks,
    all of which are read. They are in the normal form that `unicode` names, which is not checked. Raises `DataError`
    for lone surrogates, and `OSError` where the limits leave too little memory.
    """
    import rustbpe  # type: ignore[import-untyped]

    trainer = rustbpe.Tokenizer()
    texts = _evenly_spread(windows(map(_without_surrogates, chunks)), TRAINING_BYTES)
    check_available(_memory_to_learn(texts))
    trainer.train_from_iterator(iter(texts), vocab_size - 1, pattern=LEARNING_PATTERN)
    by_rank = sorted(trainer.get_mergeable_ranks(), key=lambda token_and_rank: token_and_rank[1])
    # Should two merges give the same bytes (ab+c, a+bc), they are one to tiktoken.
    tokens = list(dict.fromkeys(bytes(token) for token, _ in by_rank))
    return BpeTokenizer([*tokens, b""], pattern=LEARNT_PATTERN, end_id=len(tokens), unicode=unicode)


def _evenly_spread(texts: Iterable[str], max_bytes: int) -> list[str]:
    """Every text, or every second, every fourth…, so that all that are kept have at most `max_bytes` in UTF-8."""
    kept: list[str] = []
    size, stride = 0, 1
    for number, text in enumerate(texts):
        if number % stride:
            continue
        kept.append(text)
        size += len(text.encode())
        while size > max_bytes and len(kept) > 1:
            kept = kept[::2]
            size, stride = sum(len(text.encode()) for text in kept), stride * 2
    return kept


def _memory_to_learn(texts: Sequence[str]) -> int:
    """How many bytes rustbpe may take to learn from these texts."""
    num_bytes, num_chars = sum(len(text.encode()) for text in texts), sum(map(len, texts))
    asked = os.environ.get("RAYON_NUM_THREADS", "")
    num_threads = int(asked) if asked.isdecimal() and int(asked) else os.cpu_count() or 1
    return (
        _LEARNER_BYTES
        + _PER_THREAD * num_threads
        + _PER_BYTE * num_bytes
        + _PER_BYTE_BEYOND_ASCII * (num_bytes - num_chars)
    )


def bpe_from_fields(fields: dict[str, Any], where: str) -> BpeTokenizer:
    """The tokenizer that these fields of a file describe. Raises `DataError`, naming `where`, if they do not."""
    try:
        if not _KIND.fullmatch(fields["kind"]):
            raise ValueError("the name of the vocabulary has other characters than letters, digits, _, . and -")
        if not isinstance(fields["pattern"], str):
            raise ValueError("the pattern is no text")
        return BpeTokenizer(
            _decoded_tokens(fields["tokens"]),
            pattern=fields["pattern"],
            end_id=fields["end_id"],
            kind=fields["kind"],
            unicode=fields.get("unicode", "none"),
        )
    except ValueError as error:
        raise DataError(f"{where}: not a BPE vocabulary: {error}; the file is damaged or of a newer version") from error


def _decoded_tokens(tokens: object) -> list[bytes]:
    if not isinstance(tokens, list) or len(tokens) > MAX_VOCAB_SIZE:
        raise ValueError(f"tokens is no list of at most {MAX_VOCAB_SIZE:,}")
    decoded = []
    for number, token in enumerate(tokens):
        if not isinstance(token, str) or len(token) > 2 * _MAX_TOKEN_BYTES:
            raise ValueError(f"token {number} is no text of at most {2 * _MAX_TOKEN_BYTES} characters")
        try:
            decoded.append(binascii.a2b_base64(token, strict_mode=True) if token else b"")
        except ValueError as error:
            raise ValueError(f"token {number} is not base64") from error
        if base64.b64encode(decoded[-1]).decode("ascii") != token:
            raise ValueError(f"token {number} is not the base64 of its bytes")
    return decoded


def _check_vocabulary(tokens: Sequence[bytes], end_id: object) -> None:
    """What tiktoken needs, which else would panic in the middle of a text."""
    with_text = [token for token in tokens if token]
    distinct = set(with_text)
    if len(distinct) < len(with_text):
        raise ValueError("two tokens are the same")
    missing = [byte for byte in range(256) if bytes([byte]) not in distinct]
    if missing:
        raise ValueError(f"{len(missing)} of the 256 bytes are no tokens, among them {missing[0]}")
    if max(map(len, with_text)) > _MAX_TOKEN_BYTES:
        raise ValueError(f"a token has more than {_MAX_TOKEN_BYTES} bytes")
    if type(end_id) is not int or not 0 <= end_id < len(tokens) or tokens[end_id]:
        raise ValueError("end_id is not the id of a token without text")


def _without_surrogates(text: str) -> str:
    """The same text. Raises `DataError` for one that UTF-8 cannot write."""
    is_lone = is_surrogate(code_points(text))
    if is_lone.any():
        raise unknown_characters(text, np.flatnonzero(is_lone))
    return text
