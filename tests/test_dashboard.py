"""The dashboard: what is written is read back with wandb's own reader, and nothing about it stops training."""

import html
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import (
    ENGLISH,
    TINY_MODEL,
    Finished,
    call,
    checkpoint_file,
    environment,
    finish,
    metrics,
    start,
    succeed,
    wait_for_lines,
)
from wandb_server import ServedRun, WandbServer

from config.schema import Config, TrackingConfig
from engine.dashboard import Dashboard, run_id, wandb_mode
from engine.run_folder import RunFolder, step_of

SMALL = (*TINY_MODEL, "train.batch_size=4", "data.source=text.txt", "train.log_interval=1", "train.eval_interval=2")
ONLINE = ("tracking.wandb=online", "name=a")
ENDLESS = (*SMALL, "train.max_steps=1000000", "train.eval_interval=20", "name=a", "--quiet")
DYING_STEPS = 2000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(ENGLISH, encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def silent_server() -> Iterator[int]:
    """A server that takes connections and never answers. Yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        yield server.getsockname()[1]
        for connection in taken:
            connection.close()


@pytest.fixture(scope="module")
def run_at_silent_server(
    silent_server: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[subprocess.Popen[bytes]]:
    """A run that is to be online at a server which never answers."""
    folder = tmp_path_factory.mktemp("silent")
    (folder / "text.txt").write_text(ENGLISH, encoding="utf-8")
    server = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": f"http://127.0.0.1:{silent_server}"}
    with start(folder, "train.py", *SMALL, "train.max_steps=2", "tracking.wandb=online", env=server) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def run_whose_server_dies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """A run whose server is gone after some steps, with most of them still to come."""
    folder, server = tmp_path_factory.mktemp("dying"), WandbServer()
    (folder / "text.txt").write_text(ENGLISH, encoding="utf-8")
    steps = (f"train.max_steps={DYING_STEPS}", f"train.eval_interval={DYING_STEPS // 4}")
    with start(folder, "train.py", *SMALL, *ONLINE, *steps, "--quiet", env=server.environment) as process:
        wait_for_lines(process, folder / "runs" / "a" / "metrics.jsonl", 20)
        server.stop()
        assert process.poll() is None, "it ended before its server did"
        yield process
        process.kill()


@pytest.fixture(scope="module", autouse=True)
def slow_runs(request: pytest.FixtureRequest) -> None:
    """Start the runs that wait for seconds before the first test, beside which they wait, where a test wants them."""
    wanted = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    for name in {"run_at_silent_server", "run_whose_server_dies"} & wanted:
        request.getfixturevalue(name)


@pytest.fixture(autouse=True)
def no_wandb_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("WANDB"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # no key of the developer's


def inspect(run: Path, *options: str) -> list[dict[str, Any]]:
    """What `wandb leet inspect --json` reads from the newest part of a run."""
    newest = max((run / "wandb").glob("offline-run-*"))
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", *options, str(newest)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout
    return [json.loads(out)] if options else [json.loads(line) for line in out.splitlines()]


def history(run: Path) -> dict[int, dict[str, Any]]:
    """The values by step, as wandb reads them."""
    rows = [record["history"] for record in inspect(run) if record["type"] == "history"]
    return {row["step"]["num"]: row["item"] for row in rows}


def assert_sums_are_right(sums: dict[str, Any], run: Path) -> None:
    """A summary is that of all lines of metrics.jsonl, whichever process wrote them."""
    lines = metrics(run)
    best = min((line["val/loss"], line["step"]) for line in lines if "val/loss" in line)
    assert (sums["best/val_loss"], sums["best/step"]) == (pytest.approx(best[0]), best[1])
    assert sums["val/loss"] == lines[-1]["val/loss"]  # a number, as sweeps ask for
    for name, how, of in (
        ("val/bits_per_char", "min", min),
        ("perf/tokens_per_second", "mean", statistics.fmean),
        ("perf/mfu", "mean", statistics.fmean),
        ("perf/memory_mib", "max", max),
    ):
        assert sums[name] == {how: pytest.approx(of([line[name] for line in lines if name in line]))}, name


def test_an_offline_run_holds_config_metrics_samples_and_summary_as_wandb_reads_them(folder: Path) -> None:
    done = succeed(folder, "train.py", *SMALL, "train.max_steps=4", "name=a-run")
    run = folder / "runs" / "a-run"
    assert "curves   wandb leet runs/a-run/wandb" in done.out
    by_step = history(run)
    ours = {line["step"]: line for line in metrics(run)}
    assert sorted(by_step) == sorted(ours) == [1, 2, 3, 4]
    for step, line in ours.items():
        for name in line.keys() - {"step"}:
            assert float(by_step[step][name]) == pytest.approx(line[name], rel=1e-6), name
    assert "val/loss" in by_step[4]
    assert by_step[4]["perf/memory_mib"] > 10
    (summary,) = inspect(run, "--summary")
    assert summary["state"] == "finished"
    assert summary["project"] == "tiny-gpt"
    assert summary["name"] == "a-run"
    assert summary["run_id"].startswith("a-run-")
    assert summary["config"]["model"]["d_model"] == 16
    assert_sums_are_right(summary["summary"], run)


def test_a_resumed_run_keeps_its_id_and_its_newest_part_holds_all_steps(folder: Path) -> None:
    succeed(folder, "train.py", *SMALL, "train.max_steps=2", "name=a")
    run = folder / "runs" / "a"
    (first,) = inspect(run, "--summary")
    succeed(folder, "train.py", "--resume", "runs/a", "train.max_steps=4")
    (second,) = inspect(run, "--summary")
    assert first["run_id"] == second["run_id"]
    assert list(history(run)) == [1, 2, 3, 4]
    assert len(list((run / "wandb").glob("offline-run-*"))) == 1


def test_an_interrupted_run_is_closed_and_not_shown_as_finished(folder: Path) -> None:
    process = start(folder, "train.py", *SMALL, "train.max_steps=1000000", "name=a")
    assert process.stderr is not None
    while b"2/1000000  train" not in (line := process.stderr.readline()):
        assert line, "the run ended before it was interrupted"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    (summary,) = inspect(folder / "runs" / "a", "--summary")
    assert (summary["state"], summary["exit_code"]) == ("failed", 130)


def test_a_run_that_fails_is_shown_as_failed(folder: Path) -> None:
    failed = call(folder, "train.py", *SMALL, "name=a", "optim.learning_rate=1e30", "optim.optimizer=adamw")
    assert "not finite" in failed.error()
    (summary,) = inspect(folder / "runs" / "a", "--summary")
    assert summary["state"] == "failed"


def assert_all_is_there_once(served: ServedRun, run: Path) -> None:
    """The server has the lines of metrics.jsonl and the samples, each step once, in order, and sums them up."""
    rows, lines = served.history(), metrics(run)
    assert [row["_step"] for row in rows] == [line["step"] for line in lines]
    for row, line in zip(rows, lines, strict=True):
        assert {name: row[name] for name in line.keys() - {"step"}} == {
            name: pytest.approx(value, rel=1e-9) for name, value in line.items() if name != "step"
        }
        assert ("sample" in row) == ("val/loss" in row)
    assert_sums_are_right(served.summary(), run)


def sync(folder: Path, server: WandbServer) -> None:
    """Upload as README says: with wandb's own program."""
    parts = map(str, (folder / "runs" / "a" / "wandb").glob("offline-run-*"))
    command = [sys.executable, "-m", "wandb", "sync", *parts]
    done = subprocess.run(command, env=environment(server.environment), capture_output=True, text=True, check=True)
    assert "ERROR" not in done.stdout + done.stderr


def kill_after_a_checkpoint(process: subprocess.Popen[bytes], run: Path, number: int) -> None:
    """kill -9 after so many lines, when there are steps in metrics.jsonl that no checkpoint has."""
    wait_for_lines(process, run / "metrics.jsonl", number)
    deadline = time.monotonic() + 60
    while True:  # it trains on while we look, so it is stopped for that
        process.send_signal(signal.SIGSTOP)
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        if json.loads(lines[-1])["step"] > step_of(RunFolder(run).find("last")):
            break
        process.send_signal(signal.SIGCONT)
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    finish(process)


def test_an_online_run_has_every_step_samples_tags_and_group_on_the_server(folder: Path, server: WandbServer) -> None:
    named = ("tracking.wandb_group=seeds", "tracking.wandb_tags=[small, first try]")
    succeed(folder, "train.py", *SMALL, *ONLINE, *named, "train.max_steps=4", env=server.environment)
    run, served = folder / "runs" / "a", server.only_run()
    assert_all_is_there_once(served, run)
    assert served.exit_code == 0
    assert (served.fields["groupName"], served.fields["tags"]) == ("seeds", ["small", "first try"])
    page = server.files[served.history()[-1]["sample"]["path"]].decode("utf-8")
    text = html.unescape(re.sub("<[^>]*>", "", page))
    assert (run / "samples.txt").read_text(encoding="utf-8").endswith(f"--- step 4 ---\n{text}\n\n")


def test_an_online_run_says_one_line_about_it(folder: Path, server: WandbServer) -> None:
    done = succeed(folder, "train.py", *SMALL, *ONLINE, "train.max_steps=2", env=server.environment)
    assert [line for line in done.err.splitlines() if "wandb" in line] == [
        f"wandb    {server.url}/me/tiny-gpt/runs/{server.only_run().fields['name']}"
    ]


def test_an_online_run_that_is_killed_and_resumed_has_every_step_once(folder: Path, server: WandbServer) -> None:
    run = folder / "runs" / "a"
    kill_after_a_checkpoint(start(folder, "train.py", *ENDLESS, *ONLINE, env=server.environment), run, 50)
    limit = f"train.max_steps={metrics(run)[-1]['step'] + 10}"
    succeed(folder, "train.py", "--resume", run, limit, "--quiet", env=server.environment)
    served = server.only_run()
    assert [row["_step"] for row in served.history()] == [line["step"] for line in metrics(run)]
    assert [row["train/loss"] for row in served.history()] == [line["train/loss"] for line in metrics(run)]


def test_an_offline_run_that_is_interrupted_and_killed_has_every_step_once(folder: Path, server: WandbServer) -> None:
    run = folder / "runs" / "a"
    process = start(folder, "train.py", *ENDLESS)
    wait_for_lines(process, run / "metrics.jsonl", 5)
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130
    kill_after_a_checkpoint(start(folder, "train.py", "--resume", run, "--quiet"), run, 50)
    limit = f"train.max_steps={metrics(run)[-1]['step'] + 10}"
    succeed(folder, "train.py", "--resume", run, limit, "--quiet")
    sync(folder, server)
    assert_all_is_there_once(server.only_run(), run)
    assert len([name for name in server.files if name.startswith("media/html/")]) >= 3


def test_a_run_that_goes_on_after_it_was_uploaded_sends_only_what_is_new(folder: Path, server: WandbServer) -> None:
    run = folder / "runs" / "a"
    succeed(folder, "train.py", *SMALL, "name=a", "train.max_steps=4")
    sync(folder, server)
    time.sleep(1.1)  # wandb names the parts by the second
    succeed(folder, "train.py", "--resume", run, "train.max_steps=7")
    assert list(history(run)) == [5, 6, 7]
    sync(folder, server)
    assert_all_is_there_once(server.only_run(), run)
    succeed(folder, "train.py", "--resume", run, "train.max_steps=9", "tracking.wandb=online", env=server.environment)
    assert_all_is_there_once(server.only_run(), run)


def test_a_run_that_was_offline_is_sent_whole_once_it_is_online(folder: Path, server: WandbServer) -> None:
    succeed(folder, "train.py", *SMALL, "name=a", "train.max_steps=4")
    resume = ("--resume", "runs/a", "train.max_steps=6", "tracking.wandb=online")
    succeed(folder, "train.py", *resume, env=server.environment)
    assert_all_is_there_once(server.only_run(), folder / "runs" / "a")


def test_a_run_that_goes_back_is_another_run_with_the_same_beginning(folder: Path, server: WandbServer) -> None:
    run = folder / "runs" / "a"
    succeed(folder, "train.py", *SMALL, *ONLINE, "train.max_steps=6", env=server.environment)
    back = ("--resume", checkpoint_file(run, 4), "train.max_steps=5", "optim.learning_rate=0.1")
    succeed(folder, "train.py", *back, env=server.environment)
    first, second = server.runs.values()
    assert [row["_step"] for row in first.history()] == [1, 2, 3, 4, 5, 6]
    assert_all_is_there_once(second, run)
    assert len(second.history()) == 5


def test_an_online_start_that_fails_leaves_the_run_its_id(folder: Path, server: WandbServer) -> None:
    server.refuses_runs = True
    done = succeed(folder, "train.py", *SMALL, *ONLINE, "train.max_steps=2", env=server.environment)
    assert "wandb does not start (online): " in done.err
    assert "another run" not in done.err
    run = folder / "runs" / "a"
    succeed(folder, "train.py", "--resume", run, "train.max_steps=4", env={"WANDB_MODE": "offline"})
    assert list(history(run)) == [1, 2, 3, 4]
    assert {(run / "wandb" / "run_id.txt").read_text(encoding="utf-8").strip()} == {*server.refused}


def test_an_online_run_that_was_killed_and_goes_on_offline_is_another_run_which_is_said(
    folder: Path, server: WandbServer
) -> None:
    run = folder / "runs" / "a"
    kill_after_a_checkpoint(start(folder, "train.py", *ENDLESS, *ONLINE, env=server.environment), run, 30)
    limit = f"train.max_steps={metrics(run)[-1]['step'] + 2}"
    done = succeed(folder, "train.py", "--resume", run, limit, env={"WANDB_MODE": "offline"})
    name = (run / "wandb" / "run_id.txt").read_text(encoding="utf-8").strip()
    assert name not in server.runs
    assert done.err.count("another run") == 1
    assert f"another run there: {name}\n" in done.err
    assert list(history(run)) == [line["step"] for line in metrics(run)]


def test_a_part_that_was_never_sent_is_kept_where_nothing_takes_its_place(folder: Path) -> None:
    succeed(folder, "train.py", *SMALL, "name=a", "train.max_steps=2")
    run = folder / "runs" / "a"
    (part,) = (run / "wandb").glob("offline-run-*")
    broken = {"PYTHONPATH": str(folder / "broken")}
    (folder / "broken").mkdir()
    (folder / "broken" / "wandb.py").write_text("def init(**options): raise OSError('no room')\nSettings = dict\n")
    succeed(folder, "train.py", "--resume", run, "train.max_steps=3", env=broken)
    assert part.is_dir()
    (run / "metrics.jsonl").write_bytes(b"")
    succeed(folder, "train.py", "--resume", run, "train.max_steps=4")
    assert part.is_dir()


def test_lines_that_nobody_can_read_do_not_end_training(folder: Path) -> None:
    succeed(folder, "train.py", *SMALL, "name=a", "train.max_steps=2")
    run = folder / "runs" / "a"
    file = run / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"[" + b" " * (len(lines[0]) - 2) + b"\n" + lines[1])  # as long as it was: a resume cuts it back
    done = succeed(folder, "train.py", "--resume", run, "train.max_steps=3")
    assert "wandb" not in done.err
    assert list(history(run)) == [2, 3]
    file.write_bytes(b'{"loss":1}' + b" " * (len(lines[0]) - 11) + b"\n" + file.read_bytes()[len(lines[0]) :])
    succeed(folder, "train.py", "--resume", run, "train.max_steps=4")
    assert list(history(run)) == [2, 3, 4]


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_rejects_the_key_is_one_line_and_an_offline_run(
    folder: Path, server: WandbServer, status: int
) -> None:
    server.refusal = status
    done = succeed(folder, "train.py", *SMALL, *ONLINE, "train.max_steps=2", env=server.environment)
    (line,) = [line for line in done.err.splitlines() if "wandb" in line]
    assert line.startswith("wandb cannot log in, so the run is kept offline: ")
    assert "permission denied" in line
    assert list(history(folder / "runs" / "a")) == [1, 2]


