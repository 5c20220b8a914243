"""The drawing of a run's losses."""

import json
import math
from pathlib import Path

import pytest

from engine.curve import HEIGHT, WIDTH, loss_curve

LEFT = 10  # columns of the scale


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def write(metrics: Path, lines: list[dict[str, object]]) -> None:
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def marks(drawing: list[str], mark: str) -> set[tuple[int, int]]:
    """Where a mark stands: (column, row)."""
    return {(x, y) for y, line in enumerate(drawing[:HEIGHT]) for x, c in enumerate(line[LEFT:]) if c == mark}


def test_a_loss_that_halves_evenly_is_a_straight_line_from_corner_to_corner(metrics: Path) -> None:
    write(metrics, [{"step": step, "train/loss": 8 * 0.5 ** (step / 1000)} for step in range(0, 3001, 10)])
    drawing = loss_curve(metrics)
    placed = marks(drawing, ".")
    assert {x for x, _ in placed} == set(range(WIDTH))
    assert {(0, 0), (WIDTH - 1, HEIGHT - 1)} <= placed
    for x, y in placed:
        assert abs(y - x / (WIDTH - 1) * (HEIGHT - 1)) <= 0.6
    scales = [float(line[:8]) for line in drawing[:HEIGHT] if line[:8].strip()]
    assert scales == [pytest.approx(value, rel=0.03) for value in (8, math.sqrt(8), 1)]
    assert drawing[-1].split()[0] == "0"
    assert drawing[-1].split()[-1] == "3,000"


def test_val_losses_are_drawn_over_train_losses_at_their_steps(metrics: Path) -> None:
    lines: list[dict[str, object]] = [{"step": step, "train/loss": 2 + 1 / step} for step in range(1, 101)]
    lines[49]["val/loss"] = lines[49]["train/loss"]
    lines[99]["val/loss"] = 3.0
    write(metrics, lines)
    drawing = loss_curve(metrics)
    assert len(marks(drawing, "o")) == 2
    assert (WIDTH - 1, 0) in marks(drawing, "o")
    assert not marks(drawing, "o") & marks(drawing, ".")


def test_it_fits_into_80_columns_and_ends_no_line_with_spaces(metrics: Path) -> None:
    write(metrics, [{"step": 10**9 + step, "train/loss": 12345.678 / (step + 1)} for step in range(100)])
    drawing = loss_curve(metrics)
    assert len(drawing) == HEIGHT + 2
    assert max(map(len, drawing)) <= 80
    assert all(line == line.rstrip() and line.isascii() for line in drawing)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [{"step": 5, "train/loss": 1.0}],
        [{"step": step, "train/loss": 1.0} for step in range(5)],
        [{"step": step, "perf/mfu": 1.0} for step in range(100)],
        [{"step": step, "train/loss": None} for step in range(100)],
    ],
)
def test_a_handful_of_points_is_no_curve(metrics: Path, lines: list[dict[str, object]]) -> None:
    write(metrics, lines)
    assert loss_curve(metrics) == []


def test_values_that_have_no_logarithm_are_left_out_and_a_flat_curve_is_one(metrics: Path) -> None:
    odd = [None, math.nan, math.inf, 0.0, -1.0]
    write(metrics, [{"step": step, "train/loss": odd[step] if step < 5 else 1.5} for step in range(200)])
    drawing = loss_curve(metrics)
    assert {y for _, y in marks(drawing, ".")} == {0}
    assert len(marks(drawing, ".")) > WIDTH - 4


def test_a_file_that_is_gone_is_no_curve_and_a_damaged_line_is_left_out(metrics: Path) -> None:
    assert loss_curve(metrics) == []
    write(metrics, [{"step": step, "train/loss": 2.0 - step / 100} for step in range(100)])
    drawing = loss_curve(metrics)
    with metrics.open("a", encoding="utf-8") as file:
        file.write('{"train/loss": 1.0}\n{')
    assert loss_curve(metrics) == drawing != []
