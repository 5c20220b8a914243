"""Our tokenizers as the `tokenizer.json` of Hugging Face's library, and such a file as one of ours.

Plain JSON: the library itself is not needed. What the ids are used for is not this file's concern. Imports no torch.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from config.values import MAX_VOCAB_SIZE
from data.bpe import BpeTokenizer
from data.cuts import GPT2_PATTERN, PATTERNS
from data.tokenizer import END_OF_TEXT, ByteTokenizer, CharTokenizer, Tokenizer
from data.unicode import UnicodeForm
from errors import DataError
from interop.merges import bytes_of, merges_of, visible_text

UNKNOWN = "<|unknown|>"  # as a token of more than one character it is never found in a text
GPT2_FINGERPRINT = "c65613e99dbb7df938db3a123bb32885ddf455d7e1658ee3d8b2a6899513afa7"  # of tiktoken:gpt2

# To Oniguruma, which that library searches with, {1,3}+ means any number; as the end of an alternative, {1,3} is equal.
_THEIR_PATTERNS = {pattern: pattern.replace("{1,3}+", "{1,3}") for pattern in PATTERNS}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def to_tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of the file, which gives our ids for every text and decodes them as we do.

    `<|endoftext|>` is a special token there. That it is plain text in a text, as with us, `split_special_tokens` of
    tokenizer_config.json brings about.
    """
    parts = _of_characters(tokenizer) if isinstance(tokenizer, CharTokenizer) else _of_bytes(tokenizer)
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": isinstance(tokenizer, BpeTokenizer),  # tiktoken takes a pretoken that is a token as it is
        **parts.pop("model"),
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": tokenizer.end_id, "content": END_OF_TEXT, **flags}],
        "normalizer": None if tokenizer.unicode == "none" else {"type": tokenizer.unicode},
        "post_processor": None,
        **parts,
        "model": model,
    }


def _of_characters(tokenizer: CharTokenizer) -> dict[str, Any]:
    """Characters are byte pairs that never merge. The token of unknown ones decodes to U+FFFD."""
    vocab = {character: number for number, character in enumerate(tokenizer.characters)}
    decoders: list[dict[str, Any]] = [{"type": "Fuse"}]
    if tokenizer.has_unknown:
        vocab[UNKNOWN] = len(vocab)
        decoders.insert(0, {"type": "Replace", "pattern": {"String": UNKNOWN}, "content": "\ufffd"})
    vocab[END_OF_TEXT] = tokenizer.end_id
    return {
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"vocab": vocab, "merges": [], "unk_token": UNKNOWN if tokenizer.has_unknown else None},
    }


def _of_bytes(tokenizer: Tokenizer) -> dict[str, Any]:
    vocab = {visible_text(piece): number for number, piece in enumerate(tokenizer.pieces) if piece}
    vocab[END_OF_TEXT] = tokenizer.end_id
    before: dict[str, Any] = _BYTE_LEVEL
    merges: list[tuple[str, str]] = []
    if isinstance(tokenizer, BpeTokenizer):
        pattern = {"Regex": _THEIR_PATTERNS[tokenizer.pattern]}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        before = {"type": "Sequence", "pretokenizers": [split, _BYTE_LEVEL]}
        merges = merges_of(tokenizer.pieces)
    return {
        "pre_tokenizer": before,
        "decoder": _BYTE_LEVEL,
        "model": {"vocab": vocab, "merges": [list(pair) for pair in merges]},
    }


def from_tokenizer_json(fields: object, *, where: str, vocab_size: int) -> Tokenizer:
    """The tokenizer of a file that `to_tokenizer_json` made, or of GPT-2's kind: byte pairs that merge by rank.

    `vocab_size` is that of the model, which may have rows for which there is no token. Raises `DataError`, naming
    `where`, for everything else.
    """
    try:
        return _from_fields(fields, vocab_size)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"it is not laid out as expected ({error!r:.60})"
        raise DataError(f"{where}: no tokenizer that can be used here: {reason:.200}") from error


def _from_fields(fields: Any, vocab_size: int) -> Tokenizer:
    model = fields["model"]
    if model.get("type", "BPE") != "BPE":  # the published files of GPT-2 do not name it
        raise ValueError(f"its model is {model['type']!r:.30}; only BPE can be read")
    vocab = dict(model["vocab"])
    vocab |= {token["content"]: token["id"] for token in fields.get("added_tokens") or []}
    by_id = _in_order(vocab, vocab_size)
    special = {token["content"] for token in fields.get("added_tokens") or []} | {END_OF_TEXT}
    unicode = _unicode_form(fields.get("normalizer"))
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise ValueError(f"its {name} is {model[name]!r:.40}, which is not known here")
    if _adds_tokens(fields.get("post_processor")):
        raise ValueError("its post_processor adds tokens to every text, which is not known here")
    before = fields.get("pre_tokenizer")
    if before is None:
        if model["merges"]:
            raise ValueError("it merges characters; only bytes merge here")
        return _characters_of(by_id, unk_token=model.get("unk_token"), unicode=unicode)
    if before == _BYTE_LEVEL and len(vocab) == 257 and not model["merges"]:
        tokens = [b"" if text in special else bytes_of(text) for text in by_id]
        tokenizer = ByteTokenizer(unicode=unicode)
        if tokens != tokenizer.pieces:
            raise ValueError("its ids are not the bytes")
        return tokenizer
    tokens = [b"" if not text or text in special else bytes_of(text) for text in by_id]
    check_merges(model["merges"], tokens, ignore_merges=bool(model.get("ignore_merges")))
    return byte_pair_tokenizer(tokens, pattern=_pattern_of(before), end_id=vocab[END_OF_TEXT], unicode=unicode)


