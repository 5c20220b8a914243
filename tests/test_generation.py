"""The choice of the next token, and the loop around the model."""

import math
from itertools import islice

import pytest
import torch
from conftest import Tiny

from config.schema import ModelConfig
from engine.generation import SamplingSettings, choose_next, continuation, generate, sample_generator
from engine.runtime import Runtime
from errors import CheckpointError, UserError
from model import GPT, KVCache

V, END = 11, 10
GREEDY = SamplingSettings(temperature=0)
BOTH = pytest.mark.parametrize("architecture", ["qwen3", "gpt2"])


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


def write(model, ids, n, settings=GREEDY, *, seed=0, index=0, stops_at_end=False):
    return list(
        generate(
            model,
            ids,
            max_new_tokens=n,
            settings=settings,
            generator=sample_generator(seed, index),
            end_id=END,
            stops_at_end=stops_at_end,
        )
    )


@torch.no_grad()
def plain_generate(model, ids, n, settings, generator, *, stops_at_end=False):
    """The same without a cache: the whole window through the model for every token."""
    window = list(ids)[-model.config.context_length :]
    new = []
    for _ in range(n):
        if len(window) > model.config.context_length:
            window = window[-max(1, model.config.context_length // 2) :]
        logits = model(torch.tensor([window]))[0, -1]
        if not stops_at_end:
            logits[END] = -math.inf
        token = choose_next(logits, settings, generator)
        if token == END:
            break
        new.append(token)
        window.append(token)
    return new


def support(logits, settings, draws=400):
    """All ids that are drawn, in many draws."""
    generator = torch.Generator().manual_seed(0)
    return {choose_next(torch.tensor(logits), settings, generator) for _ in range(draws)}


@BOTH
def test_greedy_is_the_argmax_of_the_whole_sequence_at_every_position(architecture):
    model = make_model(architecture)
    ids = write(model, [1, 2, 3], 5)
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2, 3, *ids]]))[0]
    logits[:, END] = -math.inf
    assert logits[2:-1].argmax(-1).tolist() == ids
    assert len(set(ids)) > 1


@BOTH
@pytest.mark.parametrize("context_length", [1, 5, 8])
@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(1.0, top_k=7, top_p=0.9)])
def test_beyond_the_window_its_younger_half_is_kept_and_read_again(architecture, context_length, settings):
    model = make_model(architecture, context_length)
    for prompt in ([1, 2, 3], list(range(9)) * 2):
        ids = write(model, prompt, 18, settings, seed=5)
        assert ids == plain_generate(model, prompt, 18, settings, sample_generator(5))
        assert len(ids) == 18


@BOTH
def test_cached_and_whole_sequences_give_the_same_logits_at_every_position(architecture):
    model, idx = make_model(architecture), torch.tensor([[1, 5, 2, 9, 0, 3, 3, 7]])
    cache = KVCache(model, 1, 8)
    with torch.no_grad():
        pieces = [model(piece, cache) for piece in idx.split([3, 1, 2, 1, 1], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), model(idx), rtol=0, atol=1e-5)


def test_of_a_prompt_longer_than_the_window_its_end_is_read():
    model = make_model()
    assert write(model, [4, 4, 4, 1, 2, 3, 4, 5, 6, 7, 8], 3) == write(model, [1, 2, 3, 4, 5, 6, 7, 8], 3)


def test_top_k_leaves_exactly_k_candidates_and_they_are_the_likeliest():
    logits = [0.0, 0.3, 0.1, 0.2, 0.4, 0.25]
    for k, expected in ((1, {4}), (2, {1, 4}), (4, {1, 3, 4, 5}), (6, set(range(6))), (99, set(range(6)))):
        assert support(logits, SamplingSettings(1.0, top_k=k)) == expected
    for everything in (None, 0):
        assert support(logits, SamplingSettings(1.0, top_k=everything)) == set(range(6))


def test_top_k_leaves_k_of_equally_likely_tokens():
    assert len(support([1.0] * 6, SamplingSettings(1.0, top_k=3))) == 3


@pytest.mark.parametrize(
    ("top_p", "expected"), [(1e-9, {2}), (0.45, {2}), (0.55, {2, 0}), (0.85, {2, 0, 3}), (1, {0, 1, 2, 3})]
)
def test_top_p_leaves_the_likeliest_that_reach_it(top_p, expected):
    logits = [math.log(share) for share in (0.3, 0.05, 0.5, 0.15)]
    assert support(logits, SamplingSettings(1.0, top_p=top_p)) == expected


def test_top_p_counts_shares_after_temperature_and_top_k():
    logits = [math.log(share) for share in (0.3, 0.05, 0.5, 0.15)]
    # Of two candidates the first has 0.5 / 0.8 = 0.625; at temperature 0.5 it has 0.25 / 0.34 = 0.735.
    assert support(logits, SamplingSettings(1.0, top_k=2, top_p=0.6)) == {2}
    assert support(logits, SamplingSettings(1.0, top_k=2, top_p=0.7)) == {2, 0}
    assert support(logits, SamplingSettings(0.5, top_k=2, top_p=0.7)) == {2}


