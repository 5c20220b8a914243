"""The losses of a run as a drawing of characters, for a terminal or a log file, without colour."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from engine.history import read_lines

WIDTH, HEIGHT = 64, 11  # of the drawing; with its scale it fits into 80 columns
TRAIN, VAL = ".", "o"
FEWEST_COLUMNS = 8  # of points that make a curve

Points = list[tuple[int, float]]  # (step, loss)


def loss_curve(metrics: Path) -> list[str]:
    """The lines of a drawing of train and val loss over the steps in a metrics.jsonl; none for a handful of points.

    The scale of the losses is logarithmic, so that the first steps do not take all the room.
    """
    measured = read_lines(metrics)
    train, val = losses(measured, "train/loss"), losses(measured, "val/loss")
    steps = [step for step, _ in (*train, *val)]
    if not steps or min(steps) == max(steps):
        return []
    first, last = min(steps), max(steps)
    columns = {mark: by_column(points, first, last) for mark, points in ((TRAIN, train), (VAL, val))}
    if len(columns[TRAIN].keys() | columns[VAL].keys()) < FEWEST_COLUMNS:
        return []
    means = [loss for column in columns.values() for loss in column.values()]
    lowest, highest = math.log(min(means)), math.log(max(means))
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]
    for mark, column in columns.items():  # val last, so that it is seen where both meet
        for x, loss in column.items():
            depth = (highest - math.log(loss)) / (highest - lowest) if highest > lowest else 0.0
            cells[round(depth * (HEIGHT - 1))][x] = mark
    return list(with_scales(cells, (lowest, highest), (first, last)))


def losses(measured: Iterable[dict[str, float]], name: str) -> Points:
    """The values of a metric that a logarithm can be taken of, with their steps."""
    return [(int(line["step"]), line[name]) for line in measured if 0 < (line.get(name) or 0) < math.inf]


def by_column(points: Points, first: int, last: int) -> dict[int, float]:
    """The mean of the points in each column that has any."""
    in_column: dict[int, list[float]] = {}
    for step, loss in points:
        in_column.setdefault(round((step - first) / (last - first) * (WIDTH - 1)), []).append(loss)
    return {x: math.fsum(column) / len(column) for x, column in in_column.items()}


def with_scales(cells: list[list[str]], loss: tuple[float, float], steps: tuple[int, int]) -> Iterator[str]:
    """The drawing with losses at its left and steps below; `loss` are the logarithms of its lowest and highest."""
    lowest, highest = loss
    for y, row in enumerate(cells):
        value = math.exp(highest - (highest - lowest) * y / (HEIGHT - 1))
        scale = f"{value:8.3f}" if y % 5 == 0 else " " * 8
        yield f"{scale} |{''.join(row)}".rstrip()
    yield " " * 8 + " +" + "-" * WIDTH
    first, last = (f"{step:,}" for step in steps)
    legend = f"step    {TRAIN} train loss    {VAL} val loss"
    yield " " * 10 + first + legend.center(WIDTH - len(first) - len(last)) + last
