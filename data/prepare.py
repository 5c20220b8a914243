"""Texts to one file of tokens, kept in the cache and found again by content; the command that does just this.

`tokens.bin` holds all documents in order; nothing in it depends on how the tokens are later split or read. How they
are made is `data.passes`' concern, and how a folder of the cache is kept whole `data.store`'s. Imports no torch.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from config.load import is_override, load_config
from config.schema import DataConfig
from data.corpus import Corpus, Text
from data.durable import cache_errors
from data.memory import MemoryBoundary
from data.passes import Part, Size, progress, survey, write_tokens
from data.paths import counted, format_size, local_path, shown_path
from data.sources import ResolvedSources, list_sources, resolve_sources
from data.store import (
    FORMAT,
    TOKENS_FILE,
    DamagedFolderError,
    Facts,
    Metadata,
    TextFacts,
    install,
    load_folder,
    new_folder,
    note_same,
    same_folder,
    write_facts,
)
from data.text import content_digest
from data.tokenizer import ByteTokenizer, CharTokenizer, TokenArray, Tokenizer, token_dtype
from data.vocabulary import check_name, tell_settings_without_effect
from errors import ArgumentParser, ConfigError, run_command
from terminal import tell

_LARGE_VOCAB, _FEW_EACH = 500, 100  # a vocabulary above this size is too large where a token occurs less often
_LARGE_BYTES = 50_000_000  # reading more takes a while, so people are told first what is going to be read
_SNAP_LIMIT = 1 << 20  # tokens searched on either side of the split, whatever the size of the text


@dataclass(frozen=True)
class PreparedData:
    """A text as tokens on disk. `tokens.bin` holds train, then val: `train_tokens` of `num_tokens`."""

    sources: ResolvedSources
    folder: Path
    tokenizer: Tokenizer
    metadata: Metadata
    train_tokens: int

    @property
    def source(self) -> str | list[str]:
        """As in the settings, but that standard input is a file now."""
        return self.sources.source

    @property
    def val_source(self) -> str | list[str] | None:
        """As `source`."""
        return self.sources.val_source

    @property
    def title(self) -> str:
        """What people call the text of `data.source`."""
        return self.sources.title

    @property
    def val_title(self) -> str | None:
        """What people call the text of `data.val_source`, where there is one."""
        return self.sources.val_title

    @property
    def num_documents(self) -> int:
        """Of the text of `data.source`, as are `num_chars` and `num_bytes`."""
        return self.metadata.text.num_documents

    @property
    def num_chars(self) -> int:
        """Characters of the text as it was read, without `<|endoftext|>`."""
        return self.metadata.text.num_chars

    @property
    def num_bytes(self) -> int:
        """The same in UTF-8."""
        return self.metadata.text.num_bytes

    @property
    def start_id(self) -> int:
        """Where generation without a prompt begins."""
        return self.metadata.start_id

    @property
    def num_tokens(self) -> int:
        """Those to train on and those to validate on."""
        return self.metadata.num_tokens

    @property
    def val_tokens(self) -> int:
        """The tokens after the first `train_tokens`."""
        return self.num_tokens - self.train_tokens

    @property
    def tokens_path(self) -> Path:
        """The file of `num_tokens` ids of type `dtype`."""
        return self.folder / TOKENS_FILE

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The type of the ids in the file."""
        return token_dtype(self.tokenizer.vocab_size)

    @property
    def fingerprint(self) -> str:
        """Of the tokens and the tokenizer: equal for equal data, whatever the file is called."""
        facts = self.metadata.tokens_sha256 + self.metadata.tokenizer_fingerprint
        if self.metadata.train_tokens is not None:
            facts += f":{self.train_tokens}"
        return hashlib.sha256(facts.encode()).hexdigest()

    def describe(self) -> str:
        """Lines for people: the text, the one to validate on if there is one, and the tokens."""
        lines = [f"{self.title}: {_measures(self.metadata.text)}"]
        if self.metadata.val_text is not None:
            lines.append(f"{self.val_title}: {_measures(self.metadata.val_text)}, to validate on")
        lines += [
            f"{self.tokenizer.kind} vocabulary of {self.tokenizer.vocab_size:,}",
            f"train {counted(self.train_tokens, 'token')}, val {counted(self.val_tokens, 'token')}",
        ]
        return "\n".join(lines)


