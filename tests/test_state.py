"""All that changes while a run trains: into a checkpoint file and back without a bit of difference."""

import copy
import math

import pytest
import torch

from data.dataset import open_split, sample_batch
from engine.checkpoint import load_checkpoint, save_checkpoint
from engine.processes import Processes
from engine.runtime import choose_runtime
from engine.state import LossWatch, Progress, TrainingState
from errors import CheckpointError

SIZES = {"metrics": 10, "samples": 20}
HARD = ("model.dropout=0.3", "train.grad_accum_steps=2", "train.eval_interval=1")


def through_a_file(tiny, state, *overrides):
    """A new state that takes up from a file where `state` is; the generators of torch go another way in between."""
    path = tiny.folder / "step.pt"
    save_checkpoint(path, state.checkpoint(SIZES))
    resumed = tiny.state(*overrides)
    torch.manual_seed(99)
    tiny.train(resumed, 1)  # whatever it did before counts for nothing
    resumed.restore(load_checkpoint(path))
    return resumed


def assert_same_state(ours, theirs):
    for name, weight in ours.model.state_dict().items():
        assert torch.equal(weight, theirs.model.state_dict()[name]), name
    for one, other in zip(ours.optimizers.state_dict(), theirs.optimizers.state_dict(), strict=True):
        assert one["param_groups"] == other["param_groups"]
        for number, state in one["state"].items():
            for name, value in state.items():
                assert torch.equal(value, other["state"][number][name]), name
    assert ours.progress == theirs.progress
    assert ours.losses.state() == theirs.losses.state()
    assert torch.equal(ours.windows.get_state(), theirs.windows.get_state())


@pytest.mark.parametrize("architecture", ["qwen3", "gpt2"])
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_resumed_run_continues_bit_for_bit(tiny, architecture, optimizer):
    overrides = (*HARD, f"model.architecture={architecture}", f"optim.optimizer={optimizer}")
    straight = tiny.state(*overrides)
    losses = tiny.train(straight, 3)
    straight.progress.note_evaluation(2.5, 2.4)
    straight.losses.take_mean()
    losses += tiny.train(straight, 4)
    end = torch.get_rng_state()

    broken = tiny.state(*overrides)
    resumed_losses = tiny.train(broken, 3)
    broken.progress.note_evaluation(2.5, 2.4)
    broken.losses.take_mean()
    for steps in (1, 2, 1):  # resumed several times in a row, also between two looks at the loss
        broken = through_a_file(tiny, broken, *overrides)
        resumed_losses += tiny.train(broken, steps)
    assert torch.equal(torch.stack(losses), torch.stack(resumed_losses))
    assert torch.equal(torch.get_rng_state(), end)
    assert_same_state(straight, broken)
    assert straight.losses.take_mean() == broken.losses.take_mean()
    next_batches = [
        sample_batch(open_split(state.prepared, "train"), state.windows, 4, 8)[0] for state in (straight, broken)
    ]
    assert torch.equal(*next_batches)


def test_a_run_resumed_at_its_start_is_the_run(tiny):
    straight = tiny.train(tiny.state(*HARD), 3)
    resumed = through_a_file(tiny, tiny.state(*HARD), *HARD)
    assert torch.equal(torch.stack(tiny.train(resumed, 3)), torch.stack(straight))


def test_the_seed_decides_weights_batches_and_dropout(tiny):
    first = torch.stack(tiny.train(tiny.state(*HARD), 3))
    torch.manual_seed(5)
    assert torch.equal(torch.stack(tiny.train(tiny.state(*HARD), 3)), first)
    assert not torch.equal(torch.stack(tiny.train(tiny.state(*HARD, "seed=2"), 3)), first)


def test_another_learning_rate_holds_from_the_next_step_on(tiny):
    state = tiny.state(*HARD)
    tiny.train(state, 2)
    resumed = through_a_file(tiny, state, *HARD, "optim.learning_rate=0.5", "optim.warmup_steps=0")
    resumed.optimizers.set_rate(1.0)
    assert resumed.optimizers.learning_rate == 0.5


