"""The loop around the model: many drafts side by side, each written as if it were alone."""

import math
from itertools import islice

import numpy as np
import pytest
import torch
from conftest import Tiny

from config.schema import ModelConfig
from data.tokenizer import CharTokenizer
from engine import generation
from engine.choice import SamplingSettings, choose, sample_generator
from engine.decoder import Decoder
from engine.generation import Draft, continuation, generate, rows_at_once
from engine.row_products import round_to_int8
from errors import CheckpointError
from model import GPT

TOKENIZER = CharTokenizer("abcdefghi", has_unknown=True)
UNKNOWN, END = 9, 10
V = 13  # two more than the tokenizer has, as where a vocabulary is padded
NEVER = (UNKNOWN, 11, 12)
GREEDY = SamplingSettings(temperature=0)
PLAIN = SamplingSettings(temperature=1.0)
EVERYTHING = SamplingSettings(1.3, top_k=8, top_p=0.95, min_p=0.01, repetition_penalty=1.4)
BOTH = pytest.mark.parametrize("architecture", ["qwen3", "gpt2"])
PROMPTS = [[1], [2, 3, 4], [5, 6, 7, 8, 0, 1, 2, 3], [2, 3, 4], list(range(9)) * 2, [8, 8], [4, 3, 2, 1, 0, 1, 2]]


def make_model(architecture="qwen3", context_length=8):
    torch.manual_seed(3)
    config = ModelConfig(
        architecture=architecture,
        context_length=context_length,
        d_model=16,
        num_heads=2,
        num_layers=2,
        dropout=0.2,
        tie_embeddings=False,
    )
    model = GPT(config, V).eval()
    for parameter in model.parameters():  # far from uniform, so that every token of the window matters
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.5)
    return model


def drafts_of(prompts, seed=0):
    return [Draft(ids, sample_generator(seed, index)) for index, ids in enumerate(prompts)]


def turns(model, drafts, n, settings=GREEDY, *, stops_at_end=False, **others):
    """What `generate` yields, one by one."""
    return generate(model, TOKENIZER, drafts, max_new_tokens=n, settings=settings, stops_at_end=stops_at_end, **others)


def write(model, ids, n, settings=GREEDY, *, seed=0, index=0, **others):
    """One draft, written alone."""
    draft = Draft(ids, sample_generator(seed, index))
    assert all(one is draft for one in turns(model, [draft], n, settings, **others))
    return draft


def write_all(model, prompts, n, settings=GREEDY, **others):
    """Several, written side by side."""
    drafts = drafts_of(prompts)
    for _ in turns(model, drafts, n, settings, **others):
        pass
    return drafts


@torch.no_grad()
def plain_write(model, ids, n, settings, generator, *, stops_at_end=False):
    """The same without a cache: the whole window through the model for every token. Ids and log-probabilities."""
    context_length = model.config.context_length
    text, window, log_probabilities = list(ids), list(ids)[-context_length:], []
    for _ in range(n):
        if len(window) > context_length:
            window = window[-max(1, context_length // 2) :]
        scores = model(torch.tensor([window]))[0, -1:].double().numpy()
        never = NEVER if stops_at_end else (*NEVER, END)
        chosen = choose(scores, settings, [generator.random()], never=never, windows=[text[-context_length:]])
        (token,), (log_probability,) = (array.tolist() for array in chosen)
        if token == END:
            break
        text.append(token)
        window.append(token)
        log_probabilities.append(log_probability)
    return text[len(ids) :], log_probabilities


def assert_same(draft, expected):
    """A draft against ids and log-probabilities."""
    ids, log_probabilities = expected
    assert draft.new_ids == ids
    torch.testing.assert_close(draft.log_probabilities, log_probabilities, rtol=0, atol=1e-5)


@pytest.fixture
def passes():
    """A function that notes the shape of everything that passes through a whole model."""

    def watch(model):
        shapes = []
        model.final_norm.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[:2])))
        return shapes

    return watch


@BOTH
def test_greedy_is_the_argmax_of_the_whole_sequence_at_every_position(architecture):
    model = make_model(architecture)
    ids = write(model, [1, 2, 3], 5).new_ids
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2, 3, *ids]]))[0]
    logits[:, [*NEVER, END]] = -math.inf
    assert logits[2:-1].argmax(-1).tolist() == ids
    assert len(set(ids)) > 1


@BOTH
@pytest.mark.parametrize("context_length", [1, 5, 8])
@pytest.mark.parametrize("settings", [GREEDY, PLAIN, EVERYTHING])
def test_beyond_the_window_its_younger_half_is_kept_and_read_again(architecture, context_length, settings):
    model = make_model(architecture, context_length)
    for prompt in ([1, 2, 3], list(range(9)) * 2, [0, 1, 2, 3, 4]):
        draft = write(model, prompt, 18, settings, seed=5)
        assert_same(draft, plain_write(model, prompt, 18, settings, sample_generator(5)))
        assert len(draft.new_ids) == 18


def test_of_a_prompt_longer_than_the_window_its_end_is_read():
    model = make_model()
    long, short = [4, 4, 4, 1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8]
    assert write(model, long, 3).new_ids == write(model, short, 3).new_ids


