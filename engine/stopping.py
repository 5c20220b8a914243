"""Ending a run from outside: by a signal, or for lack of memory."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import torch

from config.schema import Config
from errors import UserError


class StopRequest:
    """Within this context, Ctrl-C and SIGTERM only set `requested`; a second Ctrl-C interrupts at once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.requested = False
        self.say = say
        self.previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGINT, signal.SIGTERM):
            self.previous[number] = signal.signal(number, self.handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Called by Python when the signal arrives."""
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.requested:
            self.requested = True
            self.say(f"{signal.Signals(number).name}: finishing this step and saving (Ctrl-C again: stop at once)")


@contextlib.contextmanager
def explain_out_of_memory(config: Config) -> Iterator[None]:
    """Turn running out of memory into a `UserError` that names the shapes and the setting to lower."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        # On a CPU torch raises a plain RuntimeError; only its words tell.
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        train, model = config.train, config.model
        halved = f"train.batch_size={train.batch_size // 2} train.grad_accum_steps={train.grad_accum_steps * 2}"
        advice = f"{halved} (the same step in half the memory)" if train.batch_size > 1 else "a smaller model"
        raise UserError(
            f"out of memory with train.batch_size={train.batch_size}, model.context_length={model.context_length}, "
            f"d_model={model.d_model}, num_layers={model.num_layers}, num_heads={model.num_heads}; try {advice}"
        ) from error
