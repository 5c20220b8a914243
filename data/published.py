"""The vocabularies that tiktoken knows by name, from its cache or from the network.

Once a run has one, it keeps it: loading a saved tokenizer needs neither. Imports no torch.
"""

import contextlib
import difflib
import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from data.bpe import BpeTokenizer
from data.paths import one_line, shown_path
from data.tokenizer import END_OF_TEXT
from data.unicode import UnicodeForm
from errors import DataError

TIMEOUT_SECONDS = 10.0  # for the connection, and for each wait for more bytes

_SEVERAL_FILES = {"vocab.bpe": "encoder.json"}  # of gpt2, which is read from both, one after the other


class _MissingFileError(Exception):
    """A file of a vocabulary is neither in the cache nor can it be downloaded."""

    def __init__(self, url: str, reason: object) -> None:
        super().__init__(url)
        self.url = url
        self.reason = reason


def tiktoken_tokenizer(
    name: str, *, unicode: UnicodeForm = "none", timeout_seconds: float = TIMEOUT_SECONDS
) -> BpeTokenizer:
    """The published vocabulary of this name (gpt2, cl100k_base, …), with tiktoken's ids.

    Raises `DataError` for another name, and if a file of it is missing or damaged and the network does not help.
    """
    where = f"data.tokenizer=tiktoken:{name}"
    construct = constructor_of(name)
    try:
        with _downloads_that_end(timeout_seconds):
            parts = construct()
    except _MissingFileError as error:
        raise DataError(f"{where}: {_how_to_bring(error)}") from error
    except Exception as error:  # BLE001 - tiktoken reads files and the network, and checks sums with assert
        reason = one_line(error) or type(error).__name__
        raise DataError(f"{where}: tiktoken cannot load it ({reason[:200]}); try again, or use another one") from error
    tokens = _tokens_by_id(parts["mergeable_ranks"], parts["special_tokens"])
    end_id = parts["special_tokens"][END_OF_TEXT]
    try:
        return BpeTokenizer(tokens, pattern=parts["pat_str"], end_id=end_id, kind=f"tiktoken:{name}", unicode=unicode)
    except ValueError as error:
        raise DataError(f"{where}: {error}, in the installed tiktoken; use another one") from error


def constructor_of(name: str) -> Callable[[], dict[str, Any]]:
    """What loads the vocabulary of this name. Raises `DataError` for a name that tiktoken does not know."""
    import tiktoken.registry

    names = tiktoken.list_encoding_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        advice = f"did you mean {near[0]}? " if near else ""
        raise DataError(f"data.tokenizer=tiktoken:{name}: {advice}tiktoken knows {', '.join(names)}")
    constructors = tiktoken.registry.ENCODING_CONSTRUCTORS
    assert constructors is not None  # since the names have been listed
    return constructors[name]


def _tokens_by_id(ranks: dict[bytes, int], special_ids: dict[str, int]) -> list[bytes]:
    """The bytes of every id, b"" for special ids and where there is none."""
    tokens = [b""] * (max(*ranks.values(), *special_ids.values()) + 1)
    for token, rank in ranks.items():
        tokens[rank] = token
    return tokens


@contextlib.contextmanager
def _downloads_that_end(timeout_seconds: float) -> Iterator[None]:
    """tiktoken downloads without a timeout, so for a while it reads with ours; where it fails, the URL is known."""
    import tiktoken.load

    def read_file(blobpath: str) -> bytes:
        try:
            with urllib.request.urlopen(blobpath, timeout=timeout_seconds) as response:
                content: bytes = response.read()
                return content
        except (OSError, http.client.HTTPException, ValueError) as error:  # as in data.download
            raise _MissingFileError(blobpath, getattr(error, "reason", error)) from error

    original = tiktoken.load.read_file
    tiktoken.load.read_file = read_file
    try:
        yield
    finally:
        tiktoken.load.read_file = original


def _how_to_bring(missing: _MissingFileError) -> str:
    folder = _cache_folder()
    first = missing.url.rpartition("/")[2]
    files = [first]
    if first in _SEVERAL_FILES:
        files.append(_SEVERAL_FILES[first])
    wanted = []
    for file in files:
        url = missing.url.removesuffix(first) + file
        key = hashlib.sha1(url.encode()).hexdigest()
        if file == first or folder is None or not (folder / key).is_file():
            wanted.append(f"{url} as {key}")
    reason = one_line(missing.reason)[:120]
    where = "no folder, since TIKTOKEN_CACHE_DIR is empty" if folder is None else shown_path(folder)
    return (
        f"{first} is not in tiktoken's cache (or is damaged there) and cannot be downloaded ({reason}); on a machine "
        f"with network, save {' and '.join(wanted)}, and bring that into the folder which the environment variable "
        f"TIKTOKEN_CACHE_DIR names (now {where})"
    )


def _cache_folder() -> Path | None:
    """Where tiktoken looks; None: nowhere."""
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if variable in os.environ:
            return Path(os.environ[variable]) if os.environ[variable] else None
    return Path(tempfile.gettempdir()) / "data-gym-cache"
