"""Which token is chosen: the settings in their order against a plain reference, and what is never chosen."""

import math

import numpy as np
import pytest
import torch

from engine.choice import SamplingSettings, choose, sample_generator
from errors import CheckpointError, UserError

GREEDY = SamplingSettings(temperature=0)
LAST = float(np.nextafter(1, 0))  # the largest number that a generator draws
SHARES = (0.3, 0.05, 0.5, 0.15)
ORDER = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")


def even_draws(n):
    """Draws that are spread evenly from 0 to 1, with both ends."""
    return [0.0, *((i + 0.5) / n for i in range(n)), LAST]


def chosen(logits, settings, draws, *, never=(), window=()):
    """The id of every draw."""
    scores = np.tile(np.array(logits, dtype=np.float64), (len(draws), 1))
    return choose(scores, settings, draws, never=never, windows=[window] * len(draws))[0].tolist()


def support(logits, settings, **others):
    """All ids that are drawn, in many draws."""
    return set(chosen(logits, settings, even_draws(400), **others))


def shares(logits, settings, **others):
    """How often each token is drawn, to a thousandth."""
    ids = torch.tensor(chosen(logits, settings, even_draws(2000), **others))
    return torch.bincount(ids, minlength=len(logits)) / len(ids)


def logs(*probabilities):
    return [math.log(share) for share in probabilities]


def plain_step(name, scores, settings, window):
    """One step, as slowly and plainly as it can be said: scores (V) → (V), -inf for what is left out."""
    scores, value = scores.clone(), getattr(settings, name)
    probabilities = scores.softmax(0)
    ranked = scores.argsort(descending=True, stable=True).tolist()
    if name == "repetition_penalty":
        for token in set(window):
            scores[token] = scores[token] / value if scores[token] > 0 else scores[token] * value
    elif name == "temperature":
        scores = scores / value
    elif name == "top_k":
        scores[ranked[value or len(ranked) :]] = -math.inf
    elif name == "top_p":
        reached = 0.0
        for token in ranked:
            if reached >= value:
                scores[token] = -math.inf
            reached += float(probabilities[token])
    else:
        scores[probabilities < value * probabilities.max()] = -math.inf
    return scores


def plain_shares(logits, settings, window=(), order=ORDER):
    scores = torch.tensor(logits, dtype=torch.float64)
    for name in order:
        scores = plain_step(name, scores, settings, window)
    return scores.softmax(0).float()


@pytest.mark.parametrize("seed", range(10))
def test_all_settings_together_are_the_steps_one_after_the_other(seed):
    generator = np.random.default_rng(seed)
    logits = (3 * generator.normal(size=12)).tolist()
    window = generator.integers(12, size=8).tolist()
    settings = SamplingSettings(1.7, top_k=8, top_p=0.93, min_p=0.04, repetition_penalty=1.3)
    expected = plain_shares(logits, settings, window)
    torch.testing.assert_close(shares(logits, settings, window=window), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        ("repetition_penalty", "top_k", {"repetition_penalty": 2.0, "top_k": 1}),
        ("repetition_penalty", "top_p", {"repetition_penalty": 2.0, "top_p": 0.45}),
        ("repetition_penalty", "min_p", {"repetition_penalty": 2.0, "min_p": 0.7}),
        ("temperature", "top_p", {"temperature": 0.5, "top_p": 0.6}),
        ("temperature", "min_p", {"temperature": 0.5, "min_p": 0.4}),
        ("top_k", "top_p", {"top_k": 2, "top_p": 0.6}),
        ("top_p", "min_p", {"top_p": 0.6, "min_p": 0.4}),
    ],
)
def test_of_two_steps_whose_order_matters_the_first_comes_first(first, second, values):
    # The other pairs give the same either way: dividing by a temperature moves no token past another one, or over 0.
    settings = SamplingSettings(**{"temperature": 1.0, **values})
    logits, window = logs(*SHARES), [2]
    got = shares(logits, settings, window=window)
    torch.testing.assert_close(got, plain_shares(logits, settings, window), rtol=0, atol=2e-3)
    the_other_way = plain_shares(logits, settings, window, order=(second, first))
    assert (got - the_other_way).abs().max() > 0.05


def test_top_k_leaves_exactly_k_candidates_and_they_are_the_likeliest():
    logits = [0.0, 0.3, 0.1, 0.2, 0.4, 0.25]
    for k, expected in ((1, {4}), (2, {1, 4}), (4, {1, 3, 4, 5}), (6, set(range(6))), (99, set(range(6)))):
        assert support(logits, SamplingSettings(1.0, top_k=k)) == expected
    for everything in (None, 0):
        assert support(logits, SamplingSettings(1.0, top_k=everything)) == set(range(6))


