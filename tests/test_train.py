"""train.py as a user meets it: what it leaves behind, that it goes on exactly, and how it refuses."""

import json
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from commands import (
    ENGLISH,
    TINY,
    Finished,
    assert_equal_states,
    checkpoint_file,
    environment,
    finish,
    metrics,
    on_terminal,
    paste,
    pasted,
    read_checkpoint,
    start,
    steps,
    succeed,
    two_at_a_time,
    wait_for_lines,
    without_speed,
)
from conftest import Tiny

import train
from config.describe import SETTINGS
from engine.loading import load_model
from engine.tracking import Console
from errors import UserError

TEXT = "data.source=text.txt"
EXACT = (*TINY, "model.dropout=0.1", "train.grad_accum_steps=2", "runtime.precision=fp32", "train.log_interval=1")
BASE = (TEXT, *EXACT, "train.max_steps=6", "train.keep_checkpoints=9")
STEPS = 160
LONG = (TEXT, *EXACT, f"train.max_steps={STEPS}", "train.eval_interval=40", "train.log_interval=7")
SHORT = (TEXT, *TINY, "train.max_steps=50", "train.eval_interval=2000", "train.log_interval=1")
TURN = ("data.source=turn.txt", *TINY, "train.max_steps=400", "train.eval_interval=10", "train.patience=4")
WILD = (TEXT, *TINY, "train.max_steps=50", "train.checkpoint_interval=1", "runtime.precision=fp32")
WILD += ("optim.learning_rate=1e30", "optim.muon_learning_rate=1e30", "optim.grad_clip=null", "optim.warmup_steps=0")
TIMED = (TEXT, *TINY, "train.max_steps=null", "train.eval_interval=100000")
TEN_MINUTES = ("train.max_minutes=10",)