def test_a_run_from_before_it_needed_scaling_is_resumed_with_it(tiny):
    state = tiny.state(*HARD)
    tiny.train(state, 2)
    resumed = tiny.state(*HARD)
    resumed.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    save_checkpoint(tiny.folder / "a.pt", state.checkpoint(SIZES))
    resumed.restore(load_checkpoint(tiny.folder / "a.pt"))
    tiny.train(resumed, 1)
    save_checkpoint(tiny.folder / "b.pt", resumed.checkpoint(SIZES))
    again = tiny.state(*HARD)
    again.scaler = torch.amp.GradScaler("cpu")
    again.restore(load_checkpoint(tiny.folder / "b.pt"))
    assert again.scaler.state_dict() == resumed.scaler.state_dict()


def test_the_scaler_goes_on_where_it_was(tiny):
    """Its scale and the steps since it last grew decide which of the next gradients overflow."""
    whole = tiny.state(*HARD)
    whole.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
    losses = tiny.train(whole, 7)
    parts = tiny.state(*HARD)  # which seeds the generators anew
    parts.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
    resumed_losses = tiny.train(parts, 4)
    save_checkpoint(tiny.folder / "step.pt", parts.checkpoint(SIZES))
    parts = tiny.state(*HARD)
    parts.scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    parts.restore(load_checkpoint(tiny.folder / "step.pt"))
    resumed_losses += tiny.train(parts, 3)
    assert whole.scaler.get_scale() == 16.0, "it has grown on both sides of the break"
    assert parts.scaler.state_dict() == whole.scaler.state_dict()
    assert torch.equal(torch.stack(losses), torch.stack(resumed_losses))
    assert_same_state(whole, parts)


def test_a_checkpoint_of_several_processes_is_for_as_many(tiny):
    checkpoint = tiny.state().checkpoint(SIZES)
    checkpoint.world_size = 2
    with pytest.raises(CheckpointError, match=r"was trained by 2 processes, and now there are 1"):
        tiny.state().restore(checkpoint)


def test_other_processes_have_the_weights_and_batches_of_the_main_one_but_their_own_dropout(tiny):
    config = tiny.config(*HARD)
    states, dropout = [], []
    for rank in (0, 1):
        places = Processes(rank=rank, local_rank=rank, world_size=2)
        states.append(TrainingState(config, tiny.prepared(config), choose_runtime(config.runtime, 0), places))
        dropout.append(torch.get_rng_state())
    assert_same_state(*states)
    assert not torch.equal(*dropout)


def test_another_text_is_refused_by_the_setting_that_names_it(tiny):
    state = tiny.state()
    other = tiny.folder / "other.txt"
    other.write_text("other text, but long enough to train a tiny model on it\n" * 10, encoding="utf-8")
    save_checkpoint(tiny.folder / "a.pt", state.checkpoint(SIZES))
    resumed = tiny.state(f"data.source={other}")
    with pytest.raises(CheckpointError, match=r"a\.pt: was trained on another text than data\.source=.*other\.txt"):
        resumed.restore(load_checkpoint(tiny.folder / "a.pt"))


def test_a_checkpoint_that_does_not_fit_is_refused_in_one_line(tiny):
    state = tiny.state()
    tiny.train(state, 1)
    good = state.checkpoint(SIZES)
    short = torch.zeros(3, dtype=torch.uint8)
    damages = [
        ("model", {**good.model, "lm_head.weight": torch.zeros(3, 3)}),
        ("optimizers", good.optimizers[:1]),
        ("generators", {"cpu": good.generators["cpu"]}),
        ("generators", {**good.generators, "windows": short}),
        ("generators", {**good.generators, "cpu": short}),
    ]
    for part, value in damages:
        damaged = copy.copy(good)
        setattr(damaged, part, value)
        with pytest.raises(CheckpointError, match=r"^checkpoint of step 1: ") as error:
            tiny.state().restore(damaged)
        assert len(str(error.value).splitlines()) == 1


def test_a_run_is_finished_after_its_last_step_or_when_patience_has_run_out(tiny):
    state = tiny.state("train.max_steps=5", "train.patience=2")
    for step, finished in ((0, False), (4, False), (5, True), (9, True)):
        state.progress.step = step
        assert state.is_finished() == finished
    state.progress.step = 3
    for val_loss, finished in ((2.0, False), (2.1, False), (1.9, False), (1.9, False), (math.nan, True)):
        state.progress.note_evaluation(val_loss, 1.0)
        assert state.is_finished() == finished
    endless = tiny.state("train.max_steps=5")
    endless.progress.evaluations_since_best = 100
    assert not endless.is_finished()


