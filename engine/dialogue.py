"""Beginnings that are typed one after the other, each written on as one watches."""

import contextlib
import sys
from collections.abc import Sequence

from engine.choice import SamplingSettings, sample_generator
from engine.loading import TrainedModel
from engine.prompts import Prompt, texts_of, unescaped
from engine.tracking import show_text
from engine.writing import Text, write_on
from errors import DataError
from terminal import tell

HELP = r"""Type a beginning; the model goes on. Then:
  Enter        goes on from there
  +TEXT        goes on with TEXT added
  TEXT         begins anew (\n is a newline, \+ a plus at the beginning)
  Ctrl-C       stops the model in the middle
  Ctrl-D       ends"""


class Dialogue:
    """What has been written so far, and how to go on. On a terminal it asks; otherwise it reads lines, silently."""

    def __init__(
        self,
        trained: TrainedModel,
        *,
        settings: SamplingSettings,
        max_new_tokens: int,
        seed: int,
        stops: Sequence[str] = (),
        ignore_end: bool = False,
        skip_unknown: bool = False,
    ) -> None:
        self.trained = trained
        self.settings = settings
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        self.stops = stops
        self.ignore_end = ignore_end
        self.skip_unknown = skip_unknown
        self.text: Text | None = None  # the latest one
        self.num_answers = 0
        self.is_asking = sys.stdin is not None and sys.stdin.isatty()

    def run(self) -> None:
        """Until there are no more lines. Raises `DataError` for one that cannot be read, where nobody can retype it."""
        if self.is_asking:
            tell(HELP)
            with contextlib.suppress(ImportError):  # Windows has none, and edits lines by itself
                import readline  # noqa: F401 - `input` uses it once it is there
        number = 0
        while True:
            number += 1
            try:
                line = self.next_line()
                if line is None:
                    return
                self.answer(line, where="this line" if self.is_asking else f"line {number} of the input")
            except DataError as error:
                if not self.is_asking:
                    raise
                tell(str(error))
            except KeyboardInterrupt:  # stops the text, or the line that is being typed
                if not self.is_asking:
                    raise
                show_text("\n")

    def next_line(self) -> str | None:
        """What is typed, without its end; None where that was all."""
        if self.is_asking and sys.stdout is not None and sys.stdout.isatty():
            try:
                return input("> ")
            except EOFError:
                show_text("\n")
                return None
        line = "" if sys.stdin is None else sys.stdin.readline()
        return line.removesuffix("\n").removesuffix("\r") if line else None

    def answer(self, line: str, where: str) -> None:
        """Go on as the line says, and show it. Raises `DataError` for what the model cannot read."""
        if any("\udc80" <= character <= "\udcff" for character in line):  # what Python makes of other bytes
            raise DataError(f"{where}: is not UTF-8; convert it to UTF-8")
        if line.startswith("+") or not line:
            self.go_on(unescaped(line[1:]), where)
        else:
            beginning = line[1:] if line.startswith("\\+") else line
            self.text = self.begin(unescaped(beginning), where)
            show_text(self.text.prompt)
        assert self.text is not None
        self.text.generator = sample_generator(self.seed, self.num_answers)
        self.num_answers += 1
        for _, piece in write_on(
            self.trained,
            [self.text],
            max_new_tokens=self.max_new_tokens,
            settings=self.settings,
            ignore_end=self.ignore_end,
        ):
            show_text(piece)
        show_text("\n")

    def begin(self, beginning: str, where: str) -> Text:
        """A new text. Raises `DataError` for characters that the model lacks."""
        prompt = Prompt(beginning, where)
        (text,) = texts_of(self.trained, [prompt], seed=self.seed, stops=self.stops, skip_unknown=self.skip_unknown)
        return text

    def go_on(self, added: str, where: str) -> None:
        """The latest text with something added to it, or a first one. What is shown begins where it had stopped."""
        before, text = self.text, self.begin(added, where)
        if before is not None:
            # What had been drawn, but not shown, when Ctrl-C came; what a stop string ended.
            hidden = before.read_on() if before.num_read < len(before.new_ids) else ""
            hidden += (before.stopped_at or "") + before.held_back
            end = [self.trained.tokenizer.end_id] if before.reached_end else []
            text.ids = [*before.ids, *before.new_ids, *end, *(text.ids if text.prompt else [])]
            if not text.prompt:
                text.characters = before.characters  # it may hold half a character
            show_text(hidden)
        self.text = text
        show_text(text.prompt)
