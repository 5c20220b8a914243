"""Where a run can be watched: the terminal, metrics.jsonl, samples.txt, and through them all the dashboards.

What is measured, and when, is the training loop's business.
"""

import contextlib
import json
import math
import os
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Never

from tqdm import tqdm

from config.schema import TrainConfig
from engine.dashboard import Dashboard
from engine.files import refused
from engine.run_folder import RunFolder
from engine.tensorboard import EventFile, synced_event_sizes
from errors import drop_output
from terminal import LINE_COLUMNS, columns, cut, folded, tell, width_of

SHORTEST_BAR = 3  # columns
SAMPLE_MARGIN = "    | "


class Console:
    """Tells a person on stderr how training goes: a bar on a terminal, plain lines elsewhere, little where `quiet`.

    Nothing at all where `silent`: of several processes one speaks.
    """

    def __init__(self, *, quiet: bool = False, silent: bool = False) -> None:
        self.quiet = quiet or silent
        self.shows_bar = not self.quiet and sys.stderr is not None and sys.stderr.isatty()
        self.bar: tqdm[Never] | None = None
        self.is_gone = silent or sys.stderr is None
        self.last_val_loss: float | None = None
        self.counts_steps = True

    def start_bar(self, limits: TrainConfig, step: int, seconds: float) -> None:
        """Show the bar, where there is a terminal for it: of the steps or, where they have no limit, of the time."""
        self.counts_steps = limits.max_steps is not None
        if self.shows_bar:
            knows_its_width = os.get_terminal_size(sys.stderr.fileno()).columns > 0
            total = limits.max_steps or 60 * (limits.max_minutes or 0)
            self.bar = tqdm(
                initial=min(step if self.counts_steps else seconds, total),
                total=total,
                unit="step",
                bar_format=f"{{percentage:3.0f}}%|{{bar}}|{' {n_fmt}/{total_fmt}' if self.counts_steps else ''} "
                "{elapsed}<{remaining}{postfix}",
                dynamic_ncols=knows_its_width,
                ncols=None if knows_its_width else LINE_COLUMNS,
                nrows=None if knows_its_width else 24,
                smoothing=0.05,
            )

    def advance(self, step: int, seconds: float) -> None:
        """This step is done, at this time of the run."""
        with self.nobody_may_look():
            if self.bar is not None:
                done = step if self.counts_steps else seconds
                self.bar.update(min(done, self.bar.total or done) - self.bar.n)  # tqdm forgets a total that is exceeded

    @contextlib.contextmanager
    def nobody_may_look(self) -> Iterator[None]:
        """A terminal that was closed, or a reader that has gone, never ends a run: from then on, nothing is shown."""
        try:
            yield
        except (OSError, ValueError):  # ValueError: the stream is closed
            self.is_gone = True
            self.bar = None
            drop_output(sys.stderr)

    def show(
        self,
        step: int,
        limits: TrainConfig,
        metrics: Mapping[str, float],
        *,
        is_best: bool,
        seconds: float,
        seconds_left: float,
    ) -> None:
        """How it stands: an aligned line at an evaluation, and beside the bar, or as a line, between them."""
        line = [f"step {shown_step(step, seconds, limits)}", f"train {in_columns(metrics['train/loss'], 6)}"]
        left = f"{duration(seconds_left)} left"
        if "val/loss" in metrics:
            mark = "best" if is_best else " " * 4
            bits = f"{in_columns(metrics['val/bits_per_char'], 5)} bits/char"
            self.last_val_loss = metrics["val/loss"]
            self.say(side_by_side(*line, f"val {in_columns(self.last_val_loss, 6)} {mark}", bits, left))
        elif self.bar is None:
            speed = f"{metrics['perf/tokens_per_second']:>9,.0f} tokens/s"
            self.say(side_by_side(*line, speed, f"MFU {metrics['perf/mfu']:>5.1%}", left))
        if self.bar is not None:
            facts = [f"loss {metrics['train/loss']:.3f}"]
            if self.last_val_loss is not None:
                facts.append(f"val {self.last_val_loss:.3f}")
            facts += [f"{metrics['perf/tokens_per_second']:,.0f} tokens/s", f"MFU {metrics['perf/mfu']:.0%}"]
            if not self.counts_steps:
                facts.insert(0, f"step {step:,}")
            self.bar.set_postfix_str(", ".join(facts_that_fit(facts, self.room())), refresh=False)

    def room(self) -> int:
        """Columns that are left beside a short bar for what is told there."""
        assert self.bar is not None
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(sys.stderr.fileno()).columns or LINE_COLUMNS
            counts = f" {self.bar.total}/{self.bar.total}" if self.counts_steps else ""
            return width - len(f"100%|{' ' * SHORTEST_BAR}|{counts} 0:00:00<0:00:00, ")
        return 0

    def show_sample(self, text: str) -> None:
        """What the model has just written, set apart from the lines about it, also where a terminal would wrap it."""
        lines, width = printable(text).split("\n"), width_of(sys.stderr)
        if width is not None:
            lines = [piece for line in lines for piece in cut(line.expandtabs(), width - len(SAMPLE_MARGIN))]
        self.say("\n".join(SAMPLE_MARGIN + line for line in lines))

    def say(self, line: str) -> None:
        """A line that may be missed."""
        if not self.quiet:
            self.warn(line)

    def warn(self, line: str) -> None:
        """A line that is shown even where `quiet`; it stands above the bar, and a terminal shows it folded."""
        with self.nobody_may_look():
            if self.bar is not None:
                self.bar.write(folded(line, width_of(sys.stderr)), file=sys.stderr)
            elif not self.is_gone:
                tell(line)

    def warn_of_overfitting(self, best_step: int | None) -> None:
        """What it means that val loss rises while train loss falls, and what helps."""
        self.warn(
            f"hint     val loss has risen since step {best_step} while train loss falls: the model begins "
            "to learn the text by heart. That step's checkpoint is kept as the best; more text, model.dropout or "
            "a smaller model help, and train.patience stops in time"
        )

    def stop_bar(self) -> None:
        """Leave the bar as it is and go on below it."""
        with self.nobody_may_look():
            if self.bar is not None:
                self.bar.close()
        self.bar = None


