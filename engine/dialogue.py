"""Beginnings that are typed one after the other, each written on as one watches."""

import contextlib
import sys
from collections.abc import Iterable

from engine.choice import SamplingSettings, sample_generator
from engine.loading import TrainedModel
from engine.prompts import Prompt, texts_of, unescaped
from engine.tracking import show_text
from engine.writing import Text, write_on
from errors import DataError

HELP = r"""Type a beginning; the model goes on. Then:
  Enter        goes on from there
  +TEXT        goes on with TEXT added
  TEXT         begins anew (\n is a newline, \+ a plus at the beginning)
  Ctrl-C       stops it in the middle, Ctrl-D ends"""


class Dialogue:
    """What has been written so far, and how to go on. On a terminal it asks; otherwise it reads lines, silently."""

    def __init__(
        self,
        trained: TrainedModel,
        *,
        settings: SamplingSettings,
        max_new_tokens: int,
        seed: int,
        stops: list[str],
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
        self.num_turns = 0
        self.is_asking = sys.stdin is not None and sys.stdin.isatty()

    def run(self) -> None:
        """Until there are no more lines. Raises `DataError` for one that cannot be read, where nobody can retype it."""
        if self.is_asking:
            print(HELP, file=sys.stderr)
        for number, line in enumerate(self.lines(), start=1):
            try:
                self.answer(line, where="this line" if self.is_asking else f"line {number} of the input")
            except DataError as error:
                if not self.is_asking:
                    raise
                print(error, file=sys.stderr)
            except KeyboardInterrupt:
                if not self.is_asking:
                    raise
                show_text("\n")

    def lines(self) -> Iterable[str]:
        """What is typed, with line editing and history where the platform has them."""
        if sys.stdin is None:
            return
        if not (self.is_asking and sys.stdout.isatty()):
            yield from (line.removesuffix("\n").removesuffix("\r") for line in sys.stdin)
            return
        with contextlib.suppress(ImportError):  # Windows has none, and edits lines by itself
            import readline  # noqa: F401 - `input` uses it once it is there
        while True:
            try:
                yield input("> ")
            except EOFError:
                show_text("\n")
                return

    def answer(self, line: str, where: str) -> None:
        """Go on as the line says, and show it."""
        if line.startswith("+") or not line:
            self.go_on(unescaped(line[1:]), where)
        else:
            self.begin(unescaped(line), where)
        assert self.text is not None
        self.text.generator = sample_generator(self.seed, self.num_turns)
        self.num_turns += 1
        for _, piece in write_on(
            self.trained,
            [self.text],
            max_new_tokens=self.max_new_tokens,
            settings=self.settings,
            ignore_end=self.ignore_end,
        ):
            show_text(piece)
        show_text("\n")

    def begin(self, beginning: str, where: str) -> None:
        """A new text, whose beginning is shown."""
        prompt = Prompt(beginning, where)
        (self.text,) = texts_of(
            self.trained, [prompt], seed=self.seed, stops=self.stops, skip_unknown=self.skip_unknown
        )
        show_text(self.text.prompt)

    def go_on(self, added: str, where: str) -> None:
        """The latest text with something added to it, or a first one. What is shown begins where it had stopped."""
        before = self.text
        if before is None:
            self.begin(added, where)
            return
        show_text((before.stopped_at or "") + before.held_back)
        self.begin(added, where)
        assert self.text is not None
        end = [self.trained.tokenizer.end_id] if before.reached_end else []
        if added:
            self.text.ids = [*before.ids, *before.new_ids, *end, *self.text.ids]
        else:
            self.text.ids = [*before.ids, *before.new_ids, *end]
            self.text.decoder = before.decoder