def test_draws_follow_the_probabilities_at_the_temperature():
    logits, generator = torch.tensor([0.0, 1.0, 2.0]), torch.Generator().manual_seed(0)
    for temperature in (0.5, 1.0, 3.0):
        drawn = torch.tensor([choose_next(logits, SamplingSettings(temperature), generator) for _ in range(3000)])
        shares = torch.bincount(drawn, minlength=3) / 3000
        torch.testing.assert_close(shares, torch.softmax(logits / temperature, 0), rtol=0, atol=0.04)


@pytest.mark.parametrize("temperature", [1e-9, 1e-320])
@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_the_smallest_temperatures_are_greedy(temperature, scale):
    logits = torch.tensor([0.0, 0.3, -0.1, 0.29]) * scale
    assert support(logits.tolist(), SamplingSettings(temperature), draws=50) == {1}


def test_a_huge_temperature_is_close_to_uniform_but_never_draws_the_impossible():
    assert support([0.0, 5.0, -math.inf, 1.0], SamplingSettings(1e300)) == {0, 1, 3}


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"temperature": -0.1}, "--temperature"),
        ({"temperature": math.nan}, "--temperature"),
        ({"temperature": math.inf}, "--temperature"),
        ({"top_k": -3}, "--top-k"),
        ({"top_p": 0.0}, "--top-p"),
        ({"top_p": -1.0}, "--top-p"),
        ({"top_p": 1.5}, "--top-p"),
        ({"top_p": math.nan}, "--top-p"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_option_and_the_value(settings, option):
    with pytest.raises(UserError, match=f"^{option} must be .* got {next(iter(settings.values()))}$"):
        SamplingSettings(**settings)


def test_a_seed_repeats_its_samples_and_samples_differ_by_index_and_seed():
    model, settings = make_model(), SamplingSettings(1.0)
    first = write(model, [1], 20, settings, seed=7, index=0)
    assert write(model, [1], 20, settings, seed=7, index=0) == first
    others = [write(model, [1], 20, settings, seed=seed, index=index) for seed, index in ((7, 1), (8, 0), (0, 7))]
    assert all(other != first for other in others)
    assert others[0] != others[2]


def test_any_seed_gives_a_generator():
    states = [sample_generator(seed).get_state() for seed in (0, 1, 2**32, 2**63 - 1, 2**64, 10**30)]
    assert len({tuple(state.tolist()) for state in states}) == len(states)


def test_the_end_is_never_drawn_where_it_does_not_end_the_text():
    model = make_model()
    with torch.no_grad():
        model.lm_head.weight *= 1e-3  # all about equally likely
    for settings in (SamplingSettings(1.0), SamplingSettings(2.0, top_k=V), GREEDY):
        ids = write(model, [1], 60, settings)
        assert len(ids) == 60
        assert END not in ids


def test_the_end_ends_the_text_where_it_does_and_is_not_given():
    model = make_model()
    settings = SamplingSettings(1.5)
    lengths = set()
    for index in range(10):
        ids = write(model, [1], 40, settings, index=index, stops_at_end=True)
        assert ids == plain_generate(model, [1], 40, settings, sample_generator(0, index), stops_at_end=True)
        assert END not in ids
        lengths.add(len(ids))
    assert min(lengths) < 40
    assert len(lengths) > 3


@pytest.mark.parametrize("damage", [math.nan, math.inf])
@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(1.0), SamplingSettings(1.0, top_k=2)])
def test_weights_that_are_not_numbers_are_reported_and_not_sampled(damage, settings):
    model = make_model()
    with torch.no_grad():
        model.final_norm.weight[0] = damage
    with pytest.raises(CheckpointError, match="not a number"):
        write(model, [1], 1, settings)
    with pytest.raises(CheckpointError, match="not a number"):
        choose_next(torch.tensor([-math.inf, -math.inf]), settings, sample_generator(0))


def test_one_number_among_many_that_is_none_is_enough_to_report_it():
    logits = torch.zeros(V)
    logits[3] = math.nan
    for settings in (GREEDY, SamplingSettings(1.0)):
        with pytest.raises(CheckpointError, match="not a number"):
            choose_next(logits, settings, sample_generator(0))


def test_writing_leaves_the_global_generator_the_mode_and_the_gradients_alone():
    model = make_model()
    state = torch.get_rng_state()
    pieces = generate(
        model,
        [1],
        max_new_tokens=20,
        settings=SamplingSettings(1.0),
        generator=sample_generator(1),
        end_id=END,
        stops_at_end=False,
    )
    for _ in islice(pieces, 10):
        assert not torch.is_inference_mode_enabled()  # the caller may train between two tokens
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_generation_computes_in_the_precision_that_it_is_given() -> None:
    model = make_model("qwen3")
    dtypes = set()
    model.lm_head.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
    settings = {"max_new_tokens": 3, "settings": SamplingSettings(), "end_id": 0, "stops_at_end": False}
    list(generate(model, [1, 2], generator=sample_generator(1), **settings))
    assert dtypes == {torch.float32}
    dtypes.clear()
    autocast = Runtime(torch.device("cpu"), "bf16", compile=False, threads=1, reason="a test").autocast
    written = list(generate(model, [1, 2], generator=sample_generator(1), autocast=autocast, **settings))
    assert dtypes == {torch.bfloat16}
    assert len(written) == 3


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
