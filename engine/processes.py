"""Several processes that train one model together: who is who, and what they tell each other.

torchrun starts them. A process that it did not start is alone, and then nothing here costs anything.
"""

import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from errors import DeviceError, UserError

Result = TypeVar("Result")

# What gloo and nccl say where another process is gone; they have no exception of their own for it.
LOST_WORDS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "timed out",
    "Timed out",
    "ncclRemoteError",
    "remote process exited",
)
# While one process prepares a large text the others wait. Who has gone is noticed by its connection, not by the time.
LONGEST_WAIT = timedelta(days=1)


@dataclass(frozen=True)
class Processes:
    """This process's place among all: `rank` of `world_size`, and `local_rank` among those of its machine."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other."""
        return self.world_size == 1

    @property
    def local_rank_or_none(self) -> int | None:
        """Which of the machine's GPUs is this process's, or None where it is alone and may choose."""
        return None if self.is_alone else self.local_rank

    @contextlib.contextmanager
    def together(self, device: torch.device) -> Iterator[None]:
        """Find the other processes and, within the context, talk to them. Raises `UserError` where one is lost."""
        if self.is_alone:
            yield
            return
        if device.type == "mps":
            raise DeviceError("runtime.device is 'mps', on which several processes cannot train together; use cpu")
        if os.name == "nt":
            os.environ.setdefault("USE_LIBUV", "0")  # torch for Windows is built without it
        if device.type == "cuda":
            torch.cuda.set_device(device)
        try:
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            distributed.init_process_group(backend, timeout=LONGEST_WAIT)
        except (ValueError, RuntimeError) as error:  # as torch says that an address is missing, taken or silent
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"process {self.rank}: the {self.world_size} processes do not find each other ({reason}); "
                "start all of them with torchrun, and with the same address"
            ) from error
        try:
            yield
        except RuntimeError as error:
            if not any(words in str(error) for words in LOST_WORDS):
                raise
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which torchrun ends those that are left; we do so anyway
            raise UserError(
                f"process {self.rank}: another process of this run has ended or cannot be reached; it says why. "
                "When that is put right, resume the run"
            ) from error
        finally:
            # A wrapped model refers to itself and to the group. Were it still there when Python ends, the group's
            # threads would end after what they need, and abort the process.
            gc.collect()
            distributed.destroy_process_group()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process; the same answer in all."""
        return flag if self.is_alone else self.sum([float(flag)])[0] > 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """The values, added up over all processes in double precision."""
        if self.is_alone:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(total)
        added: list[float] = total.tolist()
        return added

    def mean(self, value: float) -> float:
        """The mean of everybody's value."""
        return self.sum([value])[0] / self.world_size

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's tensor, of one shape and type and on the CPU, in the order of ranks."""
        if self.is_alone:
            return [tensor]
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)]
        distributed.all_gather(gathered, tensor)
        return gathered

    def agree_on(self, what: str, value: str) -> None:
        """Raise `UserError` where the value is not the same in all processes; `what` says what differs then."""
        digest = torch.tensor(list(value.encode("utf-8")[:64].ljust(64)), dtype=torch.uint8)
        if not all(torch.equal(digest, other) for other in self.gather(digest)):
            raise UserError(f"process {self.rank}: {what} on every machine; they must be the same everywhere")

    def first_on_each_machine(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which one process of each machine does first: the others find what it has made."""
        if self.is_alone:
            return work()
        result = work() if self.local_rank == 0 else None
        distributed.barrier()
        return result if result is not None else work()

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with gradients that are, after `backward`, the mean of those of all processes."""
        if self.is_alone:
            return model
        return DistributedDataParallel(model, forward_sync_buffers=False, gradient_as_bucket_view=True)


ALONE = Processes()


def gathers_only(model: nn.Module) -> AbstractContextManager[None]:
    """Within this context `backward` adds up the gradients of this process alone; the next one outside shares them."""
    if isinstance(model, DistributedDataParallel):
        context: AbstractContextManager[None] = model.no_sync()
        return context
    return nullcontext()


def processes_from_environment() -> Processes:
    """The place that torchrun has given to this process. Raises `UserError` for variables that make no sense."""
    names = {"rank": "RANK", "local_rank": "LOCAL_RANK", "world_size": "WORLD_SIZE"}
    if names["rank"] not in os.environ or names["world_size"] not in os.environ:
        return ALONE
    values = {}
    for field, name in names.items():
        text = os.environ.get(name, "")
        if not text.isdecimal():
            raise UserError(f"the variable {name} is {text!r}, not a number; start the processes with torchrun")
        values[field] = int(text)
    places = Processes(**values)
    if places.rank >= places.world_size or places.local_rank > places.rank:
        raise UserError(f"RANK={places.rank} of WORLD_SIZE={places.world_size}: start the processes with torchrun")
    return places