@BOTH
@pytest.mark.parametrize("context_length", [1, 5, 8])
@pytest.mark.parametrize("max_rows", [1, 2, 3, 32])
def test_a_draft_is_the_same_alone_and_beside_others_and_after_others(
    monkeypatch, architecture, context_length, max_rows
):
    monkeypatch.setitem(generation.MAX_ROWS, "cpu", max_rows)
    model = make_model(architecture, context_length)
    for index, draft in enumerate(write_all(model, PROMPTS, 11, EVERYTHING, stops_at_end=True)):
        alone = plain_write(model, PROMPTS[index], 11, EVERYTHING, sample_generator(0, index), stops_at_end=True)
        assert_same(draft, alone)
        assert draft.ended
        assert draft.reached_end == (len(draft.new_ids) < 11)


def test_a_seed_repeats_its_drafts_and_drafts_differ_by_index_and_seed():
    model = make_model()
    first = write(model, [1], 20, PLAIN, seed=7, index=0).new_ids
    assert write(model, [1], 20, PLAIN, seed=7, index=0).new_ids == first
    others = [write(model, [1], 20, PLAIN, seed=s, index=i).new_ids for s, i in ((7, 1), (8, 0), (0, 7))]
    assert all(other != first for other in others)
    assert others[0] != others[2]


@pytest.mark.parametrize("max_rows", [2, 32])
def test_drafts_of_one_prompt_are_read_once(monkeypatch, passes, max_rows):
    monkeypatch.setitem(generation.MAX_ROWS, "cpu", max_rows)
    model = make_model()
    shapes = passes(model)
    drafts = write_all(model, [[1, 2, 3, 4]] * 5, 3, PLAIN)
    assert shapes == [(1, 3)]
    assert len({tuple(draft.new_ids) for draft in drafts}) > 2


@pytest.mark.parametrize("max_new_tokens", [1, 2, 9])
@pytest.mark.parametrize("max_rows", [1, 3, 32])
def test_every_draft_gets_its_tokens_one_by_one_and_no_more(monkeypatch, max_new_tokens, max_rows):
    monkeypatch.setitem(generation.MAX_ROWS, "cpu", max_rows)
    drafts = drafts_of(PROMPTS)
    lengths = {id(draft): [] for draft in drafts}
    for draft in turns(make_model(), drafts, max_new_tokens, PLAIN):
        lengths[id(draft)].append(len(draft.new_ids))
        assert draft.ended == (len(draft.new_ids) == max_new_tokens)
        assert not draft.reached_end
    assert all(seen == list(range(1, max_new_tokens + 1)) for seen in lengths.values())
    assert all(len(draft.log_probabilities) == max_new_tokens for draft in drafts)


def test_no_drafts_are_written_at_once():
    assert list(turns(make_model(), [], 5)) == []


def test_a_draft_that_its_reader_ends_is_written_no_further_and_makes_room(monkeypatch):
    monkeypatch.setitem(generation.MAX_ROWS, "cpu", 2)
    model, drafts = make_model(), drafts_of(PROMPTS[:4])
    order = []
    for draft in turns(model, drafts, 6, PLAIN):
        order.append(drafts.index(draft))
        if draft is drafts[1] and len(draft.new_ids) == 2:
            draft.ended = True
    assert order == [0, 1, 0, 1, 0, 2, 0, 2, 0, 2, 0, 2, 3, 2, 3, 2, 3, 3, 3, 3]
    assert [len(draft.new_ids) for draft in drafts] == [6, 2, 6, 6]
    assert [draft.reached_end for draft in drafts] == [False] * 4
    for index, draft in enumerate(drafts):
        n = len(draft.new_ids)
        assert_same(draft, plain_write(model, PROMPTS[index], n, PLAIN, sample_generator(0, index)))


def test_a_draft_that_is_ended_in_the_turn_of_another_is_written_no_further():
    drafts = drafts_of(PROMPTS[:3])
    for draft in turns(make_model(), drafts, 6, PLAIN):
        if draft is drafts[0] and len(draft.new_ids) == 2:
            drafts[1].ended = True
    assert [len(draft.new_ids) for draft in drafts] == [6, 1, 6]


def test_the_end_is_never_drawn_where_it_does_not_end_the_text():
    model = make_model()
    with torch.no_grad():
        model.lm_head.weight *= 1e-3  # all about equally likely
    for settings in (PLAIN, SamplingSettings(2.0, top_k=V), GREEDY):
        (draft,) = write_all(model, [[1]], 60, settings)
        assert len(draft.new_ids) == 60
        assert not draft.reached_end
        assert not {*NEVER, END} & {*draft.new_ids}


def test_ids_without_a_text_are_never_drawn_where_the_end_may_be():
    model = make_model()
    with torch.no_grad():
        model.lm_head.weight *= 1e-3  # all about equally likely
    drafts = write_all(model, [[1]] * 30, 30, SamplingSettings(2.0), stops_at_end=True)
    seen = {token for draft in drafts for token in draft.new_ids}
    assert seen == set(range(9))
    assert any(draft.reached_end for draft in drafts)


