import base64
import itertools
import json
import os
import subprocess
import sys
import time
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.bpe import TRAINING_BYTES, BpeTokenizer, _evenly_spread, train_bpe
from data.cuts import LEARNT_PATTERN, PATTERNS, windows
from data.saved_tokenizer import tokenizer_from_json
from errors import DataError

ROOT = Path(__file__).parents[1]
TEXT = "the cat sat on the mat, and the café was naïve; don't! 中文字符 中文 1234 🙂🙂 \n\n" * 20
TOKENIZER = train_bpe([TEXT], 300)
NFC = train_bpe([TEXT], 300, unicode="NFC")

every_pattern = pytest.mark.parametrize("pattern", PATTERNS, ids=["learnt", "earlier", "gpt2", "gpt4", "gpt4o"])
unhurried = settings(deadline=None)  # a busy machine is no failure
characters = st.characters(exclude_categories=["Cs"])  # any but lone surrogates
texts = st.text(characters | st.sampled_from("theca e\u0301中🙂'\n\n \r")) | st.lists(
    st.sampled_from([*TEXT.split(), " ", "\n", "<|endoftext|>", "e\u0301"])
).map("".join)


def with_pattern(pattern: str) -> BpeTokenizer:
    return BpeTokenizer(TOKENIZER.pieces, pattern=pattern, end_id=TOKENIZER.end_id)


def cut(text: str, data: st.DataObject) -> list[str]:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    return [text[start:stop] for start, stop in itertools.pairwise([0, *places, len(text)])]


@every_pattern
@unhurried
@given(text=texts)
def test_any_text_comes_back_exactly(pattern: str, text: str) -> None:
    tokenizer = with_pattern(pattern)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.end_id not in ids
    assert ids.dtype == np.uint16
    assert tokenizer.chars_per_token[ids].sum() == len(text)
    assert tokenizer.bytes_per_token[ids].sum() == len(text.encode())


@unhurried
@given(texts)
def test_a_text_comes_back_in_normal_form_where_that_is_wanted(text: str) -> None:
    assert NFC.decode(NFC.encode(text)) == unicodedata.normalize("NFC", text)


@unhurried
@given(texts, st.data())
def test_a_text_decoded_token_by_token_is_the_text_decoded_at_once(text: str, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, TOKENIZER.vocab_size - 1))) + TOKENIZER.encode(text).tolist()
    decoder = TOKENIZER.decoder()
    assert "".join([*map(decoder.push, ids), decoder.finish()]) == TOKENIZER.decode(ids)


@every_pattern
@unhurried
@given(text=texts, data=st.data(), max_window=st.integers(4, 40))
def test_a_text_encoded_in_chunks_is_the_text_encoded_at_once(
    pattern: str, text: str, data: st.DataObject, max_window: int
) -> None:
    tokenizer = with_pattern(pattern)
    streamed = [int(i) for ids in tokenizer.encode_stream(cut(text, data)) for i in ids]
    whole = tokenizer._encode_window(text)
    assert streamed == tokenizer.encode(text).tolist() == whole
    parts = list(windows(cut(text, data), max_window))  # which are cut at safe places, but where all are full
    if max(map(len, parts), default=0) < max_window:
        assert [i for part in parts for i in tokenizer._encode_window(part)] == whole


def test_a_long_text_in_small_chunks_gives_what_tiktoken_gives_for_the_whole() -> None:
    text = TEXT * 300
    assert len(text) > 400_000
    chunks = [text[start : start + 997] for start in range(0, len(text), 997)]
    for pattern in PATTERNS:
        tokenizer = with_pattern(pattern)
        whole = tokenizer._encode_window(text)
        assert np.concatenate(list(tokenizer.encode_stream(chunks))).tolist() == whole


@unhurried
@given(texts, st.data())
def test_lines_are_encoded_each_with_its_end(text: str, data: st.DataObject) -> None:
    for tokenizer in (TOKENIZER, NFC):
        lines = [line for line in text.split("\n") if line.strip()]
        expected = [i for line in lines for i in [*tokenizer.encode(line).tolist(), tokenizer.end_id]]
        assert [int(i) for ids in tokenizer.encode_lines(cut(text, data)) for i in ids] == expected


@pytest.mark.parametrize("character", ["a", "中", " "])
def test_a_long_unbroken_run_neither_overflows_nor_takes_for_ever(character: str) -> None:
    started = time.monotonic()
    chunks = [character * 500_000] * 10
    tokenizer = train_bpe(chunks, 300)
    assert sum(tokenizer.bytes_per_token[ids].sum() for ids in tokenizer.encode_stream(chunks)) == 5_000_000 * len(
        character.encode()
    )
    assert max(map(len, tokenizer.pieces)) <= 33 * 4
    assert time.monotonic() - started < 60


def test_the_vocabulary_has_the_bytes_the_merges_and_the_end() -> None:
    assert TOKENIZER.vocab_size == 300
    assert TOKENIZER.end_id == 299
    assert list(TOKENIZER.pieces[:256]) == [bytes([byte]) for byte in range(256)]
    assert TOKENIZER.pieces[299] == b""
    assert TOKENIZER.never_generated == ()
    assert TOKENIZER.kind == "bpe"
    assert b" the" in TOKENIZER.pieces
    assert len(TOKENIZER.encode(TEXT)) < len(TEXT.encode()) / 2


@pytest.mark.parametrize(("text", "vocab_size"), [("", 257), ("a", 257), ("ab", 258), ("ab" * 50, 262)])
def test_a_short_text_gives_fewer_tokens_than_wanted(text: str, vocab_size: int) -> None:
    tokenizer = train_bpe([text], 10_000)
    assert tokenizer.vocab_size <= vocab_size
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert train_bpe([text], 258).vocab_size <= 258


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_the_same_text_gives_the_same_vocabulary(threads: str) -> None:
    code = "import sys; from data.bpe import train_bpe; sys.stdout.write(train_bpe(sys.stdin, 300).fingerprint)"
    for seed in ("0", "1", "77"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads, "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=TEXT.encode(),
            cwd=ROOT,
            env=environment,
            capture_output=True,
            check=True,
        )
        assert done.stdout.decode() == TOKENIZER.fingerprint


@unhurried
@given(st.data())
def test_the_vocabulary_does_not_depend_on_the_chunks(data: st.DataObject) -> None:
    text = TEXT[:1000]
    assert train_bpe(cut(text, data), 280).fingerprint == train_bpe([text], 280).fingerprint


@unhurried
@given(st.lists(st.text("aé", max_size=9), max_size=60), st.integers(1, 200))
def test_parts_that_are_trained_on_are_few_and_evenly_spread(parts: list[str], max_bytes: int) -> None:
    kept = _evenly_spread(iter(parts), max_bytes)
    stride = next(s for s in (1, 2, 4, 8, 16, 32, 64, 128) if parts[::s] == kept)
    assert sum(len(part.encode()) for part in kept) <= max_bytes or len(kept) == 1
    if stride > 1:
        assert sum(len(part.encode()) for part in parts[:: stride // 2]) > max_bytes


def test_a_large_text_is_trained_on_in_part() -> None:
    assert 8 << 20 <= TRAINING_BYTES <= 64 << 20
    text = "a" * 1000 + " "
    kept = _evenly_spread(windows(text * 100 for _ in range(400)), TRAINING_BYTES)
    assert TRAINING_BYTES // 2 <= sum(map(len, kept)) <= TRAINING_BYTES


def test_lone_surrogates_are_errors() -> None:
    assert TOKENIZER.unknown("a\ud800") == [(1, "\ud800")]
    assert TOKENIZER.known("a\ud800b") == "ab"
    for read in (TOKENIZER.encode, lambda t: list(TOKENIZER.encode_stream([t])), lambda t: train_bpe([t], 300),
                 lambda t: list(TOKENIZER.encode_lines([t]))):  # fmt: skip
        with pytest.raises(DataError, match=r"'\\ud800' at 1"):
            read("a\ud800")
    assert [ids.tolist() for ids in TOKENIZER.encode_stream(["a\ud800"], drop_unknown=True)] == [[97]]


def test_a_saved_tokenizer_comes_back() -> None:
    for tokenizer in (TOKENIZER, NFC, *map(with_pattern, PATTERNS)):
        restored = tokenizer_from_json(tokenizer.to_json(), "x")
        assert restored.fingerprint == tokenizer.fingerprint
        assert restored.to_json() == tokenizer.to_json()
        assert (restored.kind, restored.unicode) == (tokenizer.kind, tokenizer.unicode)
        assert restored.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert NFC.fingerprint != TOKENIZER.fingerprint


def test_special_tokens_and_gaps_are_never_generated_and_show_nothing() -> None:
    tokens = [*TOKENIZER.pieces[:270], b"", b"", *TOKENIZER.pieces[270:299], b""]
    tokenizer = BpeTokenizer(tokens, pattern=LEARNT_PATTERN, end_id=271, kind="tiktoken:made_up")
    assert tokenizer.never_generated == (270, 301)
    assert tokenizer.end_id == 271
    assert tokenizer.decode([97, 270, 271, 301, 98]) == "ab"
    assert tokenizer_from_json(tokenizer.to_json(), "x").fingerprint == tokenizer.fingerprint


def changed(**changes: object) -> str:
    return json.dumps(json.loads(TOKENIZER.to_json()) | changes)


def token_list(*added: Any, without: int = -1) -> list[Any]:
    tokens = [base64.b64encode(bytes([byte])).decode() for byte in range(256) if byte != without]
    return [*tokens, *added, ""]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (changed(tokens=None), "tokens is no list"),
        (changed(tokens=[""] * 1_000_001), "tokens is no list of at most 1,000,000"),
        (changed(tokens=[]), "256 of the 256 bytes"),
        (changed(tokens=token_list(without=97), end_id=255), "1 of the 256 bytes are no tokens, among them 97"),
        (changed(tokens=token_list("YWI=", "YWI="), end_id=258), "two tokens are the same"),
        (changed(tokens=token_list(5), end_id=257), "token 256 is no text"),
        (changed(tokens=token_list("A" * 4000), end_id=257), "token 256 is no text of at most 2048"),
        (changed(tokens=token_list("A" * 2000), end_id=257), "more than 1024 bytes"),
        (changed(tokens=token_list("YWI"), end_id=257), "token 256 is not base64"),
        (changed(tokens=token_list("YW I="), end_id=257), "token 256 is not base64"),
        (changed(tokens=token_list("YWJ="), end_id=257), "token 256 is not"),
        (changed(tokens=token_list("é"), end_id=257), "token 256 is not base64"),
        (changed(end_id=300), "end_id"),
        (changed(end_id=-1), "end_id"),
        (changed(end_id=97), "end_id"),
        (changed(end_id=True), "end_id"),
        (changed(end_id="299"), "end_id"),
        (changed(end_id=None), "end_id"),
        (changed(pattern="(a+)+b"), "the pattern is none that is known"),
        (changed(pattern="("), "the pattern is none that is known"),
        (changed(pattern=["a"]), "the pattern is no text"),
        (changed(kind="tiktoken:"), "the name of the vocabulary"),
        (changed(kind="tiktoken:a\nb"), "the name of the vocabulary"),
        (changed(kind="tiktoken:" + "a" * 100), "the name of the vocabulary"),
        (changed(kind="bpe2"), "the name of the vocabulary"),
        (changed(extra=1), "expected the keys"),
        (changed(unicode="NFKC"), "unicode must be NFC"),
        (json.dumps({"format": 1, "kind": "bpe"}), "expected the keys"),
    ],
)
def test_a_damaged_or_hostile_vocabulary_is_one_clear_line(text: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as error:
        tokenizer_from_json(text, where="runs/x/tokenizer.json")
    assert str(error.value).startswith("runs/x/tokenizer.json: ")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


any_json = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=4)


@unhurried
@given(st.dictionaries(st.sampled_from(["format", "kind", "tokens", "pattern", "end_id", "unicode", "x"]), any_json))
def test_any_other_fields_end_in_an_error_for_people_or_in_a_tokenizer_that_works(changes: dict[str, Any]) -> None:
    try:
        tokenizer = tokenizer_from_json(changed(**changes), "x")
    except DataError:
        return
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"


@unhurried
@given(st.lists(st.tuples(st.integers(0, len(TOKENIZER.to_json()) - 1), st.characters(codec="utf-8")), min_size=1))
def test_a_file_with_other_characters_in_it_is_no_traceback(edits: list[tuple[int, str]]) -> None:
    text = list(TOKENIZER.to_json())
    for place, character in edits:
        text[place] = character
    try:
        tokenizer = tokenizer_from_json("".join(text), "x")
    except DataError:
        return
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_char_and_byte_tokenizers_never_touch_tiktoken_and_decoding_does_not_either(tmp_path: Path) -> None:
    (tmp_path / "saved.json").write_text(TOKENIZER.to_json(), encoding="utf-8")
    code = (
        "import sys; from data.tokenizer import *; from data.saved_tokenizer import *; from pathlib import Path\n"
        "for t in (CharTokenizer('ab'), ByteTokenizer()): tokenizer_from_json(t.to_json(), '').encode('ab')\n"
        "assert 'data.bpe' not in sys.modules\n"
        "t = tokenizer_from_json(Path(sys.argv[1]).read_text('utf-8'), ''); t.decode([97])\n"
        "assert not {'tiktoken', 'rustbpe', 'torch'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "saved.json")], cwd=ROOT, check=True)
