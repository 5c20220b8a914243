"""Prompts in, text out: pieces that join to the whole, stop strings, several texts side by side."""

import re
from dataclasses import replace

import pytest
import torch
from conftest import Tiny

from data.bpe import train_bpe
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from engine.choice import SamplingSettings, sample_generator
from engine.loading import TrainedModel, load_model
from engine.writing import Text, new_texts, split_at_stop, write, write_on
from errors import CheckpointError, DataError, UserError

HOT = SamplingSettings(temperature=1.5)


@pytest.fixture
def trained(tiny: Tiny) -> TrainedModel:
    return load_model(str(tiny.run().path), device="cpu")


def text_of(tokenizer: Tokenizer, ids: list[int], stops: list[str]) -> tuple[Text, list[str]]:
    """A text to which these ids came one by one, and the pieces it gave out."""
    text = Text(ids=[0], generator=sample_generator(0), prompt="", index=0, characters=tokenizer.decoder(), stops=stops)
    pieces = []
    for number, token in enumerate(ids):
        if text.ended:
            break
        text.new_ids.append(token)
        text.ended = number == len(ids) - 1
        pieces.append(text.read_on())
    return text, pieces


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("abc", [], ("abc", "", None)),
        ("", ["x"], ("", "", None)),
        ("abc", ["b"], ("a", "c", "b")),
        ("abc", ["bcd"], ("a", "bc", None)),
        ("abc", ["cc", "bd"], ("ab", "c", None)),
        ("aab", ["ab", "aab"], ("", "", "aab")),
        ("xab", ["b", "ab", "a"], ("x", "", "ab")),
        ("xa", ["ab", "a"], ("x", "", "a")),
        ("aaa", ["aab"], ("a", "aa", None)),
        ("one\n", ["\n\n"], ("one", "\n", None)),
        ("one\n\ntwo", ["\n\n"], ("one", "two", "\n\n")),
    ],
)
def test_a_text_is_split_where_the_first_stop_string_is_or_may_begin(
    text: str, stops: list[str], expected: tuple[str, str, str | None]
) -> None:
    assert split_at_stop(text, stops) == expected


def test_pieces_never_hold_half_a_character_and_join_to_the_whole() -> None:
    whole = "né 你好 🙂🙂!"
    for tokenizer in (ByteTokenizer(), train_bpe([whole * 9], 260)):
        text, pieces = text_of(tokenizer, tokenizer.encode(whole).tolist(), [])
        assert "".join(pieces) == text.continuation == whole
        assert "" in pieces
        assert "\ufffd" not in "".join(pieces)


def test_a_last_character_that_is_not_whole_is_left_out() -> None:
    text, _ = text_of(ByteTokenizer(), [*"ab🙂".encode()][:-1], [])
    assert text.continuation == "ab"
    assert len(text.new_ids) == 5


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert text_of(ByteTokenizer(), [ord("a"), 0xFF, ord("b")], [])[0].continuation == "a\ufffdb"


@pytest.mark.parametrize("stop", ["好", "d\n\n", "\n", "🙂", "wor"])
@pytest.mark.parametrize(
    "tokenizer",
    [ByteTokenizer(), CharTokenizer("hello world\n好🙂"), train_bpe(["hello world\n\n好🙂🙂 hello 🙂 wor" * 9], 280)],
)
def test_a_stop_string_over_several_tokens_ends_the_text_before_it(tokenizer: Tokenizer, stop: str) -> None:
    whole = "hello world\n\n好🙂🙂 hello"
    text, pieces = text_of(tokenizer, tokenizer.encode(whole).tolist(), ["nowhere", stop])
    assert "".join(pieces) == text.continuation == whole[: whole.index(stop)]
    assert text.stopped_at == stop
    assert text.ended
    assert stop in tokenizer.decode(text.new_ids)
    assert stop not in tokenizer.decode(text.new_ids[:-1]), "no token too many is drawn"


def test_what_only_looked_like_a_stop_string_is_given_out_in_the_end() -> None:
    tokenizer = CharTokenizer("ab")
    text, pieces = text_of(tokenizer, tokenizer.encode("abaaba").tolist(), ["abab"])
    assert "".join(pieces) == text.continuation == "abaaba"
    assert pieces[0] == ""
    assert text.stopped_at is None


def test_writing_from_python_takes_a_few_lines_and_a_seed_repeats_it(trained: TrainedModel) -> None:
    pieces = list(write(trained, "12 sheep", max_new_tokens=30, seed=3))
    assert len(pieces) == 30
    assert "".join(pieces) == "".join(write(trained, "12 sheep", max_new_tokens=30, seed=3))
    assert "".join(pieces) != "".join(write(trained, "12 sheep", max_new_tokens=30, seed=4))
    with pytest.raises(DataError, match="'Z' at 0"):
        list(write(trained, "Z"))


