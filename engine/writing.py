"""Writing texts with a trained model: prompts in, text out, each piece as soon as its characters are whole.

Which tokens these are is `engine.generation`'s business; showing them is the caller's.
"""

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from data.unicode import StreamDecoder
from engine.choice import SamplingSettings, sample_generator
from engine.generation import Draft, generate
from engine.loading import TrainedModel
from errors import CheckpointError, UserError


@dataclass(eq=False, kw_only=True)
class Text(Draft):
    """A text in the making, as ids and as characters. What may still become a stop string is held back."""

    prompt: str
    index: int  # of those with this prompt
    characters: StreamDecoder  # which makes them of tokens
    stops: Sequence[str] = ()
    pieces: list[str] = field(default_factory=list)  # of the continuation, in the order they came
    stopped_at: str | None = None
    held_back: str = ""  # not yet certain, or behind a stop string
    num_read: int = 0  # of the new ids, those that have been turned into characters

    @property
    def continuation(self) -> str:
        """What the model has added: without a stop string, and without a last character that is not whole."""
        return "".join(self.pieces)

    def read_on(self) -> str:
        """The piece that the newest tokens make certain; may end the text at a stop string."""
        for token in self.new_ids[self.num_read :]:
            self.held_back += self.characters.push(token)
        self.num_read = len(self.new_ids)
        piece, self.held_back, self.stopped_at = split_at_stop(self.held_back, self.stops)
        if self.stopped_at is not None:
            self.ended = True
        elif self.ended:
            piece, self.held_back = piece + self.held_back, ""
        if piece:
            self.pieces.append(piece)
        return piece


Written = Iterator[tuple[Text, str]]  # each time a token is drawn: its text, and the piece that became certain


def split_at_stop(text: str, stops: Sequence[str]) -> tuple[str, str, str | None]:
    """What is certain of a text, what is to be held back, and the first stop string in it, if there is one.

    Held back is the end that a stop string may begin with; of those that are whole by now the earliest counts, at one
    place the longest.
    """
    found = [(text.index(stop), -len(stop), stop) for stop in stops if stop in text]
    if found:
        start, _, stop = min(found)
        return text[:start], text[start + len(stop) :], stop
    longest = max((len(stop) for stop in stops), default=1) - 1
    for start in range(max(0, len(text) - longest), len(text)):
        if any(stop.startswith(text[start:]) for stop in stops):
            return text[:start], text[start:], None
    return text, "", None


def new_texts(
    trained: TrainedModel,
    prompts: str | Sequence[str],
    *,
    seed: int | None = None,
    num_samples: int = 1,
    stops: str | Sequence[str] = (),
) -> list[Text]:
    """Texts that begin with the prompts, `num_samples` with each; without a seed, others every time.

    What a seed gives for a prompt is the same alone and among others, in fp32 (else rounding may differ); where a
    prompt comes again, further samples of it follow. Prompts and stop strings are read as the training text was. Raises
    `DataError` for characters of a prompt that the model lacks, `UserError` for a seed or stop string that cannot be.
    """
    seed = secrets.randbelow(2**32) if seed is None else seed
    if seed < 0:
        raise UserError(f"--seed must be 0 or more, got {seed}")
    stops = [trained.tokenizer.normalize(trained.as_read(stop)) for stop in in_list(stops)]
    if "" in stops:
        raise UserError("--stop must be a text of at least one character, got ''")
    texts: list[Text] = []
    indices: Counter[str] = Counter()
    for prompt in map(trained.as_read, in_list(prompts)):
        ids = trained.tokenizer.encode(prompt).tolist() or [trained.start_id]
        for _ in range(num_samples):
            index = indices[prompt]
            generator = sample_generator(seed, index, prompt)
            characters = trained.tokenizer.decoder()
            texts.append(
                Text(ids=ids, generator=generator, prompt=prompt, index=index, characters=characters, stops=stops)
            )
            indices[prompt] += 1
    return texts


def in_list(texts: str | Sequence[str]) -> Sequence[str]:
    """One text as a list of it."""
    return [texts] if isinstance(texts, str) else texts


def write_on(
    trained: TrainedModel,
    texts: Sequence[Text],
    *,
    max_new_tokens: int = 500,
    settings: SamplingSettings | None = None,
    ignore_end: bool = False,
) -> Written:
    """Write the texts side by side.

    Raises `CheckpointError` where the model's output is not a number.
    """
    written = generate(
        trained.model,
        trained.tokenizer,
        texts,
        max_new_tokens=max_new_tokens,
        settings=settings or SamplingSettings(),
        stops_at_end=trained.has_documents and not ignore_end,
        dtype=trained.runtime.dtype,
        int8=trained.weights == "int8",
    )
    try:
        for text in written:
            yield text, text.read_on()
    except CheckpointError as error:
        narrow = ", or fp16 is too narrow for it: --precision fp32" if trained.runtime.precision == "fp16" else ""
        raise CheckpointError(f"{trained.checkpoint.path}: {error}{narrow}") from error


def write(
    trained: TrainedModel,
    prompt: str = "",
    *,
    max_new_tokens: int = 500,
    seed: int | None = None,
    stops: str | Sequence[str] = (),
    settings: SamplingSettings | None = None,
    ignore_end: bool = False,
) -> Iterator[str]:
    """How the model goes on after the prompt, piece by piece as it is drawn; joined, the continuation.

    It ends after `max_new_tokens`, before one of the `stops`, or where a document ends, unless `ignore_end`. Without a
    `seed` it is another text every time. `settings` say how tokens are chosen. Raises as `new_texts` and `write_on`.
    """
    texts = new_texts(trained, prompt, seed=seed, stops=stops)
    for _, piece in write_on(trained, texts, max_new_tokens=max_new_tokens, settings=settings, ignore_end=ignore_end):
        yield piece
