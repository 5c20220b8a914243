"""Texts to one file of tokens, kept in the cache and found again by content; the command that does just this.

`tokens.bin` holds all documents in order; nothing in it depends on how the tokens are later split or read. How they
are made is `data.passes`' concern, and how a folder of the cache is kept whole `data.store`'s. Imports no torch.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from config.load import is_override, load_config
from config.schema import DataConfig
from data.durable import cache_errors
from data.passes import Corpus, Text, progress, survey, write_tokens
from data.paths import format_size, local_path, shown_path
from data.sources import ResolvedSources, list_sources, resolve_sources
from data.store import (
    FORMAT,
    TOKENS_FILE,
    DamagedFolderError,
    Facts,
    Metadata,
    install,
    load_folder,
    new_folder,
    write_facts,
)
from data.text import content_digest
from data.tokenizer import TokenArray, Tokenizer, token_dtype
from errors import ArgumentParser, ConfigError, run_command

_LARGE_VOCAB, _FEW_EACH = 500, 100  # a vocabulary above this size is too large where a token occurs less often
_SNAP_LIMIT = 1 << 20  # tokens searched on either side of the split, whatever the size of the text


@dataclass(frozen=True)
class PreparedData:
    """A text as tokens on disk. `tokens.bin` holds train, then val: `train_tokens` of `num_tokens`."""

    source: str | list[str]  # as in the settings, but that standard input is a file now
    val_source: str | list[str] | None
    folder: Path
    tokenizer: Tokenizer
    dtype: np.dtype[np.unsignedinteger[Any]]
    num_tokens: int
    train_tokens: int
    num_documents: int
    num_chars: int  # of the text as it was read, without `<|endoftext|>`
    num_bytes: int  # the same in UTF-8
    start_id: int  # where generation without a prompt begins
    fingerprint: str  # of the tokens and the tokenizer: equal for equal data, whatever the file is called

    @property
    def title(self) -> str:
        """What people call the text."""
        return self.source if isinstance(self.source, str) else f"{len(self.source)} sources"

    @property
    def val_tokens(self) -> int:
        """The tokens after the first `train_tokens`."""
        return self.num_tokens - self.train_tokens

    @property
    def tokens_path(self) -> Path:
        """The file of `num_tokens` ids of type `dtype`."""
        return self.folder / TOKENS_FILE

    def describe(self) -> str:
        """Two lines for people: the text and its tokens."""
        documents = "1 document" if self.num_documents == 1 else f"{self.num_documents:,} documents"
        return (
            f"{self.title}: {documents}, {format_size(self.num_bytes)}, {self.num_chars:,} characters\n"
            f"{self.tokenizer.kind} vocabulary of {self.tokenizer.vocab_size:,}; "
            f"train {self.train_tokens:,} tokens, val {self.val_tokens:,} tokens"
        )


def prepare(
    config: DataConfig,
    *,
    report: Callable[[str], None],
    show_progress: bool = False,
    tokenizer: Tokenizer | None = None,
) -> PreparedData:
    """The tokens of the text that `config` names: those in the cache if it has them, else made now.

    With `tokenizer`, which a model has that is continued, the text is encoded by that one. `report` gets lines for
    people. Raises `DataError` if the text cannot be read or the cache not be written.
    """
    found = resolve_sources(config, report=report, show_progress=show_progress)
    with progress("reading", found.train + found.val, show_progress) as advance:
        train, val = (
            [Text(source, content_digest(source, advance=advance)) for source in part]
            for part in (found.train, found.val)
        )
    corpus = Corpus(config, train, val, tokenizer)
    folder = local_path(config.cache_dir) / corpus.folder_name
    try:
        facts = load_folder(folder)
    except DamagedFolderError as damage:
        report(f"{shown_path(folder)}: the prepared tokens are damaged ({damage}); preparing them again")
        facts = None
    if facts is None:
        list_sources(found.train + found.val, report)
        started = time.monotonic()
        facts = _make(folder, corpus, report, show_progress=show_progress)
        report(f"prepared in {time.monotonic() - started:.1f} s, kept in {shown_path(folder)}")
    prepared = _prepared(found, config.val_fraction, folder, *facts)
    _warn_of_huge_vocabulary(prepared, report)
    return prepared


def split_boundary(tokens: TokenArray, val_fraction: float, end_id: int | None) -> int:
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


def _prepared(
    found: ResolvedSources, val_fraction: float, folder: Path, metadata: Metadata, tokenizer: Tokenizer
) -> PreparedData:
    dtype = token_dtype(tokenizer.vocab_size)
    fingerprint = metadata.tokens_sha256 + metadata.tokenizer_fingerprint
    if metadata.train_tokens is None:
        tokens = np.memmap(folder / TOKENS_FILE, dtype=dtype, mode="r")
        end_id = tokenizer.end_id if metadata.num_documents > 1 else None
        train_tokens = split_boundary(tokens, val_fraction, end_id)
    else:
        train_tokens = metadata.train_tokens
        fingerprint += f":{train_tokens}"
    return PreparedData(
        source=found.source,
        val_source=found.val_source,
        folder=folder,
        tokenizer=tokenizer,
        dtype=dtype,
        num_tokens=metadata.num_tokens,
        train_tokens=train_tokens,
        num_documents=metadata.num_documents,
        num_chars=metadata.num_chars,
        num_bytes=metadata.num_bytes,
        start_id=metadata.start_id,
        fingerprint=hashlib.sha256(fingerprint.encode()).hexdigest(),
    )


def _make(folder: Path, corpus: Corpus, report: Callable[[str], None], *, show_progress: bool) -> Facts:
    """Prepare a folder of the cache in two passes over the texts."""
    found = survey(corpus, report, show_progress=show_progress)
    tokenizer = found.tokenizer
    with cache_errors(folder.parent, "write prepared tokens to"), new_folder(folder.parent) as made:
        written = write_tokens(made / TOKENS_FILE, corpus, tokenizer, show_progress=show_progress)
        several = written.num_documents > 1
        metadata = Metadata(
            format=FORMAT,
            num_documents=written.num_documents,
            num_chars=found.num_chars,
            num_bytes=found.num_bytes,
            num_tokens=written.num_tokens,
            train_tokens=written.train_tokens if corpus.val else None,
            start_id=tokenizer.end_id if several else int(tokenizer.encode(found.usual_start)[0]),
            tokens_sha256=written.sha256,
            tokenizer_fingerprint=tokenizer.fingerprint,
        )
        write_facts(made, metadata, tokenizer)
        install(made, folder)
    return metadata, tokenizer


def _warn_of_huge_vocabulary(prepared: PreparedData, report: Callable[[str], None]) -> None:
    """Most of a vocabulary that is huge for the text occurs too rarely to be learnt."""
    size = prepared.tokenizer.vocab_size
    if prepared.tokenizer.kind == "char" and size > _LARGE_VOCAB and prepared.num_chars < _FEW_EACH * size:
        report(
            f"hint     {size:,} different characters in {prepared.num_chars:,} are too many to learn them all; "
            "data.min_char_count=5 joins the rare ones, and data.tokenizer=bpe or byte needs none of them"
        )


def main(arguments: Sequence[str]) -> int:
    """Prepare the tokens of a recipe without training."""
    parser = ArgumentParser(
        prog="data.prepare",
        usage="python -m data.prepare [RECIPE.yaml] [section.key=value ...]",
        description="Read the text that data.source names and keep its tokens in data.cache_dir; train nothing.\n"
        "Of the settings only those of the section data matter; python train.py --help explains them.",
    )
    parser.add_argument("recipe", nargs="?", metavar="RECIPE.yaml", help="settings; without one the defaults")
    overrides = [argument for argument in arguments if is_override(argument)]
    options = parser.parse_args([argument for argument in arguments if not is_override(argument)])
    config = load_config(None if options.recipe is None else local_path(options.recipe), overrides)
    if config.train.init_from is not None:
        raise ConfigError("train.init_from: a text for a model that is continued is prepared by train.py itself")
    prepared = prepare(config.data, report=_to_stderr, show_progress=sys.stderr.isatty())
    print(prepared.describe())
    print(f"tokens in {shown_path(prepared.folder)}")
    return 0


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    run_command(main)