def test_a_text_is_the_same_alone_and_among_others(trained: TrainedModel) -> None:
    prompts = ["1", "12 sheep and 144", "", "7 goats"]
    together = new_texts(trained, prompts, seed=5, num_samples=2)
    for _ in write_on(trained, together, max_new_tokens=25, settings=HOT):
        pass
    assert [(text.prompt, text.index) for text in together] == [(p, i) for p in prompts for i in range(2)]
    for text in together:
        alone = new_texts(trained, [text.prompt], seed=5, num_samples=2)[text.index]
        for _ in write_on(trained, [alone], max_new_tokens=25, settings=HOT):
            pass
        assert alone.new_ids == text.new_ids
        assert alone.continuation == text.continuation
    assert len({text.continuation for text in together}) > 1


def test_events_are_of_all_texts_and_pieces_join_to_each(trained: TrainedModel) -> None:
    texts = new_texts(trained, ["1", "2"], seed=1, stops=["goat"])
    written: dict[int, str] = {0: "", 1: ""}
    for text, piece in write_on(trained, texts, max_new_tokens=40):
        written[texts.index(text)] += piece
    assert [*written.values()] == [text.continuation for text in texts]
    assert all(text.ended for text in texts)


def test_line_ends_of_a_prompt_become_those_of_the_training_text(tiny: Tiny) -> None:
    normal = load_model(str(tiny.run().path), device="cpu")
    assert new_texts(normal, ["1\r\n2\r"], seed=0)[0].prompt == "1\n2\n"
    config = normal.checkpoint.config
    keeping = config.model_copy(update={"data": config.data.model_copy(update={"newlines": "keep"})})
    kept = replace(normal, checkpoint=replace(normal.checkpoint, config=keeping))
    assert kept.as_read("1\r\n2\r") == "1\r\n2\r"


def test_the_end_of_a_document_ends_a_text_unless_it_is_ignored(tiny: Tiny) -> None:
    trained = load_model(str(tiny.run("data.documents=line").path), device="cpu")
    texts = new_texts(trained, ["1"], seed=1, num_samples=8)
    for _ in write_on(trained, texts, max_new_tokens=200, settings=HOT):
        pass
    assert any(text.reached_end and len(text.new_ids) < 200 for text in texts)
    ignoring = new_texts(trained, ["1"], seed=1, num_samples=8)
    for _ in write_on(trained, ignoring, max_new_tokens=200, settings=HOT, ignore_end=True):
        pass
    assert all(len(text.new_ids) == 200 and not text.reached_end for text in ignoring)


def test_stop_strings_are_read_as_the_training_text_was(tiny: Tiny) -> None:
    trained = load_model(str(tiny.run("data.unicode=NFC").path), device="cpu")
    assert new_texts(trained, [""], seed=0, stops=["1\r\n", "e\u0301"])[0].stops == ["1\n", "é"]
    with pytest.raises(UserError, match="--stop must be a text of at least one character"):
        list(write(trained, stops=["1", ""]))


def test_weights_that_are_not_numbers_are_reported_with_their_file(trained: TrainedModel) -> None:
    with torch.no_grad():
        trained.model.final_norm.weight[0] = float("nan")
    with pytest.raises(CheckpointError, match=rf"^{re.escape(str(trained.checkpoint.path))}: .* not a number"):
        list(write(trained))
    narrow = replace(trained, runtime=replace(trained.runtime, precision="fp16"))
    with pytest.raises(CheckpointError, match="fp16 is too narrow for it: --precision fp32"):
        list(write(narrow))


def test_prompts_differ_in_their_draws_and_equal_ones_have_further_samples(trained: TrainedModel) -> None:
    texts = new_texts(trained, ["1", "2", "1", "1"], seed=7)
    assert [text.index for text in texts] == [0, 0, 1, 2]
    draws = [text.generator.random() for text in texts]
    assert len(set(draws)) == 4
    assert draws[0] == new_texts(trained, "1", seed=7)[0].generator.random()
    assert draws[3] == new_texts(trained, "1", seed=7, num_samples=3)[2].generator.random()


def test_one_text_may_stand_for_a_list_and_without_a_seed_all_are_new(trained: TrainedModel) -> None:
    (text,) = new_texts(trained, "12", stops="34")
    assert (text.prompt, text.stops) == ("12", ["34"])
    assert text.generator.random() != new_texts(trained, "12")[0].generator.random()
    with pytest.raises(UserError, match="--seed must be 0 or more, got -1"):
        new_texts(trained, "12", seed=-1)
