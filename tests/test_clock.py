"""The time of a run, by a clock that the tests set."""

import math
import random

import pytest

from config.schema import TrainConfig
from engine.clock import OUTSIDE_SECONDS, PACE_MEMORY, REHEARSALS, Clock, Outlook
from engine.processes import ALONE

BY_TIME = TrainConfig(max_steps=None, max_minutes=1)
PREPARATION = 4.0  # seconds before the first step


class Time:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


def begun(time: Time, limits: TrainConfig = BY_TIME, *, seconds: float = 0.0, step: int = 0) -> Clock:
    """The clock of a run, before the first step of this process; `seconds` and steps were made by earlier ones."""
    clock = Clock(limits, started=time.now - seconds, read=time)
    time.spend(PREPARATION)
    clock.start_training(step, clock.seconds if step == 0 else PREPARATION)
    return clock


def work(clock: Clock, time: Time, kind: str, seconds: float) -> None:
    with clock.measure(kind):
        time.spend(seconds)


def test_without_a_limit_of_time_only_steps_count() -> None:
    time = Time()
    clock = begun(time, TrainConfig(max_steps=8))
    time.spend(1e9)
    assert clock.seconds_left == math.inf
    assert [clock.outlook(step) for step in (0, 2, 7)] == [Outlook(progress=share) for share in (0, 0.25, 0.875)]
    assert clock.outlook(8) == Outlook(progress=1.0, is_last=True)
    assert clock.outlook(2, stops=True) == Outlook(stops=True, progress=0.25)
    assert not any(clock.is_due(step) for step in range(10))


def test_progress_is_the_larger_of_steps_and_time() -> None:
    time = Time()
    clock = begun(time, TrainConfig(max_steps=100, max_minutes=1))
    assert clock.outlook(0).progress == 0.0
    training = 60 - OUTSIDE_SECONDS - PREPARATION
    time.spend(training / 2)
    assert clock.outlook(10).progress == pytest.approx(0.5)
    assert clock.outlook(70).progress == 0.7
    time.spend(training)
    assert clock.outlook(70).progress == 1.0
    assert clock.outlook(100).is_last


def test_preparation_is_no_part_of_the_schedule_and_earlier_processes_are() -> None:
    time = Time()
    clock = begun(time, seconds=25.0, step=70)
    assert clock.seconds == 25 + PREPARATION
    assert clock.seconds_left == 60 - 25 - PREPARATION
    assert clock.outlook(70).progress == pytest.approx(25 / (60 - OUTSIDE_SECONDS - PREPARATION))


def run(time: Time, clock: Clock, *, pace: random.Random | None = None, step_seconds: float, ends: float) -> int:
    """Train as train.py does on a CPU, with an evaluation every 50 steps; the number of steps. `ends`: of the end."""
    progress, step = 0.0, 0
    while True:
        time.spend(step_seconds * (pace.uniform(0.7, 1.3) if pace is not None else 1))
        step += 1
        clock.arrive(step)
        outlook = clock.outlook(step)
        assert progress <= outlook.progress <= 1
        progress = outlook.progress
        if outlook.is_last or (step % 50 == 0 and outlook.has_room):
            work(clock, time, "evaluation", ends * 0.7)
            work(clock, time, "sample", ends * 0.2)
            work(clock, time, "save", ends * 0.1)
        if outlook.is_last:
            return step


@pytest.mark.parametrize("step_seconds", [0.001, 0.05, 0.9])
@pytest.mark.parametrize("minutes", [0.2, 1, 10])
@pytest.mark.parametrize("ends", [0.1, 1.0, 3.0])
def test_a_run_ends_on_time_whatever_its_steps_and_its_end_take(
    minutes: float, step_seconds: float, ends: float
) -> None:
    time = Time()
    clock = begun(time, TrainConfig(max_steps=None, max_minutes=minutes))
    clock.rehearse("evaluation", lambda: time.spend(ends * 0.07), share=0.1)
    clock.rehearse("sample", lambda: time.spend(ends * 0.02), share=0.1)
    clock.rehearse("save", lambda: time.spend(ends * 0.01), share=0.1)
    run(time, clock, pace=random.Random(1), step_seconds=step_seconds, ends=ends)
    total = clock.seconds + OUTSIDE_SECONDS
    assert 60 * minutes - 2 * step_seconds - 1e-6 <= total <= 60 * minutes + 0.6 * step_seconds + 1e-6


def test_a_step_that_does_not_fit_is_not_begun() -> None:
    time = Time()
    clock = begun(time)
    assert run(time, clock, step_seconds=30.0, ends=0.0) == 1
    assert clock.seconds == PREPARATION + 30


