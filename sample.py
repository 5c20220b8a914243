"""Write text with a trained model: a run in, text out, character by character as it is drawn."""

import argparse
import json
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data.paths import local_path
from data.sources import file_source
from data.text import read_text
from engine.files import write_text
from errors import ArgumentParser, DataError, UserError, command_boundary, run_command

if __name__ == "__main__":
    with command_boundary():  # so that Ctrl-C ends quietly also in the second that torch takes to load
        import torch  # noqa: F401

from engine.generation import SamplingSettings, generate, sample_generator
from engine.loading import TrainedModel, add_run_options, load_from_options
from engine.stopping import explain_out_of_memory
from engine.tracking import printable

BETWEEN_SAMPLES = "\n---\n"


def main(arguments: Sequence[str]) -> int:
    """The command: samples to stdout or a file, everything else to stderr."""
    options = read_command_line(arguments)
    settings = SamplingSettings(options.temperature, options.top_k, options.top_p)
    prompt = read_prompt(options)
    trained = load_from_options(options)
    if (options.device, options.precision) != ("auto", "fp32"):  # what was asked for is not always what is best
        print(f"device   {trained.runtime.describe()}", file=sys.stderr)
    if trained.checkpoint.config.data.newlines == "normalize":  # as the training text was read
        prompt = prompt.replace("\r\n", "\n").replace("\r", "\n")
    if options.skip_unknown:
        prompt = known_part(trained, prompt)
    ids = encode_prompt(trained, prompt)
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    stops_at_end = trained.has_documents and not options.ignore_end
    samples = [
        Sample(trained, prompt, ids, settings, options.max_new_tokens, stops_at_end, seed, index)
        for index in range(options.num_samples)
    ]
    pieces = json_text(samples) if options.json else plain_text(samples)
    with explain_out_of_memory(trained.checkpoint.config, training=False):
        show(pieces, options.out)
    return 0


def show(pieces: Iterator[str], out: Path | None) -> None:
    """The text as it comes, or all of it to a file."""
    if out is not None:
        write_output(out, "".join(pieces))
        print(f"written to {out}", file=sys.stderr)
        return
    for piece in pieces:  # to a terminal, control characters are shown, not obeyed
        print(printable(piece) if sys.stdout.isatty() else piece, end="", flush=True)


