"""Ending a run from outside: by a signal, or for lack of memory."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import torch

from config.schema import Config
from errors import UserError

OUT_OF_MEMORY_WORDS = (
    "DefaultCPUAllocator: ",  # can't allocate memory (Linux, macOS), not enough memory (Windows)
    "Storage size calculation overflowed",  # more bytes than can be counted
    "out of memory",  # MPS, and what CUDA's libraries say
    "CUBLAS_STATUS_ALLOC_FAILED",
)


class StopRequest:
    """Within this context, Ctrl-C, SIGTERM and a closed terminal only set `requested`; a second Ctrl-C interrupts."""

    # Windows knows no SIGHUP.
    signals = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.received: signal.Signals | None = None
        self.said = False
        self.previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        for number in self.signals:
            if number not in (signal.SIGINT, signal.SIGTERM) and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup: the run is to outlive its terminal
            self.previous[number] = signal.signal(number, self.handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.previous.items():
            # None: it was set by other means than Python's, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]

    @property
    def requested(self) -> bool:
        """Whether a signal has come. Says so where the handler could not."""
        if self.received is not None and not self.said:
            self.announce(self.received)
        return self.received is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Called by Python when the signal arrives."""
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is None:
            self.received = signal.Signals(number)
            # In the middle of another line Python refuses to write; then it is said when `requested` is next read.
            with contextlib.suppress(RuntimeError):
                self.announce(self.received)

    def announce(self, received: signal.Signals) -> None:
        """Tell people that the run is about to stop."""
        self.say(f"{received.name}: finishing this step and saving (Ctrl-C again: stop at once)")
        self.said = True


def is_out_of_memory(error: Exception) -> bool:
    """Whether this is what torch, numpy or Python raise where memory does not suffice."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # Elsewhere than on CUDA it is a plain RuntimeError, and only its words tell.
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY_WORDS)


@contextlib.contextmanager
def explain_out_of_memory(config: Config, *, training: bool = True) -> Iterator[None]:
    """Turn running out of memory, in training or in use, into a `UserError` with the shapes and what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        model = config.model
        batch = f"train.batch_size={config.train.batch_size}, " if training else ""
        advice = f"{smaller_batch(config)}a smaller model" if training else "--device cpu, or another machine"
        raise UserError(
            f"out of memory with {batch}model.context_length={model.context_length}, d_model={model.d_model}, "
            f"num_layers={model.num_layers}, num_heads={model.num_heads}; try {advice}"
        ) from error


def smaller_batch(config: Config) -> str:
    """The settings that make the same step in half the memory, where the batch can be halved."""
    train = config.train
    if train.batch_size == 1:
        return ""
    same = "the same step" if train.batch_size % 2 == 0 else "almost the same step"
    halved = f"train.batch_size={train.batch_size // 2} train.grad_accum_steps={train.grad_accum_steps * 2}"
    return f"{halved} ({same} in half the memory), or "
