"""Several processes as one: two real ones, started by torchrun, over gloo."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from commands import (
    ENGLISH,
    ROOT,
    TINY,
    Finished,
    assert_equal_states,
    call,
    finish,
    metrics,
    paste,
    pasted,
    read_checkpoint,
    start,
    steps,
    succeed,
    wait_for_lines,
    without_speed,
)

from engine.clock import Outlook
from engine.processes import ALONE, Processes, processes_from_environment
from errors import UserError

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
QUIET = {"PYTHONWARNINGS": "default"}  # not errors: what torchrun itself warns of is not ours
STEPS = 12
BASE = ("data.source=text.txt", *TINY, "train.batch_size=4", f"train.max_steps={STEPS}", "train.eval_interval=4")
BASE += ("train.log_interval=1", "train.keep_checkpoints=9", "runtime.precision=fp32", "train.grad_accum_steps=2")
LONG = 300
# Interrupted, it most likely stops between two lines of the log, with a part of the next loss.
LONG_RUN = (*BASE, "model.dropout=0.1", f"train.max_steps={LONG}", "train.log_interval=7", "train.eval_interval=100")

# The gradients of the first step, as they are when the weights are about to be updated.
FIRST_STEP = """
import sys, torch, train
from config.load import load_config
from engine.processes import processes_from_environment
from engine.runtime import choose_runtime
from engine.start import prepare_text
from engine.state import TrainingState
from engine.tracking import Console
from evaluate import evaluate

torch.set_num_threads(1)
processes = processes_from_environment()
config = load_config(None, sys.argv[2:])
with processes.together(torch.device("cpu")):
    console = Console(silent=True)
    prepared = prepare_text(config, None, processes=processes, console=console)
    state = TrainingState(config, prepared, choose_runtime(config.runtime, 0), processes)
    trainer = train.Trainer(state, console, peak=1e12)
    val = evaluate(state.model, trainer.val_split, prepared.tokenizer, state.runtime, processes=processes)
    kept, update = {"val": val.loss, "tokens": val.tokens, "chars": val.chars}, state.optimizers.step
    def keep_and_update(scaler):
        kept["gradients"] = {name: p.grad.clone() for name, p in state.model.named_parameters()}
        update(scaler)
    state.optimizers.step = keep_and_update
    trainer.update(processes.wrap(state.model))
    kept["loss"] = processes.mean(state.losses.take_mean())
    if processes.is_main:
        torch.save(kept, sys.argv[1])
"""


# What each process thinks lies ahead, and what all of them go by: with nobody asking to stop, and with one that does.
AGREE = """
import sys, torch
from engine.clock import Outlook
from engine.processes import processes_from_environment

processes = processes_from_environment()
with processes.together(torch.device("cpu")):
    for stops in (False, True):
        main, other = Outlook(progress=0.1 + 0.2, is_last=True, has_room=False), Outlook(stops, 0.7)
        mine = main if processes.is_main else other
        print(mine.agreed(processes), flush=True)
