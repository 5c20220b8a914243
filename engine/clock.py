"""The time of a run: how fast it goes, how much of it is over, and what still fits into it.

It measures what it plans with, in the very run. What to do when is the training loop's business.
"""

import contextlib
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass

from config.schema import TrainConfig
from engine.processes import Processes
from engine.tracking import duration

KEPT = 3  # durations of one kind of work; the longest of them is what is expected of the next
REHEARSALS = 3  # what is done first is slow, and other processes may come in between
PACE_MEMORY = 0.8  # weight of the steps before in the mean duration of a step
# What nothing in a run can measure: Python's own start before our first line, and its exit after our last one. About
# 0.03 s and 0.13 s on the two cores of bench/README.md.
OUTSIDE_SECONDS = 0.2


@dataclass(frozen=True)
class Outlook:
    """What lies ahead after a step. Where there is no limit of time, there is always room."""

    stops: bool = False  # somebody asked for it
    progress: float = 0.0  # share of the run that is over: of its steps or of its time, whichever is larger
    is_last: bool = False  # no further step is to be made
    has_room: bool = True  # for an evaluation, and what comes with it, before the one at the end
    has_room_to_save: bool = True  # without an evaluation

    def agreed(self, processes: Processes) -> "Outlook":
        """That of the main process for all of them, but that each may ask to stop; they tell each other once."""
        if processes.is_alone:
            return self
        mine = self if processes.is_main else Outlook(self.stops, has_room=False, has_room_to_save=False)
        stops, progress, *answers = processes.sum([float(value) for value in astuple(mine)])
        return Outlook(stops > 0, progress, *(answer > 0 for answer in answers))


