"""A grid of settings runs to its end, goes on where it was interrupted, and reports what fails."""

import importlib.util
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import ModuleType

import pytest
from commands import ENGLISH, ROOT, TINY, call, metrics

from errors import UserError

SCRIPT = ROOT / "bench" / "sweep.py"
# The d_model of 15 does not go into 2 heads, which is found before torch is loaded.
GRID = ("model.d_model=16,15", "optim.learning_rate=1e-3,2e-3")


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("bench_sweep", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_sweep", module)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("common", None)


def test_values_are_split_at_the_commas_that_belong_to_none_of_them(sweep):
    assert sweep.split_values("128,160") == ["128", "160"]
    assert sweep.split_values("[a.txt,b.txt],[c.txt]") == ["[a.txt,b.txt]", "[c.txt]"]
    assert sweep.split_values("\"Well, then\",'No, no',don't,a") == ['"Well, then"', "'No, no'", "don't", "a"]
    assert sweep.split_values("") == [""]


def test_settings_with_slashes_change_together(sweep):
    assert sweep.axis("model.d_model/model.num_heads=128/4,160/5") == [
        [("model.d_model", "128"), ("model.num_heads", "4")],
        [("model.d_model", "160"), ("model.num_heads", "5")],
    ]
    with pytest.raises(UserError, match="1 values for 2 settings"):
        sweep.axis("a/b=1")


def test_a_run_is_known_by_its_settings_and_its_recipe(sweep, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("seed: 1\n", encoding="utf-8")
    settings = [("data.source", "a/b: c.txt")]
    name = sweep.Sweep(recipe, (), tmp_path).name(settings)
    assert name.startswith("source=a-b-c.txt-")
    assert sweep.Sweep(recipe, (), tmp_path).name(settings) == name
    assert sweep.Sweep(recipe, ("seed=2",), tmp_path).name(settings) != name
    recipe.write_text("seed: 2\n", encoding="utf-8")
    assert sweep.Sweep(recipe, (), tmp_path).name(settings) != name


def test_seeds_make_a_mean_and_a_spread(sweep, capsys):
    settings = [("model.d_model", "16")]
    sweep.print_results(
        ["model.d_model=16"],
        [(settings, [sweep.Result("", 5, 2.0, 1.5, 3.0, 10.0, 900.0), sweep.Result("", 5, 2.5, 2.0, 3.5, 12.0, 1100)])],
    )
    header, _, row = capsys.readouterr().out.splitlines()
    assert header == "| model.d_model | steps | final val loss | spread | best | bits/char | seconds | tokens/s |"
    assert row == "| 16 | 5 | 2.2500 | 0.5000 | 1.7500 | 3.250 | 11.0 | 1,000 |"


def test_a_grid_goes_on_where_it_stood_and_reports_what_fails(tmp_path):
    (tmp_path / "text.txt").write_text(ENGLISH, encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text("data: {source: text.txt, tokenizer: char}\n", encoding="utf-8")
    fixed = [*(setting for setting in TINY if "d_model" not in setting), "train.max_steps=4", "train.eval_interval=2"]
    command = [SCRIPT, "recipe.yaml", *GRID, "--out", "sweep", "--fixed", *fixed, "data.cache_dir=cache"]

    first = call(tmp_path, *command)
    assert first.code == 1, first.err
    rows = [line for line in first.out.splitlines() if line.startswith("| 1")]
    losses = [row.split(" | ")[3] for row in rows]
    assert [row[:4] for row in rows] == ["| 16", "| 16", "| 15", "| 15"], first.out
    assert float(losses[0]) <= float(losses[1])
    assert all("error: model.d_model (15) must be" in row for row in rows[2:]), first.out
    assert len([line for line in first.err.splitlines() if line.startswith("[")]) == 4

    # One of the runs is as if the sweep had been interrupted in its middle.
    folder = tmp_path / "sweep"
    finished = sorted(folder.glob("*.finished"))
    runs = [marker.with_suffix("") for marker in finished]
    before = metrics(runs[0])
    (runs[0] / "checkpoints" / "step_00000004.pt").unlink()
    finished[0].unlink()
    untouched = (runs[1] / "metrics.jsonl").stat().st_mtime_ns
    second = call(tmp_path, *command)
    assert second.code == 1
    assert [line for line in second.out.splitlines() if line.startswith("| 1")][2:] == rows[2:]
    assert [line.get("val/loss") for line in metrics(runs[0])] == [line.get("val/loss") for line in before]
    assert "step 4" in (folder / f"{runs[0].name}.log").read_text(encoding="utf-8")
    assert (runs[1] / "metrics.jsonl").stat().st_mtime_ns == untouched

    well = call(tmp_path, *command[:2], "model.d_model=16", *command[3:])
    assert well.code == 0, well.err


def test_no_seeds_at_all_are_refused(tmp_path):
    (tmp_path / "recipe.yaml").write_text("seed: 1\n", encoding="utf-8")
    for number in ("0", "-1"):
        refused = call(tmp_path, SCRIPT, "recipe.yaml", "--seeds", number)
        assert refused.code == 2
        assert f"--seeds must be at least 1, not {number}" in refused.err
    assert not (tmp_path / "runs").exists()


def test_what_can_never_run_is_refused_in_one_line_before_anything_runs(tmp_path):
    (tmp_path / "recipe.yaml").write_text("seed: 1\n", encoding="utf-8")
    (tmp_path / "file").touch()
    for arguments, words in (
        (["model.nosuch=1,2"], "model.nosuch is not a setting"),
        (["--fixed", "train.max_steps=few"], "train.max_steps must be"),
        (["seed=1", "--out", "file"], "--out"),
        (["nothing"], "section.key=value,value"),
    ):
        refused = call(tmp_path, SCRIPT, "recipe.yaml", *arguments)
        assert refused.code == 2, refused.err
        assert refused.err.startswith("error: ")
        assert words in refused.err
        assert len(refused.err.splitlines()) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no terminals that hang up")
def test_a_sweep_whose_terminal_is_gone_takes_its_run_along(tmp_path):
    (tmp_path / "text.txt").write_text(ENGLISH, encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text("data: {source: text.txt, tokenizer: char}\n", encoding="utf-8")
    fixed = [*TINY, "train.max_steps=1000000", "train.eval_interval=1000000", "data.cache_dir=cache"]
    command = [sys.executable, str(SCRIPT), "recipe.yaml", "seed=1", "--out", "sweep", "--fixed", *fixed]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 100
    while not list(tmp_path.glob("sweep/*/checkpoints/*.pt")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 130, said
    (log,) = tmp_path.glob("sweep/*.log")
    assert "interrupted" in log.read_text(encoding="utf-8")
