"""Our tokenizers in the hands of Hugging Face's library: the same ids for any text, and the way back."""

import copy
import json
import unicodedata
from pathlib import Path
from typing import Any

import genuine_gpt2
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from data.bpe import BpeTokenizer, train_bpe
from data.cuts import GPT4_PATTERN, LEARNT_PATTERN, PATTERNS
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from errors import DataError
from interop.tokenizer_json import GPT2_FINGERPRINT, from_tokenizer_json, to_tokenizer_json

TEXT = (
    "the cat's on the mat, and I'LL café; naïve: 中文字符 かな कि नहीं 123456 🙂👩‍👩‍👧 <|endoftext|>\r\n\n \t x\u0301y\n"
    * 9
)
BPE = train_bpe([TEXT], 330)


def with_pattern(pattern: str) -> BpeTokenizer:
    return BpeTokenizer(BPE.pieces, pattern=pattern, end_id=BPE.end_id)


KINDS: dict[str, Tokenizer] = {
    "char": CharTokenizer(TEXT),
    "char, rare ones together": CharTokenizer("the cat\ufffd", has_unknown=True),
    "char, NFC": CharTokenizer(unicodedata.normalize("NFC", TEXT), unicode="NFC"),
    "byte": ByteTokenizer(),
    "byte, NFC": ByteTokenizer(unicode="NFC"),
    "bpe": BPE,
    **{f"bpe, pattern {number}": with_pattern(pattern) for number, pattern in enumerate(PATTERNS)},
}
every_kind = pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
unhurried = settings(deadline=None)
# Characters that have been what they are since Unicode 3.2: different libraries know different versions.
old = st.characters(exclude_categories=["Cs", "Cn"]).filter(
    lambda c: unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c)
)
texts = st.text(old | st.sampled_from("theca e\u0301中🙂'\n\n \r12")) | st.lists(
    st.sampled_from([*TEXT.split(), " ", "\n", "12", "3"])
).map("".join)


def theirs(tokenizer: Tokenizer) -> Any:
    """The library's tokenizer; like transformers with `split_special_tokens`, it finds no special token in a text."""
    found = tokenizers.Tokenizer.from_str(json.dumps(to_tokenizer_json(tokenizer)))
    found.encode_special_tokens = True
    return found


THEIRS = {name: theirs(tokenizer) for name, tokenizer in KINDS.items()}


@pytest.mark.parametrize("name", KINDS)
@unhurried
@given(texts)
def test_every_text_has_the_same_ids_and_comes_back_exactly(name: str, text: str) -> None:
    tokenizer = KINDS[name]
    text = tokenizer.known(text)
    ids = tokenizer.encode(text).tolist()
    assert THEIRS[name].encode(text).ids == ids
    assert THEIRS[name].decode(ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", KINDS)
@unhurried
@given(st.data())
def test_ids_in_any_order_decode_to_the_same(name: str, data: st.DataObject) -> None:
    tokenizer = KINDS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    assert THEIRS[name].decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("pattern", "token", "text"),
    [
        (GPT4_PATTERN, b"34", "1234567"),  # which the pattern cuts into 123, 456 and 7
        (LEARNT_PATTERN, b"xqz", "xqz"),  # no two of its parts are a token, so that nothing could merge to it
    ],
)
def test_a_token_is_found_where_tiktoken_finds_it_and_nowhere_else(pattern: str, token: bytes, text: str) -> None:
    pieces = [*BPE.pieces[:-1], token, b""]
    tokenizer = BpeTokenizer(pieces, pattern=pattern, end_id=len(pieces) - 1)
    ids = tokenizer.encode(text).tolist()
    assert (len(pieces) - 2 in ids) is (text == "xqz")
    assert theirs(tokenizer).encode(text).ids == ids


@every_kind
def test_a_tokenizer_comes_back_from_its_file(tokenizer: Tokenizer) -> None:
    fields = json.loads(json.dumps(to_tokenizer_json(tokenizer)))
    back = from_tokenizer_json(fields, where="x", vocab_size=tokenizer.vocab_size)
    assert back.fingerprint == tokenizer.fingerprint


def test_the_end_of_a_text_is_a_special_token_of_theirs() -> None:
    assert [theirs(tokenizer).token_to_id("<|endoftext|>") for tokenizer in KINDS.values()] == [
        tokenizer.end_id for tokenizer in KINDS.values()
    ]


