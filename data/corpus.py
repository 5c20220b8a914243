"""All texts that are prepared together, how they are read, and the name under which the cache keeps their tokens.

Which vocabulary they get and how tokens are written are other files' concern. Imports no torch.
"""

import codecs
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from config.schema import DataConfig
from data.cuts import LEARNING_PATTERN, LEARNT_PATTERN
from data.sources import Source
from data.store import FORMAT
from data.text import EncodingError, ignore, read_text, read_with_others
from data.tokenizer import CharTokenizer, Tokenizer
from data.unicode import UnicodeForm

Advance = Callable[[int], object]  # hears how many more bytes have been read


@dataclass(frozen=True)
class Text:
    """One source and the sum of its bytes, by which each pass makes sure that it reads the same."""

    source: Source
    digest: str


@dataclass(frozen=True)
class Corpus:
    """The texts and the settings that matter to them. `given` is the tokenizer of a model that is continued."""

    config: DataConfig
    train: list[Text]
    val: list[Text]
    given: Tokenizer | None

    @property
    def sources(self) -> list[Source]:
        """Those to train on, then those to validate on."""
        return [text.source for text in self.train + self.val]

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
            unknown = config.unknown if isinstance(self.given, CharTokenizer) else None
            vocabulary = {"given": self.given.fingerprint, "unknown": unknown}
        else:
            sizes = {"char": config.min_char_count, "bpe": config.bpe_vocab_size}
            vocabulary = {"kind": kind, "size": sizes.get(kind), "unicode": config.unicode}
            if kind == "bpe":
                vocabulary["patterns"] = [LEARNING_PATTERN, LEARNT_PATTERN]  # those of earlier versions had others
        reading = [codecs.lookup(config.encoding).name, config.newlines, config.documents]
        digests = [[text.digest for text in part] for part in (self.train, self.val)]
        key = json.dumps([FORMAT, vocabulary, reading, digests], sort_keys=True)
        return f"{kind.replace(':', '-')}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"

    def read(
        self, texts: list[Text], *, advance: Advance, on_normalized: Callable[[Source], object] = ignore
    ) -> Iterator[tuple[str, Iterator[str]]]:
        """The texts, each with its name and in chunks, as they were written; one text where they are no documents."""
        each = (self._read(text, advance, on_normalized) for text in texts)
        if self.config.documents == "none":
            yield "the text", itertools.chain.from_iterable(each)
        else:
            yield from zip((text.source.name for text in texts), each, strict=True)

    def _read(self, text: Text, advance: Advance, on_normalized: Callable[[Source], object]) -> Iterator[str]:
        try:
            yield from read_text(
                text.source,
                encoding=self.config.encoding,
                newlines=self.config.newlines,
                expected_digest=text.digest,
                advance=advance,
                on_normalized=on_normalized,
            )
        except EncodingError as error:
            raise read_with_others(error, self.sources) from error
