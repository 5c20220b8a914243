"""The time of a run: how much of it is over, and what still fits into it.

It measures what it plans with, in the very run. What to do when is the training loop's business.
"""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass

from config.schema import TrainConfig
from engine.processes import Processes

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
    has_room: bool = True  # for an evaluation or a save before those at the end

    def agreed(self, processes: Processes) -> "Outlook":
        """That of the main process for all of them, but that each may ask to stop; they tell each other once."""
        if processes.is_alone:
            return self
        mine = self if processes.is_main else Outlook(self.stops, has_room=False)
        stops, progress, is_last, has_room = processes.sum([float(value) for value in astuple(mine)])
        return Outlook(stops > 0, progress, is_last > 0, has_room > 0)


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
        self.step_seconds = 0.0  # of one step; 0 before the first
        self.first_step = self.arrived_step = 0
        self.arrived, self.paused = read(), 0.0

    @property
    def seconds(self) -> float:
        """Since the start of the run."""
        return self.read() - self.started

    @property
    def seconds_left(self) -> float:
        """Until the run must have ended: inf where there is no limit."""
        return math.inf if self.max_seconds is None else max(0.0, self.max_seconds - self.seconds)

    def start_training(self, step: int, before_training: float) -> None:
        """From here on steps are made; so many there are already, the first of them after `before_training` seconds."""
        self.first_step = self.arrived_step = step
        self.arrived, self.paused, self.before_training = self.read(), 0.0, before_training

    def is_due(self, step: int) -> bool:
        """Whether to wait for a device that may be behind, so that its pace is known: seldom, and soon at first."""
        steps = step - self.first_step
        return self.max_seconds is not None and steps > 0 and steps & (steps - 1) == 0  # 1, 2, 4, 8, …

    def arrive(self, step: int) -> None:
        """The device has finished `step`, and nothing else waits for it."""
        now, steps = self.read(), step - self.arrived_step
        if steps > 0:
            latest = (now - self.arrived - self.paused) / steps
            memory = PACE_MEMORY if self.step_seconds else 0.0
            self.step_seconds = memory * self.step_seconds + (1 - memory) * latest
        self.arrived_step, self.arrived, self.paused = step, now, 0.0

    @contextlib.contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """What happens inside is a work of this kind, and no part of a step."""
        start = self.read()
        yield
        seconds = self.read() - start
        self.durations.setdefault(kind, deque(maxlen=KEPT)).append(seconds)
        self.paused += seconds

    def rehearse(self, kind: str, piece: Callable[[], object], *, share: float) -> None:
        """Expect of a work of this kind what a piece of it, a `share` of the whole, takes when it is quickest.

        That holds until the first one is measured.
        """
        durations = []
        for _ in range(REHEARSALS):
            start = self.read()
            piece()
            durations.append(self.read() - start)
        self.estimates[kind] = min(durations) / share

    @property
    def ending(self) -> float:
        """Seconds that the end of the run will take: one work of each kind."""
        return sum((self.estimates | {kind: max(recent) for kind, recent in self.durations.items()}).values())

    def outlook(self, step: int, *, stops: bool = False) -> Outlook:
        """What lies ahead after `step`, which was given to the device but which it need not have finished yet."""
        by_steps, is_done = (0.0, False) if self.max_steps is None else (step / self.max_steps, step >= self.max_steps)
        if self.max_seconds is None:
            return Outlook(stops, by_steps, is_done)
        ending = self.ending
        ready = max(self.read(), self.arrived + self.paused + (step - self.arrived_step) * self.step_seconds)
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
        )


def estimate(
    steps_left: float, seconds_left: float, *, step_seconds: float, evaluation_seconds: float, eval_interval: int
) -> tuple[float, int]:
    """How long a run still takes, in seconds and in steps, where both may be limited (inf: they are not)."""
    by_steps = math.inf
    if steps_left < math.inf:
        by_steps = steps_left * step_seconds + math.ceil(steps_left / eval_interval) * evaluation_seconds
    if by_steps <= seconds_left:
        return by_steps, int(steps_left)
    training = max(0.0, seconds_left - evaluation_seconds)
    return seconds_left, max(1, int(training / (step_seconds + evaluation_seconds / eval_interval)))
