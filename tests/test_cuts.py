import itertools
import time
import unicodedata

import pytest
import regex
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from data.cuts import LEARNING_PATTERN, LEARNT_PATTERN, MAX_WINDOW, PATTERNS, safe_cuts, windows

every_pattern = pytest.mark.parametrize("pattern", PATTERNS, ids=["learnt", "earlier", "gpt2", "gpt4", "gpt4o"])
unhurried = settings(deadline=None, max_examples=300)  # a busy machine is no failure
characters = st.characters(exclude_categories=["Cs"])  # any but lone surrogates
# What the patterns tell apart: cases, digits, marks, spaces of all kinds, apostrophes and their endings (ſ is an s).
telling = st.sampled_from(
    "aBcsStTdmMlrRvVeEſ 019²Ⅷ'’'’.,;-—/\\(«"
    "。，中文кИﬁǅʰ\u0301\u09be\u0ca0\t\n\r\x0b\x85\u00a0\u2028\u3000\x1c_$+🙂\u200d"
)
words = st.sampled_from(["it's", "WE'VE", "he'll ", "x'ſ", "a’s", " \n", "12,5", "a.\n\n", "कि, ", "中。", "  b"])
texts = st.text(telling) | st.text(telling | characters) | st.lists(telling | words).map("".join)


def pretokens(pattern: str, text: str) -> list[str]:
    return regex.findall(pattern, text)


@every_pattern
@unhurried
@given(text=texts)
def test_no_pretoken_goes_on_behind_a_safe_cut(pattern: str, text: str) -> None:
    whole = pretokens(pattern, text)
    assert "".join(whole) == text
    ends = set(itertools.accumulate(map(len, whole)))
    for cut in safe_cuts(text).tolist():
        assert cut in ends
        assert pretokens(pattern, text[:cut]) + pretokens(pattern, text[cut:]) == whole


@every_pattern
def test_every_pair_of_characters_that_is_cut_is_cut_by_tiktoken(pattern: str) -> None:
    """tiktoken has a token for the pair, and would use it if it saw one pretoken."""
    every = [chr(code) for code in range(0x30000) if unicodedata.category(chr(code)) not in ("Cs", "Cn", "Co")]
    befores = [c for c in every if safe_cuts(c + " ").size and not "\u3400" <= c <= "\ud7ff"]
    afters = [c for c in every if safe_cuts("a" + c).size]
    assert len(befores) > 5000
    assert len(afters) > 100
    for before, after in [*((before, ".") for before in befores), *(("a", after) for after in afters)]:
        assert pretokens(pattern, before + after) == [before, after]
    byte_ranks = {bytes([byte]): byte for byte in range(256)}
    for before in "a9é中²":
        for after in ". \n，»\u3000":
            first, second = before.encode(), after.encode()
            joined = [(first + second)[:length] for length in range(2, len(first + second) + 1)]
            ranks = byte_ranks | {token: 256 + number for number, token in enumerate(joined)}
            encoding = tiktoken.Encoding("pair", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
            assert encoding.encode_ordinary(before + after) != [255 + len(joined)]


@unhurried
@given(texts, st.lists(st.integers(0, 50)), st.integers(1, 12))
def test_windows_are_the_same_for_any_chunks(text: str, places: list[int], max_window: int) -> None:
    places = sorted(min(place, len(text)) for place in places)
    chunks = [text[start:stop] for start, stop in itertools.pairwise([0, *places, len(text)])]
    cut = list(windows(chunks, max_window))
    assert cut == list(windows([text], max_window)) == list(windows(text, max_window))
    assert "".join(cut) == text
    assert all(0 < len(window) <= max_window for window in cut)


@unhurried
@given(texts, st.integers(2, 12))
def test_a_window_ends_by_force_only_where_no_safe_cut_is_within_reach(text: str, max_window: int) -> None:
    safe = set(safe_cuts(text).tolist())
    start = 0
    for window in list(windows([text], max_window))[:-1]:
        end = start + len(window)
        assert end in safe or (len(window) == max_window and not safe & set(range(start + 1, end + 1)))
        assert not safe & set(range(end + 1, start + max_window + 1)), "the last safe cut is taken"
        start = end


def test_words_are_whole_where_there_are_spaces() -> None:
    text = "ein Wort nach dem anderen, immer weiter. " * 10_000
    parts = list(windows([text]))
    assert len(parts) > 5
    for pattern in PATTERNS:
        assert [token for part in parts for token in pretokens(pattern, part)] == pretokens(pattern, text)


@pytest.mark.parametrize("character", ["a", "中", " ", "=", "\n", "0", "\u0301"])
def test_ten_million_of_one_character_are_cut_in_a_moment(character: str) -> None:
    started = time.monotonic()
    parts = list(windows([character * (1 << 20)] * 10))
    assert time.monotonic() - started < 20
    assert max(map(len, parts)) == MAX_WINDOW
    assert sum(map(len, parts)) == 10 << 20


def test_pretokens_to_learn_from_are_short_and_cover_every_character() -> None:
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000:
            assert regex.fullmatch(LEARNING_PATTERN, chr(code)), hex(code)
    for text in ("a" * 1000, "中" * 1000, " " * 1000 + "x", "\n" * 1000, "=" * 1000 + "\n" * 1000, "\u0301" * 1000):
        tokens = pretokens(LEARNING_PATTERN, text)
        assert "".join(tokens) == text
        assert max(map(len, tokens)) <= 65
    assert pretokens(LEARNING_PATTERN, "It's 2024, कि नहीं?\n\n  Yes") == [
        "It", "'s", " ", "2", "0", "2", "4", ",", " कि", " नहीं", "?\n\n", " ", " Yes",
    ]  # fmt: skip


@unhurried
@given(texts)
def test_a_learnt_vocabulary_is_used_as_it_was_learnt_where_nothing_is_longer_than_32(text: str) -> None:
    assert pretokens(LEARNT_PATTERN, text[:32]) == pretokens(LEARNING_PATTERN, text[:32])