def _measures(text: TextFacts) -> str:
    documents, characters = counted(text.num_documents, "document"), counted(text.num_chars, "character")
    return f"{documents}, {format_size(text.num_bytes)}, {characters}"


def prepare(
    config: DataConfig,
    *,
    report: Callable[[str], None],
    say: Callable[[str], None] | None = None,
    show_progress: bool = False,
    tokenizer: Tokenizer | None = None,
    made_before: Tokenizer | None = None,
) -> PreparedData:
    """The tokens of the text that `config` names: those in the cache if it has them, else made now.

    With `tokenizer`, which a model has that is continued, the text is encoded by that one. `made_before` is what these
    settings have given once: a vocabulary of byte pairs is neither learnt nor downloaded again. `report` hears
    what people should know, and `say` (without it `report` too) how it goes. Raises `DataError` if the text cannot be
    read or the cache not be written, and where memory is used up.
    """
    with MemoryBoundary():
        return _prepare(
            config, report, say=say or report, show_progress=show_progress, given=tokenizer, made_before=made_before
        )


def _prepare(
    config: DataConfig,
    report: Callable[[str], None],
    *,
    say: Callable[[str], None],
    show_progress: bool,
    given: Tokenizer | None,
    made_before: Tokenizer | None,
) -> PreparedData:
    tell_settings_without_effect(config, given, report=report)
    if given is None and made_before is None:
        check_name(config)
    found = resolve_sources(config, report=report, show_progress=show_progress)
    sources = found.train + found.val
    takes_time = sum(source.size for source in sources) > _LARGE_BYTES
    if takes_time:
        list_sources(sources, say)
    with progress("reading", sources, show=show_progress) as advance:
        train, val = (
            [Text(source, content_digest(source, advance=advance)) for source in part]
            for part in (found.train, found.val)
        )
    corpus = Corpus(config, train, val, given)
    folder, facts = _look_up(corpus, report)
    if facts is None and made_before is not None and made_before.kind not in (CharTokenizer.kind, ByteTokenizer.kind):
        corpus = replace(corpus, given=made_before)
        folder, facts = _look_up(corpus, report)
    if facts is None:
        if not takes_time:
            list_sources(sources, say)
        started = time.monotonic()
        folder, facts = _make(corpus, report, show_progress=show_progress)
        say(f"prepared in {time.monotonic() - started:.1f} s, kept in {shown_path(folder)}")
    metadata, tokenizer = facts
    train_tokens = metadata.train_tokens or _split(folder, metadata, tokenizer=tokenizer, config=config)
    prepared = PreparedData(found, folder, tokenizer, metadata, train_tokens)
    _warn_of_huge_vocabulary(prepared, report)
    return prepared


def _look_up(corpus: Corpus, report: Callable[[str], None]) -> tuple[Path, Facts | None]:
    """Where the cache has the tokens of a corpus, and what it knows of them, if it has them."""
    folder = same_folder(local_path(corpus.config.cache_dir) / corpus.folder_name)
    try:
        return folder, load_folder(folder)
    except DamagedFolderError as damage:
        report(f"{shown_path(folder)}: the prepared tokens are damaged ({damage}); preparing them again")
        return folder, None


def _split(folder: Path, metadata: Metadata, *, tokenizer: Tokenizer, config: DataConfig) -> int:
    """How many tokens are for training where the text to validate on is the last part of the same."""
    tokens = np.memmap(folder / TOKENS_FILE, dtype=token_dtype(tokenizer.vocab_size), mode="r")
    end_id = tokenizer.end_id if metadata.text.num_documents > 1 else None
    return split_boundary(tokens, config.val_fraction, end_id=end_id)