def train_two_steps(folder: Path, *arguments: str, **env: str) -> Finished:
    return call(folder, "train.py", *SMALL, "train.max_steps=2", *arguments, env=env)


def test_disabled_writes_nothing_and_does_not_even_import_wandb(folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "wandb.py").write_text("raise ImportError('no such package here')")
    done = train_two_steps(folder, "tracking.wandb=disabled", PYTHONPATH=str(folder / "broken"))
    assert done.code == 0
    assert "wandb" not in done.out + done.err
    assert not (folder / "runs" / "quickstart" / "wandb").exists()


def test_without_the_package_one_line_says_so_and_training_goes_on(folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "wandb.py").write_text("raise ImportError('no such package here')")
    done = train_two_steps(folder, PYTHONPATH=str(folder / "broken"))
    assert done.code == 0
    assert [line for line in done.err.splitlines() if "wandb" in line] == [
        "wandb cannot be loaded (no such package here), so there is no dashboard; metrics.jsonl has all numbers"
    ]


def test_a_wandb_that_fails_while_it_is_loaded_does_not_stop_training(folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "wandb.py").write_text("raise TypeError('descriptors cannot be created')")
    done = train_two_steps(folder, PYTHONPATH=str(folder / "broken"))
    assert done.code == 0
    assert "wandb cannot be loaded (descriptors cannot be created)" in done.err


