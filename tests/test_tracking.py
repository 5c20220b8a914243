"""What a run tells on the terminal and keeps in its files."""

import json
import os
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from commands import ROOT, environment, read_terminal

from config.schema import TrainConfig
from engine.run_folder import RunFolder
from engine.tracking import Console, Tracker, duration, facts_that_fit, in_columns, shown_step
from errors import CheckpointError
from terminal import columns

METRICS = {"train/loss": 1.5, "optim/learning_rate": 1e-3, "perf/tokens_per_second": 1234.5, "perf/mfu": 0.125}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def make_tracker(run: RunFolder, sizes: dict[str, int] | None = None) -> Tracker:
    return Tracker(run, sizes)


def test_metrics_are_one_object_a_line_and_readable_at_once(run: RunFolder) -> None:
    tracker = make_tracker(run)
    tracker.log(10, {"train/loss": 1.5})
    tracker.log(20, {"train/loss": 1.25, "val/loss": 1.75})
    lines = [json.loads(line) for line in run.metrics_file.read_text(encoding="utf-8").splitlines()]
    assert lines == [{"step": 10, "train/loss": 1.5}, {"step": 20, "train/loss": 1.25, "val/loss": 1.75}]
    tracker.close(0)


def test_what_is_not_a_number_is_null_so_that_every_line_is_json(run: RunFolder) -> None:
    tracker = make_tracker(run)
    tracker.log(10, {"train/loss": 1.5, "optim/grad_norm": float("inf")})
    tracker.close(0)
    assert run.metrics_file.read_text(encoding="utf-8") == (
        '{"step": 10, "train/loss": 1.5, "optim/grad_norm": null}\n'
    )


def test_samples_are_kept_in_utf8_with_their_step(run: RunFolder) -> None:
    tracker = make_tracker(run)
    tracker.sample(10, "naïve 你好 🙂\nsecond line")
    tracker.close(0)
    assert run.samples_file.read_bytes().decode("utf-8") == "--- step 10 ---\nnaïve 你好 🙂\nsecond line\n\n"


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(run: RunFolder) -> None:
    tracker = make_tracker(run)
    tracker.log(10, {"train/loss": 1.5})
    tracker.sample(10, "ten")
    sizes = tracker.file_sizes()
    tracker.log(20, {"train/loss": 1.25})
    tracker.sample(20, "twenty")
    tracker.metrics.write('{"step": 30, "train')  # torn by a crash
    tracker.close(1)
    resumed = make_tracker(run, sizes)
    resumed.log(20, {"train/loss": 1.25})
    resumed.close(0)
    steps = [json.loads(line)["step"] for line in run.metrics_file.read_text(encoding="utf-8").splitlines()]
    assert steps == [10, 20]
    assert run.samples_file.read_text(encoding="utf-8") == "--- step 10 ---\nten\n\n"


def test_a_resumed_run_whose_files_were_cut_or_deleted_just_appends(run: RunFolder) -> None:
    tracker = make_tracker(run, {"metrics": 1000, "samples": 1000})
    tracker.log(30, {"train/loss": 1.0})
    tracker.close(0)
    assert run.metrics_file.read_text(encoding="utf-8") == '{"step": 30, "train/loss": 1.0}\n'


def test_a_disk_that_refuses_is_one_clear_error(run: RunFolder) -> None:
    run.metrics_file.mkdir()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: could not be written: .*; make room and resume"):
        make_tracker(run)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a /dev/full, where every write fails")
def test_a_full_disk_is_one_clear_error(run: RunFolder) -> None:
    run.metrics_file.symlink_to("/dev/full")
    tracker = make_tracker(run)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: could not be written: No space left on device"):
        tracker.log(1, {"train/loss": 1.0})
    tracker.close(1)


LIMITS = TrainConfig(max_steps=1000)
BY_TIME = TrainConfig(max_steps=None, max_minutes=10)


def show(
    console: Console, step: int, metrics: dict[str, float], best: float | None = 1.25, limits: TrainConfig = LIMITS
) -> None:
    is_best = metrics.get("val/loss") == best
    console.show(step, limits, metrics, is_best=is_best, seconds=525, seconds_left=75)


