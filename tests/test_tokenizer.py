import itertools
import unicodedata
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.saved_tokenizer import tokenizer_from_json
from data.tokenizer import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    token_dtype,
)
from data.unicode import UnicodeForm
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
@given(texts)
def test_characters_and_bytes_per_token_add_up_to_those_of_the_text(text: str) -> None:
    for tokenizer in (CharTokenizer(text), ByteTokenizer()):
        ids = tokenizer.encode(text)
        assert tokenizer.chars_per_token[ids].sum() == len(text)
        assert tokenizer.bytes_per_token[ids].sum() == len(text.encode("utf-8"))
        assert len(tokenizer.chars_per_token) == tokenizer.vocab_size
        assert tokenizer.chars_per_token[tokenizer.end_id] == 0 == tokenizer.bytes_per_token[tokenizer.end_id]


def test_what_rare_characters_share_is_a_character_of_one_byte_the_least_that_it_can_be() -> None:
    tokenizer = CharTokenizer("aé", has_unknown=True)
    assert tokenizer.bytes_per_token.tolist() == [1, 2, 1, 0]
    assert tokenizer.chars_per_token.tolist() == [1, 1, 1, 0]
    assert CharTokenizer("aé\ufffd").bytes_per_token.tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize("has_unknown", [False, True])
def test_dropped_is_what_has_no_id_of_its_own(has_unknown: bool) -> None:
    tokenizer = CharTokenizer("ab", has_unknown=has_unknown)
    chunks = ["axb\n", "xx\n\ud800b", "☃"]
    streamed = np.concatenate(list(tokenizer.encode_stream(chunks, drop_unknown=True)))
    assert streamed.tolist() == [0, 1, 1]
    lines = np.concatenate(list(tokenizer.encode_lines(chunks, drop_unknown=True)))
    assert lines.tolist() == [0, 1, tokenizer.end_id, 1, tokenizer.end_id]


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


def cut(text: str, data: st.DataObject) -> list[str]:
    """The text in any number of chunks, empty ones too."""
    places = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    return [text[start:stop] for start, stop in itertools.pairwise([0, *places, len(text)])]


def joined(arrays: Iterable[npt.NDArray[np.unsignedinteger[Any]]], tokenizer: Tokenizer) -> list[int]:
    arrays = list(arrays)
    assert all(array.dtype == token_dtype(tokenizer.vocab_size) for array in arrays)
    return [int(token_id) for array in arrays for token_id in array]


def every_kind(text: str) -> list[Tokenizer]:
    forms: list[UnicodeForm] = ["none", "NFC"]
    return [
        *(CharTokenizer(unicodedata.normalize("NFC", text) + text, unicode=form) for form in forms),
        *(CharTokenizer("abe\u0301 ", has_unknown=True, unicode=form) for form in forms),
        *(ByteTokenizer(unicode=form) for form in forms),
    ]


multilingual = st.text(characters | st.sampled_from("ae\u0301\u0323 \n\n\u09c7\u09be각\u11a8"), min_size=1)


@unhurried
@given(multilingual)
def test_a_text_comes_back_in_its_normal_form(text: str) -> None:
    for tokenizer in every_kind(text):
        normal = text if tokenizer.unicode == "none" else unicodedata.normalize("NFC", text)
        assert tokenizer.normalize(text) == normal
        if not tokenizer.never_generated:
            assert tokenizer.decode(tokenizer.encode(text)) == normal


@unhurried
@given(multilingual, st.data())
def test_a_text_encoded_in_chunks_is_the_text_encoded_at_once(text: str, data: st.DataObject) -> None:
    for tokenizer in every_kind(text):
        assert joined(tokenizer.encode_stream(cut(text, data)), tokenizer) == tokenizer.encode(text).tolist()


@unhurried
@given(multilingual, st.data())
def test_lines_are_encoded_each_with_its_end(text: str, data: st.DataObject) -> None:
    for tokenizer in every_kind(text):
        lines = [line for line in text.split("\n") if line.strip()]
        expected = [token_id for line in lines for token_id in [*tokenizer.encode(line).tolist(), tokenizer.end_id]]
        assert joined(tokenizer.encode_lines(cut(text, data)), tokenizer) == expected


def test_lines_need_no_newline_in_the_vocabulary_and_bring_none() -> None:
    for has_unknown in (False, True):
        tokenizer = CharTokenizer("ab", has_unknown=has_unknown)
        end = tokenizer.end_id
        assert joined(tokenizer.encode_lines(["ab\n\n \nb", "a"]), tokenizer) == [0, 1, end, 1, 0, end]
    with pytest.raises(DataError, match="'c' at 1"):
        list(CharTokenizer("ab").encode_lines(["ab\nac"]))
    with pytest.raises(DataError, match=r"'\\ud800' at 1"):
        list(CharTokenizer("ab", has_unknown=True).encode_lines(["a\ud800\n"]))