def split_boundary(tokens: TokenArray, val_fraction: float, *, end_id: int | None) -> int:
    """How many tokens are for training: of n tokens, n * (1 - val_fraction) rounded down, in exact decimals.

    Where there are several documents (`end_id` is not None) the split moves to the nearest document end, if
    one is at most a tenth of the smaller split away (and 2**20 tokens), so that it rarely cuts a document.
    """
    boundary = int(len(tokens) * (1 - Fraction(str(val_fraction))))
    reach = min(boundary // 10, (len(tokens) - boundary) // 10, _SNAP_LIMIT)
    if end_id is None or reach == 0:
        return boundary
    first = boundary - reach
    cuts = first + np.flatnonzero(tokens[first - 1 : boundary + reach] == end_id)
    return int(cuts[np.abs(cuts - boundary).argmin()]) if cuts.size else boundary


def _make(corpus: Corpus, report: Callable[[str], None], *, show_progress: bool) -> tuple[Path, Facts]:
    """Prepare a folder of the cache in two passes over the texts."""
    found = survey(corpus, report, show_progress=show_progress)
    tokenizer = found.tokenizer
    # The name that the completed tokenizer of a continued model leads to: that run, resumed, has no other one.
    completed = corpus if corpus.given is None else replace(corpus, given=tokenizer)
    cache = local_path(corpus.config.cache_dir)
    folder = cache / completed.folder_name
    with cache_errors(cache, "write prepared tokens to"), new_folder(cache) as made:
        written = write_tokens(made / TOKENS_FILE, corpus, tokenizer=tokenizer, show_progress=show_progress)
        several = written.train.num_documents > 1
        metadata = Metadata(
            format=FORMAT,
            folder=folder.name,
            text=_facts(found.train, written.train),
            val_text=_facts(found.val, written.val) if corpus.val else None,
            num_tokens=written.train.num_tokens + written.val.num_tokens,
            train_tokens=written.train.num_tokens if corpus.val else None,
            start_id=tokenizer.end_id if several else int(tokenizer.encode(found.usual_start)[0]),
            tokens_sha256=written.sha256,
            tokenizer_fingerprint=tokenizer.fingerprint,
        )
        write_facts(made, metadata, tokenizer=tokenizer)
        install(made, folder)
    if folder.name != corpus.folder_name:
        note_same(cache / corpus.folder_name, folder)
    return folder, (metadata, tokenizer)


def _facts(size: Size, part: Part) -> TextFacts:
    return TextFacts(num_documents=part.num_documents, num_chars=size.num_chars, num_bytes=size.num_bytes)


def _warn_of_huge_vocabulary(prepared: PreparedData, report: Callable[[str], None]) -> None:
    """Most of a vocabulary that is huge for the text occurs too rarely to be learnt."""
    if not isinstance(prepared.tokenizer, CharTokenizer):
        return
    size = len(prepared.tokenizer.characters)
    val_text = prepared.metadata.val_text
    num_chars = prepared.num_chars + (val_text.num_chars if val_text is not None else 0)
    if size > _LARGE_VOCAB and num_chars < _FEW_EACH * size:
        report(
            f"hint     {size:,} different characters in {num_chars:,} are too many to learn them all; "
            "data.min_char_count=5 joins the rare ones, and data.tokenizer=bpe or byte needs none of them"
        )


def main(arguments: Sequence[str]) -> int:
    """Prepare the tokens of a recipe without training."""
    parser = ArgumentParser(
        prog="data.prepare",
        usage="python -m data.prepare [RECIPE.yaml] [section.key=value ...]",
        description="Read the text that data.source names and keep its tokens in data.cache_dir;\n"
        "train nothing. Of the settings only those of the section data matter;\n"
        "python train.py --help explains them.",
    )
    parser.add_argument("recipe", nargs="?", metavar="RECIPE.yaml", help="settings; without one the defaults")
    overrides = [argument for argument in arguments if is_override(argument)]
    options = parser.parse_args([argument for argument in arguments if not is_override(argument)])
    config = load_config(None if options.recipe is None else local_path(options.recipe), overrides)
    if config.train.init_from is not None:
        raise ConfigError("train.init_from: a text for a model that is continued is prepared by train.py itself")
    prepared = prepare(config.data, report=tell, show_progress=sys.stderr.isatty())
    print(prepared.describe())
    print(f"tokens in {shown_path(prepared.folder)}")
    context_length = config.model.context_length
    if min(prepared.train_tokens, prepared.val_tokens) <= context_length:
        tell(
            f"hint     this is too little text to train on: with model.context_length={context_length}, train and val "
            f"need {context_length + 1:,} tokens each; use a longer text, or a smaller model.context_length"
        )
    return 0


if __name__ == "__main__":
    run_command(main)