def read_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """The options. Raises `UserError` for values that cannot be."""
    parser = ArgumentParser(
        prog="sample.py",
        description="Write text with a trained model. Without RUN: the newest run in runs/.",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="run folder (runs/NAME) or checkpoint file")
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--prompt", default="", metavar="TEXT", help="how the text begins")
    prompts.add_argument("--prompt-file", metavar="F", help="the same from a file; - is standard input")
    parser.add_argument("--skip-unknown", action="store_true", help="leave out what the model does not know of it")
    parser.add_argument("--max-new-tokens", type=int, default=500, metavar="N", help="length at most (500)")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="X", help="0: always the likeliest (0.8)")
    parser.add_argument("--top-k", type=int, default=0, metavar="N", help="only the N likeliest; 0: all (0)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="X", help="only the likeliest with share X (1)")
    parser.add_argument("--num-samples", type=int, default=1, metavar="N", help="how many texts (1)")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text (new every time)")
    parser.add_argument("--ignore-end", action="store_true", help="go on where a document would end")
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of text")
    parser.add_argument("--out", type=local_path, metavar="F", help="write to this file instead of the terminal")
    add_run_options(parser, precision="fp32")  # one row at a time, casting weights costs more than bf16 saves
    options = parser.parse_args(arguments)
    for name, lowest in (("max_new_tokens", 1), ("num_samples", 1), ("seed", 0)):
        value = getattr(options, name)
        if value is not None and value < lowest:
            raise UserError(f"--{name.replace('_', '-')} must be {lowest} or more, got {value}")
    if options.out is not None and not options.out.parent.is_dir():
        raise UserError(f"--out {options.out}: there is no folder {options.out.parent}; make it first")
    if options.out is not None and options.out.is_dir():
        raise UserError(f"--out {options.out}: this is a folder; name a file in it")
    return options


def write_output(path: Path, text: str) -> None:
    """Write the samples to a file, whole or not at all; through a link, or to a device, as they are."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
    else:
        write_text(path, text)


def read_prompt(options: argparse.Namespace) -> str:
    """The prompt as text, its line ends as they are. Raises `DataError` for what is no text in UTF-8."""
    if options.prompt_file is None:
        return str(options.prompt)
    where = f"--prompt-file {options.prompt_file}"
    path = local_path(options.prompt_file)
    try:
        if options.prompt_file == "-":
            if sys.stdin is None:
                raise DataError(f"{where}: standard input is closed; pipe the text in, or name a file")
            return sys.stdin.buffer.read().decode("utf-8-sig")
        if path.is_fifo():  # what the shell makes of <(command)
            return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start} (counted from 0) is not UTF-8; convert it to UTF-8") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{where}: {getattr(error, 'strerror', None) or error}; name a text file") from error
    return "".join(read_text(file_source(options.prompt_file, where="--prompt-file"), newlines="keep"))


def known_part(trained: TrainedModel, prompt: str) -> str:
    """The prompt without the characters that the model lacks, which are told."""
    unknown = trained.tokenizer.unknown(prompt)
    if unknown:
        skipped = ", ".join(repr(character) for character in dict.fromkeys(character for _, character in unknown))
        print(f"skipped in the prompt: {skipped}", file=sys.stderr)
    return trained.tokenizer.known(prompt)


def encode_prompt(trained: TrainedModel, prompt: str) -> list[int]:
    """The ids that generation starts from, never none. Raises `DataError` for characters that the model lacks."""
    try:
        ids: list[int] = trained.tokenizer.encode(prompt).tolist()
    except DataError as error:
        raise DataError(f"prompt: {error}; or --skip-unknown") from error
    num_unknown = sum(token in trained.tokenizer.never_generated for token in ids)
    if num_unknown:
        print(
            f"{num_unknown} of the prompt's characters are unknown to the model, which sees that much", file=sys.stderr
        )
    window = trained.model.config.context_length
    if len(ids) > window:
        print(f"the prompt has {len(ids)} tokens, of which the model reads the last {window}", file=sys.stderr)
    return ids or [trained.start_id]


def plain_text(samples: Sequence["Sample"]) -> Iterator[str]:
    """All samples in pieces, as they come, each ending its line."""
    for number, sample in enumerate(samples):
        if number > 0:
            yield BETWEEN_SAMPLES
        yield sample.prompt
        yield from sample.continuation()
        yield "\n"


def json_text(samples: Sequence["Sample"]) -> Iterator[str]:
    """All samples as one list of objects, when the last one is drawn."""
    yield json.dumps([sample.facts() for sample in samples], ensure_ascii=False, indent=2) + "\n"


@dataclass(frozen=True)
class Sample:
    """One text of several, drawn with a generator of its own."""

    trained: TrainedModel
    prompt: str
    ids: list[int]  # the prompt's, or where a text begins
    settings: SamplingSettings
    max_new_tokens: int
    stops_at_end: bool
    seed: int
    index: int

    def new_ids(self) -> Iterator[int]:
        """The ids that the model adds, one by one."""
        return generate(
            self.trained.model,
            self.ids,
            max_new_tokens=self.max_new_tokens,
            settings=self.settings,
            generator=sample_generator(self.seed, self.index),
            end_id=self.trained.tokenizer.end_id,
            stops_at_end=self.stops_at_end,
            never=self.trained.tokenizer.never_generated,
            autocast=self.trained.runtime.autocast,
        )

    def continuation(self) -> Iterator[str]:
        """The text that the model adds, each piece as soon as its characters are whole."""
        decoder = self.trained.tokenizer.decoder()
        for token in self.new_ids():
            yield decoder.push(token)
        yield decoder.finish()

    def facts(self) -> dict[str, Any]:
        """The sample and how it came to be, for JSON."""
        started = time.perf_counter()
        ids = list(self.new_ids())
        seconds = time.perf_counter() - started
        return {
            "prompt": self.prompt,
            "text": self.trained.tokenizer.decode(ids),
            "token_ids": ids,
            "tokens": len(ids),
            "tokens_per_second": len(ids) / seconds,
            "reached_end": len(ids) < self.max_new_tokens,
            "seed": self.seed,
            "index": self.index,
            **asdict(self.settings),
            "checkpoint": str(self.trained.checkpoint.path),
            "step": self.trained.checkpoint.step,
        }


if __name__ == "__main__":
    run_command(main)