def test_the_published_vocabulary_is_recognized_and_has_the_published_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    gpt2 = genuine_gpt2.tokenizer(tmp_path / "cache")
    assert gpt2.fingerprint == GPT2_FINGERPRINT
    assert theirs(gpt2).encode(TEXT).ids == gpt2.encode(TEXT).tolist()
    unset = {"dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": ""}
    published = {  # without the model's type, as the file of GPT-2 was published
        "model": {**unset, "fuse_unk": False, "vocab": genuine_gpt2.vocabulary(), "merges": genuine_gpt2.merges()},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
    }
    for fields in (published, to_tokenizer_json(gpt2)):
        back = from_tokenizer_json(fields, where="x", vocab_size=50257)
        assert (back.kind, back.fingerprint) == ("tiktoken:gpt2", gpt2.fingerprint)
    longer = from_tokenizer_json(published, where="x", vocab_size=50304)  # a model with rows to spare
    assert longer.never_generated == tuple(range(50257, 50304))
    assert longer.encode(TEXT).tolist() == gpt2.encode(TEXT).tolist()


def changed(kind: str, *path: str, value: object) -> dict[str, Any]:
    fields = copy.deepcopy(to_tokenizer_json(KINDS[kind]))
    part = fields
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return fields


WHOLE_TEXT = {"Sequence": {"id": "A", "type_id": 0}}
BEGINNING = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>"}}, WHOLE_TEXT]}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([], "not laid out as expected"),
        ({"model": {}}, "not laid out as expected"),
        (changed("bpe", "model", "type", value="Unigram"), "its model is 'Unigram'"),
        (changed("bpe", "model", "vocab", "a", value=10**6), "the id 1000000 of 'a' is none of the model's"),
        (changed("bpe", "model", "vocab", "a", value="7"), "the id '7'"),
        (changed("bpe", "model", "vocab", "a", value=98), "two tokens have the id 98"),
        (changed("bpe", "normalizer", value={"type": "Lowercase"}), "Lowercase"),
        (changed("bpe", "pre_tokenizer", value={"type": "Whitespace"}), "pre_tokenizer is none that is known"),
        (changed("bpe", "pre_tokenizer", "pretokenizers", value=[]), "not enough values"),
        (changed("bpe", "model", "merges", value=to_tokenizer_json(BPE)["model"]["merges"][::-1]), "order"),
        (
            changed("bpe", "model", "merges", value=to_tokenizer_json(BPE)["model"]["merges"][:3]),
            "do not make the token",
        ),
        (changed("bpe", "model", "dropout", value=0.1), "dropout is 0.1"),
        (changed("bpe", "model", "end_of_word_suffix", value="</w>"), "end_of_word_suffix is '</w>'"),
        (changed("bpe", "model", "continuing_subword_prefix", value="##"), "continuing_subword_prefix is '##'"),
        (changed("bpe", "post_processor", value=BEGINNING), "post_processor adds tokens"),
        (changed("bpe", "post_processor", value={"type": "Sequence", "processors": [BEGINNING]}), "adds tokens"),
        (changed("char", "model", "merges", value=["t h"]), "it merges characters"),
        (changed("char", "model", "vocab", "a", value=0), "two tokens have the id 0"),
        (changed("byte", "model", "vocab", value={"a": 0}), "pattern is none that is known"),
    ],
)
def test_a_tokenizer_of_another_kind_is_refused_with_what_was_found(fields: object, words: str) -> None:
    with pytest.raises(DataError, match=rf"^some file: no tokenizer that can be used here: .*({words})"):
        from_tokenizer_json(fields, where="some file", vocab_size=330)


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_merges_are_enough_only_where_the_library_gives_the_same_ids(ignore_merges: bool) -> None:
    """Of all pairs that make a token, files list one; with one of those missing, the ids would be others."""
    whole = to_tokenizer_json(BPE)
    whole["model"]["ignore_merges"] = ignore_merges
    whole["post_processor"] = {"type": "TemplateProcessing", "single": [WHOLE_TEXT], "pair": [], "special_tokens": {}}
    library = tokenizers.Tokenizer.from_str(json.dumps(whole))
    library.encode_special_tokens = True
    assert from_tokenizer_json(whole, where="x", vocab_size=330).encode(TEXT[:99]).tolist() == (
        library.encode(TEXT[:99], add_special_tokens=True).ids
    )
    last = whole["model"]["merges"][-1]
    whole["model"]["merges"] = [pair for pair in whole["model"]["merges"] if "".join(pair) != "".join(last)]
    with pytest.raises(DataError, match="its merges do not make the token"):
        from_tokenizer_json(whole, where="x", vocab_size=330)


def test_characters_in_another_order_than_ours_are_refused() -> None:
    fields = to_tokenizer_json(CharTokenizer("ab"))
    vocab = fields["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    with pytest.raises(DataError, match="order of code points"):
        from_tokenizer_json(fields, where="x", vocab_size=3)