"""


def torchrun(home: Path, *arguments: object, processes: int = 2) -> Finished:
    """Run train.py in several processes, to their end."""
    return call(home, *TORCHRUN, processes, ROOT / "train.py", *arguments, env=QUIET)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    (folder / "text.txt").write_text(ENGLISH, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    """A run of two processes with dropout, never interrupted."""
    finished = torchrun(home, *LONG_RUN, "name=whole")
    assert finished.code == 0, finished.err
    assert finished.out.count(f"finished at step {LONG}") == 1
    assert finished.err.count(f"step {LONG}/{LONG}") == 1
    assert "2 processes, each on cpu" in finished.err
    assert re.search(r"^peak     [\d.]+ [GT]FLOP/s together", finished.err, re.MULTILINE)
    assert not [line for line in finished.err.splitlines() if str(ROOT) in line and "Warning" in line]
    return home / "runs" / "whole"


def test_a_process_that_torchrun_did_not_start_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert processes_from_environment() == ALONE
    assert ALONE.is_main
    assert (ALONE.any(flag=True), ALONE.any(flag=False), ALONE.sum([2.5, 3])) == (True, False, [2.5, 3])


def test_the_place_is_that_of_torchruns_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", 5), ("LOCAL_RANK", 1), ("WORLD_SIZE", 8)):
        monkeypatch.setenv(name, str(value))
    places = processes_from_environment()
    assert places == Processes(rank=5, local_rank=1, world_size=8)
    assert not places.is_main


@pytest.mark.parametrize(
    ("name", "value"), [("RANK", "8"), ("LOCAL_RANK", "x"), ("WORLD_SIZE", ""), ("LOCAL_RANK", "1"), ("RANK", "-1")]
)
def test_variables_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    for known, good in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 8)):
        monkeypatch.setenv(known, str(good))
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="torchrun"):
        processes_from_environment()


def test_two_processes_have_the_gradients_of_one_with_twice_the_batch(home: Path) -> None:
    settings = (*BASE, "optim.grad_clip=null", f"data.cache_dir={home / 'cache'}")
    script = home / "first_step.py"
    script.write_text(FIRST_STEP, encoding="utf-8")
    where = {**QUIET, "PYTHONPATH": str(ROOT)}
    two = call(home, *TORCHRUN, 2, script, home / "two.pt", *settings, env=where)
    assert two.code == 0, two.err
    one = call(home, script, home / "one.pt", *settings, "train.batch_size=8", env=where)
    assert one.code == 0, one.err
    a, b = (torch.load(home / file, weights_only=True) for file in ("one.pt", "two.pt"))
    for name, gradient in a["gradients"].items():
        error = (gradient - b["gradients"][name]).norm() / gradient.norm()
        assert error < 1e-6, f"{name}: {error}"
    assert a["loss"] == pytest.approx(b["loss"], rel=1e-6)
    assert a["val"] == pytest.approx(b["val"], abs=1e-6)
    assert (a["tokens"], a["chars"]) == (b["tokens"], b["chars"])


@pytest.mark.parametrize(("optimizer", "tolerance"), [("adamw", 1e-4), ("muon", 1e-3)])
def test_a_run_of_two_processes_has_the_losses_of_one_with_twice_the_batch(
    home: Path, optimizer: str, tolerance: float
) -> None:
    base = [*BASE, f"optim.optimizer={optimizer}"]
    two = torchrun(home, *base, f"name=two-{optimizer}")
    assert two.code == 0, two.err
    succeed(home, "train.py", *base, "train.batch_size=8", f"name=one-{optimizer}")
    ours, theirs = metrics(home / "runs" / f"two-{optimizer}"), metrics(home / "runs" / f"one-{optimizer}")
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() & {"train/loss", "val/loss", "val/bits_per_char"}:
            # Muon, where it computes in bf16, makes more of the last digits from step to step.
            assert a[name] == pytest.approx(b[name], abs=tolerance), f"step {a['step']}: {name}"


def test_processes_draw_dropout_of_their_own(whole: Path) -> None:
    generators = read_checkpoint(whole, LONG)["generators"]
    assert generators.keys() == {"windows", "cpu", "cpu.1"}
    assert not torch.equal(generators["cpu"], generators["cpu.1"])


def test_an_interrupted_run_of_two_goes_on_bit_for_bit(home: Path, whole: Path) -> None:
    process = start(home, *TORCHRUN, 2, ROOT / "train.py", *LONG_RUN, "name=parts", env=QUIET)
    file = home / "runs" / "parts" / "metrics.jsonl"
    wait_for_lines(process, file, 2)
    process.send_signal(signal.SIGTERM)
    interrupted = finish(process)
    stopped_at = steps(file.parent)[-1]
    assert 14 <= stopped_at < LONG, "the signal came too late to test anything"
    assert f"interrupted at step {stopped_at}" in interrupted.out, interrupted.err
    line = pasted("resume", interrupted.out)
    assert re.search(r"torchrun --standalone --nproc-per-node 2 \S*train\.py --resume runs/parts$", line)
    resumed = paste(home, line.replace("torchrun", f"{sys.executable} -m torch.distributed.run", 1), QUIET)
    assert resumed.code == 0, resumed.err
    a, b = (read_checkpoint(run, LONG) for run in (whole, file.parent))
    a["config"]["name"] = b["config"]["name"]
    assert_equal_states(a, b)
    assert without_speed(metrics(whole)) == without_speed(metrics(file.parent))


def test_another_number_of_processes_cannot_resume(home: Path, whole: Path) -> None:
    finished = call(home, "train.py", "--resume", whole, f"train.max_steps={2 * LONG}")
    assert "was trained by 2 processes, and now there are 1" in finished.error()
    assert "torchrun --standalone --nproc-per-node 2" in finished.error()


def test_the_main_processs_clock_counts_and_each_may_ask_to_stop(home: Path) -> None:
    script = home / "agree.py"
    script.write_text(AGREE, encoding="utf-8")
    finished = call(home, *TORCHRUN, 2, script, env={**QUIET, "PYTHONPATH": str(ROOT)})
    assert finished.code == 0, finished.err
    for stops in (False, True):
        assert finished.out.count(str(Outlook(stops, 0.1 + 0.2, is_last=True, has_room=False))) == 2, finished.out


def test_two_processes_end_on_time_at_the_same_step_and_go_on_with_more_time(home: Path) -> None:
    """Were each to go by its own clock, they would wait for each other for ever."""
    settings = (*BASE, "train.max_steps=null", "train.max_minutes=0.15", "train.eval_interval=100000")
    finished = torchrun(home, *settings, "name=timed")
    assert finished.code == 0, finished.err
    run = home / "runs" / "timed"
    last = steps(run)[-1]
    assert f"finished, as train.max_minutes=0.15 asks, at step {last} " in finished.out
    assert [line["step"] for line in metrics(run) if "val/loss" in line] == [last]
    more = torchrun(home, "--resume", run, "train.max_minutes=1000", "train.max_steps=" + str(last + 3))
    assert f"finished at step {last + 3} " in more.out, more.err
    assert steps(run)[-1] == last + 3


def test_when_one_is_killed_the_others_leave_with_one_line(home: Path) -> None:
    settings = (*BASE, "train.max_steps=100000", "train.eval_interval=100000", "name=killed")
    process = start(home, *TORCHRUN, 2, ROOT / "train.py", *settings, env=QUIET, start_new_session=True)
    try:
        file = home / "runs" / "killed" / "metrics.jsonl"
        wait_for_lines(process, file, 2)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if not children.exists():
            pytest.skip("needs Linux's list of child processes")
        workers = [int(pid) for pid in children.read_text(encoding="utf-8").split()]
        workers = [pid for pid in workers if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(workers) == 2
        os.kill(workers[-1], signal.SIGKILL)
        began = time.monotonic()
        finished = finish(process)
        assert time.monotonic() - began < 25, "they waited for torchrun to kill them"
        assert finished.code != 0
        assert "error: process 0: another process of this run has ended" in finished.err
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_mistake_is_told_by_every_process_and_none_is_left_waiting(home: Path) -> None:
    began = time.monotonic()
    finished = torchrun(home, "data.source=missing.txt", *TINY, "name=mistake")
    assert finished.code != 0
    assert "there is no file 'missing.txt'" in finished.err
    assert time.monotonic() - began < 60
    assert not (home / "runs" / "mistake").exists()


def start_by_hand(folder: Path, rank: int, port: int, *arguments: object) -> subprocess.Popen[bytes]:
    """One of two processes on machines of their own, as torchrun would start it."""
    places = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env = {name: str(value) for name, value in (places | address).items()}
    return start(folder, "train.py", *arguments, env={**QUIET, **env})


@pytest.mark.parametrize("what", ["settings", "text"])
def test_machines_that_differ_are_told_before_anything_is_trained(tmp_path: Path, what: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in (0, 1):
        folder = tmp_path / str(rank)
        folder.mkdir()
        other_text = "some more" if (what, rank) == ("text", 1) else ""
        (folder / "text.txt").write_text(ENGLISH + other_text, encoding="utf-8")
        steps = 5 if (what, rank) == ("settings", 1) else 6
        processes.append(start_by_hand(folder, rank, port, *BASE, f"train.max_steps={steps}"))
    ends = [finish(process) for process in processes]
    assert [end.code for end in ends] == [2, 2], ends
    assert any(f"the {what} is not the same" in end.err or f"the {what} are not the same" in end.err for end in ends)
    assert not list(tmp_path.glob("*/runs"))


def test_an_address_where_nobody_is_gives_one_line(home: Path) -> None:
    finished = finish(start(home, "train.py", *BASE, env={"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}))
    assert "the 2 processes do not find each other" in finished.error()
    assert "torchrun" in finished.error()
