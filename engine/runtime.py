"""What the machine is asked to do: device, precision, threads, compilation, and the state of its random generators."""

import contextlib
import ctypes
import re
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from config.schema import RuntimeConfig
from data.paths import counted
from errors import DeviceError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Below this many parameters a CPU step is overhead, not matrix products, and the casts cost more than bf16 saves;
# the measurement behind it: bench/precision.py.
BF16_FROM_PARAMETERS = 100_000
CPU_BF16_INSTRUCTIONS = (
    "avx512_bf16",
    "amx_bf16",
    "bf16",
    "sve_bf16",
)  # as torch.cpu.get_capabilities() names them

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@dataclass(frozen=True)
class Runtime:
    """The device and precision a run uses, and why."""

    device: torch.device
    precision: str  # fp32, bf16 or fp16
    compile: bool
    threads: int
    reason: str

    @property
    def dtype(self) -> torch.dtype:
        """The type that matrix products are computed in."""
        return DTYPES[self.precision]

    def autocast(self) -> AbstractContextManager[Any]:
        """Within this context, matrix products run in the run's precision; weights stay fp32."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def make_scaler(self) -> torch.amp.GradScaler:
        """Scales fp16 losses so that small gradients do not vanish; does nothing in other precisions."""
        return torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16" and self.device.type == "cuda")

    def resolved(self, config: RuntimeConfig) -> RuntimeConfig:
        """The settings with every `auto` replaced by what was chosen, so that a resumed run keeps it."""
        choices = {"precision": self.precision, "compile": self.compile, "threads": self.threads}
        # Which one of several GPUs it is may be another one the next time.
        device = self.device.type if config.device in ("auto", "cuda") else str(self.device)
        return config.model_copy(update={"device": device, **choices})

    def describe(self) -> str:
        """The choice in one line."""
        threads = f", {counted(self.threads, 'thread')}" if self.device.type == "cpu" else ""
        compiled = ", compiled" if self.compile else ""
        return f"{device_name(self.device)}{threads}, {self.precision}{compiled} ({self.reason})"

    def synchronize(self) -> None:
        """Wait until the device has done what it was given, so that a clock read afterwards is right."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def peak_memory(self) -> int | None:
        """The most bytes taken so far: of the GPU by torch, or where it trains on the CPU by this process.

        On Apple GPUs what it has now. None where the system does not tell.
        """
        if self.device.type == "cuda":
            return torch.cuda.max_memory_reserved(self.device)  # allocated counts tensors only
        if self.device.type == "mps":
            return torch.mps.driver_allocated_memory()
        return peak_resident_bytes()


def peak_resident_bytes() -> int | None:
    """The most memory that this process has held at once; None where the system does not tell (Windows)."""
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        if found := re.search(r"^VmHWM:\s+([0-9]+) kB$", status, re.MULTILINE):
            return int(found[1]) * 1024
    if sys.platform == "darwin":
        import resource  # which Windows lacks

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes here; Linux has a parent's in it
    return None


def choose_runtime(config: RuntimeConfig, num_parameters: int, local_rank: int | None = None) -> Runtime:
    """Resolve every `auto` for a model of `num_parameters`, and set threads and memory of the process accordingly.

    Raises `DeviceError` for what this machine lacks.
    `local_rank` as in `choose_device`.
    """
    device = choose_device(config.device, local_rank)
    precision, reason = choose_precision(config.precision, device, num_parameters)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if device.type == "cpu":
        keep_freed_memory()
    compile_model = device.type == "cuda" if config.compile == "auto" else config.compile
    return Runtime(device, precision, compile_model, torch.get_num_threads(), reason)