def test_evaluations_are_aligned_lines_that_mark_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    show(console, 50, {**METRICS, "val/loss": 1.25, "val/bits_per_char": 1.803})
    show(console, 1000, {**METRICS, "val/loss": 1.5, "val/bits_per_char": 2.164})
    assert capsys.readouterr().err.splitlines() == [
        "step   50/1000  train 1.5000  val 1.2500 best  1.803 bits/char  75 s left",
        "step 1000/1000  train 1.5000  val 1.5000       2.164 bits/char  75 s left",
    ]


def test_without_a_terminal_steps_between_evaluations_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.start_bar(LIMITS, 0, 0.0)
    show(console, 20, METRICS)
    console.show_sample("to be\nor not")
    console.stop_bar()
    assert capsys.readouterr().err.splitlines() == [
        "step   20/1000  train 1.5000      1,234 tokens/s  MFU 12.5%  75 s left",
        "    | to be",
        "    | or not",
    ]


def test_a_run_that_only_time_ends_shows_how_much_of_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    show(Console(), 20, METRICS, limits=BY_TIME)
    show(Console(), 1234, {**METRICS, "val/loss": 1.25, "val/bits_per_char": 1.803}, limits=BY_TIME)
    assert capsys.readouterr().err.splitlines() == [
        "step      20  88%  train 1.5000      1,234 tokens/s  MFU 12.5%  75 s left",
        "step    1234  88%  train 1.5000  val 1.2500 best  1.803 bits/char  75 s left",
    ]


def test_quiet_shows_warnings_only(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(quiet=True)
    show(console, 20, METRICS)
    show(console, 50, {**METRICS, "val/loss": 1.25, "val/bits_per_char": 1.803})
    console.show_sample("to be")
    console.say("by the way")
    console.warn("watch out")
    assert capsys.readouterr().err == "watch out\n"


def test_control_characters_in_a_sample_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Console().show_sample("a\x1b[2Jb\rc\x07\td\x85e")
    assert capsys.readouterr().err == "    | a\\x1b[2Jb\\rc\\x07\td\\x85e\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (42, "42 s"), (99, "99 s"), (185, "3:05"), (7385, "2:03:05")]
)
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def run_console(code: str, **options: object) -> subprocess.Popen[bytes]:
    """A process that shows something and then says on stdout that it has lived on."""
    script = (
        "from config.schema import TrainConfig\nfrom engine.tracking import Console\nconsole = Console()\n"
        f"{code}\nprint('still here', flush=True)"
    )
    return subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, env=environment(), **options)


def test_a_reader_or_terminal_that_has_gone_does_not_end_the_run() -> None:
    lines = "for n in range(3): console.say('a line'); console.show_sample('text')"
    reader, writer = os.pipe()
    os.close(reader)
    gone = run_console(lines, stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    closed = run_console(lines, stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2))
    ours, terminal = os.openpty()
    hung_up = run_console(
        f"console.start_bar(TrainConfig(max_steps=9), 0, 0.0)\nimport time; time.sleep(0.5)\n{lines}\n"
        "console.advance(1, 2.0); console.stop_bar()",
        stdout=subprocess.PIPE,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    os.close(ours)
    for process in (gone, closed, hung_up):
        assert process.communicate(timeout=60)[0] == b"still here\n"
        assert process.returncode == 0


def test_a_terminal_that_does_not_know_its_width_shows_the_bar_all_the_same() -> None:
    ours, terminal = os.openpty()  # its width is 0
    bar = "console.start_bar(TrainConfig({}), 2, 20.0)\nconsole.advance(3, 45.0)\nconsole.stop_bar()"
    by_steps = run_console(bar.format("max_steps=9"), stderr=terminal)
    by_steps.wait(timeout=60)
    assert b"3/9" in os.read(ours, 10_000)
    by_time = run_console(bar.format("max_steps=None, max_minutes=1"), stderr=terminal)
    os.close(terminal)
    by_time.wait(timeout=60)
    assert b" 75%|" in os.read(ours, 10_000)
    os.close(ours)


def test_the_bar_stays_a_bar_where_its_total_is_exceeded() -> None:
    for start, seconds in ((20.0, 75.0), (75.0, 76.0)):
        ours, terminal = os.openpty()
        limits = "TrainConfig(max_steps=None, max_minutes=1)"
        late = run_console(
            f"console.start_bar({limits}, 2, {start})\nconsole.advance(3, {seconds})\nconsole.stop_bar()",
            stderr=terminal,
        )
        os.close(terminal)
        late.wait(timeout=60)
        assert b"100%|" in os.read(ours, 10_000)
        os.close(ours)


def shown_on_terminal(code: str, width: int) -> list[str]:
    """The lines that have stood on a terminal of that width, those of the bar one after the other."""
    ours, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, width))
    process = run_console(code, stdout=subprocess.DEVNULL, stderr=terminal)
    os.close(terminal)
    shown = read_terminal(ours)
    assert process.wait(timeout=60) == 0
    return [line.rstrip() for line in re.split(r"[\r\n]+", shown) if line.strip()]


