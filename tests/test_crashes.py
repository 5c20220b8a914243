"""Runs that are killed, refused by the disk, or disturbed by a second process: nothing is lost, one line says why."""

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import (
    ENGLISH,
    ROOT,
    TINY,
    Finished,
    assert_equal_states,
    call,
    checkpoint_file,
    environment,
    finish,
    metrics,
    paste,
    read_checkpoint,
    start,
    steps,
    succeed,
    two_at_a_time,
    without_speed,
)

STEPS = 60
EXACT = ("data.source=text.txt", *TINY, "model.dropout=0.1", "train.grad_accum_steps=2", "runtime.precision=fp32")
LONG = (*EXACT, f"train.max_steps={STEPS}", "train.eval_interval=20", "train.checkpoint_interval=5")
LONG += ("train.log_interval=1", "--quiet")
ENDLESS = (*EXACT, "train.max_steps=100000", "train.checkpoint_interval=5", "train.keep_checkpoints=9999", "--quiet")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, its tokens, and a run that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "text.txt").write_text(ENGLISH, encoding="utf-8")
    succeed(folder, "train.py", *LONG, "name=whole")
    return folder


def wait_for(run: Path, step: int, process: "subprocess.Popen[bytes]") -> None:
    """Until the run has saved a checkpoint of that step or a later one."""
    deadline = time.monotonic() + 60
    while not (run / "checkpoints").is_dir() or not any(kept >= step for kept in kept_steps(run)):
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline
        time.sleep(0.005)


def kept_steps(run: Path) -> list[int]:
    return [int(path.stem[5:]) for path in (run / "checkpoints").glob("step_????????.pt")]


def assert_as_if_undisturbed(home: Path, name: str) -> None:
    whole, run = home / "runs" / "whole", home / "runs" / name
    ours, theirs = read_checkpoint(run, STEPS), read_checkpoint(whole, STEPS)
    ours["config"]["name"] = "whole"
    assert_equal_states(ours, theirs)
    assert without_speed(metrics(run)) == without_speed(metrics(whole))
    for file in ("samples.txt", "best.json"):
        assert (run / file).read_bytes() == (whole / file).read_bytes()


def test_ten_kills_lose_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "crashes.py", "--kills", "10", "--seed", "0"],
        env=environment({"PYTHONWARNINGS": "default"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^kills 10 .* faults 0, ", done.stdout, re.MULTILINE), done.stdout


def test_a_killed_run_with_a_dashboard_is_resumed_at_once(home: Path) -> None:
    run = home / "runs" / "dashboard"
    process = start(home, "train.py", *LONG, "name=dashboard", env={"WANDB_MODE": "offline"}, start_new_session=True)
    try:
        wait_for(run, 10, process)
        assert any(run.glob("wandb/offline-run-*"))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL  # but not its pipes, which children may hold
        assert succeed(home, "train.py", "--resume", run, "--quiet").err == ""
    finally:
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
        with contextlib.suppress(ProcessLookupError):  # what wandb left running
            os.killpg(process.pid, signal.SIGKILL)
    assert_as_if_undisturbed(home, "dashboard")


def test_a_run_that_is_training_can_be_sampled_but_not_trained(home: Path) -> None:
    run = home / "runs" / "busy"
    process = start(home, "train.py", *ENDLESS, "name=busy")
    wait_for(run, 5, process)
    held = f"runs/busy: process {process.pid} on "
    with two_at_a_time() as later:
        refused = [
            later(home, "train.py", "--resume", "runs/busy"),
            later(home, "train.py", *ENDLESS, "name=busy", "--overwrite"),
            later(home, "train.py", "--resume", checkpoint_file(run, 5)),
        ]
        uses = [
            later(home, "sample.py", "runs/busy", "--max-new-tokens", 5),
            later(home, "evaluate.py", "runs/busy"),
            later(home, "train.py", "--resume", "runs/busy", "--dry-run"),
        ]
        for second in (one.result() for one in refused):
            assert held in second.error().replace(str(run), "runs/busy")
            assert "is training in this folder; wait until it has finished or stop it" in second.error()
            assert len(second.err.splitlines()) == 1
        for use in uses:
            assert use.result().code == 0, use.result().err
    process.send_signal(signal.SIGTERM)
    assert finish(process).code == 130
    assert succeed(home, "train.py", *LONG, "name=busy", "--overwrite").err == ""
    assert_as_if_undisturbed(home, "busy")


def refused_by_the_disk(home: Path, name: str, limit: Callable[[Path], int]) -> Finished:
    """A run to which the disk refuses longer files after its first steps, and how that ended."""
    run = home / "runs" / name
    process = start(home, "train.py", *LONG, f"name={name}")
    wait_for(run, 10, process)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit(run), resource.RLIM_INFINITY))
    return finish(process)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux, where a running process can be limited")