def test_a_run_that_has_used_its_time_up_is_finished_until_it_gets_more(tiny):
    for max_steps in ("null", "5"):
        state = tiny.state(f"train.max_steps={max_steps}", "train.max_minutes=2")
        assert not state.is_finished()
        state.progress.minutes_used_up = 2.0
        assert state.is_finished()
        assert not state.is_out_of_steps()
        longer = through_a_file(tiny, state, "train.max_steps=null", "train.max_minutes=2.5")
        assert longer.progress.minutes_used_up == 2.0
        assert not longer.is_finished()
    longer = through_a_file(tiny, state, "train.max_minutes=null")
    assert not longer.is_finished()


def test_the_best_evaluation_is_the_lowest_and_never_one_that_is_no_number():
    progress = Progress()
    for step, val_loss, best_step in (
        (1, math.nan, None),
        (2, math.inf, None),
        (3, 3.0, 3),
        (4, 3.0, 3),
        (5, math.nan, 3),
        (6, 2.5, 6),
        (7, 2.6, 6),
    ):
        progress.step = step
        progress.note_evaluation(val_loss, train_loss=float(step))
        assert progress.best_step == best_step
    assert (progress.best_val_loss, progress.train_loss_at_best, progress.evaluations_since_best) == (2.5, 6.0, 1)


def test_overfitting_is_rising_val_loss_with_falling_train_loss_and_is_said_once():
    progress = Progress()
    progress.note_evaluation(2.0, train_loss=1.9)
    for val_loss, train_loss, overfits in ((2.1, 1.8, False), (2.2, 1.7, False), (2.3, 1.9, False), (2.4, 1.5, True)):
        progress.note_evaluation(val_loss, train_loss)
        assert progress.is_overfitting(train_loss) == overfits
    progress.overfitting_said = True
    assert not progress.is_overfitting(1.4)


def test_a_better_evaluation_ends_the_suspicion():
    progress = Progress()
    for val_loss in (2.0, 2.1, 2.2, 2.3, 1.9):
        progress.note_evaluation(val_loss, 1.5)
    assert not progress.is_overfitting(1.0)


def watch(*steps):
    losses = LossWatch(torch.device("cpu"))
    for number, (loss, norm) in enumerate(steps, start=1):
        losses.add(number, torch.tensor(loss), None if norm is None else torch.tensor(norm))
    return losses


@pytest.mark.parametrize(
    ("steps", "bad"),
    [
        ([], None),
        ([(1.0, 1.0), (2.0, 0.0)], None),
        ([(1.0, 1.0), (math.nan, 1.0), (1.0, 1.0)], 2),
        ([(1.0, 1.0), (1.0, math.inf), (math.nan, 1.0)], 2),
        ([(-math.inf, 1.0), (math.nan, math.nan)], 1),
        ([(1.0, None), (1.0, None)], None),
        ([(1.0, None), (math.inf, None)], 2),
    ],
)
def test_the_first_step_that_is_not_finite_is_remembered(steps, bad):
    assert watch(*steps).bad_step() == bad


def test_the_mean_is_that_since_it_was_last_asked_for():
    losses = watch((1.0, 1.0), (2.0, 1.0), (6.0, 1.0))
    assert losses.take_mean() == 3.0
    assert losses.take_mean() == 0.0
    losses.add(4, torch.tensor(5.0), None)
    saved = losses.state()
    again = LossWatch(torch.device("cpu"))
    again.restore(saved)
    for one in (losses, again):
        one.add(5, torch.tensor(0.1), None)
    assert losses.take_mean() == again.take_mean() == pytest.approx(2.55)


def test_the_tokens_of_a_step_are_those_of_all_processes(tiny):
    state = tiny.state("train.batch_size=3", "train.grad_accum_steps=5")
    assert state.tokens_per_step == 3 * 5 * state.config.model.context_length
    state.processes = Processes(rank=0, world_size=2)
    assert state.tokens_per_step == 2 * 3 * 5 * state.config.model.context_length