class Clock:
    """Counts the seconds of a run since its start, in all its processes one after the other, and those it has left.

    `started` is a reading of `read` at the start of the run, as if it had never been interrupted.
    """

    def __init__(self, limits: TrainConfig, *, started: float, read: Callable[[], float] = time.perf_counter) -> None:
        self.read = read
        self.started = started
        self.max_steps = limits.max_steps
        self.max_seconds = None if limits.max_minutes is None else 60 * limits.max_minutes
        self.before_training = 0.0  # seconds of the run before its first step, which are none of the schedule's
        self.farthest = 0.0  # the progress never goes back, although expectations change
        self.estimates: dict[str, float] = {}
        self.durations: dict[str, deque[float]] = {}
        self.elsewhere = 0.0  # seconds of what was measured, which are no part of a step
        self.step_seconds = 0.0  # of one step; 0 before the first
        self.start_training(0, 0.0)

    @property
    def seconds(self) -> float:
        """Since the start of the run."""
        return self.read() - self.started

    @property
    def seconds_left(self) -> float:
        """Until the run must have ended: inf where there is no limit."""
        return math.inf if self.max_seconds is None else max(0.0, self.max_seconds - self.seconds)

    @property
    def training_seconds(self) -> float:
        """A reading that stands still during what is measured."""
        return self.read() - self.elsewhere

    def start_training(self, step: int, before_training: float) -> None:
        """From here on steps are made; so many there are already, the first of them after `before_training` seconds."""
        self.before_training, self.training_started = before_training, self.read()
        self.first_step = self.arrived_step = self.lap_step = step
        self.arrived = self.lap_started = self.training_seconds

    def is_due(self, step: int) -> bool:
        """Whether to wait for a device that may be behind, so that its pace is known: seldom, and soon at first."""
        steps = step - self.first_step
        return self.max_seconds is not None and steps > 0 and steps & (steps - 1) == 0  # 1, 2, 4, 8, …

    def arrive(self, step: int) -> None:
        """The device has finished `step`, and nothing else waits for it."""
        now, steps = self.training_seconds, step - self.arrived_step
        if steps > 0:
            latest = (now - self.arrived) / steps
            # The first step of a process is slow, and stands for the others only until there is another one.
            memory = PACE_MEMORY**steps if self.arrived_step > self.first_step + 1 else 0.0
            self.step_seconds = memory * self.step_seconds + (1 - memory) * latest
        self.arrived_step, self.arrived = step, now

    def lap(self, step: int) -> tuple[float, int]:
        """The device has finished `step`: the seconds since the last lap, and the steps made in them."""
        self.arrive(step)
        seconds, steps = self.arrived - self.lap_started, step - self.lap_step
        self.lap_started, self.lap_step = self.arrived, step
        return seconds, steps

    @contextlib.contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """What happens inside is a work of this kind, and no part of a step."""
        start = self.read()
        yield
        seconds = self.read() - start
        self.durations.setdefault(kind, deque(maxlen=KEPT)).append(seconds)
        self.elsewhere += seconds

    def rehearse(self, kind: str, piece: Callable[[], object], *, share: float, times: int = REHEARSALS) -> None:
        """Expect of a work of this kind what a piece of it, a `share` of the whole, takes when it is quickest.

        That holds until the first one is measured.
        """
        durations = []
        for _ in range(times):
            start = self.read()
            piece()
            durations.append(self.read() - start)
        self.estimates[kind] = min(durations) / share
        self.durations.pop(kind, None)  # in which the piece may have been measured as if it were the whole

    def expected(self, kind: str) -> float:
        """Seconds that a work of this kind will take; 0 where nothing is known of it."""
        return max(self.durations.get(kind, ()), default=self.estimates.get(kind, 0.0))

    @property
    def ending(self) -> float:
        """Seconds that the end of the run will take: one work of each kind."""
        return sum(self.expected(kind) for kind in self.estimates.keys() | self.durations.keys())

    def outlook(self, step: int, *, stops: bool = False) -> Outlook:
        """What lies ahead after `step`, which was given to the device but which it need not have finished yet."""
        by_steps, is_done = (0.0, False) if self.max_steps is None else (step / self.max_steps, step >= self.max_steps)
        if self.max_seconds is None:
            return Outlook(stops, by_steps, is_done)
        ending = self.ending
        ready = max(self.read(), self.arrived + self.elsewhere + (step - self.arrived_step) * self.step_seconds)
        over = ready - self.started
        end_of_training = self.max_seconds - OUTSIDE_SECONDS - ending
        left = end_of_training - over
        if step > 0:  # the first one is made at the full rate even where it is late
            whole = end_of_training - self.before_training
            self.farthest = max(
                self.farthest, min(1.0, max(0.0, over - self.before_training) / whole) if whole > 0 else 1.0
            )
        return Outlook(
            stops,
            progress=max(by_steps, self.farthest),
            is_last=is_done or left < self.step_seconds,
            # An evaluation right before the last one would tell nothing new: training goes on for as long as it takes.
            has_room=left - self.step_seconds > 2 * ending,
            has_room_to_save=left - self.step_seconds > self.expected("save"),
        )

    def expected_seconds_left(self, step: int) -> float:
        """Until the run ends, by its limit of time or, at the speed of this process so far, by that of steps."""
        if self.max_steps is None:
            return self.seconds_left
        per_step = (self.read() - self.training_started) / max(1, step - self.first_step)
        return min(self.seconds_left, per_step * (self.max_steps - step))

    def lack_of_time(self, *, eval_tokens: int) -> str:
        """In words, why no step fits into the time that is left, and what helps where an evaluation has so many tokens.

        What is made all the same is said as well: one step of a new run, and none of one that is resumed.
        """
        limit, left = f"train.max_minutes={(self.max_seconds or 0.0) / 60:g}", self.seconds_left - OUTSIDE_SECONDS
        made = "only one step is made" if self.first_step == 0 else "no step is made"
        if left <= 0:
            return f"{limit} is over after {duration(self.seconds)}: {made}"
        words = f"{limit} leaves {duration(left)}, but the end takes about {duration(self.ending)}:"
        words += f"\n         {made}"
        evaluation = self.expected("evaluation")
        affordable = eval_tokens * (left + evaluation - self.ending) / 2 / max(evaluation, 1e-9)
        if affordable < 1:
            return words
        return f"{words}; train.eval_tokens={float(f'{affordable:.0e}'):.0f} leaves time for more"

    def estimate(self, step: int, *, seconds: float, eval_interval: int) -> tuple[float, int]:
        """How long the run still takes that has made so many steps in so many seconds: in seconds and in steps.

        By works called `step` and `evaluation` that were measured. What this process has spent is none of the run's.
        """
        step_seconds, evaluation = statistics.mean(self.durations["step"]), self.expected("evaluation")
        by_time = math.inf if self.max_seconds is None else max(0.0, self.max_seconds - seconds)
        if self.max_steps is not None:
            steps = max(0, self.max_steps - step)
            by_steps = steps * step_seconds + math.ceil(steps / eval_interval) * evaluation
            if by_steps <= by_time:
                return by_steps, steps
        training = max(0.0, by_time - evaluation)
        # A new run makes one step even where there is no time for it.
        return by_time, max(int(step == 0), int(training / (step_seconds + evaluation / eval_interval)))
