"""The two passes over a corpus: first what is in it and which vocabulary that makes, then its tokens.

Only a chunk of text is ever in memory. How a vocabulary is chosen is `data.vocabulary`'s concern, and where the
results are kept that of `data.prepare`. Imports no torch.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.corpus import Advance, Corpus, Text
from data.sources import Source
from data.text import changed_while_read, content_digest
from data.tokenizer import CharTokenizer, TokenArray, Tokenizer, token_dtype
from data.unicode import CharacterCounts, UnknownCharactersError, normalized
from data.vocabulary import Report, byte_pairs, characters, completed, fixed_vocabulary, nothing_to_learn


@dataclass(frozen=True)
class Size:
    """How much text there is, as it was read: without `<|endoftext|>`."""

    num_chars: int
    num_bytes: int  # in UTF-8


@dataclass(frozen=True)
class Survey:
    """What the first pass has found."""

    tokenizer: Tokenizer
    train: Size
    val: Size  # of nothing where there is no text to validate on
    usual_start: str  # where a text may begin


@dataclass(frozen=True)
class Part:
    """What has been written of the texts to train on, or of those to validate on."""

    num_documents: int  # at least 1
    num_tokens: int
    is_empty: bool  # whether there is nothing but ends of documents


@dataclass(frozen=True)
class Written:
    """What the second pass has written."""

    train: Part
    val: Part
    sha256: str  # of the file


@contextlib.contextmanager
def progress(what: str, sources: Iterable[Source], *, show: bool) -> Iterator[Advance]:
    """A bar of bytes on stderr, for whatever takes longer than a second."""
    total = sum(source.size for source in sources)
    with tqdm(total=total, unit="B", unit_scale=True, desc=what, delay=1, leave=False, disable=not show) as bar:
        yield bar.update


def survey(corpus: Corpus, report: Report, *, show_progress: bool) -> Survey:
    """Count the characters, and make the tokenizer that the settings ask for, or complete the given one."""
    config, given = corpus.config, corpus.given
    tokenizer = fixed_vocabulary(config) if given is None else None  # first, since it may be missing
    learns_pairs = given is None and config.tokenizer == "bpe"
    counts = CharacterCounts()
    with_other_ends: list[Source] = []

    def counted(texts: list[Text], advance: Advance) -> Iterator[str]:
        for _, chunks in corpus.read(texts, advance=advance, on_normalized=with_other_ends.append):
            for chunk in normalized(chunks, corpus.unicode):
                counts.add(chunk)
                yield chunk

    what = "learning" if learns_pairs else "characters"
    with progress(what, corpus.sources, show=show_progress) as advance:
        to_train = counted(corpus.train, advance)
        if learns_pairs:
            tokenizer = byte_pairs(config, to_train, report=report)
        else:
            _read_all(to_train)
        train = Size(counts.num_chars, counts.num_bytes)
        _read_all(counted(corpus.val, advance))
    val = Size(counts.num_chars - train.num_chars, counts.num_bytes - train.num_bytes)
    _tell_line_ends(with_other_ends, report)
    if config.documents == "line":
        counts.forget("\n")
    if given is not None:
        tokenizer = completed(given, config, counts=counts, report=report)
    elif tokenizer is None:
        tokenizer = characters(config, counts, report=report)
    min_count = config.min_char_count if isinstance(tokenizer, CharTokenizer) and given is None else 1
    return Survey(tokenizer, train, val, counts.usual_start(min_count))


def _read_all(chunks: Iterable[str]) -> None:
    for _ in chunks:
        pass


def write_tokens(path: Path, corpus: Corpus, *, tokenizer: Tokenizer, show_progress: bool) -> Written:
    """Write the ids of all documents, each of several followed by `end_id`. Raises `DataError` where there are none.

    A lone document is not: training, which is its first part, would never meet that token, and the val loss
    would count one that nobody could have learnt.
    """
    shown = progress("tokens", corpus.sources, show=show_progress)
    with path.open("wb") as file, _as_surveyed(corpus), shown as advance:
        writer = _TokenWriter(file.write, tokenizer)
        train = writer.write_part(_ids(corpus, corpus.train, tokenizer=tokenizer, advance=advance))
        has_ends = train.num_documents > 1
        val = writer.write_part(_ids(corpus, corpus.val, tokenizer=tokenizer, advance=advance), has_ends=has_ends)
        file.flush()
        os.fsync(file.fileno())
    for part, texts, setting in ((train, corpus.train, "data.source"), (val, corpus.val, "data.val_source")):
        if texts and part.is_empty:
            raise nothing_to_learn(setting, corpus.config, drops=_drops(corpus))
    return Written(train, val, writer.sha256.hexdigest())


@contextlib.contextmanager
def _as_surveyed(corpus: Corpus) -> Iterator[None]:
    """Turn what the vocabulary lacks inside, which was made for these texts, into the error for the one that changed.

    Its digest would tell so only at its end. The one that has been changed back meanwhile has no name.
    """
    try:
        yield
    except UnknownCharactersError as error:
        texts = corpus.train + corpus.val
        changed = (text.source.name for text in texts if content_digest(text.source) != text.digest)
        raise changed_while_read(next(changed, "the text")) from error


class _TokenWriter:
    """Writes ids and their sum."""

    def __init__(self, write: Callable[[memoryview], object], tokenizer: Tokenizer) -> None:
        self.sha256 = hashlib.sha256()
        self._write = write
        self._end = np.array([tokenizer.end_id], dtype=token_dtype(tokenizer.vocab_size))

    def write_part(self, pieces: Iterable[TokenArray], *, has_ends: bool | None = None) -> Part:
        """Write the texts to train on, or those to validate on, in which `end_id` follows every document.

        It is written or left out as `has_ends` says; None: written where there are several documents.
        """
        num_ends, num_tokens, is_empty, end_waits = 0, 0, True, False
        for ids in filter(len, pieces):
            is_end = ids == self._end[0]
            num_ends += int(np.count_nonzero(is_end))
            is_empty = is_empty and bool(is_end.all())
            if has_ends is False:
                num_tokens += self._put(ids[~is_end])
                continue
            if end_waits:
                num_tokens += self._put(self._end)
            end_waits = bool(is_end[-1])  # until it is known whether there is another document
            num_tokens += self._put(ids[:-1] if end_waits else ids)
        if end_waits and (has_ends or num_ends > 1):
            num_tokens += self._put(self._end)
        return Part(max(num_ends, 1), num_tokens, is_empty)

    def _put(self, ids: TokenArray) -> int:
        self._write(ids.data)
        self.sha256.update(ids.data)
        return len(ids)


def _ids(corpus: Corpus, texts: list[Text], *, tokenizer: Tokenizer, advance: Advance) -> Iterator[TokenArray]:
    """The ids of the texts in pieces, with `end_id` after each document where there are documents."""
    drops = _drops(corpus)
    end = np.array([tokenizer.end_id], dtype=token_dtype(tokenizer.vocab_size))
    for name, chunks in corpus.read(texts, advance=advance):
        if corpus.config.documents == "line":
            yield from tokenizer.encode_lines(chunks, drop_unknown=drops, name=name)
        else:
            yield from tokenizer.encode_stream(chunks, drop_unknown=drops)
        if corpus.config.documents == "file":
            yield end


def _drops(corpus: Corpus) -> bool:
    return corpus.given is not None and corpus.config.unknown == "drop"


def _tell_line_ends(sources: list[Source], report: Report) -> None:
    if not sources:
        return
    which = sources[0].name if len(sources) == 1 else f"{len(sources):,} files"
    report(f"{which}: line ends \\r\\n or \\r are read as \\n (data.newlines=keep leaves them)")
