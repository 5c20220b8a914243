"""Prompts: from the command line or from files, and what a model can read of them."""

import contextlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from data.paths import counted, local_path
from data.sources import file_source
from data.text import read_text
from engine.loading import TrainedModel
from engine.writing import Text, new_texts
from errors import DataError
from terminal import tell

ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


@dataclass(frozen=True)
class Prompt:
    """How a text begins, and where that was found, for messages."""

    text: str
    where: str = "prompt"


def unescaped(text: str) -> str:
    r"""The text with \n as a newline, \t as a tab, and \\ as a backslash: what a line of input cannot hold."""
    return re.sub(r"\\([nt\\])", lambda found: ESCAPES[found[1]], text)


def read_prompt(name: str, option: str) -> str:
    """The text of a file, or with - of standard input, its line ends as they are.

    Raises `DataError`, naming the `option`, for what is no text in UTF-8.
    """
    where = f"{option} {name}"
    path = local_path(name)
    try:
        if name == "-":
            if sys.stdin is None:
                raise DataError(f"{where}: standard input is closed; pipe the text in, or name a file")
            return sys.stdin.buffer.read().decode("utf-8-sig")
        if path.is_fifo():  # what the shell makes of <(command)
            return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start} (counted from 0) is not UTF-8; convert it to UTF-8") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{where}: {getattr(error, 'strerror', None) or error}; name a text file") from error
    if path.is_file():
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return path.read_bytes().decode("utf-8-sig")  # any text, also with characters that no training text has
    return "".join(read_text(file_source(name, where=option), newlines="keep"))  # compressed; or the reason why not


def read_prompts(name: str, option: str) -> list[Prompt]:
    """One prompt of every line of a file, `unescaped`.

    An empty line is an empty prompt, so that lines in and out can be matched.
    """
    text = read_prompt(name, option).replace("\r\n", "\n").replace("\r", "\n")
    if not text:
        raise DataError(f"{option} {name}: the file is empty; write one prompt per line")
    lines = text.removesuffix("\n").split("\n")
    return [Prompt(unescaped(line), f"{option} {name}, line {number}") for number, line in enumerate(lines, start=1)]


def texts_of(
    trained: TrainedModel,
    prompts: Sequence[Prompt],
    *,
    seed: int,
    num_samples: int = 1,
    stops: Sequence[str] = (),
    skip_unknown: bool = False,
) -> list[Text]:
    """`new_texts`, with what the model does not see of the prompts said on stderr.

    Raises `DataError` for characters that the model lacks, unless `skip_unknown`.
    """
    known = [known_part(trained, prompt) if skip_unknown else prompt for prompt in prompts]
    for prompt in known:
        report_unseen(trained, ids_of(trained, prompt), prompt.where)
    return new_texts(trained, [prompt.text for prompt in known], seed=seed, num_samples=num_samples, stops=stops)


def ids_of(trained: TrainedModel, prompt: Prompt) -> list[int]:
    """The prompt in tokens, read as the training text was. Raises `DataError` for characters that the model lacks."""
    try:
        return trained.tokenizer.encode(trained.as_read(prompt.text)).tolist()
    except DataError as error:
        raise DataError(f"{prompt.where}: {error}; or --skip-unknown") from error


def known_part(trained: TrainedModel, prompt: Prompt) -> Prompt:
    """The prompt without the characters that the model lacks, which are told."""
    text = trained.as_read(prompt.text)
    unknown = trained.tokenizer.unknown(text)
    if unknown:
        skipped = ", ".join(repr(character) for character in dict.fromkeys(character for _, character in unknown))
        tell(f"{prompt.where}: skipped {skipped}")
    return replace(prompt, text=trained.tokenizer.known(text))


def report_unseen(trained: TrainedModel, ids: Sequence[int], where: str) -> None:
    """Say what the model does not see of a prompt as it is."""
    report_rare(trained, ids, where)
    window = trained.model.config.context_length
    if len(ids) > window:
        tell(f"{where}: has {len(ids):,} tokens, of which the model reads the last {window:,}")


def report_rare(trained: TrainedModel, ids: Sequence[int], where: str) -> None:
    """Say how many characters share one token, where some do."""
    num_unknown = sum(token in trained.tokenizer.never_generated for token in ids)
    if num_unknown:
        characters = counted(num_unknown, "character")
        tell(f"{where}: {characters} unknown to the model, which sees only that each is a rare one")
