import itertools
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.unicode import (
    NUM_CODE_POINTS,
    CharacterCounts,
    StreamDecoder,
    UnicodeForm,
    _combines_backward,
    lines_with_content,
    normalized,
)
from errors import DataError

unhurried = settings(deadline=None)  # a busy machine is no failure
characters = st.characters(exclude_categories=["Cs"])  # any but lone surrogates
# Letters and marks of many scripts that combine in NFC, and among them what looks as if it did not: vowel signs
# that are not sorted (U+09BE), jamo, new letters (U+16D67), marks that decompose (U+0F73, U+0344).
combining = st.sampled_from(
    "aeiAE \nꙮéệ각가ऀो"
    "\u0301\u0308\u0323\u0344\u0f71\u0f72\u0f73\u09c7\u09be\u09d7\u0dd9\u0dcf\u0dca\u1025\u102e"
    "\u1100\u1161\u11a8\u11c2\u1175\u16d63\u16d67\u11131\u11127\u3099か\ufb1d\u05b4\u2126\u1e9b"
)
texts = st.text(characters | combining) | st.text(combining)


def cut(text: str, data: st.DataObject) -> list[str]:
    """The text in any number of chunks, empty ones too."""
    places = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    return [text[start:stop] for start, stop in itertools.pairwise([0, *places, len(text)])]


@unhurried
@given(texts, st.data())
def test_a_text_normalised_in_chunks_is_the_text_normalised_at_once(text: str, data: st.DataObject) -> None:
    chunks = cut(text, data)
    assert "".join(normalized(chunks, "NFC")) == unicodedata.normalize("NFC", text)
    assert list(normalized(chunks, "none")) == chunks


def test_no_character_that_a_text_may_be_cut_before_ever_combines_with_what_precedes_it() -> None:
    """Both ways that this could be wrong, over all code points: by what they decompose to, and by trying."""
    combines = _combines_backward()
    everything = [chr(code) for code in range(NUM_CODE_POINTS)]
    decomposed = {c: unicodedata.normalize("NFD", c) for c in everything if not unicodedata.is_normalized("NFD", c)}
    for character, parts in decomposed.items():
        assert all(combines[ord(part)] for part in parts[1:]), character
        assert not combines[ord(parts[0])] or combines[ord(character)], character
    first_parts = {unicodedata.normalize("NFC", parts[:-1]) for parts in decomposed.values()}
    alone = [
        c for c in everything
        if not combines[ord(c)] and unicodedata.category(c) not in ("Cn", "Co", "Cs") and c not in first_parts
    ]  # fmt: skip
    few = [c for c in alone if not "\u3400" <= c <= "\ud7ff" and c < "\U00017000"]
    starters = sorted(first for first in first_parts if len(first) == 1 and not "\uac01" <= first <= "\ud7ff")
    for first in [*starters, "\u0f71", "\u0301"]:
        tried = unicodedata.normalize("NFC", "".join(f"{first}{c}\n" for c in few))
        separate = "".join(f"{unicodedata.normalize('NFC', c)}\n{first}" for c in few)
        assert first + separate == tried + first, f"something combines with {first!r}"


def test_what_is_held_back_stays_small_for_any_script() -> None:
    for character in ("\u4e2d", "a", "\uac00", "\u0e01"):
        given_out = 0
        for number, text in enumerate(normalized([character] * 1000, "NFC"), start=1):
            given_out += len(text)
            assert given_out == number
        assert given_out == 1000


def test_a_million_marks_neither_fill_the_memory_nor_take_for_ever() -> None:
    text = "a" + "\u0301\u0323" * 500_000 + "b"  # to be sorted, which takes the square of their number
    started = time.monotonic()
    whole = "".join(normalized([text], "NFC"))
    assert time.monotonic() - started < 20
    for size in (999, 1024, 100_000):
        out = list(normalized([text[start : start + size] for start in range(0, len(text), size)], "NFC"))
        assert "".join(out) == whole
        assert max(map(len, out)) <= 1024
    assert "".join(normalized(text[:5000], "NFC")) == "".join(normalized([text[:5000]], "NFC"))


def test_up_to_a_thousand_marks_are_sorted_as_unicode_wants() -> None:
    text = "x" + "\u0301\u0323" * 511 + "\u0323"  # 1024 characters
    assert "".join(normalized(text, "NFC")) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("form", ["none", "NFC"])
