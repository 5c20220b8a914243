"""What a run says at its end."""

import pytest
from conftest import Tiny

from engine.command_line import read_command_line
from engine.ending import going_on, say_finished, say_goodbye
from engine.state import Progress


def said(tiny: Tiny, capsys: pytest.CaptureFixture[str], step: int, *overrides: str, evaluations: int = 0) -> list[str]:
    """What a run says that ends at this step, 20 being the last, after so many evaluations without a better one."""
    state = tiny.state(*overrides)
    state.progress.step = step
    state.progress.note_evaluation(1.25, 1.0)
    state.progress.evaluations_since_best = evaluations
    say_goodbye(tiny.run(), state, quiet=False)
    return capsys.readouterr().out.splitlines()


def test_a_run_at_its_last_step_is_finished_and_may_be_made_longer(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(tiny, capsys, 20)
    assert lines[0].startswith("finished at step 20 after ")
    assert lines[1] == "best     val loss 1.2500 at step 20"
    assert lines[2].startswith("run ")
    assert lines[-1].startswith("resume ")
    assert lines[-1].endswith("train.max_steps=40")


def test_curves_are_offered_where_they_are(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    assert not [line for line in said(tiny, capsys, 20) if line.startswith("curves")]
    state = tiny.state("tracking.tensorboard=true")
    say_goodbye(tiny.run(name="with curves"), state, quiet=False)
    (curves,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("curves")]
    assert curves.endswith(f" --logdir '{tiny.folder}/runs/with curves/tensorboard'")


def test_a_limit_that_lies_behind_the_run_is_not_offered_again(tiny: Tiny) -> None:
    state = tiny.state()
    state.progress.step = 878
    assert going_on(state) == ["train.max_steps=1756"]


def test_a_run_before_its_last_step_was_interrupted_and_goes_on_as_it_is(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(tiny, capsys, 7)
    assert lines[0].startswith("interrupted at step 7 after ")
    assert "max_steps" not in lines[-1]


def test_a_run_out_of_patience_says_so_and_goes_on_without(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(tiny, capsys, 7, "train.patience=3", evaluations=3)
    assert lines[0].startswith("stopped at step 7 after ")
    assert lines[0].endswith(": 3 evaluations without a better val loss")
    assert lines[-1].endswith("train.patience=null")


def test_a_run_whose_time_is_up_says_so_and_may_be_given_more(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    state = tiny.state("train.max_steps=null", "train.max_minutes=1.5")
    state.progress = Progress(step=7, seconds=89.0, minutes_used_up=1.5)
    say_goodbye(tiny.run(), state, quiet=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "finished, as train.max_minutes=1.5 asks, at step 7 after 89 s"
    assert lines[-1].endswith(" train.max_minutes=3")
    state.progress.seconds = 600.0  # preparing alone took longer than that
    assert going_on(state) == ["train.max_minutes=20"]


def test_who_resumes_a_finished_run_is_told_by_which_limit_it_ended_and_keeps_his_own_settings(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny.run()
    overrides = ["train.max_steps=99", "--train.max_minutes=1", "train.log_interval=5"]
    order = read_command_line(["--resume", str(run.path), *overrides])
    state = tiny.state("train.max_steps=99", "train.max_minutes=1")
    state.progress = Progress(step=2, seconds=59.0, minutes_used_up=1.0)
    say_finished(run, state, order)
    ended, ran, resume = capsys.readouterr().out.splitlines()
    assert ended == "finished already at step 2, as train.max_minutes=1 asks"
    assert ran == f"run      {run.path}"
    assert resume.startswith("resume   ")
    assert resume.endswith(" train.max_steps=99 train.log_interval=5 train.max_minutes=2")


def test_a_run_that_was_never_evaluated_has_no_best_and_no_sample(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tiny.state()
    state.progress.step = 3
    say_goodbye(tiny.run(), state, quiet=False)
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if "best" in line]
    assert not [line for line in lines if line.startswith("sample")]
    assert going_on(state) == []


def test_the_curve_of_the_losses_comes_first_unless_all_is_to_be_quiet(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    run, state = tiny.run(), tiny.state()
    state.progress.note_evaluation(1.25, 1.0)
    lines = "".join(f'{{"step": {step}, "train/loss": {4 - step / 100}}}\n' for step in range(1, 100))
    run.metrics_file.write_text(lines, encoding="utf-8")
    for quiet in (False, True):
        say_goodbye(run, state, quiet=quiet)
        shown = capsys.readouterr().out.splitlines()
        assert any(" . train loss " in line for line in shown) != quiet
        beginnings = ("interrupted at step", "best ", "run ", "sample ", "resume ")
        assert sum(line.startswith(beginnings) for line in shown[-5:]) == 5
