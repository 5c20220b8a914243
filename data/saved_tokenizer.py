"""A tokenizer read back from a file, which may be damaged, or be none: nothing in it is believed unchecked.

What tokenizers do, and how they are written, is `data.tokenizer`'s concern. Imports no torch.
"""

import json
from collections.abc import Iterable
from typing import Any

from data.paths import one_line
from data.tokenizer import FORMAT, ByteTokenizer, CharTokenizer, Tokenizer
from data.unicode import code_points, is_surrogate
from errors import DataError


def tokenizer_from_json(text: str, where: str) -> Tokenizer:
    """The tokenizer that `to_json` described. Raises `DataError`, naming `where`, for anything else."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not a tokenizer file: {one_line(error)}") from error
    if not isinstance(fields, dict):
        raise DataError(f"{where}: not a tokenizer file: expected a JSON object, found {_excerpt(fields)}")
    if type(found := fields.get("format")) is not int or found < FORMAT:
        raise DataError(f"{where}: expected tokenizer format {FORMAT}, found {_excerpt(found)}; the file is damaged")
    if found > FORMAT:
        newer = f"a newer version (tokenizer format {_excerpt(found)}; this one reads {FORMAT})"
        raise DataError(f"{where}: written by {newer}: update this program")
    if fields.get("unicode", "NFC") != "NFC":
        raise DataError(f"{where}: unicode must be NFC where it is given, found {_excerpt(fields['unicode'])}")
    if fields.get("kind") == CharTokenizer.kind:
        _expect_keys(fields, where, required={"characters"}, optional={"has_unknown"})
        return _char_tokenizer(fields, where)
    if fields.get("kind") == ByteTokenizer.kind:
        _expect_keys(fields, where, required=())
        return ByteTokenizer(unicode=fields.get("unicode", "none"))
    if str(fields.get("kind")).startswith(("bpe", "tiktoken:")):
        from data.bpe import bpe_from_fields  # which characters and bytes do without

        _expect_keys(fields, where, required={"tokens", "pattern", "end_id"})
        return bpe_from_fields(fields, where)
    kind = _excerpt(fields.get("kind"))
    raise DataError(f"{where}: kind must be char, byte, bpe or tiktoken:NAME, found {kind}")


def _char_tokenizer(fields: dict[str, Any], where: str) -> CharTokenizer:
    characters = fields["characters"]
    if not isinstance(characters, str) or not characters:
        raise DataError(f"{where}: characters must be a text of at least one, found {_excerpt(characters)}")
    codes = code_points(characters)
    if is_surrogate(codes).any() or (codes[1:] <= codes[:-1]).any():
        raise DataError(f"{where}: characters must be in the order of code points, each once; the file is damaged")
    if fields.get("has_unknown", True) is not True:
        raise DataError(f"{where}: has_unknown must be true where it is given, found {_excerpt(fields['has_unknown'])}")
    return CharTokenizer(characters, has_unknown="has_unknown" in fields, unicode=fields.get("unicode", "none"))


def _expect_keys(fields: dict[str, Any], where: str, *, required: Iterable[str], optional: Iterable[str] = ()) -> None:
    required = {"format", "kind", *required}
    if not required <= fields.keys() <= {*required, *optional, "unicode"}:
        found, wanted = ", ".join(sorted(fields)), ", ".join(sorted(required))
        raise DataError(f"{where}: expected the keys {wanted}, found {found[:200]!r}")


def _excerpt(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