def test_a_warning_stands_folded_above_the_bar() -> None:
    code = (
        "console.start_bar(TrainConfig(max_steps=9), 0, 0.0)\nconsole.advance(3, 1.0)\n"
        "console.warn_of_overfitting(2)\nconsole.advance(4, 2.0)\nconsole.stop_bar()"
    )
    lines = shown_on_terminal(code, 60)
    assert max(map(columns, lines)) <= 60
    start = next(n for n, line in enumerate(lines) if line.startswith("hint     val loss has risen since step 2"))
    hint = lines[start : start + 5]
    assert {line[:10] for line in hint[1:]} == {" " * 9 + line[9] for line in hint[1:]}
    assert " ".join(" ".join(hint).split()).endswith("train.patience stops in time")
    assert "4/9" in lines[-1], "the bar goes on below"


def test_a_sample_keeps_its_margin_where_a_terminal_would_wrap_it() -> None:
    lines = shown_on_terminal(r"console.show_sample('明月' * 10 + '\n\ta' + '-' * 40 + '\n')", 46)
    assert lines == ["    | " + "明月" * 10, "    |         a" + "-" * 31, "    | " + "-" * 9, "    |"]
    assert shown_on_terminal("console.show_sample('明月' * 10)", 45) == ["    | " + "明月" * 9 + "明", "    | 月"]


@pytest.mark.parametrize("best", [1.25, None])
def test_lines_of_steps_fit_and_line_up_however_long_the_run_is(
    capsys: pytest.CaptureFixture[str], best: float | None
) -> None:
    console, limits = Console(), TrainConfig(max_steps=2_000_000)
    for step, loss in ((10, 12.34567), (1_250_000, 1.25)):
        metrics = {"train/loss": loss, "perf/tokens_per_second": 876_543.0 if step > 10 else 43.0, "perf/mfu": 0.05}
        val = {"val/loss": loss, "val/bits_per_char": 1.4427 * loss}
        for more in ({}, val):
            console.show(step, limits, metrics | more, is_best=loss == best, seconds=9e4, seconds_left=36_005)
    between, evaluation, later_between, later_evaluation = capsys.readouterr().err.splitlines()
    assert between == "step      10/2000000  train 12.346         43 tokens/s  MFU  5.0%  10:00:05 left"
    assert later_between == "step 1250000/2000000  train 1.2500    876,543 tokens/s  MFU  5.0%  10:00:05 left"
    assert evaluation == "step      10/2000000  train 12.346  val 12.346       17.81 bits/char"
    mark = "best" if best else "    "
    assert later_evaluation == f"step 1250000/2000000  train 1.2500  val 1.2500 {mark}  1.803 bits/char"


@pytest.mark.parametrize(
    ("number", "text"), [(1.5, "1.5000"), (12.34567, "12.346"), (9.99999, "10.000"), (1e5, "100000"), (0.0, "0.0000")]
)
def test_numbers_take_the_same_columns_with_as_many_decimals_as_fit(number: float, text: str) -> None:
    assert in_columns(number, 6) == text


def test_beside_the_bar_stand_whole_facts_or_none() -> None:
    facts = ["loss 1.029", "val 1.258", "36,471 tokens/s", "MFU 38%"]
    assert facts_that_fit(facts, 47) == facts_that_fit(facts, 300) == facts[:4]
    assert facts_that_fit(facts, 46) == facts[:3]
    assert facts_that_fit(facts, 9) == facts_that_fit(facts, 0) == []
    assert facts_that_fit(["明月"], 4) == ["明月"]
    assert facts_that_fit(["明月"], 3) == []


def test_a_run_beyond_its_time_is_at_the_end_of_it() -> None:
    assert shown_step(1, 3.3, TrainConfig(max_steps=None, max_minutes=0.01)) == "      1 100%"
