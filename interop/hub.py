"""Models that are named as on Hugging Face's hub, brought onto this machine by its library, which is optional."""

import re
from functools import partial
from pathlib import Path
from typing import Any

from data.paths import one_line
from errors import CheckpointError

TIMEOUT_SECONDS = 10.0  # for each answer of the hub
# OWNER/NAME, and the published GPT-2s, which have no owner in their names; a mistyped run of ours is none of these.
_NAME = re.compile(
    r"gpt2(-medium|-large|-xl)?|distilgpt2|(?!runs/)[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"
)
_WANTED = ["config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer.json", "vocab.json", "merges.txt"]
_WANTED_WITHOUT_SAFETENSORS = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]


def is_hub_name(name: str) -> bool:
    """Whether it may be the name of a model there, and is no path that begins on this machine."""
    return _NAME.fullmatch(name) is not None and not Path(name.partition("/")[0]).exists()


def fetch(name: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Path:
    """The folder of a model of the hub, downloaded once and kept in the library's cache.

    Raises `CheckpointError` where the library is not installed, or the hub does not give the model.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise CheckpointError(
            f"{name}: no such run or folder; as a name on Hugging Face's hub it needs: pip install huggingface_hub"
        ) from error
    # All that the library's own library for HTTP raises has a base among these, whichever of them that is. ValueError:
    # names and proxies that cannot be.
    errors: tuple[Any, ...] = (*HfHubHTTPError.__bases__, OSError, ValueError)
    download = partial(huggingface_hub.snapshot_download, name, etag_timeout=timeout_seconds)
    try:
        folder = Path(download(allow_patterns=_WANTED))
        if not any((folder / file).exists() for file in ("model.safetensors", "model.safetensors.index.json")):
            folder = Path(download(allow_patterns=[*_WANTED, *_WANTED_WITHOUT_SAFETENSORS]))
        return folder
    except errors as error:
        raise CheckpointError(
            f"{name}: no such run or folder, and Hugging Face's hub does not give it ({one_line(error):.120}); check "
            "the name and the network, or download its files elsewhere and name their folder"
        ) from error
