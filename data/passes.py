"""The two passes over a corpus: first what is in it and which vocabulary that makes, then its tokens.

Only a chunk of text is ever in memory. Where the results are kept is `data.prepare`'s concern. Imports no torch.
"""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from config.schema import DataConfig
from data.sources import Source
from data.text import read_text
from data.tokenizer import ByteTokenizer, CharTokenizer, TokenArray, Tokenizer, token_dtype
from data.unicode import CharacterCounts, UnicodeForm, normalized
from errors import DataError

_MAX_LISTED = 10

Advance = Callable[[int], object]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Text:
    """One source and the sum of its bytes, by which each pass makes sure that it reads the same."""

    source: Source
    digest: str


@dataclass(frozen=True)
class Corpus:
    """All that is prepared together, and how it is read. `given` is the tokenizer of a model that is continued."""

    config: DataConfig
    train: list[Text]
    val: list[Text]
    given: Tokenizer | None

    @property
    def texts(self) -> list[Text]:
        """The texts to train on, then those to validate on."""
        return self.train + self.val

    @property
    def unicode(self) -> UnicodeForm:
        """The normal form that the tokenizer brings every text to."""
        return self.config.unicode if self.given is None else self.given.unicode

    @property
    def folder_name(self) -> str:
        """Depends on the bytes of the texts, their order, and what decides which tokens they give; on nothing else."""
        config = self.config
        kind = config.tokenizer if self.given is None else self.given.kind
        vocabulary: dict[str, object]
        if self.given is not None:
            vocabulary = {"given": self.given.fingerprint, "unknown": config.unknown}
        else:
            sizes = {"char": config.min_char_count, "bpe": config.bpe_vocab_size}
            vocabulary = {"kind": kind, "size": sizes.get(kind), "unicode": config.unicode}
        reading = [config.encoding, config.newlines, config.documents]
        digests = [[text.digest for text in part] for part in (self.train, self.val)]
        key = json.dumps([vocabulary, reading, digests], sort_keys=True)
        return f"{kind.replace(':', '-')}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"

    def read(
        self, text: Text, advance: Advance, on_normalized: Callable[[Source], object] | None = None
    ) -> Iterator[str]:
        """The text in chunks, as it was written."""
        return read_text(
            text.source,
            encoding=self.config.encoding,
            newlines=self.config.newlines,
            expected_digest=text.digest,
            advance=advance,
            on_normalized=on_normalized or (lambda source: None),
        )


@dataclass(frozen=True)
class Survey:
    """What the first pass has found."""

    tokenizer: Tokenizer
    num_chars: int  # of all texts
    num_bytes: int  # of all texts in UTF-8
    usual_start: str  # where a text may begin


@dataclass(frozen=True)
class Written:
    """What the second pass has written."""

    num_documents: int  # to train on
    train_tokens: int
    num_tokens: int
    sha256: str  # of the file


@contextlib.contextmanager
def progress(what: str, sources: Iterable[Source], show: bool) -> Iterator[Advance]:
    """A bar of bytes on stderr, for whatever takes longer than a second."""
    total = sum(source.size for source in sources)
    with tqdm(total=total, unit="B", unit_scale=True, desc=what, delay=1, leave=False, disable=not show) as bar:
        yield bar.update


def survey(corpus: Corpus, report: Report, *, show_progress: bool) -> Survey:
    """Count the characters, and make the tokenizer that the settings ask for, or complete the given one."""
    counts = CharacterCounts()
    with_other_ends: list[Source] = []

    def counted(texts: list[Text], advance: Advance) -> Iterator[str]:
        for text in texts:
            for chunk in normalized(corpus.read(text, advance, with_other_ends.append), corpus.unicode):
                counts.add(chunk)
                yield chunk

    what = "learning" if corpus.given is None and corpus.config.tokenizer == "bpe" else "characters"
    with progress(what, [text.source for text in corpus.texts], show_progress) as advance:
        to_train = counted(corpus.train, advance)
        tokenizer = _byte_pairs(corpus, to_train)
        for _ in itertools.chain(to_train, counted(corpus.val, advance)):  # what has not been read by now
            pass
    _tell_line_ends(with_other_ends, report)
    num_chars, num_bytes = counts.num_chars, counts.num_bytes
    if corpus.config.documents == "line":
        counts.forget("\n")
    if tokenizer is None:
        tokenizer = _tokenizer(corpus, counts, report)
    min_count = corpus.config.min_char_count if isinstance(tokenizer, CharTokenizer) and corpus.given is None else 1
    return Survey(tokenizer, num_chars, num_bytes, counts.usual_start(min_count))


def write_tokens(path: Path, corpus: Corpus, tokenizer: Tokenizer, *, show_progress: bool) -> Written:
    """Write the ids of all documents, each of several followed by `end_id`.

    A lone document is not: training, which is its first part, would never meet that token, and the val loss
    would count one that nobody could have learnt.
    """
    with path.open("wb") as file, progress("tokens", [text.source for text in corpus.texts], show_progress) as advance:
        writer = _TokenWriter(file.write, tokenizer)
        for ids in _ids(corpus, corpus.train, tokenizer, advance):
            writer.add(ids)
        num_documents = max(writer.num_ends, 1)
        writer.finish_part(keeps_ends=num_documents > 1)
        train_tokens = writer.num_tokens
        for ids in _ids(corpus, corpus.val, tokenizer, advance):
            writer.add(ids if num_documents > 1 else ids[ids != tokenizer.end_id])
        writer.finish_part(keeps_ends=num_documents > 1)
        file.flush()
        os.fsync(file.fileno())
    return Written(num_documents, train_tokens, writer.num_tokens, writer.sha256.hexdigest())