@pytest.mark.parametrize(
    ("refused", "limit"),
    [
        (r"checkpoints/step_\d+\.pt", lambda run: 30_000),
        # A checkpoint where the limit comes too late for the next line.
        (r"metrics\.jsonl|checkpoints/step_\d+\.pt", lambda run: (run / "metrics.jsonl").stat().st_size + 100),
    ],
    ids=["checkpoint", "metrics"],
)
def test_a_full_disk_is_one_line_and_the_run_goes_on_from_the_checkpoint_before(
    home: Path, refused: str, limit: Callable[[Path], int], request: pytest.FixtureRequest
) -> None:
    name = f"full-{request.node.callspec.id}"
    run = home / "runs" / name
    stopped = refused_by_the_disk(home, name, limit)
    assert re.match(rf"error: runs/{name}/({refused}): could not be written: File too large; ", stopped.error())
    assert len(stopped.err.splitlines()) == 1
    assert not list(run.rglob(".*.tmp"))
    assert 10 <= max(kept_steps(run)) < STEPS
    succeed(home, "train.py", "--resume", f"runs/{name}", "--quiet")
    assert_as_if_undisturbed(home, name)


def test_a_new_run_that_the_disk_refuses_is_one_line(home: Path) -> None:
    for limit, words in ((10, "config.yaml: could not be written"), (20_000, "step_00000000.pt: could not be written")):
        limited = subprocess.run(
            ["prlimit", f"--fsize={limit}", sys.executable, ROOT / "train.py", *LONG, "name=refused", "--overwrite"],
            cwd=home,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert words in Finished(limited.returncode, limited.stdout, limited.stderr).error()
    assert "--overwrite" in call(home, "train.py", "--resume", "runs/refused").error()


def test_a_damaged_last_checkpoint_is_named_with_the_command_that_goes_on_from_a_whole_one(home: Path) -> None:
    run = Path(shutil.copytree(home / "runs" / "whole", home / "runs" / "damaged"))
    last, before = sorted((run / "checkpoints").iterdir())[-1], sorted((run / "checkpoints").iterdir())[-2]
    last.write_bytes(last.read_bytes()[:9000])
    refused = call(home, "train.py", "--resume", "runs/damaged", "--quiet").error()
    assert refused.startswith(f"error: runs/damaged/checkpoints/{last.name}: damaged")
    sample = call(home, "sample.py", "runs/damaged", "--checkpoint", "last").error()
    whole = Path("runs/damaged/checkpoints") / before.name
    assert f"the newest whole one is {whole}: name it instead, as RUN or with --checkpoint" in sample
    succeed(home, "sample.py", "runs/damaged", "--checkpoint", whole, "--max-new-tokens", 5)
    resumed = paste(home, refused.partition("go on from the newest whole one: ")[2] + " --quiet")
    assert resumed.code == 0, resumed.err
    assert f"back     to step {int(before.stem[5:])}: what came later is kept as {last.stem}.old.pt" in resumed.err
    assert (run / "checkpoints" / f"{last.stem}.old.pt").stat().st_size == 9000
    assert_as_if_undisturbed(home, "damaged")


def test_a_run_without_its_settings_is_sampled_from_but_not_resumed(home: Path) -> None:
    run = Path(shutil.copytree(home / "runs" / "whole", home / "runs" / "bare"))
    (run / "config.yaml").unlink()
    succeed(home, "sample.py", "runs/bare", "--max-new-tokens", 5)
    assert "config.yaml is missing, so that run cannot be resumed" in call(home, "train.py", "--resume", run).error()


def test_a_run_killed_after_its_last_checkpoint_notes_the_best_when_it_is_asked_to_go_on(home: Path) -> None:
    run = Path(shutil.copytree(home / "runs" / "whole", home / "runs" / "unnoted"))
    (run / "best.json").write_text('{"step": 55, "val_loss": 9.0}\n', encoding="utf-8")
    (run / "checkpoints" / ".step_00000060.pt.77.tmp").touch()
    assert "finished already" in succeed(home, "train.py", "--resume", "runs/unnoted").out
    assert steps(run) == steps(home / "runs" / "whole")
    assert_as_if_undisturbed(home, "unnoted")
