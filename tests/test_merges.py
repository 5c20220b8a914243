"""Vocabularies of bytes in the world's way of writing, held against the published one."""

import genuine_gpt2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop.merges import byte_characters, bytes_of, merges_of, merges_of_characters, visible_text


def test_each_byte_has_the_character_that_the_published_vocabulary_has_for_it() -> None:
    assert len(set(byte_characters())) == 256
    assert {*byte_characters()} == {token for token, number in genuine_gpt2.vocabulary().items() if number < 256}
    assert visible_text("é \n".encode()) == "Ã©ĠĊ"


@given(st.binary())
def test_what_is_made_visible_comes_back(token: bytes) -> None:
    assert bytes_of(visible_text(token)) == token


def test_a_character_that_stands_for_no_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="stands for no byte"):
        bytes_of("a b")


def test_the_published_merges_are_among_those_that_the_tokens_give_in_the_same_order() -> None:
    by_id = sorted((number, token) for token, number in genuine_gpt2.vocabulary().items())
    tokens = [b"" if token == "<|endoftext|>" else bytes_of(token) for _, token in by_id]
    position = {pair: number for number, pair in enumerate(merges_of(tokens))}
    published = [position[tuple(line.split(" "))] for line in genuine_gpt2.merges()]  # type: ignore[index]
    assert published == sorted(published)


def test_pairs_merge_in_the_order_of_what_they_make_and_none_is_left_out() -> None:
    tokens = [b"a", b"b", b"c", b"bc", b"ab", b"abc", b""]
    assert merges_of(tokens) == [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")]


def test_characters_grow_byte_by_byte() -> None:
    assert merges_of_characters("aé漢") == [("Ã", "©"), ("æ", "¼"), ("æ¼", "¢")]