def test_time_that_is_used_up_before_the_first_step_is_seen_at_once_and_the_rate_is_not_zero() -> None:
    time = Time()
    clock = begun(time, TrainConfig(max_steps=None, max_minutes=0.01))
    time.spend(0.1)
    assert clock.outlook(0) == Outlook(progress=0.0, is_last=True, has_room=False, has_room_to_save=False)
    time.spend(0.1)
    clock.arrive(1)
    assert clock.outlook(1) == Outlook(progress=1.0, is_last=True, has_room=False, has_room_to_save=False)
    assert clock.seconds_left == 0.0


def test_there_is_no_room_for_an_evaluation_right_before_the_last_one() -> None:
    time = Time()
    clock = begun(time)
    work(clock, time, "evaluation", 5.0)
    room = {}
    for step in range(1, 47):
        time.spend(1.0)
        clock.arrive(step)
        room[60 - OUTSIDE_SECONDS - 5.0 - clock.seconds] = clock.outlook(step).has_room
    assert [left > 11 for left in room] == [*room.values()], "the evaluation, and as much training after it"


def test_a_save_needs_its_own_time_only_besides_that_of_the_end() -> None:
    time = Time()
    clock = begun(time)
    work(clock, time, "evaluation", 5.0)
    work(clock, time, "save", 1.0)
    room = {}
    for step in range(1, 50):
        time.spend(1.0)
        clock.arrive(step)
        room[60 - OUTSIDE_SECONDS - 6.0 - clock.seconds] = clock.outlook(step).has_room_to_save
    assert {*room.values()} == {True, False}
    assert [left > 1 + 1 for left in room] == [*room.values()], "the save, and a step after it"


def test_what_was_measured_stands_for_what_was_rehearsed_and_the_longest_of_the_last_counts() -> None:
    time = Time()
    clock = begun(time)
    pieces = iter([5.0, *[0.5] * (REHEARSALS - 1)])
    clock.rehearse("evaluation", lambda: time.spend(next(pieces)), share=0.25)
    clock.rehearse("sample", lambda: time.spend(0.1), share=0.1)
    assert clock.ending == pytest.approx(2.0 + 1.0)
    work(clock, time, "evaluation", 1.5)
    assert clock.ending == pytest.approx(1.5 + 1.0)
    for seconds, ending in ((9.0, 10.0), (3.0, 10.0), (2.0, 10.0), (1.0, 4.0)):
        work(clock, time, "evaluation", seconds)
        assert clock.ending == pytest.approx(ending)


def test_a_work_that_is_itself_rehearsed_does_not_stand_for_later_ones() -> None:
    time = Time()
    clock = begun(time)
    clock.rehearse("save", lambda: work(clock, time, "save", 2.0), share=0.25, times=1)
    assert clock.expected("save") == pytest.approx(8.0)
    assert clock.expected("evaluation") == 0.0
    work(clock, time, "save", 5.0)
    assert clock.ending == clock.expected("save") == pytest.approx(5.0)


def test_what_is_measured_is_no_part_of_a_step() -> None:
    time = Time()
    clock = begun(time)
    for step in range(1, 9):
        time.spend(0.5)
        clock.arrive(step)
        work(clock, time, "save", 2.0)
    assert clock.step_seconds == pytest.approx(0.5)


def test_a_device_that_is_behind_is_waited_for_seldom_and_its_queue_counts() -> None:
    """As a GPU takes steps: at once, and done later."""
    time = Time()
    clock = begun(time, step=70)
    assert [step - 70 for step in range(70, 140) if clock.is_due(step)] == [1, 2, 4, 8, 16, 32, 64]
    time.spend(10.0)
    clock.arrive(80)  # one second for each
    start = clock.outlook(80).progress
    assert not clock.outlook(80 + 20).is_last
    assert clock.outlook(100).progress - start == pytest.approx(20 / (60 - OUTSIDE_SECONDS - PREPARATION))
    assert clock.outlook(80 + 46).is_last, "what is queued takes all the time there is"


def test_each_step_weighs_the_same_however_many_are_done_at_once() -> None:
    time = Time()
    clock = begun(time)
    for step, seconds in ((1, 2.0), (2, 1.0), (10, 8 * 3.0)):
        time.spend(seconds)
        clock.arrive(step)
    old = PACE_MEMORY**8
    assert clock.step_seconds == pytest.approx(old * 1.0 + (1 - old) * 3.0)


@pytest.mark.parametrize("log_interval", [10, 10**9])
def test_a_slow_first_step_on_a_gpu_does_not_make_the_run_look_further_than_it_is(log_interval: int) -> None:
    """Steps are given to it in 1 ms each; it takes 2 s for the first one and 10 ms for each of the others."""
    time = Time()
    clock = begun(time, step=0)
    begin = done = time.now
    training = 60 - OUTSIDE_SECONDS - PREPARATION
    for step in range(1, 10_000):
        time.spend(0.001)
        done = max(done, time.now) + (2.0 if step == 1 else 0.01)
        if clock.is_due(step) or step % log_interval == 0:
            time.now = max(time.now, done)
            clock.arrive(step)
        outlook = clock.outlook(step)
        true = (max(done, time.now) - begin) / training
        assert abs(outlook.progress - min(1.0, true)) < 0.02, f"step {step}"
        if outlook.is_last:
            break
    assert training - 0.05 < done - begin < training + 0.05