Processes = dict[str, Future[Finished]]
Later = Callable[..., Future[Finished]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, and one run on it: 6 steps, evaluated at 3 and 6."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "text.txt").write_text(ENGLISH, encoding="utf-8")
    finished = succeed(folder, "train.py", *BASE, "train.eval_interval=3", "name=base", "--quiet")
    assert finished.err == ""
    return folder


@pytest.fixture(scope="module")
def later() -> Iterator[Later]:
    """Starts a command in the background, so that both cores have something to do while tests go on."""
    with two_at_a_time() as call_later:
        yield call_later


@pytest.fixture(scope="module")
def processes(home: Path, later: Later) -> Processes:
    """Runs of their own."""
    # A text whose end is unlike the rest: the better it is learnt, the worse the val loss.
    (home / "turn.txt").write_text("ab" * 400 + "dcacbda" * 12, encoding="utf-8")
    base = home / "runs" / "base"
    copies = {name: copy_of(base, name) for name in ("again", "killed", "back", "lr=half", "finished")}
    for step in (3, 6):
        checkpoint_file(copies["killed"], step).unlink()
    (copies["killed"] / "best.json").unlink()
    for file in ("metrics.jsonl", "samples.txt"):
        with (copies["back"] / file).open("a", encoding="utf-8") as appended:
            appended.write("what a killed process wrote after its last checkpoint\n")
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    changed = ("train.max_steps=9", "optim.learning_rate=5e-4", "--resume", "runs/lr=half")
    return {
        "short": later(home, "train.py", *SHORT, "name=short"),
        "dry": later(elsewhere, "train.py", "data.source=../text.txt", *TINY, "--dry-run", "name=dry"),
        "again": later(home, "train.py", *BASE, "train.eval_interval=2", "name=again", "--overwrite"),
        "turn": later(home, "train.py", *TURN, "name=turn"),
        "muon": later(home, "train.py", *LONG, "name=whole-muon"),
        "adamw": later(home, "train.py", *LONG, "name=whole-adamw", "optim.optimizer=adamw"),
        "killed": later(home, "train.py", "--resume", copies["killed"], "--quiet"),
        "back": later(home, "train.py", "--resume", checkpoint_file(copies["back"], 3), "--quiet"),
        "finished": later(home, "train.py", "--resume", "runs/finished"),
        "changed": later(home, "train.py", *changed),
        "wild": later(home, "train.py", *WILD, "name=wild"),
        "timed": later(home, "train.py", *TIMED, "train.max_minutes=0.15", "name=timed"),
        "late": later(home, "train.py", *TIMED, "train.max_minutes=0.001", "train.patience=1", "name=late"),
        "timed dry": later(elsewhere, "train.py", "data.source=../text.txt", *TIMED[1:], *TEN_MINUTES, "--dry-run"),
    }


def ended_well(process: Future[Finished]) -> Finished:
    finished = process.result()
    assert finished.code == 0, finished.err
    return finished


def copy_of(run: Path, name: str) -> Path:
    return Path(shutil.copytree(run, run.with_name(name)))


class TestWhatARunLeaves:
    @pytest.fixture
    def run(self, home: Path, processes: Processes) -> Path:
        """50 steps where evaluation would come only at 2000; every step logged."""
        finished = ended_well(processes["short"])
        assert "finished at step 50" in finished.out
        assert "step 49/50" in finished.err, "plain lines where there is no terminal"
        assert "%|" not in finished.err, "no bar where there is no terminal"
        return home / "runs" / "short"

    def test_exactly_max_steps_and_a_final_checkpoint_whatever_the_interval(self, run: Path) -> None:
        assert steps(run)[-1] == read_checkpoint(run, 50)["step"] == 50

    def test_one_line_of_metrics_per_step(self, run: Path) -> None:
        lines = metrics(run)
        assert [line["step"] for line in lines] == list(range(1, 51))
        assert [line["step"] for line in lines if "val/loss" in line] == [50]
        assert all(line["optim/learning_rate"] > 0 for line in lines)
        assert lines[-1]["train/loss"] < lines[0]["train/loss"]

    def test_the_sample_of_every_evaluation(self, run: Path) -> None:
        text = (run / "samples.txt").read_text(encoding="utf-8")
        assert text.startswith("--- step 50 ---\n")
        assert len(text) > 200

    def test_nothing_but_what_the_design_names(self, run: Path) -> None:
        names = {path.name for path in run.iterdir()}
        expected = {"config.yaml", "tokenizer.json", "metrics.jsonl", "samples.txt", "checkpoints", "best.json"}
        expected |= {".lock"}
        assert names == expected

    def test_a_quiet_run_prints_its_result_only(self, home: Path) -> None:
        base = home / "runs" / "base"
        assert [line["step"] for line in metrics(base) if "val/loss" in line] == [3, 6]
        assert (base / "samples.txt").read_text(encoding="utf-8").count("--- step") == 2


def test_a_terminal_shows_a_bar(home: Path) -> None:
    code, shown = on_terminal(home, "train.py", TEXT, *TINY, "train.max_steps=4", "name=bar", columns=120)
    assert code == 0, shown
    assert "4/4 " in shown
    assert "tokens/s" in shown


def test_help_lists_every_setting_with_its_meaning(home: Path) -> None:
    shown = succeed(home, "train.py", "--help").out
    assert [key for key in SETTINGS if key.rpartition(".")[2] not in shown] == []
    assert "--resume" in shown
    assert "1337" in shown


def test_a_dry_run_tells_all_and_leaves_nothing(home: Path, processes: Processes) -> None:
    finished = ended_well(processes["dry"])
    assert "d_model: 16" in finished.out
    assert "estimated duration: " in finished.out
    assert "parameters" in finished.err
    assert not (home / "elsewhere" / "runs").exists()


def test_how_often_one_evaluates_changes_nothing_of_training(home: Path, processes: Processes) -> None:
    ended_well(processes["again"])
    by_three, by_two = home / "runs" / "base", home / "runs" / "again"
    for part in ("model", "optimizers", "generators"):
        assert_equal_states(read_checkpoint(by_three, 6)[part], read_checkpoint(by_two, 6)[part], part)
    assert [line["train/loss"] for line in metrics(by_three)] == [line["train/loss"] for line in metrics(by_two)]


def test_overwrite_replaces_a_run(home: Path, processes: Processes) -> None:
    ended_well(processes["again"])
    assert steps(home / "runs" / "again") == [0, 2, 4, 6]
    assert [line["step"] for line in metrics(home / "runs" / "again") if "val/loss" in line] == [2, 4, 6]


class TestBestAndLast:
    @pytest.fixture
    def stopped(self, processes: Processes) -> Finished:
        return ended_well(processes["turn"])

    def test_patience_ends_the_run_and_says_why(self, stopped: Finished) -> None:
        assert re.search(r"^stopped at step \d+ after .*: 4 evaluations without a better val loss$", stopped.out, re.M)
        assert "learn the text by heart" in stopped.err

    def test_both_are_kept(self, home: Path, stopped: Finished) -> None:
        run = home / "runs" / "turn"
        losses = {int(line["step"]): line["val/loss"] for line in metrics(run) if "val/loss" in line}
        best, last = min(losses, key=lambda step: losses[step]), max(losses)
        assert best < last < 400
        assert {best, last} <= set(steps(run))
        assert f'"step": {best}' in (run / "best.json").read_text(encoding="utf-8")
        assert f"best     val loss {losses[best]:.4f} at step {best}\n" in stopped.out

    def test_the_printed_command_goes_on_and_the_bar_for_the_best_stays(self, home: Path, stopped: Finished) -> None:
        run = home / "runs" / "turn"
        last = steps(run)[-1]
        best_before = (run / "best.json").read_bytes()
        resumed = paste(home, f"{pasted('resume', stopped.out)} train.max_steps={last + 10}")
        assert resumed.code == 0, resumed.err
        assert steps(run)[-1] == last + 10
        assert (run / "best.json").read_bytes() == best_before


class TestResuming:
    """A run that was stopped and went on equals one that never was."""

    @classmethod
    def interrupt(cls, home: Path, name: str, number: signal.Signals, optimizer: str) -> Finished:
        """Start a run and send it a signal as soon as it has made some steps, most likely between two lines."""
        process = start(home, "train.py", *LONG, f"name={name}", f"optim.optimizer={optimizer}")
        file = home / "runs" / name / "metrics.jsonl"
        wait_for_lines(process, file, 2)
        process.send_signal(number)
        return finish(process)

    @pytest.fixture(scope="class", params=[(signal.SIGINT, "muon"), (signal.SIGTERM, "adamw")], ids=["muon", "adamw"])
    @classmethod
    def runs(cls, home: Path, processes: Processes, request: pytest.FixtureRequest) -> tuple[Path, Path]:
        """An uninterrupted run, and one that was interrupted and resumed."""
        number, optimizer = request.param
        parts = f"parts-{optimizer}"
        interrupted = cls.interrupt(home, parts, number, optimizer)
        assert interrupted.code == 130, interrupted.err
        assert f"{number.name}: finishing this step" in interrupted.err
        stopped_at = steps(home / "runs" / parts)[-1]
        assert 14 <= stopped_at < STEPS
        assert f"interrupted at step {stopped_at}" in interrupted.out
        resumed = paste(home, pasted("resume", interrupted.out))
        assert resumed.code == 0, resumed.err
        assert f"finished at step {STEPS}" in resumed.out
        ended_well(processes[optimizer])
        return home / "runs" / f"whole-{optimizer}", home / "runs" / parts

    def test_the_final_state_is_equal_bit_for_bit(self, runs: tuple[Path, Path]) -> None:
        whole, parts = (read_checkpoint(run, STEPS) for run in runs)
        whole["config"]["name"] = parts["config"]["name"]
        assert_equal_states(whole, parts)

    def test_metrics_and_samples_are_those_of_one_run(self, runs: tuple[Path, Path]) -> None:
        whole, parts = runs
        assert without_speed(metrics(whole)) == without_speed(metrics(parts))
        assert (whole / "samples.txt").read_bytes() == (parts / "samples.txt").read_bytes()
        assert (whole / "best.json").read_bytes() == (parts / "best.json").read_bytes()


def test_a_run_killed_before_its_first_evaluation_starts_again_from_its_first_checkpoint(
    home: Path, processes: Processes
) -> None:
    ended_well(processes["killed"])
    base, run = home / "runs" / "base", home / "runs" / "killed"
    assert_equal_states(read_checkpoint(base, 6)["model"], read_checkpoint(run, 6)["model"])
    assert without_speed(metrics(base)) == without_speed(metrics(run))


def test_a_checkpoint_file_is_gone_back_to_and_what_came_after_it_is_made_again(
    home: Path, processes: Processes
) -> None:
    ended_well(processes["back"])
    base, run = home / "runs" / "base", home / "runs" / "back"
    assert_equal_states(read_checkpoint(base, 6)["model"], read_checkpoint(run, 6)["model"])
    assert without_speed(metrics(base)) == without_speed(metrics(run))
    assert (base / "samples.txt").read_bytes() == (run / "samples.txt").read_bytes()
    assert (base / "best.json").read_bytes() == (run / "best.json").read_bytes()


def test_a_finished_run_says_so_and_is_left_alone(home: Path, processes: Processes) -> None:
    finished = ended_well(processes["finished"])
    assert "finished already at step 6" in finished.out
    assert "train.max_steps=12" in finished.out
    base, run = home / "runs" / "base", home / "runs" / "finished"
    files = sorted(path.relative_to(base) for path in base.rglob("*") if path.is_file() and path.name != ".lock")
    kept = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    assert files == kept
    assert [(run / file).read_bytes() == (base / file).read_bytes() for file in files] == [True] * len(files)


class TestTime:
    """train.max_minutes. How exactly a run ends on time, tests/test_clock.py tells; no test depends on this machine."""

    def test_a_run_that_time_ends_is_evaluated_at_its_last_step_and_comes_to_rest(
        self, home: Path, processes: Processes
    ) -> None:
        finished = ended_well(processes["timed"])
        run = home / "runs" / "timed"
        lines, last = metrics(run), steps(run)[-1]
        assert f"finished, as train.max_minutes=0.15 asks, at step {last} after " in finished.out
        assert [line["step"] for line in lines if "val/loss" in line] == [last] == [lines[-1]["step"]]
        rates = [line["optim/learning_rate"] for line in lines]
        assert rates[-1] > 0
        if len(rates) >= 10:  # where the machine is so busy that there is time for a few steps only, they tell nothing
            assert rates[-1] < 0.5 * max(rates)
        assert re.search(r"^step +\d+ +\d+%  train ", finished.err, re.MULTILINE)

    def test_it_is_finished_until_it_gets_more_time_and_the_time_adds_up(
        self, home: Path, processes: Processes
    ) -> None:
        ended_well(processes["timed"])
        run = home / "runs" / "timed"
        before, last = metrics(run)[-1], steps(run)[-1]
        more_steps = succeed(home, "train.py", "--resume", "runs/timed", "train.max_steps=1000000")
        assert f"finished already at step {last}, as train.max_minutes=0.15 asks\n" in more_steps.out
        command = pasted("resume", more_steps.out)
        given, suggested = command.split(" ")[-2:]
        assert given == "train.max_steps=1000000"
        assert float(suggested.removeprefix("train.max_minutes=")) >= max(0.3, 2 * before["perf/seconds"] / 60)
        assert steps(run)[-1] == last
        plenty = command.replace(given, f"train.max_steps={last + 5}").replace(suggested, "train.max_minutes=1000")
        longer = paste(home, plenty)
        assert longer.code == 0, longer.err
        assert "changed  train.max_minutes: 0.15 -> 1000.0" in longer.err
        assert steps(run)[-1] == last + 5
        assert metrics(run)[-1]["perf/seconds"] > before["perf/seconds"] + 0.5, "its own preparation counts too"

    def test_where_there_is_no_time_for_a_step_one_is_made_evaluated_and_saved(
        self, home: Path, processes: Processes
    ) -> None:
        finished = ended_well(processes["late"])
        run = home / "runs" / "late"
        (late,) = (line for line in finished.err.splitlines() if line.startswith("time "))
        assert re.search(r"^time     train\.max_minutes=0\.001 is over after .*: only one step is made$", late)
        assert len(late) <= 80
        assert "finished, as train.max_minutes=0.001 asks, at step 1 " in finished.out
        assert steps(run) == [0, 1]
        (line,) = metrics(run)
        assert "val/loss" in line
        assert line["optim/learning_rate"] > 0

    def test_where_time_is_up_on_resume_no_step_is_made(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        train.main([*BASE, "train.eval_interval=2", "name=a", "--quiet"])
        run = here / "runs" / "a"
        for step in (4, 6):
            checkpoint_file(run, step).unlink()
        kept, before = read_checkpoint(run, 2), metrics(run)
        capsys.readouterr()
        assert train.main(["--resume", "runs/a", "train.max_minutes=0.001"]) == 0
        output = capsys.readouterr()
        assert re.search(r"^time     train\.max_minutes=0\.001 is over after .*: no step is made$", output.err, re.M)
        assert output.out.startswith("finished, as train.max_minutes=0.001 asks, at step 2 after ")
        assert metrics(run) == [line for line in before if line["step"] <= 2]
        assert steps(run) == [0, 2]
        for part in ("model", "generators"):
            assert_equal_states(read_checkpoint(run, 2)[part], kept[part], part)
        for ours, theirs in zip(read_checkpoint(run, 2)["optimizers"], kept["optimizers"], strict=True):
            assert_equal_states(ours["state"], theirs["state"])  # the rate is set anew at each step
        for option in ("--dry-run", "--quiet"):
            assert train.main(["--resume", "runs/a", option]) == 0
        output = capsys.readouterr()
        assert "estimated duration: 0 s, 0 steps" in output.out
        assert "finished already at step 2, as train.max_minutes=0.001 asks" in output.out

    @pytest.mark.parametrize("step", [0, 1])
    def test_how_long_the_end_takes_is_known_before_the_first_step_of_a_resumed_run_too(
        self, tiny: Tiny, step: int
    ) -> None:
        state = tiny.state("train.max_steps=2", "train.max_minutes=100000")
        trainer = train.Trainer(state, Console(silent=True), peak=1e12)
        trainer.progress.step = step
        known: list[dict[str, float]] = []
        state.optimizers.set_rate = lambda factor: known.append(dict(trainer.clock.estimates))
        trainer.run(None, file_sizes={} if step else None)
        assert known[0].keys() == {"evaluation", "save"}, "no sample, where there is no folder to write it to"
        assert all(seconds > 0 for seconds in known[0].values())

    def test_when_training_began_is_kept_whatever_limits_the_run(self, home: Path) -> None:
        assert read_checkpoint(home / "runs" / "base", 6)["progress"]["seconds_before_training"] > 0

    def test_a_dry_run_tells_how_many_steps_that_is_about(self, processes: Processes) -> None:
        finished = ended_well(processes["timed dry"])
        found = re.search(r"estimated duration: (\d+):(\d\d), ([\d,]+) steps", finished.out)
        assert found is not None, finished.out
        assert int(found[1]) <= 10
        assert int(found[3].replace(",", "")) > 100

    def test_the_limit_of_time_changes_nothing_of_a_run_that_its_steps_end(self, home: Path, here: Path) -> None:
        settings = (*BASE, "train.eval_interval=3", "name=base", "train.max_minutes=100000")
        train.main([*settings, "--quiet"])
        ours, theirs = (read_checkpoint(folder / "runs" / "base", 6) for folder in (here, home))
        for part in ("model", "optimizers", "generators"):
            assert_equal_states(ours[part], theirs[part], part)


def test_changed_settings_are_said_and_kept(home: Path, processes: Processes) -> None:
    finished = ended_well(processes["changed"])
    assert "changed  train.max_steps: 6 -> 9" in finished.err
    assert re.search(r"^changed  optim\.learning_rate: 0\.00\d -> 0\.0005$", finished.err, re.MULTILINE)
    run = home / "runs" / "lr=half"
    assert read_checkpoint(run, 9)["config"]["optim"]["learning_rate"] == 5e-4
    assert "learning_rate: 0.0005" in (run / "config.yaml").read_text(encoding="utf-8")


def test_a_loss_that_is_not_finite_stops_the_run_and_the_last_good_weights_stay(
    home: Path, processes: Processes
) -> None:
    finished = processes["wild"].result()
    assert "not finite" in finished.error()
    assert "error: step " in finished.err
    run = home / "runs" / "wild"
    assert str(checkpoint_file(Path("runs/wild"), steps(run)[-1])) in finished.err
    assert "train.py --resume runs/wild optim.learning_rate=" in finished.err
    for step in steps(run):
        load_model(str(checkpoint_file(run, step)))  # refuses weights that are not finite


BAD_SETTINGS = {
    "unknown setting": (("train.max_step=5",), "train.max_step is not a setting; did you mean train.max_steps?"),
    "wrong type": (("train.max_steps=many",), "train.max_steps"),
    "out of range": (("model.dropout=1.5",), "model.dropout"),
    "run without an end": (("train.max_steps=null",), "train.max_steps and train.max_minutes are both null"),
    "no time": (("train.max_minutes=0",), "train.max_minutes must be a number above 0"),
    "width not divisible": (("model.d_model=15",), "model.d_model (15) must be a multiple of model.num_heads (2)"),
    "unknown option": (("--resum", "runs/base"), "--resum"),
    "missing recipe": (("quickstrat.yaml",), "quickstrat.yaml: no such recipe; did you mean"),
    "run that does not exist": (("--resume", "runs/bass"), "did you mean runs/base?"),
    "run without checkpoints": (("--resume", "runs/bare"), "holds no checkpoint"),
    "folder that is no run": (("--resume", "runs"), "not the folder of a run"),
    "recipe beside a resumed run": (("my.yaml", "--resume", "runs/base"), "my.yaml must go"),
}
BAD_DATA = {
    "missing file": (("data.source=texd.txt",), "did you mean 'text.txt'?"),
    "empty file": (("data.source=empty.txt",), "'empty.txt' is empty"),
    "too short": (("data.source=short.txt", "model.context_length=64"), "val"),
    "not UTF-8": (("data.source=latin.txt",), "latin.txt: byte 3 "),
    "run exists": ((TEXT, "name=base"), "--resume runs/base"),
    "prompt with unknown characters": ((TEXT, "train.sample_prompt=Zoë"), "'Z', 'ë'"),
    "damaged checkpoint": (("--resume", "runs/damaged"), "step_00000006.pt: damaged"),
    "empty checkpoint": (("--resume", "runs/emptied"), "step_00000006.pt: damaged"),
    "another model": (("--resume", "runs/base", "model.d_model=32", "seed=1"), "cannot become"),
    "edited text": (("--resume", "runs/edited", "train.max_steps=12"), "was trained on another text"),
    "no such GPU": ((TEXT, "runtime.device=cuda:999"), "runtime.device is 'cuda:999'"),
}


def prepare_mistakes(home: Path) -> None:
    (home / "empty.txt").touch()
    (home / "short.txt").write_text("ab" * 150, encoding="utf-8")
    (home / "latin.txt").write_bytes(b"caf\xe9" * 300)
    (home / "other.txt").write_text(ENGLISH + "And then it ends.\n", encoding="utf-8")
    (home / "my.yaml").write_text("seed: 1\n", encoding="utf-8")
    base = home / "runs" / "base"
    shutil.rmtree(copy_of(base, "bare") / "checkpoints")
    damaged = checkpoint_file(copy_of(base, "damaged"), 6)
    damaged.write_bytes(damaged.read_bytes()[:2000])
    checkpoint_file(copy_of(base, "emptied"), 6).write_bytes(b"")
    config = copy_of(base, "edited") / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("text.txt", "other.txt"), encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def mistakes(
    home: Path, processes: Processes, later: Later, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Processes]:
    """Every bad input given to a real process, and no new run left by any."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "text.txt").write_text(ENGLISH, encoding="utf-8")
    shutil.copytree(home / "runs" / "base", folder / "runs" / "base")
    prepare_mistakes(folder)
    before = sorted((folder / "runs").rglob("*"))
    yield {
        mistake: later(folder, "train.py", *(() if "--resume" in arguments else TINY), *arguments)
        for mistake, (arguments, _) in (BAD_DATA | BAD_SETTINGS).items()
    }
    assert sorted((folder / "runs").rglob("*")) == before


@pytest.mark.parametrize("mistake", [*BAD_DATA, *BAD_SETTINGS])
def test_a_mistake_gets_one_line_and_leaves_nothing(mistakes: Processes, mistake: str) -> None:
    finished = mistakes[mistake].result()
    if mistake == "another model":  # two settings, so two lines
        assert finished.code == 2
        assert "model.d_model is 16 in this run and cannot become 32" in finished.err
        assert "seed is 1337 in this run and cannot become 1" in finished.err
        assert "Traceback" not in finished.err
    else:
        assert (BAD_SETTINGS | BAD_DATA)[mistake][1] in finished.error()
    assert finished.out == ""


def test_a_mistake_in_a_recipe_is_found_before_torch_is_loaded(home: Path) -> None:
    recipe = home / "wrong.yaml"
    recipe.write_text("model:\n  d_modle: 16\ntrain:\n  max_steps: many\n", encoding="utf-8")
    process = start(home, "-X", "importtime", Path(__file__).parents[1] / "train.py", recipe)
    finished = finish(process)
    assert finished.code == 2
    loaded = {line.rpartition("|")[2].strip() for line in finished.err.splitlines() if line.startswith("import time:")}
    assert "config.load" in loaded
    assert not loaded & {"torch", "wandb", "tiktoken", "transformers"}
    problems = [line for line in finished.err.splitlines() if not line.startswith("import time:")]
    assert len(problems) == 2, "all problems at once"
    assert f"{recipe}:2" in finished.err


def test_tests_do_not_pass_a_developers_settings_on() -> None:
    assert not [name for name in environment() if name.startswith("WANDB")]


@pytest.fixture
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with the text in it, as the current one, for commands within this process."""
    shutil.copy(home / "text.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_advice_after_a_loss_that_is_not_finite_can_be_pasted_and_helps(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = ("optim.muon_learning_rate=1e30", "optim.min_learning_rate=1e-4", "train.max_steps=6", "name=wild")
    with pytest.raises(UserError, match="is not finite") as caught:
        train.main([TEXT, *TINY, *wild])
    advice = str(caught.value).rpartition("say: ")[2]
    for _ in range(60):  # each time a quarter of the rate before
        arguments = shlex.split(advice)[2:]
        assert any(argument.startswith("optim.muon_learning_rate=") for argument in arguments)
        try:
            assert train.main(arguments) == 0
            break
        except UserError as error:
            advice = str(error).rpartition("not finite;")[2].rpartition("say: ")[2]
    else:
        pytest.fail(f"sixty times lower is still too high: {advice}")


def test_where_the_best_checkpoint_is_gone_a_new_best_is_looked_for(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train.main([TEXT, *TINY, "train.max_steps=4", "train.eval_interval=2", "name=a"])
    run = here / "runs" / "a"
    checkpoint_file(run, 4).unlink()  # the best one; the settings below make every later one worse
    content = torch.load(checkpoint_file(run, 2), weights_only=True)
    content["progress"] |= {"best_step": 1, "best_val_loss": 0.5}
    torch.save(content, checkpoint_file(run, 2))
    (run / "best.json").unlink()
    capsys.readouterr()
    assert train.main(["--resume", "runs/a"]) == 0
    output = capsys.readouterr()
    assert "the best checkpoint, of step 1, is gone" in output.err
    assert "at step 4" in output.out.splitlines()[0]
    assert json.loads((run / "best.json").read_text(encoding="utf-8"))["step"] == 4


def test_the_speed_after_a_resume_counts_the_steps_of_this_process_only(here: Path) -> None:
    long_laps = ("train.log_interval=100", "train.eval_interval=1000")
    train.main([TEXT, *TINY, *long_laps, "train.max_steps=1000", "train.checkpoint_interval=99", "name=a", "--quiet"])
    speeds = [line["perf/tokens_per_second"] for line in metrics(here / "runs" / "a")]
    (here / "runs" / "a" / "checkpoints" / "step_00001000.pt").unlink()
    train.main(["--resume", "runs/a", "--quiet"])  # from step 990
    assert metrics(here / "runs" / "a")[-1]["perf/tokens_per_second"] < 4 * max(speeds)


@pytest.mark.parametrize("last_kept", [0, 1, 3, 4, 5])
def test_from_whichever_step_a_run_goes_on_it_ends_the_same(here: Path, home: Path, last_kept: int) -> None:
    """At an evaluation (3), before and after it, and at the very beginning; with dropout and accumulation."""
    every_step = (*BASE, "train.eval_interval=3", "train.checkpoint_interval=1", "train.sample_prompt=the", "--quiet")
    train.main([*every_step, "name=whole"])
    parts = copy_of(here / "runs" / "whole", "parts")
    for step in range(last_kept + 1, 7):
        checkpoint_file(parts, step).unlink()
    shutil.rmtree(here / "data", ignore_errors=True)
    torch.manual_seed(99)  # what this process did before counts for nothing
    train.main(["--resume", str(parts), "--quiet"])
    assert_equal_states(read_checkpoint(here / "runs" / "whole", 6), read_checkpoint(parts, 6))
    assert without_speed(metrics(here / "runs" / "whole")) == without_speed(metrics(parts))
    for file in ("samples.txt", "best.json"):
        assert (here / "runs" / "whole" / file).read_bytes() == (parts / file).read_bytes()


class TestContinuingAModel:
    """train.init_from: the weights and the tokenizer of one run, the text of another."""

    NEW = ENGLISH.replace("fox", "fox\u00e9").replace("dog", "DOG")
    MORE = ("data.source=new.txt", *TINY, "train.max_steps=4", "train.keep_checkpoints=9", "train.init_from=runs/base")

    @pytest.fixture
    def here(self, here: Path, home: Path) -> Path:
        (here / "new.txt").write_text(self.NEW, encoding="utf-8")
        (here / "runs").mkdir()
        shutil.copytree(home / "runs" / "base", here / "runs" / "base")
        return here

    def test_unknown_characters_are_listed_with_their_counts_and_there_is_no_run(self, here: Path) -> None:
        with pytest.raises(
            UserError, match=r"4 of the text's characters are unknown .*'D' \(24\), 'G' \(24\), 'O' \(24\)"
        ):
            train.main([*self.MORE, "name=more"])
        assert not (here / "runs" / "more").exists()

    def test_it_starts_where_the_other_run_ended(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        shutil.copy(here / "text.txt", here / "new.txt")
        assert train.main([*self.MORE, "name=more", "model.d_model=64", "optim.learning_rate=1e-30"]) == 0
        base = read_checkpoint(here / "runs" / "base", 6)["model"]
        more = read_checkpoint(here / "runs" / "more", 0)
        assert_equal_states(base, more["model"])
        assert more["config"]["model"]["d_model"] == 16
        assert "kept     model.d_model=16 as in that model, not 64" in capsys.readouterr().err

    def test_new_characters_get_rows_and_the_known_ones_keep_theirs(self, here: Path) -> None:
        assert train.main([*self.MORE, "name=more", "data.unknown=extend"]) == 0
        base, more = read_checkpoint(here / "runs" / "base", 6), read_checkpoint(here / "runs" / "more", 0)
        old, new = (json.loads(content["tokenizer"])["characters"] for content in (base, more))
        assert set(new) - set(old) == set("DOG\u00e9")
        rows, grown = (content["model"]["token_embedding.weight"] for content in (base, more))
        assert grown.shape[0] == len(new) + 1
        for character in old:
            assert torch.equal(rows[old.index(character)], grown[new.index(character)])
        assert torch.equal(rows[-1], grown[-1]), "the end of a document"
        added = grown[[new.index(character) for character in "DOG\u00e9"]]
        assert added.isfinite().all()
        assert added.unique(dim=0).shape[0] == 4
        assert load_model("runs/more").tokenizer.encode("DOG").tolist() == [new.index(c) for c in "DOG"]

    def test_what_it_does_not_know_may_be_left_out_and_the_run_goes_on(self, here: Path) -> None:
        assert train.main([*self.MORE, "name=more", "data.unknown=drop"]) == 0
        shutil.rmtree(here / "runs" / "base")  # it is not needed any more
        assert train.main(["--resume", "runs/more", "train.max_steps=6"]) == 0
        assert steps(here / "runs" / "more")[-1] == 6


def test_a_gradient_too_large_for_fp16_updates_nothing_and_is_counted(tiny: Tiny) -> None:
    state = tiny.state()
    trainer = train.Trainer(state, Console(silent=True), peak=1e12)
    state.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with torch.no_grad():
        state.model.final_norm.weight *= 100  # so that some gradients are above 2, and overflow when they are scaled
    before = {name: weight.clone() for name, weight in state.model.state_dict().items()}
    grad_norm = trainer.update(state.model)
    assert_equal_states(before, dict(state.model.state_dict()))
    assert trainer.training_metrics(grad_norm)["optim/overflows"] == 1
    assert state.losses.bad_step() is None, "the scaler's business"
    while state.progress.overflows < 100:
        overflows = state.progress.overflows
        grad_norm = trainer.update(state.model)
        if state.progress.overflows == overflows:
            break
    assert not torch.equal(before["token_embedding.weight"], state.model.state_dict()["token_embedding.weight"])
    assert trainer.training_metrics(grad_norm)["optim/overflows"] == overflows