@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_k_leaves_k_of_equally_likely_tokens(k):
    assert len(support([1.0] * 6, SamplingSettings(1.0, top_k=k))) == k
    ids = support([1.0, 2.0, 1.0, 1.0, 2.0, 1.0], SamplingSettings(1.0, top_k=k))
    assert len(ids) == k
    assert k < 2 or {1, 4} <= ids


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(1e-9, {2}), (5e-324, {2}), (0.45, {2}), (0.55, {2, 0}), (0.85, {2, 0, 3}), (LAST, {0, 1, 2, 3})],
)
def test_top_p_leaves_the_likeliest_that_reach_it(top_p, expected):
    assert support(logs(*SHARES), SamplingSettings(1.0, top_p=top_p)) == expected


def test_top_p_is_reached_by_a_share_of_just_that_size():
    equal = [0.0] * 4
    for top_p, candidates in ((0.25, 1), (0.2500001, 2), (0.5, 2), (0.75, 3), (0.7500001, 4), (1.0, 4)):
        assert len(support(equal, SamplingSettings(1.0, top_p=top_p))) == candidates


@pytest.mark.parametrize(
    ("min_p", "expected"),
    [
        (0.0, {0, 1, 2, 3}),
        (0.1 - 1e-9, {0, 1, 2, 3}),
        (0.1 + 1e-9, {0, 2, 3}),
        (0.3 + 1e-9, {0, 2}),
        (0.6 - 1e-9, {0, 2}),
        (0.6 + 1e-9, {2}),
        (1.0, {2}),
    ],
)
def test_min_p_leaves_what_has_that_share_of_the_likeliest(min_p, expected):
    assert support(logs(*SHARES), SamplingSettings(1.0, min_p=min_p)) == expected


def test_at_a_min_p_of_1_equally_likely_tokens_stay():
    assert support([1.0, 3.0, 3.0, 2.999, 3.0], SamplingSettings(1.0, min_p=1.0)) == {1, 2, 4}


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 4.0])
def test_the_penalty_divides_what_is_above_0_and_multiplies_what_is_below(penalty):
    logits, window = [2.0, -1.0, 0.0, 1.5, -2.0, 0.7], [0, 1, 1, 1, 2, 5, 5]
    factors = [1 / penalty, penalty, 1.0, 1.0, 1.0, 1 / penalty]
    expected = torch.tensor([score * factor for score, factor in zip(logits, factors, strict=True)]).softmax(0)
    got = shares(logits, SamplingSettings(1.0, repetition_penalty=penalty), window=window)
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-3)


def test_the_penalty_is_for_the_greedy_choice_too():
    logits = [2.0, 1.5, 1.0, -3.0]
    settings = SamplingSettings(0, repetition_penalty=1.5)
    assert chosen(logits, settings, [0.5], window=[3, 3]) == [0]
    assert chosen(logits, settings, [0.5], window=[0, 0]) == [1]
    assert chosen(logits, settings, [0.5], window=[0, 1]) == [0]


def test_a_penalty_leaves_the_scores_that_it_is_given_as_they_were():
    scores = np.array([[2.0, 1.0, -1.0]])
    choose(scores, SamplingSettings(1.0, repetition_penalty=2.0), [0.5], never=[1], windows=[[0]])
    assert scores.tolist() == [[2.0, 1.0, -1.0]]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_follow_the_probabilities_at_the_temperature(temperature):
    logits, generator = [0.0, 1.0, 2.0], sample_generator(0)
    expected = (torch.tensor(logits) / temperature).softmax(0)
    torch.testing.assert_close(shares(logits, SamplingSettings(temperature)), expected, rtol=0, atol=2e-3)
    drawn = torch.tensor(chosen(logits, SamplingSettings(temperature), generator.random(3000).tolist()))
    torch.testing.assert_close(torch.bincount(drawn, minlength=3) / 3000, expected, rtol=0, atol=0.04)


@pytest.mark.parametrize("temperature", [1e-9, 1e-320])
@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_the_smallest_temperatures_are_greedy(temperature, scale):
    logits = [score * scale for score in (0.0, 0.3, -0.1, 0.29)]
    assert support(logits, SamplingSettings(temperature)) == {1}
    assert support([-math.inf, *logits], SamplingSettings(temperature, top_k=3, top_p=0.9, min_p=0.1)) == {2}


@pytest.mark.parametrize("temperature", [1e6, 1e300])
def test_a_huge_temperature_is_close_to_uniform_but_never_draws_the_impossible(temperature):
    got = shares([0.0, 5.0, -math.inf, 1.0], SamplingSettings(temperature))
    torch.testing.assert_close(got, torch.tensor([1 / 3, 1 / 3, 0, 1 / 3]), rtol=0, atol=2e-3)


@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(1.0), SamplingSettings(1e300), SamplingSettings(1.0, 4)])
@pytest.mark.parametrize("excluded", [(0,), (5,), (0, 1, 4, 5), (1, 3), (2, 3, 4, 5)])
def test_what_is_excluded_is_not_chosen_by_any_draw(settings, excluded):
    logits = [50.0 if token in excluded else 0.0 for token in range(6)]
    assert not support(logits, settings, never=excluded) & set(excluded)
    logits = [-math.inf if token in excluded else 0.0 for token in range(6)]
    assert not support(logits, settings) & set(excluded)