def test_the_end_ends_the_text_where_it_does_and_is_not_given():
    model = make_model()
    drafts = write_all(model, [[1]] * 10, 40, SamplingSettings(1.5), stops_at_end=True)
    for index, draft in enumerate(drafts):
        expected = plain_write(model, [1], 40, SamplingSettings(1.5), sample_generator(0, index), stops_at_end=True)
        assert_same(draft, expected)
        assert END not in draft.new_ids
        assert draft.ended
        assert draft.reached_end == (len(draft.new_ids) < 40)
    lengths = {len(draft.new_ids) for draft in drafts}
    assert min(lengths) < 40
    assert len(lengths) > 3


@BOTH
def test_log_probabilities_are_those_of_the_model_over_all_tokens(architecture):
    model = make_model(architecture)
    for draft in write_all(model, [[1, 2, 3], [4]], 5, EVERYTHING):
        text = [*draft.ids, *draft.new_ids]
        with torch.no_grad():
            every = model(torch.tensor([text[:-1]]))[0].log_softmax(-1)[-5:]
        expected = every.gather(1, torch.tensor(draft.new_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(draft.log_probabilities), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("damage", [math.nan, math.inf])
@pytest.mark.parametrize("settings", [GREEDY, PLAIN, EVERYTHING])
def test_weights_that_are_not_numbers_are_reported_and_not_sampled(damage, settings):
    model = make_model()
    with torch.no_grad():
        model.final_norm.weight[0] = damage
    with pytest.raises(CheckpointError, match="not a number"):
        write(model, [1], 1, settings)


def test_writing_leaves_the_global_generators_the_mode_and_the_gradients_alone():
    model = make_model()
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].tolist()
    pieces = turns(model, drafts_of(PROMPTS), 20, PLAIN)
    for _ in islice(pieces, 40):
        assert not torch.is_inference_mode_enabled()  # the caller may train between two tokens
        assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.random.get_state()[1].tolist() == numpy_state
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    model(torch.tensor([[1, 2]])).sum().backward()
    next(pieces)


@BOTH
@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_generation_computes_in_the_precision_that_it_is_given(architecture, kind):
    model = make_model(architecture)
    if kind == "int8":
        round_to_int8(model)
    how = {"dtype": torch.bfloat16} if kind == "bf16" else {"int8": True}
    draft = write(model, [1, 2, 3], 5, PLAIN, **how)
    text = torch.tensor([[*draft.ids, *draft.new_ids[:-1]]])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "bf16"):
        logits = model(text)[0, -5:].float()
    scale = float(logits.abs().max())
    got = torch.tensor(draft.log_probabilities)
    expected = logits.log_softmax(-1)[range(5), draft.new_ids]
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-2 * scale)
    with torch.no_grad():
        exact = model(text)[0, -5:].log_softmax(-1)[range(5), draft.new_ids]
    assert not torch.allclose(got, exact, rtol=0, atol=1e-5)


def test_as_many_rows_are_written_at_once_as_their_cache_has_room_for(monkeypatch):
    model = make_model()
    decoder = Decoder(model, 3, 8)
    size = sum(layer.cache.nbytes for layer in decoder.layers)
    for room, rows in ((size, 3), (size - 1, 2), (size // 3, 1), (1, 1), (2**30, generation.MAX_ROWS["cpu"])):
        monkeypatch.setattr(generation, "CACHE_BYTES", room)
        assert rows_at_once(model, 8) == rows
    monkeypatch.setattr(generation, "CACHE_BYTES", size)
    assert rows_at_once(model, 4) == 6
    order = [draft.ids[0] for draft in turns(model, drafts_of([[0], [1], [2], [3], [4]]), 7)]
    assert order == [0, 1, 2] * 7 + [3, 4] * 7


def test_the_last_ids_of_a_draft_go_over_from_its_beginning_to_what_is_new():
    for ids in ([1], [1, 2, 3]):
        for new_ids in ([], [4], [4, 5, 6, 7]):
            draft = Draft(ids, sample_generator(0), new_ids)
            for n in range(1, 9):
                assert draft.last(n) == [*ids, *new_ids][-n:]


def test_a_continuation_leaves_the_mode_alone_and_may_be_kept_from_ending(tiny: Tiny) -> None:
    state = tiny.state("data.documents=line")
    for training in (True, False):
        state.model.train(training)
        texts = [
            continuation(state.model, state.prepared, "1", seed=seed, num_tokens=100, may_end=may_end)
            for seed in range(3)
            for may_end in (True, False)
        ]
        assert state.model.training == training
        assert min(map(len, texts[::2])) < 100
        assert [*map(len, texts[1::2])] == [100] * 3


def test_a_continuation_is_the_same_for_the_same_weights_and_needs_no_prompt(tiny: Tiny) -> None:
    state = tiny.state("data.documents=line")
    state.model.train()
    first, again = (
        continuation(state.model, state.prepared, "", seed=1, num_tokens=30, may_end=False) for _ in range(2)
    )
    assert first == again
    assert len(first) == 30
    assert continuation(state.model, state.prepared, "", seed=2, num_tokens=30, may_end=False) != first
