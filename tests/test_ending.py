"""What a run says at its end."""

import pytest
from conftest import Tiny

from engine.ending import going_on, say_goodbye


def said(tiny: Tiny, capsys: pytest.CaptureFixture[str], step: int, *overrides: str, evaluations: int = 0) -> list[str]:
    """What a run says that ends at this step, 20 being the last, after so many evaluations without a better one."""
    state = tiny.state(*overrides)
    state.progress.step = step
    state.progress.note_evaluation(1.25, 1.0)
    state.progress.evaluations_since_best = evaluations
    say_goodbye(tiny.run(), state)
    return capsys.readouterr().out.splitlines()


def test_a_run_at_its_last_step_is_finished_and_may_be_made_longer(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(tiny, capsys, 20)
    assert lines[0].startswith("finished at step 20 after ")
    assert lines[0].endswith("; best val loss 1.2500 at step 20")
    assert lines[1].startswith("run ")
    assert lines[-1].startswith("resume ")
    assert lines[-1].endswith("train.max_steps=40")


def test_a_run_before_its_last_step_was_interrupted_and_goes_on_as_it_is(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(tiny, capsys, 7)
    assert lines[0].startswith("interrupted at step 7 after ")
    assert "max_steps" not in lines[-1]


def test_a_run_out_of_patience_says_so_and_goes_on_without(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(tiny, capsys, 7, "train.patience=3", evaluations=3)
    assert lines[0].startswith("stopped after 3 evaluations without a better val loss, at step 7")
    assert lines[-1].endswith("train.patience=null")


def test_a_run_that_was_never_evaluated_has_no_best_and_no_sample(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tiny.state()
    state.progress.step = 3
    say_goodbye(tiny.run(), state)
    lines = capsys.readouterr().out.splitlines()
    assert "best" not in lines[0]
    assert not [line for line in lines if line.startswith("sample")]
    assert going_on(state) == []