def test_lone_surrogates_pass_through(form: UnicodeForm) -> None:
    assert "".join(normalized(["a\ud800", "\u0301\udfff"], form)) == "a\ud800\u0301\udfff"


@unhurried
@given(st.text(characters | st.sampled_from("\n\n\n \t\x1c\x85\u2028\u3000ab")), st.data())
def test_lines_are_those_between_newlines_that_are_not_blank(text: str, data: st.DataObject) -> None:
    expected = [line for line in text.split("\n") if line.strip() != ""]
    blocks = list(lines_with_content(cut(text, data)))
    assert all(block.endswith("\n") for block in blocks)
    assert "".join(blocks) == "".join(f"{line}\n" for line in expected)


def test_a_long_line_in_small_chunks_is_joined_once() -> None:
    line = "ab" * 200_000
    started = time.monotonic()
    assert list(lines_with_content(line)) == [line + "\n"]
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("ends", ["", "\n", "a\n\nb"])
def test_a_line_without_end_is_refused_before_it_fills_the_memory(ends: str) -> None:
    chunk = "a" * (1 << 20)
    chunks = itertools.chain([chunk + "\n"], itertools.repeat(chunk, 64), ["a" + ends], itertools.repeat(chunk, 9))
    with pytest.raises(DataError, match=r"^x\.txt: there is a line of more than 67,108,864 characters; use data\.doc"):
        list(lines_with_content(chunks, name="x.txt"))


def test_many_lines_may_be_longer_than_one() -> None:
    chunk = "a" * (1 << 20)
    chunks = itertools.chain.from_iterable(itertools.repeat([chunk, "\n" + chunk], 66))
    assert sum(map(len, lines_with_content(chunks))) == 132 * len(chunk) + 67


@unhurried
@given(st.text(characters, min_size=1), st.data())
def test_a_vocabulary_counted_in_chunks_is_that_of_the_whole_text(text: str, data: st.DataObject) -> None:
    counts = CharacterCounts()
    for chunk in cut(text, data):
        counts.add(chunk)
    assert counts.characters() == "".join(sorted(set(text)))
    assert counts.num_chars == len(text)
    assert counts.num_bytes == len(text.encode("utf-8"))


@unhurried
@given(st.text("abcdé\n", min_size=1), st.integers(0, 5))
def test_rare_characters_are_those_that_occur_less_often(text: str, min_count: int) -> None:
    counts = CharacterCounts()
    counts.add(text)
    rare = {character for character in text if text.count(character) < min_count}
    assert counts.characters(min_count) == "".join(sorted({*text} - rare))
    assert counts.num_rare(min_count) == (len(rare), sum(text.count(character) for character in rare))


def test_a_forgotten_character_was_never_there() -> None:
    counts = CharacterCounts()
    counts.add("a\nb\n")
    counts.forget("\n")
    assert counts.characters() == "ab"
    assert counts.num_chars == counts.num_bytes == 2
    assert counts.usual_start() == "a"


@pytest.mark.parametrize(
    ("text", "min_count", "usual_start"),
    [("aab\nc", 1, "\n"), ("abbc", 1, "b"), ("中文中", 1, "中"), ("aab\nc", 2, "a"), ("aab\n\nc", 2, "\n")],
    ids=["newline", "latin", "han", "rare-newline", "frequent-newline"],
)
def test_a_text_starts_at_a_newline_or_at_its_most_frequent_character(
    text: str, min_count: int, usual_start: str
) -> None:
    counts = CharacterCounts()
    counts.add(text)
    assert counts.usual_start(min_count) == usual_start


def test_lone_surrogates_are_not_counted_in_silence() -> None:
    with pytest.raises(DataError, match=r"'\\udfff' at 1"):
        CharacterCounts().add("a\udfff")


def test_bytes_of_a_character_in_several_pieces_come_out_with_the_last() -> None:
    decoder = StreamDecoder([b"\xf0\x9f", b"\x99\x82", b"a"])
    assert [decoder.push(0), decoder.push(1), decoder.push(0), decoder.push(2), decoder.push(0)] == [
        "",
        "🙂",
        "",
        "\ufffda",
        "",
    ]
    assert decoder.finish() == "\ufffd"