@unhurried
@given(multilingual, st.data())
def test_unknown_characters_are_left_out_where_that_is_wanted(text: str, data: st.DataObject) -> None:
    tokenizer = CharTokenizer("ae\u0301 ", unicode="NFC")
    normal = unicodedata.normalize("NFC", text)
    expected = [tokenizer.characters.index(character) for character in normal if character in tokenizer.characters]
    assert joined(tokenizer.encode_stream(cut(text, data), drop_unknown=True), tokenizer) == expected
    known_lines = ["".join(c for c in line if c in tokenizer.characters) for line in normal.split("\n")]
    lines = joined(tokenizer.encode_lines(cut(text, data), drop_unknown=True), tokenizer)
    assert lines == [
        token_id
        for line in known_lines
        if line.strip()
        for token_id in [*map(tokenizer.characters.index, line), tokenizer.end_id]
    ]
    assert tokenizer.unknown(tokenizer.known(text)) == []


def test_lines_stay_lines_where_unknown_characters_are_left_out() -> None:
    tokenizer = CharTokenizer("ab")
    assert joined(tokenizer.encode_lines(["axb\n", "xx\nb"], drop_unknown=True), tokenizer) == [0, 1, 2, 1, 2]


def test_what_is_known_of_a_text_can_always_be_encoded() -> None:
    tokenizer = CharTokenizer("e\u0301", unicode="NFC")
    assert tokenizer.known("ex\u0301") == "", "e and its accent come together, and é is unknown"
    assert ByteTokenizer().known("a\ud800b") == "ab"
    assert CharTokenizer("a", has_unknown=True).known("a\ud800b") == "ab"


@unhurried
@given(texts, texts)
def test_an_unknown_token_stands_for_every_character_that_the_vocabulary_lacks(known: str, text: str) -> None:
    tokenizer = CharTokenizer(known, has_unknown=True)
    (unknown_id,) = tokenizer.never_generated
    assert unknown_id == tokenizer.end_id - 1 == len(set(known))
    assert tokenizer.unknown(text) == []
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == "".join(c if c in known else "\ufffd" for c in text)
    assert "".join(streamed(tokenizer, ids.tolist())) == tokenizer.decode(ids)
    assert tokenizer.chars_per_token[ids].sum() == len(text)
    with pytest.raises(DataError, match=r"'\\ud800' at"):
        tokenizer.encode(text + "\ud800")


@unhurried
@given(texts, texts, st.booleans())
def test_an_extended_vocabulary_says_where_the_old_ids_went(old: str, new: str, has_unknown: bool) -> None:
    before = CharTokenizer(old, has_unknown=has_unknown, unicode="NFC")
    after = before.extended(new)
    ids = after.ids_of(before)
    assert after.characters == "".join(sorted({*old, *new}))
    assert (after.has_unknown, after.unicode) == (has_unknown, "NFC")
    assert [after.pieces[token_id] for token_id in ids] == list(before.pieces)
    assert ids[-1] == after.end_id
    assert ids[before.encode(old)].tolist() == after.encode(old).tolist()


def test_ids_that_a_vocabulary_lacks_are_not_mapped() -> None:
    for old in (CharTokenizer("abc"), CharTokenizer("ab", has_unknown=True)):
        with pytest.raises(ValueError, match="lacks"):
            CharTokenizer("ab").ids_of(old)


def test_the_files_of_plain_tokenizers_stay_as_they_were() -> None:
    assert CharTokenizer("ba").to_json() == '{"characters": "ab", "format": 1, "kind": "char"}'
    assert ByteTokenizer().to_json() == '{"format": 1, "kind": "byte"}'
    assert ByteTokenizer(unicode="NFC").to_json() == '{"format": 1, "kind": "byte", "unicode": "NFC"}'


@unhurried
@given(texts)
def test_every_tokenizer_comes_back_whole(text: str) -> None:
    kinds = every_kind(text)
    assert len({tokenizer.fingerprint for tokenizer in kinds}) == len(kinds)
    for tokenizer in kinds:
        restored = tokenizer_from_json(tokenizer.to_json(), where="tokenizer.json")
        assert (restored.fingerprint, restored.unicode) == (tokenizer.fingerprint, tokenizer.unicode)
        assert restored.never_generated == tokenizer.never_generated
        assert restored.pieces == tokenizer.pieces