def test_a_wandb_that_fails_in_any_way_at_the_start_does_not_stop_training(folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "wandb.py").write_text("def init(**options): raise OSError('no room')\nSettings = dict\n")
    done = train_two_steps(folder, PYTHONPATH=str(folder / "broken"))
    assert done.code == 0
    assert "wandb does not start (offline): no room" in done.err


class BrokenRun:
    """A run of a wandb that has stopped working."""

    def log(self, values: dict[str, float], step: int) -> None:
        raise BrokenPipeError("its process has died")


def test_a_wandb_that_dies_on_the_way_is_said_once() -> None:
    said: list[str] = []
    dashboard = Dashboard(BrokenRun(), said.append)
    dashboard.log(1, {"train/loss": 1.0})
    dashboard.log(2, {"train/loss": 1.0})
    dashboard.sum_up()
    dashboard.finish(0)
    assert said == ["wandb could not take a metric and is off from here on: its process has died"]


def test_online_without_a_key_never_prompts_and_is_kept_offline(folder: Path, silent_server: int) -> None:
    done = train_two_steps(folder, "tracking.wandb=online", WANDB_BASE_URL=f"http://127.0.0.1:{silent_server}")
    assert done.code == 0
    assert "wandb has no API key (wandb login makes one), so the run is kept offline" in done.err
    assert list((folder / "runs" / "quickstart" / "wandb").glob("offline-run-*"))


