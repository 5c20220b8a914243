"""Texts to one file of tokens, kept in the cache and found again by content; the command that does just this.

`tokens.bin` holds all documents in order; nothing in it depends on how the tokens are later split or read.
How a folder of the cache is kept whole is `data.store`'s concern. Imports no torch.
"""

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from config.load import is_override, load_config
from config.schema import DataConfig
from data.sources import (
    Source,
    content_digest,
    format_size,
    list_sources,
    local_path,
    read_text,
    resolve_sources,
    shown_path,
)
from data.store import (
    FORMAT,
    TOKENS_FILE,
    DamagedFolderError,
    Facts,
    Metadata,
    cache_errors,
    install,
    load_folder,
    new_folder,
    write_facts,
)
from data.tokenizer import (
    ByteTokenizer,
    CharacterCounts,
    CharTokenizer,
    TokenArray,
    Tokenizer,
    token_dtype,
)
from errors import ArgumentParser, run_command

_SNAP_LIMIT = 1 << 20  # tokens searched on either side of the split, whatever the size of the text


@dataclass(frozen=True)
class PreparedData:
    """A text as tokens on disk. `tokens.bin` holds train, then val: `train_tokens` of `num_tokens`."""

    title: str
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


def prepare(config: DataConfig, *, report: Callable[[str], None], show_progress: bool = False) -> PreparedData:
    """The tokens of the text that `config` names: those in the cache if it has them, else made now.

    `report` gets lines for people. Raises `DataError` if the text cannot be read or the cache not be written.
    """
    sources = resolve_sources(config, report=report, show_progress=show_progress)
    with _progress("reading", sources, show_progress) as advance:
        digests = [content_digest(source, advance=advance) for source in sources]
    folder = local_path(config.cache_dir) / _folder_name(digests, config.tokenizer)
    try:
        facts = load_folder(folder)
    except DamagedFolderError as damage:
        report(f"{shown_path(folder)}: the prepared tokens are damaged ({damage}); preparing them again")
        facts = None
    if facts is None:
        list_sources(sources, report)
        started = time.monotonic()
        facts = _make(folder, sources, digests, config.tokenizer, show_progress=show_progress)
        report(f"prepared in {time.monotonic() - started:.1f} s, kept in {shown_path(folder)}")
    return _prepared(config, folder, *facts)


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


def _prepared(config: DataConfig, folder: Path, metadata: Metadata, tokenizer: Tokenizer) -> PreparedData:
    dtype = token_dtype(tokenizer.vocab_size)
    tokens = np.memmap(folder / TOKENS_FILE, dtype=dtype, mode="r")
    end_id = tokenizer.end_id if metadata.num_documents > 1 else None
    fingerprint = hashlib.sha256((metadata.tokens_sha256 + metadata.tokenizer_fingerprint).encode())
    return PreparedData(
        title=config.source if isinstance(config.source, str) else f"{len(config.source)} sources",
        folder=folder,
        tokenizer=tokenizer,
        dtype=dtype,
        num_tokens=metadata.num_tokens,
        train_tokens=split_boundary(tokens, config.val_fraction, end_id),
        num_documents=metadata.num_documents,
        num_chars=metadata.num_chars,
        num_bytes=metadata.num_bytes,
        start_id=metadata.start_id,
        fingerprint=fingerprint.hexdigest(),
    )


def _make(folder: Path, sources: list[Source], digests: list[str], kind: str, *, show_progress: bool) -> Facts:
    """Prepare a folder of the cache in two passes over the texts, so that only a chunk is ever in memory."""
    counts = CharacterCounts()
    with _progress("characters", sources, show_progress) as advance:
        for source, digest in zip(sources, digests, strict=True):
            for text in read_text(source, expected_digest=digest, advance=advance):
                counts.add(text)
    tokenizer = ByteTokenizer() if kind == ByteTokenizer.kind else CharTokenizer(counts.characters)
    with cache_errors(folder.parent), new_folder(folder.parent) as made:
        with _progress("tokens", sources, show_progress) as advance:
            num_tokens, sha256 = _write_tokens(made / TOKENS_FILE, sources, digests, tokenizer, advance)
        metadata = _metadata(counts, tokenizer, len(sources), num_tokens, sha256)
        write_facts(made, metadata, tokenizer)
        install(made, folder)
    return metadata, tokenizer


def _folder_name(digests: list[str], tokenizer: str) -> str:
    """Depends on the bytes of the texts, their order and the kind of tokenizer, and on nothing else."""
    key = json.dumps([FORMAT, tokenizer, digests])
    return f"{tokenizer}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"


def _write_tokens(
    path: Path,
    sources: list[Source],
    digests: list[str],
    tokenizer: Tokenizer,
    advance: Callable[[int], object],
) -> tuple[int, str]:
    """Write the ids of all documents. Returns how many there are and the sha256 of the file.

    Each of several documents is followed by `end_id`. A lone one is not: training, which is its first part,
    would never meet that token, and the val loss would count one that nobody could have learnt.
    """
    end = np.array([tokenizer.end_id], dtype=token_dtype(tokenizer.vocab_size)) if len(sources) > 1 else None
    num_bytes = 0
    sha256 = hashlib.sha256()
    with path.open("wb") as file:

        def write(ids: TokenArray) -> None:
            nonlocal num_bytes
            num_bytes += file.write(ids.data)
            sha256.update(ids.data)

        for source, digest in zip(sources, digests, strict=True):
            for text in read_text(source, expected_digest=digest, advance=advance):
                write(tokenizer.encode(text))
            if end is not None:
                write(end)
        file.flush()
        os.fsync(file.fileno())
    return num_bytes // token_dtype(tokenizer.vocab_size).itemsize, sha256.hexdigest()


def _metadata(
    counts: CharacterCounts, tokenizer: Tokenizer, num_documents: int, num_tokens: int, tokens_sha256: str
) -> Metadata:
    start_id = tokenizer.end_id if num_documents > 1 else int(tokenizer.encode(counts.usual_start)[0])
    return Metadata(
        format=FORMAT,
        num_documents=num_documents,
        num_chars=counts.num_chars,
        num_bytes=counts.num_bytes,
        num_tokens=num_tokens,
        start_id=start_id,
        tokens_sha256=tokens_sha256,
        tokenizer_fingerprint=tokenizer.fingerprint,
    )


@contextlib.contextmanager
def _progress(what: str, sources: list[Source], show: bool) -> Iterator[Callable[[int], object]]:
    """A bar of bytes on stderr, for whatever takes longer than a second."""
    total = sum(source.size for source in sources)
    with tqdm(total=total, unit="B", unit_scale=True, desc=what, delay=1, leave=False, disable=not show) as bar:
        yield bar.update


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
    prepared = prepare(config.data, report=_to_stderr, show_progress=sys.stderr.isatty())
    print(prepared.describe())
    print(f"tokens in {shown_path(prepared.folder)}")
    return 0


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    run_command(main)
