"""The folder of a new run: made, or cleared of an older run, and nothing else is ever deleted."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_folders import create, kept_steps, make_run, one_line

from engine.lock import LOCK_NAME, RunLock
from engine.new_run import check_name, create_run
from engine.run_folder import RunFolder
from errors import CheckpointError, ConfigError

ROOT = Path(__file__).resolve().parents[1]


def test_without_a_name_the_recipes_gets_the_first_free_number(tmp_path):
    runs_dir = tmp_path / "a" / "runs"
    names = [create(runs_dir, None, "quick", overwrite=False).path.name for _ in range(3)]
    assert names == ["quick", "quick-2", "quick-3"]
    shutil.rmtree(runs_dir / "quick-2")
    assert create(runs_dir, None, "quick", overwrite=True).path.name == "quick-2"


def test_a_name_that_exists_is_refused_with_three_ways_out(tmp_path):
    run = make_run(tmp_path, steps=(1,))
    with pytest.raises(ConfigError) as error:
        create(tmp_path, "tiny", "", overwrite=False)
    assert str(error.value) == (
        f"{run.path}: exists already; resume it (--resume {run.path}), replace it (--overwrite), "
        "or choose another name=…"
    )
    assert kept_steps(run) == [1]


def test_overwrite_replaces_a_run_and_an_empty_folder(tmp_path):
    run = make_run(tmp_path, steps=(1,), best=1)
    for path in (
        run.metrics_file,
        run.samples_file,
        run.checkpoints / ".step_00000001.pt.5.tmp",
        run.checkpoints / "step_00000002.old.pt",
    ):
        path.write_bytes(b"")
    for folder in ("wandb", "tensorboard"):
        (run.path / folder / "anything").mkdir(parents=True)
    for _ in range(2):
        assert [path.name for path in create(tmp_path, "tiny", "", overwrite=True).path.iterdir()] == [LOCK_NAME]
    assert create(tmp_path, "new", "", overwrite=True).path.is_dir()


@pytest.mark.parametrize("foreign", ["notes.txt", ".git", "checkpoints/mine.pt", "checkpoints/step_5.pt"])
def test_overwrite_leaves_a_folder_alone_that_holds_anything_else(tmp_path, foreign):
    run = make_run(tmp_path, steps=(1,))
    (run.path / foreign).write_text("precious", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"it holds {foreign}.*leaves it alone") as error:
        create(tmp_path, "tiny", "", overwrite=True)
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
            create(tmp_path, name, "", overwrite=True)
        with pytest.raises(ConfigError, match="exists already"):
            create(tmp_path, name, "", overwrite=False)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "precious"
    assert run.config_file.is_file()


def test_a_runs_dir_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for runs_dir in (tmp_path / "file", tmp_path / "file" / "runs", tmp_path / ("x" * 300)):
        for name in (None, "tiny"):
            with pytest.raises(ConfigError, match="choose another runs_dir=") as error:
                create(runs_dir, name, "quick", overwrite=False)
            assert one_line(error)
            assert str(tmp_path) in str(error.value)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[RunFolder]:
    """A run that another process holds."""
    run = make_run(tmp_path, steps=(1,))
    script = "import sys; from pathlib import Path; from engine.lock import RunLock\n"
    script += "with RunLock(print) as lock: lock.take(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script, run.path], cwd=ROOT, **pipes) as process:
        process.stdout.readline()
        yield run
        process.stdin.close()


def test_a_run_that_is_training_is_not_overwritten(tmp_path, training):
    before = {path: path.stat().st_mtime_ns for path in training.path.rglob("*")}
    with pytest.raises(CheckpointError, match=r"tiny: process [0-9]+ on .* is training in this folder"):
        check_name(tmp_path, "tiny", overwrite=True)
    with pytest.raises(CheckpointError, match=r"tiny: process [0-9]+ on .* is training in this folder"):
        create(tmp_path, "tiny", overwrite=True)
    assert {path: path.stat().st_mtime_ns for path in training.path.rglob("*")} == before


def test_overwrite_keeps_the_lock_that_it_holds(tmp_path):
    run = make_run(tmp_path, steps=(1,))
    before = (run.path / LOCK_NAME).stat().st_ino
    with RunLock(print) as lock:
        create_run(tmp_path, "tiny", "", overwrite=True, lock=lock)
        assert (run.path / LOCK_NAME).stat().st_ino == before


@pytest.mark.parametrize("left", [(), ("checkpoints",), ("checkpoints", "metrics.jsonl", "wandb")])
def test_a_run_that_was_killed_while_it_began_or_was_deleted_can_be_overwritten(tmp_path, left):
    run = make_run(tmp_path)
    run.config_file.unlink()  # the last that is deleted, and not the first that is written
    (run.path / "wandb").mkdir()
    assert create(tmp_path, "tiny", overwrite=True).path == run.path