def test_online_with_a_key_and_no_network_is_kept_offline_within_seconds(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # free again, so nobody listens there
    server = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": f"http://127.0.0.1:{port}"}
    done = train_two_steps(folder, "tracking.wandb=online", **server)
    assert done.code == 0
    assert "wandb does not reach 127.0.0.1, so the run is kept offline" in done.err
    assert list((folder / "runs" / "quickstart" / "wandb").glob("offline-run-*"))


@pytest.mark.parametrize(
    ("variable", "mode"), [("", "online"), ("disabled", "disabled"), ("offline", "offline"), ("dryrun", "offline")]
)
def test_the_variable_wandb_mode_wins_where_it_is_set(
    variable: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", variable)
    assert wandb_mode(Config(tracking=TrackingConfig(wandb="online"))) == mode


def test_a_wrong_wandb_mode_is_reported_before_there_is_a_run_folder(folder: Path) -> None:
    failed = train_two_steps(folder, WANDB_MODE="sometimes")
    assert failed.error() == (
        "error: the variable WANDB_MODE is 'sometimes'; it must be offline, online or disabled, or unset"
    )
    assert not (folder / "runs").exists()


def test_the_id_is_readable_and_stays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "Mein Lauf – 你好 2")
    folder.path.mkdir()
    made = run_id(folder)
    assert made.startswith("Mein-Lauf-2-")
    assert run_id(folder) == made
    (folder.path / "wandb" / "run_id.txt").write_text("../../etc")
    assert run_id(folder) not in ("../../etc", made)


def test_online_with_a_server_that_never_answers_is_kept_offline_too(
    run_at_silent_server: subprocess.Popen[bytes],
) -> None:
    done = finish(run_at_silent_server)
    assert done.code == 0
    assert "wandb cannot log in, so the run is kept offline" in done.err
    assert "step 2/2" in done.err


def test_a_server_that_dies_on_the_way_costs_seconds_at_the_end(
    run_whose_server_dies: subprocess.Popen[bytes],
) -> None:
    began = time.monotonic()
    done = finish(run_whose_server_dies)
    assert time.monotonic() - began < 40
    assert done.code == 0
    assert f"finished at step {DYING_STEPS}" in done.out
    assert "Traceback" not in done.err


def test_a_sweep_gives_its_own_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    monkeypatch.setenv("WANDB_RUN_ID", "x1y2z3")
    assert run_id(folder) == "x1y2z3"
    monkeypatch.setenv("WANDB_RUN_ID", "another")
    assert run_id(folder) == "x1y2z3"


def test_a_run_that_becomes_another_one_does_not_take_the_given_id_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    monkeypatch.setenv("WANDB_RUN_ID", "x1y2z3")
    assert run_id(folder) == "x1y2z3"
    (folder.wandb / "run-20300101_000001-x1y2z3").mkdir()
    folder.wandb_id_file.unlink()
    assert run_id(folder).startswith(tmp_path.name[:9])
