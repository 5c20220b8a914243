"""Run folders and the files in them: written whole or not at all, found again, and never deleted by mistake."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import kept_steps, make_run, one_line

from config.load import load_config
from config.schema import Config
from engine.lock import LOCK_NAME
from engine.run_folder import Best, RunFolder, find_run, newest_run
from errors import CheckpointError

ROOT = Path(__file__).resolve().parents[1]


def test_a_run_starts_with_its_settings_and_without_what_a_killed_process_left(tmp_path):
    run = make_run(tmp_path, steps=(5,))
    (run.path / "wandb").mkdir()
    left = [
        run.path / ".best.json.77.tmp",
        run.path / "wandb" / ".run_id.txt.7.tmp",
        run.checkpoints / ".step_00000006.pt.77.tmp",
    ]
    being_written = run.path / ".sample.txt.78.tmp"  # by another command
    for path in (*left, being_written):
        path.write_bytes(b"half")
    run.clear_leftovers()
    run.start(Config(seed=3), '{"b": 2}')
    assert being_written.exists()
    assert load_config(run.config_file) == Config(seed=3)
    assert run.tokenizer_file.read_text(encoding="utf-8") == '{"b": 2}'
    assert kept_steps(run) == [5]
    assert not any(path.exists() for path in left)


def test_checkpoints_are_in_the_order_of_steps_however_long_the_number(tmp_path):
    run = make_run(tmp_path, steps=(100_000_000, 99_999_999, 5))
    for name in ("step_1.pt", "step_0000000x.pt", ".step_00000009.pt.5.tmp", "step_00000009.pt.bak"):
        (run.checkpoints / name).write_bytes(b"")
    assert kept_steps(run) == [5, 99_999_999, 100_000_000]
    assert run.find("last") == run.checkpoint_file(100_000_000)


@pytest.mark.parametrize(
    ("best", "keep", "kept"),
    [(None, 2, [3, 4]), (1, 2, [1, 3, 4]), (4, 2, [3, 4]), (3, 1, [3, 4]), (2, 9, [1, 2, 3, 4])],
)
def test_thinning_out_keeps_the_newest_and_the_best(tmp_path, best, keep, kept):
    run = make_run(tmp_path, steps=(1, 2, 3, 4), best=best)
    run.thin_out(keep)
    assert kept_steps(run) == kept


def contents(run: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.checkpoints.iterdir()}


def test_what_is_later_than_a_step_is_set_aside_under_a_name_that_is_free(tmp_path):
    run = make_run(tmp_path, steps=(1, 2, 3))
    for _ in range(2):
        assert run.later_than(2) == [run.checkpoint_file(3)]
        assert run.set_aside(run.checkpoint_file(3)).is_file()
        assert run.find("last") == run.checkpoint_file(2)
        run.checkpoint_file(3).write_bytes(b"another")
    run.thin_out(1)
    assert sorted(contents(run)) == ["step_00000003.old-2.pt", "step_00000003.old.pt", "step_00000003.pt"]
    assert contents(run)["step_00000003.old-2.pt"] == b"another"
    assert run.find("step_00000003.old.pt").is_file()


def no_links(path: Path, copy: Path) -> None:
    raise PermissionError(errno.EPERM, "this file system knows no links")


def test_the_best_stays_the_best_where_it_is_set_aside(tmp_path, monkeypatch):
    for links in (True, False):
        run = make_run(tmp_path, f"links {links}", steps=(1, 2, 3), best=3)
        run.checkpoint_file(3).write_bytes(b"the best")
        if not links:
            monkeypatch.setattr(os, "link", no_links)
        aside = run.set_aside(run.checkpoint_file(3))
        assert not run.checkpoint_file(3).exists()
        run.checkpoint_file(3).write_bytes(b"worse")
        for worse in (None, Best(1, 9.0), Best(3, 1.6)):
            run.note_best(worse)
            run.thin_out(1)
            assert run.find("best") == aside
            assert aside.read_bytes() == b"the best"
        run.note_best(Best(3, 1.5))
        assert run.find("best") == run.checkpoint_file(3), "one that is as good replaces it"
        assert json.loads(run.best_file.read_bytes()) == {"step": 3, "val_loss": 1.5}


def test_a_set_aside_best_that_names_another_file_is_damaged(tmp_path):
    run = make_run(tmp_path, steps=(1,))
    run.best_file.write_text('{"step": 1, "val_loss": 1, "file": "../../secret.pt"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"best\.json: damaged"):
        run.find("best")


def test_the_best_never_becomes_worse_but_one_whose_file_is_gone_is_none(tmp_path):
    run = make_run(tmp_path, steps=(1, 2), best=1)
    written = run.best_file.stat().st_mtime_ns
    run.note_best(Best(2, 1.6))
    run.note_best(Best(1, 1.5))
    assert run.best() == Best(1, 1.5)
    assert run.best_file.stat().st_mtime_ns == written, "not written where it says so already"
    run.checkpoint_file(1).unlink()
    run.note_best(Best(2, 1.6))
    assert run.best() == Best(2, 1.6)


def test_a_run_without_its_settings_is_found_by_its_checkpoints(tmp_path):
    run = make_run(tmp_path, steps=(1,))
    run.config_file.unlink()
    assert find_run(str(run.path)) == (run, None)
    run.checkpoint_file(1).unlink()
    with pytest.raises(CheckpointError, match=r"tiny: ended before its first checkpoint; .*--overwrite"):
        find_run(str(run.path))
    (run.path / LOCK_NAME).unlink()
    with pytest.raises(CheckpointError, match=r"it holds no config\.yaml"):
        find_run(str(run.path))


def test_best_last_and_files_are_found(tmp_path, monkeypatch):
    run = make_run(tmp_path / "runs", steps=(10, 20, 30), best=20)
    assert run.find("best") == run.checkpoint_file(20)
    assert run.find("last") == run.checkpoint_file(30)
    assert run.find("step_00000010.pt") == run.checkpoint_file(10)
    assert run.find(str(run.checkpoint_file(10))) == run.checkpoint_file(10)
    monkeypatch.chdir(run.checkpoints)
    assert run.find("step_00000010.pt") == Path("step_00000010.pt")


def test_the_last_is_the_best_before_the_first_evaluation(tmp_path):
    run = make_run(tmp_path, steps=(0, 7))
    assert run.find("best") == run.checkpoint_file(7)


def test_a_best_whose_file_is_gone_is_not_noted_and_one_that_goes_later_is_reported(tmp_path):
    run = make_run(tmp_path, steps=(1, 2), best=1)
    run.checkpoint_file(1).unlink()
    with pytest.raises(
        CheckpointError, match=r"step_00000001\.pt: the best checkpoint is missing; use --checkpoint last"
    ):
        run.find("best")
    run.note_best(Best(1, 1.5))
    assert run.best() is None
    assert run.find("best") == run.checkpoint_file(2)


@pytest.mark.parametrize("name", ["step_00000099.pt", "nowhere/x.pt", "", "x" * 300, "checkpoints", "~nobody-here/x"])
def test_a_checkpoint_that_is_not_there_is_refused_in_one_line(tmp_path, name):
    run = make_run(tmp_path, steps=(1,))
    with pytest.raises(CheckpointError) as error:
        run.find(name)
    assert one_line(error)


def test_a_run_without_a_checkpoint_says_so(tmp_path):
    run = make_run(tmp_path)
    for which in ("best", "last"):
        with pytest.raises(CheckpointError, match=r"tiny: holds no checkpoint yet; start that run again"):
            run.find(which)
    with pytest.raises(CheckpointError, match="none, since the run has no checkpoint"):
        run.find("x.pt")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"{}",
        b'{"step": "x", "val_loss": 1}',
        b'{"step": null, "val_loss": 1}',
        b'{"step": 1e999, "val_loss": 1}',
        b'{"step": 1, "val_loss": []}',
        b"\xff\xfe",
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_a_damaged_best_file_is_reported_with_what_to_do_and_last_still_works(tmp_path, content):
    run = make_run(tmp_path, steps=(1, 2), best=1)
    run.best_file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"best\.json: damaged; delete it") as error:
        run.find("best")
    assert one_line(error)
    assert run.find("last") == run.checkpoint_file(2)
    run.note_best(Best(2, 0.5))
    assert run.best() == Best(2, 0.5)
    assert json.loads(run.best_file.read_bytes()) == {"step": 2, "val_loss": 0.5}


def test_a_run_is_found_by_its_folder_a_link_to_it_or_a_checkpoint_file(tmp_path, monkeypatch):
    run = make_run(tmp_path / "runs", steps=(1,))
    file = run.checkpoint_file(1)
    (tmp_path / "link").symlink_to(run.path)
    assert find_run(str(run.path)) == (run, None)
    assert find_run(f"{run.path}/") == (run, None)
    assert find_run(str(tmp_path / "link")) == (RunFolder(tmp_path / "link"), None)
    assert find_run(str(file)) == (run, file)
    monkeypatch.chdir(run.checkpoints)
    for name in (file.name, f"./{file.name}", f"../checkpoints/{file.name}"):
        found, found_file = find_run(name)
        assert found.path.resolve() == run.path.resolve()
        assert found.config_file.is_file()
        assert found_file == Path(name)


def test_without_a_name_it_is_the_run_that_was_saved_last(tmp_path, monkeypatch):
    runs_dir = tmp_path / "runs"
    old, new = make_run(runs_dir, "a", steps=(1, 9)), make_run(runs_dir, "b", steps=(3,))
    make_run(runs_dir, "c")  # has no checkpoint
    os.utime(old.checkpoint_file(1), ns=(0, 5000))
    os.utime(old.checkpoint_file(9), ns=(0, 1000))
    os.utime(new.checkpoint_file(3), ns=(0, 2000))
    assert newest_run(runs_dir) == old
    os.utime(new.checkpoint_file(3), ns=(0, 9000))
    monkeypatch.chdir(tmp_path)
    assert find_run(None) == (RunFolder(Path("runs/b")), None)


def test_without_any_run_the_command_that_makes_one_is_named(tmp_path):
    make_run(tmp_path)
    for runs_dir in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match=r"no run with a checkpoint in it; train one with: python train\.py"):
            newest_run(runs_dir)


def test_a_mistyped_run_gets_the_nearest_name(tmp_path, monkeypatch):
    run = make_run(tmp_path / "runs", "shakespeare")
    (tmp_path / "runs" / "shakespear-notes.txt").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    for name in ("runs/shakespaere", "runs/shakespeare-2/", "shakespeare", "runs/shakespeare/checkpoints"):
        with pytest.raises(CheckpointError, match=r"did you mean runs/shakespeare\?$") as error:
            find_run(name)
        assert one_line(error)
    assert run.config_file.is_file()


@pytest.mark.parametrize("name", ["", ".", "nowhere", "/nowhere/at/all", "~nobody-here", "x" * 300, "a\0b"])
def test_what_is_no_run_is_refused_in_one_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="give a folder such as runs/NAME") as error:
        find_run(name)
    assert one_line(error)


LOCALE_SCRIPT = """
import sys
from config.schema import Config
from data.paths import local_path
from engine.lock import RunLock
from engine.new_run import create_run
from engine.run_folder import Best, find_run
from errors import CheckpointError, utf8_arguments

runs_dir, name = utf8_arguments(sys.argv[1:])
with RunLock(print) as lock:
    run = create_run(local_path(runs_dir), local_path(name).name, "", overwrite=False, lock=lock)
run.start(Config(), "{}")
run.checkpoint_file(4).write_bytes(b"")
run.note_best(Best(4, 1.0))
assert find_run(f"{runs_dir}/{name}")[0].find("best") == run.checkpoint_file(4)
try:
    find_run(f"{runs_dir}/{name}x")
except CheckpointError as error:
    sys.stdout.buffer.write(str(error).encode("utf-8"))
"""


def test_names_beyond_ascii_work_and_are_shown_in_an_ascii_locale(tmp_path):
    name = "läufe-你好"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", LOCALE_SCRIPT, f"{tmp_path}/ü".encode(), name.encode()],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=True,
    )
    assert (tmp_path / "ü" / name / "checkpoints" / "step_00000004.pt").is_file()
    shown = done.stdout.decode("utf-8")
    assert shown == f"{tmp_path}/ü/{name}x: no such run; did you mean {tmp_path}/ü/{name}?"
