"""Which weights are updated how, and how fast."""

import copy
import math
from itertools import pairwise

import pytest
import torch

from config.schema import ModelConfig, OptimConfig
from engine.optim import DECAY_SHARE, Optimizers, rate_factor, split_parameters
from errors import CheckpointError
from model import GPT

CPU = torch.device("cpu")
VOCAB_SIZE = 11


def make_model(architecture="qwen3", **changes):
    torch.manual_seed(1)
    shape = {"context_length": 8, "d_model": 16, "num_heads": 2, "num_layers": 2}
    return GPT(ModelConfig(architecture=architecture, **shape, **changes), VOCAB_SIZE)


def make_optimizers(model, **settings):
    return Optimizers(model, OptimConfig(**settings), CPU)


def groups_of(model, optimizers):
    """For each parameter's name: the optimizer's class and the group that it is in."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [
        (names[id(parameter)], type(member).__name__, group)
        for member in optimizers.members
        for group in member.param_groups
        for parameter in group["params"]
    ]
    return {name: (kind, group) for name, kind, group in found}, len(found)


def disabled_scaler():
    return torch.amp.GradScaler("cpu", enabled=False)


def step(model, optimizers, seed, scaler=None):
    """One update from the gradients that the seed gives."""
    scaler = scaler or disabled_scaler()
    generator = torch.Generator().manual_seed(seed)
    idx = torch.randint(VOCAB_SIZE, (2, 8), generator=generator)
    torch.autograd.backward(scaler.scale(model(idx).square().mean()))
    optimizers.unscale(scaler)
    optimizers.step(scaler)


def weights_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


EVERY_MODEL = pytest.mark.parametrize(
    "model",
    [make_model("qwen3"), make_model("gpt2"), make_model("qwen3", tie_embeddings=False)],
    ids=["qwen3", "gpt2", "untied"],
)
EVERY_OPTIMIZER = pytest.mark.parametrize("optimizer", ["muon", "adamw"])


@EVERY_OPTIMIZER
@EVERY_MODEL
def test_every_parameter_is_in_exactly_one_group(model, optimizer):
    groups, count = groups_of(model, make_optimizers(model, optimizer=optimizer))
    assert groups.keys() == dict(model.named_parameters()).keys()
    assert count == len(groups)


@EVERY_OPTIMIZER
@EVERY_MODEL
def test_matrices_decay_and_norms_and_biases_do_not(model, optimizer):
    groups, _ = groups_of(model, make_optimizers(model, optimizer=optimizer, weight_decay=0.25))
    for name, parameter in model.named_parameters():
        is_vector = "norm" in name or name.endswith("bias")
        assert is_vector == (parameter.dim() == 1)
        assert groups[name][1]["weight_decay"] == (0.0 if is_vector else 0.25), name


@EVERY_MODEL
def test_muon_takes_the_matrices_of_the_blocks_and_nothing_else(model):
    groups, _ = groups_of(model, make_optimizers(model, optimizer="muon"))
    for name, parameter in model.named_parameters():
        is_matrix = name.startswith("blocks.") and parameter.dim() == 2
        assert groups[name][0] == ("Muon" if is_matrix else "AdamW"), name


def test_adamw_alone_takes_everything_with_the_configured_betas():
    model = make_model()
    groups, _ = groups_of(model, make_optimizers(model, optimizer="adamw", beta1=0.8, beta2=0.95, learning_rate=0.5))
    assert {kind for kind, _ in groups.values()} == {"AdamW"}
    assert {(group["betas"], group["lr"]) for _, group in groups.values()} == {((0.8, 0.95), 0.5)}


EVERY_SCHEDULE = pytest.mark.parametrize("schedule", ["cosine", "trapezoid"])


@EVERY_SCHEDULE
@pytest.mark.parametrize(("warmup_steps", "max_steps"), [(0, 1), (0, 10), (1, 10), (9, 10), (10, 10), (500, 10)])
def test_the_rate_is_never_zero_in_a_run_and_rises_then_falls(schedule, warmup_steps, max_steps):
    config = OptimConfig(schedule=schedule, warmup_steps=warmup_steps)
    factors = [rate_factor(step, step / max_steps, config) for step in range(max_steps)]
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[0] == 1 / (warmup_steps + 1)
    peak = factors.index(max(factors))
    assert peak <= warmup_steps
    assert all(before < after for before, after in pairwise(factors[: peak + 1]))
    assert all(before >= after for before, after in pairwise(factors[peak:]))


@EVERY_SCHEDULE
def test_the_schedule_is_a_continuous_function_of_progress_that_only_falls(schedule):
    config = OptimConfig(schedule=schedule, warmup_steps=0)
    factors = [rate_factor(7, number / 10_000, config) for number in range(10_001)]
    assert (factors[0], factors[-1]) == (1.0, 0.0)
    drops = [before - after for before, after in pairwise(factors)]
    assert min(drops) >= 0
    assert max(drops) < 1.1e-4 * max(math.pi / 2, 1 / DECAY_SHARE)


@EVERY_SCHEDULE
def test_progress_by_time_moves_the_schedule_as_that_by_steps_does_and_warm_up_stays_one_of_steps(schedule):
    config = OptimConfig(schedule=schedule, warmup_steps=50)
    assert rate_factor(2, 0.0, config) == rate_factor(2, 0.3, config) == 3 / 51, "time alone does not end the warm-up"
    assert rate_factor(30, 0.99, config) < 0.05, "a run too short for its warm-up comes to rest all the same"
    assert rate_factor(700, 0.9, config) == rate_factor(70_000, 0.9, config)


@EVERY_SCHEDULE
def test_the_last_of_a_billion_steps_still_moves_something(schedule):
    assert rate_factor(10**9 - 1, (10**9 - 1) / 10**9, OptimConfig(schedule=schedule)) > 0


@EVERY_SCHEDULE
def test_the_rate_ends_at_its_minimum_and_stays_there(schedule):
    config = OptimConfig(schedule=schedule, warmup_steps=5, learning_rate=1e-2, min_learning_rate=1e-3)
    assert rate_factor(100, 1.0, config) == pytest.approx(0.1)
    assert rate_factor(1000, 10.0, config) == pytest.approx(0.1)


def test_cosine_is_half_way_down_in_the_middle_and_trapezoid_falls_over_the_last_part():
    cosine = OptimConfig(schedule="cosine", warmup_steps=0)
    assert [rate_factor(0, progress, cosine) for progress in (0, 0.25, 0.5, 0.75)] == pytest.approx(
        [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
    )
    trapezoid = OptimConfig(schedule="trapezoid", warmup_steps=0)
    shares = [0, 1 - DECAY_SHARE, 1 - DECAY_SHARE / 2, 1 - DECAY_SHARE / 4]
    assert [rate_factor(0, progress, trapezoid) for progress in shares] == pytest.approx([1, 1, 0.5, 0.25])


def test_set_rate_scales_the_rates_of_both_optimizers_by_the_same_share():
    optimizers = make_optimizers(make_model(), optimizer="muon", learning_rate=1e-2, muon_learning_rate=0.5)
    for factor in (0.5, 0.1, 1.0):  # each time from the full rates, not from the last ones
        optimizers.set_rate(factor)
        rates = [{group["lr"] for group in member.param_groups} for member in optimizers.members]
        assert rates == [{0.5 * factor}, {1e-2 * factor}]
        assert optimizers.learning_rate == 1e-2 * factor


@EVERY_OPTIMIZER
def test_a_saved_state_continues_bit_for_bit(optimizer):
    model = make_model()
    optimizers = make_optimizers(model, optimizer=optimizer)
    for seed in range(3):
        step(model, optimizers, seed)
    twin = copy.deepcopy(model)
    continued = make_optimizers(twin, optimizer=optimizer)
    continued.load_state_dict(copy.deepcopy(optimizers.state_dict()))
    for seed in range(3, 6):
        step(model, optimizers, seed)
        step(twin, continued, seed)
    assert_equal(weights_of(model), weights_of(twin))
    fresh = copy.deepcopy(model)  # without the momenta it would have gone elsewhere
    step(model, optimizers, 6)
    step(fresh, make_optimizers(fresh, optimizer=optimizer), 6)
    assert not torch.equal(model.token_embedding.weight, fresh.token_embedding.weight)


@EVERY_OPTIMIZER
def test_a_loaded_state_keeps_the_rates_decay_and_betas_that_are_configured_now(optimizer):
    model = make_model()
    old = make_optimizers(model, optimizer=optimizer)
    step(model, old, 0)
    new = make_optimizers(
        model,
        optimizer=optimizer,
        learning_rate=0.25,
        muon_learning_rate=0.125,
        min_learning_rate=0.0,
        weight_decay=0.75,
        beta1=0.5,
        beta2=0.6,
    )
    new.load_state_dict(old.state_dict())
    for member in new.members:
        is_adamw = isinstance(member, torch.optim.AdamW)
        for group in member.param_groups:
            assert group["lr"] == (0.25 if is_adamw else 0.125)
            assert group["weight_decay"] in (0.75, 0.0)
            assert not is_adamw or group["betas"] == (0.5, 0.6)
    new.set_rate(0.5)
    assert new.learning_rate == 0.125
    for ours, theirs in zip(new.state_dict(), old.state_dict(), strict=True):
        assert ours["state"].keys() == theirs["state"].keys()
        for number, state in ours["state"].items():
            assert_equal(state, theirs["state"][number])


def damaged_states():
    model = make_model()
    optimizers = make_optimizers(model)
    step(model, optimizers, 0)

    def damage(change):
        states = copy.deepcopy(optimizers.state_dict())
        return change(states) or states

    def drop_buffer(states):
        del states[0]["state"][0]["momentum_buffer"]
        states[0]["state"][0]["other"] = torch.zeros(1)

    def other_shape(states):
        states[1]["state"][0]["exp_avg"] = torch.zeros(3)

    def no_tensor(states):
        states[1]["state"][0]["exp_avg"] = "three"

    def other_params(states):
        states[1]["param_groups"][0]["params"].append(99)

    def no_groups(states):
        states[0]["param_groups"] = 5

    return {
        "one optimizer only": optimizers.state_dict()[:1],
        "none": [],
        "of other parts": damage(drop_buffer),
        "of another shape": damage(other_shape),
        "text in it": damage(no_tensor),
        "of more parameters": damage(other_params),
        "without groups": damage(no_groups),
        "empty": [{}, {}],
    }


@pytest.mark.parametrize("kind", damaged_states())
def test_a_state_that_does_not_fit_is_refused(kind):
    with pytest.raises(CheckpointError, match="does not fit this model") as error:
        make_optimizers(make_model()).load_state_dict(damaged_states()[kind])
    assert "\n" not in str(error.value)


@EVERY_OPTIMIZER
def test_scaling_the_loss_changes_nothing_but_rounding(optimizer):
    plain, scaled = make_model(), make_model()
    ours, theirs = make_optimizers(plain, optimizer=optimizer), make_optimizers(scaled, optimizer=optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for seed in range(3):
        step(plain, ours, seed)
        step(scaled, theirs, seed, scaler)
    assert_equal(weights_of(plain), weights_of(scaled))  # a power of two: not even rounding


@pytest.mark.parametrize("overflowed", ["blocks.0.attention.qkv.weight", "token_embedding.weight"])
def test_an_overflow_in_one_gradient_stops_every_optimizer_for_this_step(overflowed):
    model = make_model()
    optimizers, scaler = make_optimizers(model, optimizer="muon"), torch.amp.GradScaler("cpu", init_scale=1024.0)
    step(model, optimizers, 0, scaler)
    before = weights_of(model)
    torch.autograd.backward(scaler.scale(model(torch.zeros(1, 8, dtype=torch.int64)).square().mean()))
    model.get_parameter(overflowed).grad[0, 0] = math.inf
    optimizers.unscale(scaler)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizers.step(scaler)
    assert_equal(weights_of(model), before)
    assert scaler.get_scale() == 512.0
    assert all(parameter.grad is None for parameter in model.parameters())
    step(model, optimizers, 1, scaler)
    assert not torch.equal(model.lm_head.weight, before["lm_head.weight"])


def test_a_step_leaves_no_gradients():
    model = make_model()
    step(model, make_optimizers(model), 0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_tied_head_is_split_off_once_as_an_embedding():
    model = make_model(tie_embeddings=True)
    _, embeddings, _ = split_parameters(model)
    assert [id(parameter) for parameter in embeddings] == [id(model.lm_head.weight)]


def test_the_rates_in_use_are_those_that_have_an_effect():
    model = GPT(ModelConfig(context_length=8, d_model=16, num_heads=2, num_layers=2), 11)
    names = {}
    for optimizer in ("muon", "adamw"):
        config = OptimConfig(optimizer=optimizer, min_learning_rate=1e-4)
        names[optimizer] = Optimizers(model, config, torch.device("cpu")).rates_in_use()
    assert names["muon"] == {
        "optim.learning_rate": 1e-3,
        "optim.muon_learning_rate": OptimConfig().muon_learning_rate,
        "optim.min_learning_rate": 1e-4,
    }
    assert names["adamw"] == {"optim.learning_rate": 1e-3, "optim.min_learning_rate": 1e-4}
