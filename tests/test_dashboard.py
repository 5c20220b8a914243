"""The dashboard: what is written is read back with wandb's own reader, and nothing about it stops training."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import ENGLISH, TINY_MODEL, Finished, call, finish, metrics, start, succeed

from config.schema import Config, TrackingConfig
from engine.dashboard import Dashboard, run_id, wandb_mode
from engine.run_folder import RunFolder

SMALL = (*TINY_MODEL, "train.batch_size=4", "data.source=text.txt", "train.log_interval=1", "train.eval_interval=2")


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


@pytest.fixture(scope="module", autouse=True)
def run_at_silent_server(silent_server: int, tmp_path_factory: pytest.TempPathFactory) -> subprocess.Popen[bytes]:
    """A run that is to be online at a server which never answers. It waits for seconds, beside the other tests."""
    folder = tmp_path_factory.mktemp("silent")
    (folder / "text.txt").write_text(ENGLISH, encoding="utf-8")
    server = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": f"http://127.0.0.1:{silent_server}"}
    return start(folder, "train.py", *SMALL, "train.max_steps=2", "tracking.wandb=online", env=server)


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
    assert by_step[4]["sample"] in (run / "samples.txt").read_text(encoding="utf-8")
    (summary,) = inspect(run, "--summary")
    assert summary["state"] == "finished"
    assert summary["project"] == "tiny-gpt"
    assert summary["name"] == "a-run"
    assert summary["run_id"].startswith("a-run-")
    assert summary["config"]["model"]["d_model"] == 16
    assert summary["summary"]["best/val_loss"] == pytest.approx(min(ours[2]["val/loss"], ours[4]["val/loss"]))


def test_a_resumed_run_keeps_its_id_and_goes_on_counting(folder: Path) -> None:
    succeed(folder, "train.py", *SMALL, "train.max_steps=2", "name=a")
    run = folder / "runs" / "a"
    (first,) = inspect(run, "--summary")
    time.sleep(1.1)  # wandb names the parts by the second
    succeed(folder, "train.py", "--resume", "runs/a", "train.max_steps=4")
    (second,) = inspect(run, "--summary")
    assert first["file"] != second["file"]
    assert first["run_id"] == second["run_id"]
    assert list(history(run)) == [3, 4]


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
    dashboard.note_best(2, 1.0)
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
