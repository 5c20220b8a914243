"""Run folders and the files in them: written whole or not at all, found again, and never deleted by mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.load import load_config
from config.schema import Config
from engine.run_folder import (
    Best,
    RunFolder,
    checkpoint_files,
    create_run,
    find_run,
    newest_run,
    replacing,
    write_text,
)
from errors import CheckpointError, ConfigError

ROOT = Path(__file__).resolve().parents[1]


def make_run(runs_dir: Path, name: str = "tiny", steps: tuple[int, ...] = (), best: int | None = None) -> RunFolder:
    run = create_run(runs_dir, name, "", overwrite=False)
    run.start(Config(), '{"a": 1}')
    for step in steps:
        run.checkpoint_file(step).write_bytes(b"")
    run.note_best(None if best is None else Best(best, 1.5))
    return run


def kept_steps(run: RunFolder) -> list[int]:
    return [int(path.stem[5:]) for path in checkpoint_files(run.checkpoints)]


def one_line(error: pytest.ExceptionInfo[BaseException]) -> bool:
    return len(str(error.value).splitlines()) == 1


def test_a_file_is_replaced_only_when_the_block_ends_well(tmp_path):
    path = tmp_path / "file"
    path.write_text("old", encoding="utf-8")
    for exception in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(exception), replacing(path) as temporary:  # noqa: PT012
            temporary.write_text("half", encoding="utf-8")
            assert path.read_text(encoding="utf-8") == "old"
            raise exception
        assert [(p.name, p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()] == [("file", "old")]
    write_text(path, "new\r\n–")
    assert path.read_bytes() == "new\r\n–".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_what_the_disk_refuses_is_one_line_and_leaves_the_old_file(tmp_path):
    (tmp_path / "file").write_text("old", encoding="utf-8")
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    targets = [tmp_path / "file" / "below", tmp_path / "nowhere" / "file", tmp_path / "folder", tmp_path / ("x" * 255)]
    for path in targets:
        with pytest.raises(CheckpointError, match=r"could not be written: .+; what was there before") as error:
            write_text(path, "new")
        assert one_line(error)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_link_stays_a_link_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real", tmp_path / "link"
    real.write_text("old", encoding="utf-8")
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text(encoding="utf-8") == "new"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(CheckpointError, match="loop/file: could not be written"):
        write_text(loop / "file", "new")


def test_a_run_starts_with_its_settings_and_without_what_a_killed_process_left(tmp_path):
    run = make_run(tmp_path, steps=(5,))
    left = [run.path / ".best.json.77.tmp", run.checkpoints / ".step_00000006.pt.77.tmp"]
    being_written = run.checkpoints / ".step_00000007.pt.78.tmp"  # by another process, perhaps
    for path in (*left, being_written):
        path.write_bytes(b"half")
    for path in left:
        os.utime(path, (0, 0))
    run.start(Config(seed=3), '{"b": 2}')
    assert being_written.exists()
    assert load_config(run.config_file) == Config(seed=3)
    assert run.tokenizer_file.read_text(encoding="utf-8") == '{"b": 2}'
    assert kept_steps(run) == [5]
    assert not any(path.exists() for path in left)


def test_without_a_name_the_recipes_gets_the_first_free_number(tmp_path):
    runs_dir = tmp_path / "a" / "runs"
    names = [create_run(runs_dir, None, "quick", overwrite=False).path.name for _ in range(3)]
    assert names == ["quick", "quick-2", "quick-3"]
    (runs_dir / "quick-2").rmdir()
    assert create_run(runs_dir, None, "quick", overwrite=True).path.name == "quick-2"


def test_a_name_that_exists_is_refused_with_three_ways_out(tmp_path):
    run = make_run(tmp_path, steps=(1,))
    with pytest.raises(ConfigError) as error:
        create_run(tmp_path, "tiny", "", overwrite=False)
    assert str(error.value) == (
        f"{run.path}: exists already; resume it (--resume {run.path}), replace it (--overwrite), "
        "or choose another name=…"
    )
    assert kept_steps(run) == [1]


def test_overwrite_replaces_a_run_and_an_empty_folder(tmp_path):
    run = make_run(tmp_path, steps=(1,), best=1)
    for path in (run.metrics_file, run.samples_file, run.checkpoints / ".step_00000001.pt.5.tmp"):
        path.write_bytes(b"")
    for folder in ("wandb", "tensorboard"):
        (run.path / folder / "anything").mkdir(parents=True)
    for _ in range(2):
        assert list(create_run(tmp_path, "tiny", "", overwrite=True).path.iterdir()) == []
    assert create_run(tmp_path, "new", "", overwrite=True).path.is_dir()


@pytest.mark.parametrize("foreign", ["notes.txt", ".git", "checkpoints/mine.pt", "checkpoints/step_5.pt"])
def test_overwrite_leaves_a_folder_alone_that_holds_anything_else(tmp_path, foreign):
    run = make_run(tmp_path, steps=(1,))
    (run.path / foreign).write_text("precious", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"it holds {foreign}.*leaves it alone") as error:
        create_run(tmp_path, "tiny", "", overwrite=True)
    assert one_line(error)
    assert (run.path / foreign).read_text(encoding="utf-8") == "precious"
    assert kept_steps(run) == [1]


def test_overwrite_leaves_folders_without_a_config_files_and_links_alone(tmp_path):
    (tmp_path / "folder" / "checkpoints").mkdir(parents=True)
    (tmp_path / "file").write_text("precious", encoding="utf-8")
    run = make_run(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(run.path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name, reason in (
        ("folder", "no config.yaml"),
        ("file", "not a folder"),
        ("link", "a link"),
        ("dangling", "a link"),
    ):
        with pytest.raises(ConfigError, match=f"{reason}.*leaves it alone"):
            create_run(tmp_path, name, "", overwrite=True)
        with pytest.raises(ConfigError, match="exists already"):
            create_run(tmp_path, name, "", overwrite=False)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "precious"
    assert run.config_file.is_file()


def test_a_runs_dir_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for runs_dir in (tmp_path / "file", tmp_path / "file" / "runs", tmp_path / ("x" * 300)):
        for name in (None, "tiny"):
            with pytest.raises(ConfigError, match="choose another runs_dir=") as error:
                create_run(runs_dir, name, "quick", overwrite=False)
            assert one_line(error)
            assert str(tmp_path) in str(error.value)


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
    run.thin_out(keep, last_step=4)
    assert kept_steps(run) == kept


def test_a_run_resumed_from_an_earlier_step_drops_what_it_makes_anew(tmp_path):
    run = make_run(tmp_path, steps=(1, 2, 3, 8, 9), best=8)
    run.note_best(Best(1, 2.0))
    run.thin_out(2, last_step=3)
    assert kept_steps(run) == [1, 2, 3]
    assert run.find("last") == run.checkpoint_file(3)


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
from data.sources import local_path
from engine.run_folder import Best, create_run, find_run
from errors import CheckpointError, utf8_arguments

runs_dir, name = utf8_arguments(sys.argv[1:])
run = create_run(local_path(runs_dir), local_path(name).name, "", overwrite=False)
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
