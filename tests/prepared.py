"""Texts prepared in a folder of a test, for the tests of everything that takes part in it."""

from pathlib import Path
from typing import Any

import numpy as np

from config.schema import DataConfig
from data.prepare import PreparedData, prepare
from data.tokenizer import Tokenizer


def prepared_from(
    folder: Path, *texts: str | bytes, given: Tokenizer | None = None, val: str | None = None, **settings: Any
) -> tuple[PreparedData, list[str]]:
    """Some texts as files, prepared; and what was said."""
    names = []
    for number, text in enumerate(texts):
        path = folder / f"{number}.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        names.append(str(path))
    if val is not None:
        (folder / "val.txt").write_text(val, encoding="utf-8", newline="")
        settings["val_source"] = str(folder / "val.txt")
    said: list[str] = []
    config = DataConfig(source=names, cache_dir=str(folder / "cache"), **settings)
    return prepare(config, report=said.append, tokenizer=given), said


def tokens_of(prepared: PreparedData) -> list[str]:
    """The tokens as text, `<|endoftext|>` as |."""
    tokenizer = prepared.tokenizer
    ids = np.fromfile(prepared.tokens_path, dtype=prepared.dtype).tolist()
    return ["|" if token == tokenizer.end_id else tokenizer.pieces[token].decode("utf-8", "replace") for token in ids]