class _TokenWriter:
    """Writes ids and counts them. The end of a document waits until it is known whether there is another one."""

    def __init__(self, write: Callable[[memoryview], object], tokenizer: Tokenizer) -> None:
        self.write = write
        self.end = np.array([tokenizer.end_id], dtype=token_dtype(tokenizer.vocab_size))
        self.end_waits = False
        self.num_ends = 0
        self.num_tokens = 0
        self.sha256 = hashlib.sha256()

    def add(self, ids: TokenArray) -> None:
        """Write some ids; if the last one ends a document it is written before the next ones."""
        if not len(ids):
            return
        if self.end_waits:
            self._put(self.end)
        self.end_waits = bool(ids[-1] == self.end[0])
        self.num_ends += int(np.count_nonzero(ids == self.end[0]))
        self._put(ids[:-1] if self.end_waits else ids)

    def finish_part(self, *, keeps_ends: bool) -> None:
        """The texts to train on, or those to validate on, are complete."""
        if self.end_waits and keeps_ends:
            self._put(self.end)
        self.end_waits = False

    def _put(self, ids: TokenArray) -> None:
        self.write(ids.data)
        self.sha256.update(ids.data)
        self.num_tokens += len(ids)


def _ids(corpus: Corpus, texts: list[Text], tokenizer: Tokenizer, advance: Advance) -> Iterator[TokenArray]:
    """The ids of the texts in pieces, with `end_id` after each document."""

    drops = corpus.given is not None and corpus.config.unknown == "drop"
    read = (corpus.read(text, advance) for text in texts)
    if corpus.config.documents == "none":
        yield from tokenizer.encode_stream(itertools.chain.from_iterable(read), drop_unknown=drops)
        return
    end = np.array([tokenizer.end_id], dtype=token_dtype(tokenizer.vocab_size))
    for chunks in read:
        if corpus.config.documents == "line":
            yield from tokenizer.encode_lines(chunks, drop_unknown=drops)
        else:
            yield from tokenizer.encode_stream(chunks, drop_unknown=drops)
            yield end


def _byte_pairs(corpus: Corpus, chunks: Iterator[str]) -> Tokenizer | None:
    """The vocabulary of byte pairs that the settings ask for, learnt from the chunks or published; None for others."""
    config = corpus.config
    if corpus.given is not None or config.tokenizer in (CharTokenizer.kind, ByteTokenizer.kind):
        return None
    if config.tokenizer != "bpe":
        from data.published import tiktoken_tokenizer  # imports tiktoken, which characters and bytes do without

        return tiktoken_tokenizer(config.tokenizer.removeprefix("tiktoken:"), unicode=config.unicode)
    from data.bpe import train_bpe

    return train_bpe(chunks, config.bpe_vocab_size, unicode=config.unicode)


def _tokenizer(corpus: Corpus, counts: CharacterCounts, report: Report) -> Tokenizer:
    """The tokenizer of characters or bytes, or the given one."""
    config = corpus.config
    if corpus.given is not None:
        return _completed(corpus.given, config, counts, report)
    if config.tokenizer == ByteTokenizer.kind:
        return ByteTokenizer(unicode=config.unicode)
    characters = counts.characters(config.min_char_count)
    num_rare, num_occurrences = counts.num_rare(config.min_char_count)
    if not characters:
        raise DataError(
            f"data.min_char_count={config.min_char_count}: no character of the text occurs so often; try a smaller one"
        )
    if num_rare:
        report(
            f"{num_rare:,} characters that occur less than {config.min_char_count} times share one token "
            f"({num_occurrences / counts.num_chars:.2%} of the text)"
        )
    return CharTokenizer(characters, has_unknown=num_rare > 0, unicode=config.unicode)


def _completed(given: Tokenizer, config: DataConfig, counts: CharacterCounts, report: Report) -> Tokenizer:
    """The given tokenizer, with the text's unknown characters added or taken out of `counts`, as the settings say."""
    if not isinstance(given, CharTokenizer) or given.has_unknown:
        return given
    unknown = sorted(set(counts.characters()) - set(given.characters), key=lambda c: (-counts.count(c), c))
    if not unknown:
        return given
    listed = ", ".join(f"{character!r} ({counts.count(character):,})" for character in unknown[:_MAX_LISTED])
    more = f" and {len(unknown) - _MAX_LISTED} more" if len(unknown) > _MAX_LISTED else ""
    found = f"{len(unknown)} of the text's characters are unknown to the model (how often): {listed}{more}"
    if config.unknown == "error":
        raise DataError(f"{found}; data.unknown=drop leaves them out, data.unknown=extend learns them too")
    if config.unknown == "extend":
        report(f"{found}; they are added to its vocabulary")
        return given.extended("".join(unknown))
    report(f"{found}; they are left out")
    for character in unknown:
        counts.forget(character)
    if not counts.num_chars:
        raise DataError("data.unknown=drop: the model knows none of the text's characters; use data.unknown=extend")
    return given


def _tell_line_ends(sources: list[Source], report: Report) -> None:
    if not sources:
        return
    which = sources[0].name if len(sources) == 1 else f"{len(sources)} files"
    report(f"{which}: line ends \\r\\n or \\r are read as \\n (data.newlines=keep leaves them)")
