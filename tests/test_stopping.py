"""Ending a run from outside: real signals, and memory that really does not suffice."""

import io
import os
import signal

import pytest
import torch

from config.schema import Config
from engine.stopping import StopRequest, explain_out_of_memory
from errors import UserError


def make_config(**train):
    defaults = Config()
    return defaults.model_copy(update={"train": defaults.train.model_copy(update=train)})


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_first_signal_is_a_request_and_says_so(name):
    said = []
    with StopRequest(said.append) as stop:
        assert not stop.requested
        os.kill(os.getpid(), getattr(signal, name))
        assert stop.requested
    assert said == [f"{name}: finishing this step and saving (Ctrl-C again: stop at once)"]


def test_a_signal_in_the_middle_of_another_line_is_announced_after_it():
    said = []

    class Terminal(io.RawIOBase):
        """Gets the signal while it writes its first line."""

        def writable(self) -> bool:
            return True

        def write(self, data) -> int:
            said.append(bytes(data))
            if len(said) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return len(data)

    terminal = io.BufferedWriter(Terminal())

    def say(line: str) -> None:
        terminal.write(line.encode())
        terminal.flush()

    with StopRequest(say) as stop:
        say("a line")
        assert len(said) == 1, "the handler wrote into the line"
        assert stop.requested
        assert stop.requested
    assert said == [b"a line", b"SIGTERM: finishing this step and saving (Ctrl-C again: stop at once)"]


def test_under_nohup_a_closed_terminal_is_no_reason_to_stop():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest(print) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_after_another_signal_interrupts_at_once(first):
    said = []
    with pytest.raises(KeyboardInterrupt), StopRequest(said.append):  # noqa: PT012
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("went on")
    assert len(said) == 1


def test_sigterm_may_come_as_often_as_it_likes():
    said = []
    with StopRequest(said.append) as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
    assert len(said) == 1


@pytest.mark.parametrize("exception", [None, ValueError, KeyboardInterrupt])
def test_afterwards_the_handlers_are_those_of_before(exception):
    def ours(number, frame):
        raise AssertionError

    before = signal.signal(signal.SIGTERM, ours), signal.getsignal(signal.SIGINT)
    try:
        try:
            with StopRequest(print):
                assert signal.getsignal(signal.SIGTERM) != ours
                if exception is not None:
                    raise exception
        except (ValueError, KeyboardInterrupt):
            pass
        assert signal.getsignal(signal.SIGTERM) == ours
        assert signal.getsignal(signal.SIGINT) == before[1]
    finally:
        signal.signal(signal.SIGTERM, before[0])


def allocate_too_much():
    torch.empty(10**14)


def overflow_the_size():
    torch.empty(10**9, 10**10)


def raise_on_a_gpu():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def raise_on_an_apple():
    raise RuntimeError("MPS backend out of memory (MPS allocated: 17.00 GB, max allowed: 18.13 GB).")


def raise_on_windows():
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:116] data. DefaultCPUAllocator: not enough memory: you tried")


def allocate_too_much_in_python():
    bytearray(2**62)


@pytest.mark.parametrize(
    "fail",
    [
        allocate_too_much,
        overflow_the_size,
        raise_on_a_gpu,
        raise_on_an_apple,
        raise_on_windows,
        allocate_too_much_in_python,
    ],
)
def test_running_out_of_memory_names_the_shapes_and_a_way_out(fail):
    with pytest.raises(UserError) as error, explain_out_of_memory(make_config(batch_size=12, grad_accum_steps=2)):
        fail()
    assert str(error.value) == (
        "out of memory with train.batch_size=12, model.context_length=128, d_model=128, num_layers=4, num_heads=4; "
        "try train.batch_size=6 train.grad_accum_steps=4 (the same step in half the memory), or a smaller model"
    )


def test_the_advice_promises_no_more_than_it_keeps():
    for batch_size, advice in (
        (
            5,
            "train.batch_size=2 train.grad_accum_steps=2 (almost the same step in half the memory), or a smaller model",
        ),
        (1, "try a smaller model"),
    ):
        with pytest.raises(UserError) as error, explain_out_of_memory(make_config(batch_size=batch_size)):
            allocate_too_much()
        assert str(error.value).endswith(advice)
        assert "batch_size=0" not in str(error.value)


def multiply_what_does_not_fit():
    torch.zeros(2, 3) @ torch.zeros(2, 3)


def view_what_is_scattered():
    torch.zeros(2, 3).t().view(6)  # the message speaks of strides in memory


def speak_of_memory():
    raise RuntimeError("unsupported memory format option Preserve")


@pytest.mark.parametrize("fail", [multiply_what_does_not_fit, view_what_is_scattered, speak_of_memory])
def test_other_errors_of_torch_are_ours_and_pass_unchanged(fail):
    with pytest.raises(RuntimeError) as plain:
        fail()
    with pytest.raises(RuntimeError) as error, explain_out_of_memory(Config()):
        fail()
    assert type(error.value) is type(plain.value)
    assert str(error.value) == str(plain.value)


@pytest.mark.parametrize("exception", [UserError("x"), KeyboardInterrupt(), ValueError("memory")])
def test_errors_that_are_not_torchs_pass_unchanged(exception):
    with pytest.raises(type(exception)) as error, explain_out_of_memory(Config()):
        raise exception
    assert error.value is exception


def test_out_of_memory_in_use_names_the_shapes_and_not_the_batch_of_training():
    with pytest.raises(UserError) as caught, explain_out_of_memory(Config(), training=False):
        raise MemoryError
    assert str(caught.value) == (
        "out of memory with model.context_length=128, d_model=128, num_layers=4, num_heads=4; "
        "try --device cpu, or another machine"
    )