def keep_freed_memory() -> None:
    """Let the C library keep the memory that a step frees for the next one, where it is glibc.

    It would else give large pieces back to the system, and every step would wait for fresh, zeroed pages: thousands.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Before glibc 2.35 the first one may be 32 MiB at most.
    if mallopt is not None and any(mallopt(M_MMAP_THRESHOLD, size) for size in (1 << 30, 1 << 25)):
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def choose_device(requested: str, local_rank: int | None = None) -> torch.device:
    """`auto` takes cuda, then mps, then cpu; anything else is what was asked for, or a `DeviceError`.

    Of several processes on a machine, `local_rank` is the number of this one: each takes the GPU of its number.
    """
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if local_rank is not None and (requested.startswith("cuda") or (requested == "auto" and has_cuda)):
        requested = f"cuda:{local_rank}"
    if requested == "auto":
        return torch.device("cuda" if has_cuda else "mps" if has_mps else "cpu")
    kind, _, index = requested.partition(":")
    if kind == "mps" and not has_mps:
        raise DeviceError("runtime.device is 'mps', but this machine has no Apple GPU; use auto or cpu")
    if kind == "cuda":
        count = torch.cuda.device_count() if has_cuda else 0
        if count == 0:
            raise DeviceError(
                f"runtime.device is '{requested}', but torch {torch.__version__} finds no CUDA GPU here; "
                "use auto or cpu, or install a CUDA build of torch"
            )
        if int(index or 0) >= count:
            names = ", ".join(f"cuda:{number}" for number in range(count))
            raise DeviceError(
                f"runtime.device is '{requested}', but this machine has {names}; use one of these or auto"
            )
    return torch.device(requested)


def choose_precision(requested: str, device: torch.device, num_parameters: int) -> tuple[str, str]:
    """The precision to compute in, and why."""
    if device.type == "cuda":
        return _cuda_precision(requested, device)
    if device.type == "mps":
        if requested in ("auto", "fp32"):
            return "fp32", "the safe choice on Apple GPUs" if requested == "auto" else "as asked"
        return requested, "as asked"
    return _cpu_precision(requested, num_parameters)


def _cuda_precision(requested: str, device: torch.device) -> tuple[str, str]:
    # The emulated kind of bf16 is slower than fp16, so only a GPU that has it natively counts.
    native = has_bf16(device)
    if requested == "auto":
        return ("bf16", "this GPU has bf16") if native else ("fp16", "this GPU has no bf16")
    if requested == "bf16" and not native:
        raise DeviceError(f"runtime.precision is 'bf16', but {device_name(device)} has no bf16; use auto, fp16 or fp32")
    return requested, "as asked"


def _cpu_precision(requested: str, num_parameters: int) -> tuple[str, str]:
    if requested in ("fp32", "bf16"):
        slow = requested == "bf16" and not cpu_has_bf16()
        return requested, "as asked, but this processor has no bf16 and will be slow" if slow else "as asked"
    if not cpu_has_bf16():
        choice, reason = "fp32", "this processor has no bf16"
    elif num_parameters < BF16_FROM_PARAMETERS:
        choice, reason = "fp32", f"bf16 gains nothing below {BF16_FROM_PARAMETERS:,} parameters"
    else:
        choice, reason = "bf16", "this processor has bf16"
    if requested == "fp16":
        reason = f"fp16 was asked for, but is about 100 times slower on a CPU; {reason}"
    return choice, reason


def has_bf16(device: torch.device) -> bool:
    """Whether a device multiplies bf16 natively."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and cpu_has_bf16()


def cpu_has_bf16() -> bool:
    """Whether this processor multiplies bf16 natively (then about twice as fast as fp32)."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in CPU_BF16_INSTRUCTIONS)


def device_name(device: torch.device) -> str:
    """`cpu`, or the GPU's name with its index."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)


def compile_model(model: nn.Module, runtime: Runtime, shape: tuple[int, int]) -> nn.Module:
    """The model compiled for batches of `shape` (B, T), or the model itself, with a warning, where that fails.

    Compilation happens at the first call, so one forward and backward pass is made here, with the random
    generators, the gradients and the mode put back as they were.
    """
    if not runtime.compile:
        return model
    states, was_training = generator_states(runtime.device), model.training
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    model.train()
    try:
        compiled = cast(nn.Module, torch.compile(model))
        with runtime.autocast():
            logits = compiled(torch.zeros(shape, dtype=torch.int64, device=runtime.device))
        logits.float().mean().backward()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the compiler may fail in any way: no C++ compiler, no Triton, bugs
        lines = str(error).strip().splitlines() or [type(error).__name__]
        warnings.warn(f"torch.compile does not work here, training goes on without it: {lines[0]}", stacklevel=2)
        return model
    finally:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        model.train(was_training)
        restore_generator_states(states, runtime.device)
    return compiled


def derived_seed(seed: int, index: int) -> int:
    """The seed of one of many generators: as different from the others' as chance makes it."""
    return int(np.random.SeedSequence((seed, index)).generate_state(1, np.uint64)[0] >> 1)


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's own generators, which draw weights and dropout."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def restore_generator_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Put torch's own generators back to `states`; those of a device that is not in use are passed over."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    elif device.type == "mps" and "mps" in states:
        torch.mps.set_rng_state(states["mps"])