def test_a_lap_is_made_of_steps_and_leaves_out_what_else_was_done() -> None:
    time = Time()
    clock = begun(time, step=70)
    time.spend(3.0)
    work(clock, time, "evaluation", 5.0)
    time.spend(1.0)
    assert clock.lap(78) == (pytest.approx(4.0), 8)
    assert clock.step_seconds == pytest.approx(0.5)
    time.spend(2.0)
    assert clock.lap(79) == (pytest.approx(2.0), 1)


def test_the_time_left_is_that_of_the_limit_that_comes_first_at_the_speed_of_this_process() -> None:
    time = Time()
    by_steps = begun(time, TrainConfig(max_steps=120), step=100)
    both = begun(time, TrainConfig(max_steps=120, max_minutes=1), step=100)
    by_time = begun(time, step=100)
    by_steps.start_training(100, 0.0)
    time.spend(10.0)
    work(by_steps, time, "evaluation", 10.0)
    assert by_steps.expected_seconds_left(110) == pytest.approx(20.0), "what is measured takes time, too"
    assert both.expected_seconds_left(119) == pytest.approx((20 + PREPARATION) / 19)
    assert both.expected_seconds_left(101) == both.seconds_left == pytest.approx(60 - 20 - 2 * PREPARATION)
    assert by_time.expected_seconds_left(101) == by_time.seconds_left


def test_why_there_is_no_time_for_a_step_is_said_with_what_helps() -> None:
    time = Time()
    over = begun(time, TrainConfig(max_steps=None, max_minutes=0.05))
    assert over.lack_of_time(eval_tokens=100) == "train.max_minutes=0.05 is over after 4 s: only one step is made"
    resumed = begun(time, TrainConfig(max_steps=None, max_minutes=0.05), seconds=9.0, step=7)
    assert resumed.lack_of_time(eval_tokens=100) == "train.max_minutes=0.05 is over after 13 s: no step is made"
    clock = begun(time)
    clock.rehearse("evaluation", lambda: time.spend(1.0), share=0.01)
    clock.rehearse("sample", lambda: time.spend(0.2), share=0.1)
    assert clock.outlook(0).is_last
    first, second = clock.lack_of_time(eval_tokens=1_000_000).splitlines()
    assert first == "train.max_minutes=1 leaves 52 s, but the end takes about 1:42:"
    assert second == "         only one step is made; train.eval_tokens=300000 leaves time for more"
    assert max(len("time     " + first), len(second)) <= 80
    work(clock, time, "save", 100.0)
    assert "eval_tokens" not in clock.lack_of_time(eval_tokens=1_000_000), "it is not the evaluation"


def test_a_process_that_is_alone_needs_nobodys_agreement() -> None:
    outlook = Outlook(progress=0.25, is_last=True)
    assert outlook.agreed(ALONE) is outlook  # tests/test_processes.py has two that agree


def measured(max_steps: int | None, max_minutes: float | None) -> Clock:
    """The clock of a dry run with steps of 0.5 s, the first of them slower, and evaluations of 2 s."""
    time = Time()
    clock = begun(time, TrainConfig(max_steps=max_steps, max_minutes=max_minutes))
    for seconds in (9.0, 0.4, 0.5, 0.6):
        work(clock, time, "step", seconds)
    work(clock, time, "evaluation", 2.0)
    return clock


def test_the_estimate_is_that_of_the_limit_that_comes_first() -> None:
    every_ten = {"seconds": 0.0, "eval_interval": 10}
    assert measured(25, None).estimate(0, **every_ten) == (pytest.approx(25 * 0.5 + 3 * 2.0), 25)
    assert measured(25, 2.0).estimate(0, **every_ten) == (pytest.approx(18.5), 25)
    assert measured(1000, 2.0).estimate(0, **every_ten) == (120.0, 168)
    assert measured(1000, 2.0).estimate(990, **every_ten) == (pytest.approx(7.0), 10)
    assert measured(25, 2.0).estimate(25, **every_ten) == (0, 0)


def test_the_estimate_leaves_out_what_the_dry_run_itself_has_taken_but_not_what_the_run_has() -> None:
    clock = measured(None, 2.0)
    assert clock.seconds > 10
    assert clock.estimate(0, seconds=0.0, eval_interval=10) == (120.0, 168)
    assert clock.estimate(80, seconds=60.0, eval_interval=10) == (60.0, 82)
    assert clock.estimate(80, seconds=130.0, eval_interval=10) == (0.0, 0)
    assert measured(None, 0.01).estimate(0, seconds=0.0, eval_interval=10) == (pytest.approx(0.6), 1)