@pytest.mark.parametrize("only", [0, 2, 5])
@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(0.7), SamplingSettings(1.0, top_p=0.1, min_p=1.0)])
def test_the_only_candidate_is_chosen_by_every_draw(only, settings):
    others = [token for token in range(6) if token != only]
    assert support([0.3] * 6, settings, never=others) == {only}
    assert support([0.3 if token == only else -math.inf for token in range(6)], settings) == {only}


def test_the_first_draw_gives_the_first_candidate_and_the_last_draw_the_last():
    assert chosen([0.1] * 7, SamplingSettings(1.0), [0.0, LAST], never=[0, 1, 6]) == [2, 5]
    for size in range(1, 200):
        last = [0, size - 1, size - 1]
        assert chosen([0.1] * size + [-math.inf], SamplingSettings(0.9), [0.0, LAST, 1.0]) == last


@pytest.mark.parametrize(
    "settings", [GREEDY, SamplingSettings(1.0), SamplingSettings(0.5, 3, 0.9, min_p=0.1, repetition_penalty=2.0)]
)
def test_the_log_probability_is_that_of_the_model_whatever_the_settings_change(settings):
    scores = 3 * np.random.default_rng(0).normal(size=(20, 9))
    ids, got = choose(scores, settings, even_draws(18), never=[0, int(scores[0].argmax())], windows=[[1, 2, 3]] * 20)
    expected = torch.tensor(scores).log_softmax(1)[range(20), ids.tolist()]
    torch.testing.assert_close(torch.tensor(got), expected, rtol=0, atol=1e-12)


def test_scores_far_from_0_have_log_probabilities_too():
    for offset in (-1e5, 1e5):
        _, got = choose(np.array([[offset, offset + 1.0, -math.inf]]), GREEDY, [0.5])
        torch.testing.assert_close(torch.tensor(got), torch.tensor([0.0, 1.0]).double().log_softmax(0)[1:])


@pytest.mark.parametrize("damage", [math.nan, math.inf])
@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(1.0), SamplingSettings(1.0, top_k=2)])
def test_one_number_among_many_that_is_none_is_enough_to_report_it(damage, settings):
    scores = np.zeros((3, 11))
    scores[1, 3] = damage
    for never in ((), (3,)):
        with pytest.raises(CheckpointError, match="not a number"):
            choose(scores, settings, [0.5] * 3, never=never)


@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(1.0), SamplingSettings(1.0, top_k=2)])
def test_it_is_reported_when_no_candidate_is_left(settings):
    with pytest.raises(CheckpointError):
        choose(np.full((1, 4), -math.inf), settings, [0.5])
    with pytest.raises(CheckpointError):
        choose(np.zeros((2, 4)), settings, [0.5] * 2, never=range(4))


@pytest.mark.parametrize(
    "settings",
    [GREEDY, SamplingSettings(1.2), SamplingSettings(1.5, 9, 0.9, min_p=0.02, repetition_penalty=1.7)],
)
def test_every_row_is_chosen_as_if_it_were_alone(settings):
    generator = np.random.default_rng(1)
    scores, draws = 3 * generator.normal(size=(9, 13)), generator.random(9).tolist()
    windows = [generator.integers(13, size=row + 1).tolist() for row in range(9)]
    ids, log_probabilities = choose(scores, settings, draws, never=[4], windows=windows)
    alone = [
        choose(scores[row : row + 1], settings, draws[row : row + 1], never=[4], windows=windows[row : row + 1])
        for row in range(9)
    ]
    assert ids.tolist() == [int(one) for (one,), _ in alone]
    torch.testing.assert_close(log_probabilities.tolist(), [float(one) for _, (one,) in alone], rtol=0, atol=1e-12)
    assert len(set(ids.tolist())) > 3


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("temperature", (-0.1, math.nan, math.inf)),
        ("top_k", (-3, -1)),
        ("top_p", (0.0, -1.0, 1.5, math.nan)),
        ("min_p", (-0.1, 1.1, math.nan)),
        ("repetition_penalty", (0, -1, math.nan, math.inf)),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_option_and_the_value(option, values):
    for value in values:
        with pytest.raises(UserError, match=f"^--{option.replace('_', '-')} must be .* got {value}$"):
            SamplingSettings(**{option: value})


def test_settings_at_their_limits_are_taken():
    for settings in ({"top_p": 1}, {"min_p": 1}, {"min_p": 0}, {"top_k": 0}, {"temperature": 0}):
        SamplingSettings(**settings)


def test_a_seed_repeats_its_samples_and_samples_differ_by_index_and_seed():
    first = sample_generator(7, 0).random(5).tolist()
    assert sample_generator(7).random(5).tolist() == first
    others = [sample_generator(seed, index).random(5).tolist() for seed, index in ((7, 1), (8, 0), (0, 7), (1, 7))]
    assert len({tuple(draws) for draws in (first, *others)}) == 5


def test_any_seed_gives_a_generator():
    draws = [sample_generator(seed).random(3).tolist() for seed in (0, 1, 2**32, 2**63 - 1, 2**64, 10**30)]
    assert len({tuple(one) for one in draws}) == len(draws)