class AppendedFile:
    """A text file of a run that only grows, and that a resumed run takes back to the length it had."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        try:
            self.file = path.open("a", encoding="utf-8", newline="")
            if size is not None and size < self.file.tell():
                self.file.truncate(size)
        except OSError as error:
            raise refused(self.path, error) from error

    def write(self, text: str) -> None:
        """Append `text`, and let readers see it at once."""
        try:
            self.file.write(text)
            self.file.flush()
        except OSError as error:
            raise refused(self.path, error) from error

    def synced_size(self) -> int:
        """The size in bytes, all of them safely on the disk."""
        try:
            os.fsync(self.file.fileno())
            return os.fstat(self.file.fileno()).st_size
        except OSError as error:
            raise refused(self.path, error) from error

    def close(self) -> None:
        """No more is written. What a full disk has refused is refused again here, and was reported then."""
        with contextlib.suppress(OSError):
            self.file.close()


class Tracker:
    """Keeps the numbers and samples of a run: in its folder, on its dashboard, and for TensorBoard.

    `file_sizes` are those of an earlier `file_sizes()`, where the run is resumed.
    """

    def __init__(self, folder: RunFolder, file_sizes: Mapping[str, int] | None = None) -> None:
        sizes = file_sizes or {}
        self.folder = folder
        self.dashboard = Dashboard(None, print)  # one that does nothing, until there is another
        self.event_file: EventFile | None = None  # until there is one, where it is asked for
        self.metrics = AppendedFile(folder.metrics_file, sizes.get("metrics"))
        self.samples = AppendedFile(folder.samples_file, sizes.get("samples"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a step."""
        # null, since JSON has no nan or inf; a gradient that overflows in fp16 has such a norm.
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self.metrics.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
        if self.event_file is not None:
            self.event_file.log(step, metrics)
        self.dashboard.log(step, metrics)

    def sample(self, step: int, text: str) -> None:
        """Keep what the model wrote at a step."""
        self.samples.write(f"--- step {step} ---\n{text}\n\n")
        if self.event_file is not None:
            self.event_file.show_text(step, "sample", text)
        self.dashboard.sample(step, text)

    def file_sizes(self) -> dict[str, int]:
        """How much has been kept so far; belongs into the checkpoint, so that a resumed run repeats no line."""
        sizes = {"metrics": self.metrics.synced_size(), "samples": self.samples.synced_size()}
        return sizes | synced_event_sizes(self.folder)

    def close(self, exit_code: int) -> None:
        """The run ends here."""
        self.metrics.close()
        self.samples.close()
        if self.event_file is not None:
            self.event_file.close()
        self.dashboard.finish(exit_code)


def shown_step(step: int, seconds: float, limits: TrainConfig) -> str:
    """A step and how far it is, of all steps or else of the time: 120/2000, or 120   6%; always as wide."""
    if limits.max_steps is not None:
        return f"{step:>{len(str(limits.max_steps))}}/{limits.max_steps}"
    return f"{step:>7} {min(1.0, seconds / (60 * (limits.max_minutes or 1))):>4.0%}"


def facts_that_fit(facts: Sequence[str], width: int, separator: str = ", ") -> list[str]:
    """The first of the facts, as many as fit beside each other: half of a number looks like another number."""
    fitting: list[str] = []
    for fact in facts:
        if columns(separator.join([*fitting, fact])) > width:
            break
        fitting.append(fact)
    return fitting


def side_by_side(*facts: str) -> str:
    """The facts in one line; the last of them are left out where it would be longer than a line is."""
    return "  ".join(facts_that_fit(facts, LINE_COLUMNS, "  "))


def in_columns(number: float, width: int) -> str:
    """The number in so many columns, with as many decimals as fit, so that those of one below the other line up."""
    written = (f"{number:{width}.{decimals}f}" for decimals in range(width - 2, 0, -1))
    return next((text for text in written if len(text) <= width), f"{number:{width}.0f}")


def printable(text: str) -> str:
    """The text with control characters escaped, so that what a model writes cannot drive the terminal."""
    return "".join(c if c in "\t\n" or unicodedata.category(c) != "Cc" else repr(c)[1:-1] for c in text)


def show_text(text: str) -> None:
    """Put text on stdout at once. On a terminal control characters are shown, not obeyed."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()  # it is None where the shell closed it
    print(printable(text) if is_terminal else text, end="", flush=True)


def duration(seconds: float) -> str:
    """Seconds as people read them: 42 s, 3:05, 2:03:05."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