def other_special_tokens(fields: dict[str, Any]) -> list[str]:
    """The tokens that such a file adds beside `<|endoftext|>`: here no text is encoded to them, none is generated."""
    return [token["content"] for token in fields.get("added_tokens") or [] if token["content"] != END_OF_TEXT]


def byte_pair_tokenizer(
    tokens: Sequence[bytes], *, pattern: str, end_id: int, unicode: UnicodeForm = "none"
) -> BpeTokenizer:
    """Such a vocabulary, under the name of GPT-2's where it is the same. Raises `ValueError` for what is none."""
    if pattern == GPT2_PATTERN:
        named = BpeTokenizer(tokens, pattern=pattern, end_id=end_id, kind="tiktoken:gpt2")
        if named.fingerprint == GPT2_FINGERPRINT:
            return BpeTokenizer(tokens, pattern=pattern, end_id=end_id, kind=named.kind, unicode=unicode)
    return BpeTokenizer(tokens, pattern=pattern, end_id=end_id, unicode=unicode)


def _in_order(vocab: dict[str, Any], vocab_size: int) -> list[str]:
    """The texts of all ids, "" where there is none."""
    by_id = [""] * vocab_size
    for text, number in vocab.items():
        if type(number) is not int or not 0 <= number < vocab_size <= MAX_VOCAB_SIZE:
            raise ValueError(f"the id {number!r:.20} of {text!r:.30} is none of the model's {vocab_size:,}")
        if by_id[number]:
            raise ValueError(f"two tokens have the id {number}")
        by_id[number] = text
    return by_id


def _unicode_form(normalizer: Any) -> UnicodeForm:
    if normalizer is None:
        return "none"
    if normalizer != {"type": "NFC"}:
        raise ValueError(f"its normalizer is {normalizer!r:.60}; only NFC is known")
    return "NFC"


def _characters_of(by_id: list[str], *, unk_token: str | None, unicode: UnicodeForm) -> CharTokenizer:
    characters = "".join(by_id[: -2 if unk_token else -1])
    tokenizer = CharTokenizer(characters, has_unknown=unk_token is not None, unicode=unicode)
    if by_id != [*tokenizer.characters, *([unk_token] if unk_token else []), END_OF_TEXT]:
        raise ValueError("its characters are not in the order of code points, with <|endoftext|> behind them")
    return tokenizer


def _pattern_of(before: Any) -> str:
    """Our pattern for what cuts a text into pretokens there."""
    parts = before["pretokenizers"] if before["type"] == "Sequence" else [before]
    *splits, last = parts
    if last["type"] != "ByteLevel" or last.get("add_prefix_space") or len(splits) > 1:
        raise ValueError("its pre_tokenizer is none that is known")
    if last.get("use_regex", True) and not splits:
        return GPT2_PATTERN
    theirs = splits[0]["pattern"]["Regex"] if splits and not last.get("use_regex", True) else None
    for ours, pattern in _THEIR_PATTERNS.items():
        if theirs == pattern and (splits[0]["behavior"], splits[0]["invert"]) == ("Isolated", False):
            return ours
    raise ValueError(f"its pattern is none that is known: {theirs!r:.60}")


def _adds_tokens(processor: Any) -> bool:
    """Whether what is done there to the ids of a text may add some."""
    if processor is None or processor["type"] == "ByteLevel":
        return False
    if processor["type"] == "Sequence":
        return any(map(_adds_tokens, processor["processors"]))
    if processor["type"] == "TemplateProcessing":
        return [*processor["single"][0]] != ["Sequence"] or len(processor["single"]) > 1
    return True


def check_merges(merges: Sequence[Any], tokens: Sequence[bytes], *, ignore_merges: bool) -> None:
    """Raise `ValueError` where the merges would not give the ids that our byte pairs, which merge by id, give.

    They are in the order of the ids, and every token's own bytes merge to it. With `ignore_merges`, a pretoken that
    is a token is taken as it is: there it is enough that the bytes merge as far as ours do.
    """
    ids = {token: number for number, token in enumerate(tokens) if token}
    ranks: dict[tuple[bytes, bytes], int] = {}
    before = -1
    for merge in merges:
        left, right = map(bytes_of, merge.split(" ") if isinstance(merge, str) else merge)
        made = ids[left + right]
        if made < before:
            raise ValueError(f"{visible_text(left)!r} and {visible_text(right)!r} do not merge in the order of the ids")
        before = made
        ranks.setdefault((left, right), len(ranks))
    for token in ids:
        parts = _merged(token, ranks)
        if len(parts) > 1 and (not ignore_merges or any(a + b in ids for a, b in pairwise(parts))):
            raise ValueError(f"its merges do not make the token {visible_text(token)!r:.40}; download the file again")


def _merged(token: bytes, ranks: dict[tuple[bytes, bytes], int]) -> list[bytes]:
    """What is left of the token's bytes when all pairs have merged, those of the lowest rank first."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 1:
        found = [ranks.get(pair, len(ranks)) for pair in pairwise(parts)]
        lowest = min(found)
        if lowest == len(ranks):
            break
        place = found.index(lowest)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts
