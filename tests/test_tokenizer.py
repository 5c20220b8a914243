import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.tokenizer import (
    ByteTokenizer,
    CharacterCounts,
    CharTokenizer,
    Tokenizer,
    token_dtype,
    tokenizer_from_json,
)
from errors import DataError

unhurried = settings(deadline=None)  # a busy machine is no failure
characters = st.characters(exclude_categories=["Cs"])  # any but lone surrogates
texts = st.text(characters, min_size=1)


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = tokenizer.decoder()
    return [*(decoder.push(token_id) for token_id in ids), decoder.finish()]


@unhurried
@given(texts)
def test_any_text_comes_back_exactly_from_both_tokenizers(text: str) -> None:
    for tokenizer in (CharTokenizer(text), ByteTokenizer()):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(ids.tolist()) == text
        assert tokenizer.end_id not in ids


@unhurried
@given(texts)
def test_char_ids_are_the_ranks_of_the_sorted_code_points(text: str) -> None:
    vocabulary = sorted(set(text))
    assert CharTokenizer(text).encode(text).tolist() == [vocabulary.index(character) for character in text]
    assert CharTokenizer(text).end_id == len(vocabulary)


@unhurried
@given(texts)
def test_byte_ids_are_the_bytes_of_utf8(text: str) -> None:
    assert ByteTokenizer().encode(text).tolist() == list(text.encode("utf-8"))


@unhurried
@given(st.lists(st.integers(0, 256)))
def test_streamed_bytes_joined_equal_the_whole_decoded_at_once(ids: list[int]) -> None:
    tokenizer = ByteTokenizer()
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@unhurried
@given(texts)
def test_a_streamed_text_never_shows_a_replacement_character_that_is_not_its_own(text: str) -> None:
    for tokenizer in (CharTokenizer(text), ByteTokenizer()):
        pieces = streamed(tokenizer, tokenizer.encode(text).tolist())
        assert "".join(pieces) == text
        assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


@unhurried
@given(texts, st.data())
def test_a_vocabulary_counted_in_chunks_is_that_of_the_whole_text(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    counts = CharacterCounts()
    counts.add(text[:cut])
    counts.add(text[cut:])
    assert counts.characters == "".join(sorted(set(text)))
    assert counts.num_chars == len(text)
    assert counts.num_bytes == len(text.encode("utf-8"))


@unhurried
@given(texts)
def test_characters_and_bytes_per_token_add_up_to_those_of_the_text(text: str) -> None:
    for tokenizer in (CharTokenizer(text), ByteTokenizer()):
        ids = tokenizer.encode(text)
        assert tokenizer.chars_per_token[ids].sum() == len(text)
        assert tokenizer.bytes_per_token[ids].sum() == len(text.encode("utf-8"))
        assert len(tokenizer.chars_per_token) == tokenizer.vocab_size
        assert tokenizer.chars_per_token[tokenizer.end_id] == 0 == tokenizer.bytes_per_token[tokenizer.end_id]


@unhurried
@given(texts)
def test_a_tokenizer_comes_back_from_its_json(text: str) -> None:
    for tokenizer in (CharTokenizer(text), ByteTokenizer()):
        restored = tokenizer_from_json(tokenizer.to_json(), where="tokenizer.json")
        assert type(restored) is type(tokenizer)
        assert restored.fingerprint == tokenizer.fingerprint
        assert restored.vocab_size == tokenizer.vocab_size
        assert restored.encode(text).tolist() == tokenizer.encode(text).tolist()


def test_other_vocabularies_have_other_fingerprints() -> None:
    fingerprints = {
        CharTokenizer("ab").fingerprint,
        CharTokenizer("abc").fingerprint,
        ByteTokenizer().fingerprint,
    }
    assert len(fingerprints) == 3
    assert CharTokenizer("ba").fingerprint == CharTokenizer("aab").fingerprint


def test_the_end_token_decodes_to_nothing_and_its_name_in_a_text_is_plain_text() -> None:
    text = "a<|endoftext|>b"
    for tokenizer in (CharTokenizer(text), ByteTokenizer()):
        ids = tokenizer.encode(text).tolist()
        assert len(ids) == len(text)
        assert tokenizer.decode([*ids, tokenizer.end_id, *ids]) == text + text
        assert "".join(streamed(tokenizer, [*ids, tokenizer.end_id, *ids])) == text + text


@pytest.mark.parametrize("tokenizer", [CharTokenizer("ab"), ByteTokenizer()])
@pytest.mark.parametrize("bad_id", [-1, 257])
def test_an_id_outside_the_vocabulary_is_not_decoded(tokenizer: Tokenizer, bad_id: int) -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        tokenizer.decode([0, bad_id])


def test_the_empty_text_has_no_tokens() -> None:
    for tokenizer in (CharTokenizer("a"), ByteTokenizer()):
        assert tokenizer.encode("").tolist() == []
        assert tokenizer.decode([]) == ""
        assert tokenizer.unknown("") == []


@unhurried
@given(texts, texts)
def test_unknown_lists_every_character_that_the_vocabulary_lacks(known: str, text: str) -> None:
    tokenizer = CharTokenizer(known)
    expected = [(position, character) for position, character in enumerate(text) if character not in known]
    assert tokenizer.unknown(text) == expected
    if expected:
        with pytest.raises(DataError) as error:
            tokenizer.encode(text)
        assert f"{expected[0][1]!r} at {expected[0][0]}" in str(error.value)
    else:
        tokenizer.encode(text)


def test_unknown_characters_are_named_once_each_with_their_positions() -> None:
    with pytest.raises(DataError, match=r"lacks 2 of .*'~' at 1, 3, 5, …; '🙂' at 8;") as error:
        CharTokenizer("ab").encode("a~b~a~b~🙂")
    assert "\n" not in str(error.value)


def test_a_long_list_of_unknown_characters_is_cut() -> None:
    with pytest.raises(DataError, match="and 990 more") as error:
        CharTokenizer("a").encode("".join(map(chr, range(0x4E00, 0x4E00 + 1000))))
    assert len(str(error.value)) < 500


def test_lone_surrogates_are_unknown_to_every_tokenizer() -> None:
    for tokenizer in (CharTokenizer("ab"), ByteTokenizer()):
        assert tokenizer.unknown("a\ud800b") == [(1, "\ud800")]
        with pytest.raises(DataError, match=r"'\\ud800' at 1"):
            tokenizer.encode("a\ud800b")
    with pytest.raises(DataError, match=r"'\\udfff' at 1"):
        CharacterCounts().add("a\udfff")


def test_ids_come_in_the_smallest_type_that_fits() -> None:
    assert [token_dtype(size) for size in (2, 256, 257, 65536, 65537)] == [
        np.uint8,
        np.uint8,
        np.uint16,
        np.uint16,
        np.uint32,
    ]
    assert CharTokenizer("ab").encode("ab").dtype == np.uint8
    assert ByteTokenizer().encode("ab").dtype == np.uint16
    largest = "".join(map(chr, range(0x10000, 0x10000 + 70_000)))
    assert CharTokenizer(largest).encode(largest).tolist() == list(range(70_000))


@pytest.mark.parametrize(
    ("text", "usual_start"),
    [("aab\nc", "\n"), ("abbc", "b"), ("中文中", "中")],
    ids=["newline", "latin", "han"],
)
def test_a_text_starts_at_a_newline_or_at_its_most_frequent_character(text: str, usual_start: str) -> None:
    counts = CharacterCounts()
    counts.add(text)
    assert counts.usual_start == usual_start


def char_json(**changes: object) -> str:
    return json.dumps({"format": 1, "kind": "char", "characters": "ab"} | changes)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not a tokenizer file"),
        (char_json()[:-9], "not a tokenizer file"),
        ("[" * 100_000, "not a tokenizer file"),
        ("[1]", "JSON object"),
        ("9" * 5000, "not a tokenizer file"),
        ("{}", "format 1, found None"),
        (char_json(format=2), "format 1, found 2"),
        (char_json(format=True), "format 1, found True"),
        (char_json(kind="magic"), "char or byte, found 'magic'"),
        (char_json(kind=["char"]), "char or byte"),
        (char_json(kind="byte"), "expected the keys format, kind"),
        (char_json(extra="x\ny"), "expected the keys"),
        (char_json(characters=""), "at least one"),
        (char_json(characters=["a", "b"]), "at least one"),
        (char_json(characters=None), "at least one"),
        (char_json(characters="ba"), "order of code points"),
        (char_json(characters="aa"), "order of code points"),
        (char_json(characters="a\ud800"), "order of code points"),
    ],
)
def test_a_damaged_or_hostile_tokenizer_file_is_one_clear_line(text: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as error:
        tokenizer_from_json(text, where="runs/x/tokenizer.json")
    assert str(error.value).startswith("runs/x/tokenizer.json: ")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400
