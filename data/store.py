"""Folders of prepared tokens: written whole or not at all, and checked to the last byte before they are used.

A folder holds `tokens.bin`, `tokenizer.json` and `metadata.json`. How tokens are made is `data.prepare`'s
concern.
"""

import contextlib
import hashlib
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data.durable import PART, kept_file, part_path, sync_folder, write_durably
from data.memory import is_out_of_memory
from data.saved_tokenizer import tokenizer_from_json
from data.tokenizer import Tokenizer, token_dtype
from errors import DataError

TOKENS_FILE = "tokens.bin"
TOKENIZER_FILE = "tokenizer.json"
METADATA_FILE = "metadata.json"
FORMAT = 4  # a folder of another one is prepared anew

_CHUNK_BYTES = 1 << 20  # a multiple of the size of every id
_STALE_SECONDS = 24 * 3600  # a half-made folder of this age was left behind by a process that was killed
_INSTALL_ATTEMPTS = 10


class TextFacts(BaseModel):
    """How much text there is, as it was read: without `<|endoftext|>`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    num_documents: int = Field(ge=1)
    num_chars: int = Field(ge=1)
    num_bytes: int = Field(ge=1)  # in UTF-8


class Metadata(BaseModel):
    """What `metadata.json` holds: facts of the text and its tokens, no paths and no settings of one run."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    format: int
    folder: str  # its name, which stands for the texts and settings that the tokens were made from
    text: TextFacts  # of data.source
    val_text: TextFacts | None  # of data.val_source, where there is one
    num_tokens: int = Field(ge=1)
    train_tokens: int | None = Field(ge=1)  # where the validation text begins; None: data.val_fraction says
    start_id: int = Field(ge=0)
    tokens_sha256: str
    tokenizer_fingerprint: str


Facts = tuple[Metadata, Tokenizer]


class DamagedFolderError(Exception):
    """A prepared folder that is not as it was written."""


def load_folder(folder: Path) -> Facts | None:
    """A folder of the cache, every byte checked; None if it is not there. Raises `DamagedFolderError`."""
    try:
        if not folder.exists():
            return None
        metadata = Metadata.model_validate_json((folder / METADATA_FILE).read_bytes())
        tokenizer_json = (folder / TOKENIZER_FILE).read_text(encoding="utf-8")
        tokenizer = tokenizer_from_json(tokenizer_json, where=TOKENIZER_FILE)
        num_tokens, max_id, tokens_sha256 = _check_tokens(folder / TOKENS_FILE, token_dtype(tokenizer.vocab_size))
    except ValidationError as error:
        raise DamagedFolderError(f"{METADATA_FILE} is not as it was written") from error
    except OSError as error:
        if is_out_of_memory(error):
            raise
        raise DamagedFolderError(f"{Path(error.filename or folder).name}: {error.strerror}") from error
    except UnicodeError as error:
        raise DamagedFolderError(f"{TOKENIZER_FILE} is not as it was written") from error
    except DataError as error:
        raise DamagedFolderError(str(error)) from error
    if metadata.folder != folder.name:
        raise DamagedFolderError("they are those of another text, or of other settings")
    if tokenizer.fingerprint != metadata.tokenizer_fingerprint:
        raise DamagedFolderError(f"{TOKENIZER_FILE} is not the one of {METADATA_FILE}")
    if tokens_sha256 != metadata.tokens_sha256 or num_tokens != metadata.num_tokens:
        raise DamagedFolderError(f"{TOKENS_FILE} is not as it was written")
    if max_id >= tokenizer.vocab_size:
        raise DamagedFolderError(f"{TOKENS_FILE} holds an id of {max_id}, beyond the vocabulary")
    impossible = metadata.start_id >= tokenizer.vocab_size or (metadata.train_tokens or 0) > metadata.num_tokens
    if metadata.format != FORMAT or impossible:
        raise DamagedFolderError(f"{METADATA_FILE} holds impossible values")
    return metadata, tokenizer


@contextlib.contextmanager
def new_folder(cache: Path) -> Iterator[Path]:
    """A folder in the cache under a name that nobody looks up; whatever is left of it goes at the end."""
    cache.mkdir(parents=True, exist_ok=True)
    _remove_stale(cache)
    made = part_path(cache)
    made.mkdir()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _check_tokens(path: Path, dtype: np.dtype[np.unsignedinteger[Any]]) -> tuple[int, int, str]:
    """How many ids a file holds, the largest one, and the sha256 of the file, read a chunk at a time."""
    digest, size, max_id = hashlib.sha256(), 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            whole = len(chunk) // dtype.itemsize * dtype.itemsize
            max_id = max(max_id, int(np.frombuffer(chunk[:whole], dtype).max(initial=0)))
    return size // dtype.itemsize, max_id, digest.hexdigest()


def _remove_stale(cache: Path) -> None:
    """Remove what killed processes left half-made: folders of tokens, downloads, copies of standard input."""
    for left in (*cache.glob(f"{PART}*"), *cache.glob(f"*/{PART}*")):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def install(made: Path, folder: Path) -> None:
    """Rename `made` to `folder`. An intact folder that another process has put there meanwhile is as good."""
    for attempt in range(_INSTALL_ATTEMPTS):
        try:
            made.rename(folder)
        except OSError:
            if attempt == _INSTALL_ATTEMPTS - 1:
                raise
        else:
            sync_folder(folder.parent)
            return
        try:
            if load_folder(folder) is not None:
                return
        except DamagedFolderError:
            aside = made.with_name(f"{made.name}-{attempt}")
            with contextlib.suppress(FileNotFoundError):  # another process may be doing the same
                folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)


def same_folder(folder: Path) -> Path:
    """The folder that holds what is wanted under this name: the one that `note_same` noted, or this one itself."""
    try:
        mine, _, name = _note(folder).read_text(encoding="ascii").partition(" ")
    except (OSError, ValueError):
        return folder
    is_ours = mine == folder.name  # and not a copy of another's
    return folder.with_name(name) if is_ours and re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name) else folder


def note_same(folder: Path, other: Path) -> None:
    """Let what is wanted under the name of `folder` be found in `other`, beside it. Raises `DataError`."""
    with kept_file(folder.parent, _note(folder).name, purpose="write prepared tokens to") as kept:
        kept.file.write(f"{folder.name} {other.name}".encode("ascii"))


def _note(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.same")


def write_facts(made: Path, metadata: Metadata, *, tokenizer: Tokenizer) -> None:
    """Write all of a folder but its tokens."""
    write_durably(made / TOKENIZER_FILE, tokenizer.to_json() + "\n")
    write_durably(made / METADATA_FILE, metadata.model_dump_json(indent=2) + "\n")
