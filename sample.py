"""Write text with a trained model: a run in, text out, character by character as it is drawn."""

import argparse
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from tqdm import tqdm

from engine.output import output_path, write_output
from errors import ArgumentParser, UserError, check_output, command_boundary, run_command
from terminal import LINE_COLUMNS, folded, tell

if __name__ == "__main__":
    with command_boundary():  # so that Ctrl-C ends quietly also in the second that torch and the model take to load
        import engine.loading  # noqa: F401

import torch

from engine.choice import SamplingSettings
from engine.dialogue import Dialogue
from engine.loading import TrainedModel, add_run_options, load_from_options, run_inputs
from engine.prompts import Prompt, read_prompt, read_prompts, texts_of, unescaped
from engine.row_products import is_one_thread_enough
from engine.stopping import explain_out_of_memory
from engine.tracking import show_text
from engine.writing import Text, Written, write_on
from interop.opening import open_model

BETWEEN_SAMPLES = "\n---\n"


def main(arguments: Sequence[str]) -> int:
    """The command: samples to stdout or a file, everything else to stderr."""
    options = read_command_line(arguments)
    settings = SamplingSettings(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
    )
    prompts = read_all_prompts(options)
    trained = load(options, num_texts=len(prompts) * options.num_samples)
    if (options.device, options.precision) != ("auto", "fp32"):  # what was asked for is not always what is best
        tell(folded(f"device   {trained.runtime.describe()}", LINE_COLUMNS))
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    how = {"settings": settings, "max_new_tokens": options.max_new_tokens, "ignore_end": options.ignore_end}
    beginning = {"seed": seed, "stops": options.stop, "skip_unknown": options.skip_unknown}
    with explain_out_of_memory(trained.checkpoint.config, training=False):
        if options.interactive:
            Dialogue(trained, **beginning, **how).run()
            return 0
        texts = texts_of(trained, prompts, num_samples=options.num_samples, **beginning)
        report_unreachable(trained, options.stop)
        facts = {"seed": seed, **asdict(settings), **facts_of(trained, options)}
        deliver(texts, write_on(trained, texts, **how), options, facts)
    return 0


def read_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """The options. Raises `UserError` for values that cannot be."""
    parser = ArgumentParser(
        prog="sample.py",
        usage="python sample.py [RUN] [--prompt TEXT] [options]",
        description="Write text with a trained model. Without RUN: the newest run in runs/.",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="run folder, checkpoint file or Hugging Face folder")
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--prompt", default="", metavar="TEXT", help="how the text begins")
    prompts.add_argument("--prompt-file", metavar="F", help="the same from a file; - is standard input")
    prompts.add_argument("--prompts-file", metavar="F", help="many, one per line; prints a JSON object per text")
    prompts.add_argument("--interactive", action="store_true", help="type beginnings, one after the other")
    parser.add_argument("--skip-unknown", action="store_true", help="leave out what the model does not know of it")
    parser.add_argument("--max-new-tokens", type=int, default=500, metavar="N", help="length at most (500)")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="X", help="0: always the likeliest (0.8)")
    parser.add_argument("--top-k", type=int, default=0, metavar="N", help="only the N likeliest; 0: all (0)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="X", help="only the likeliest with share X (1)")
    parser.add_argument(
        "--min-p", type=float, default=0.0, metavar="X", help="only X times as likely as the likeliest (0)"
    )
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X", help="above 1: fewer repeats (1)")
    parser.add_argument(
        "--stop", action="append", default=[], type=unescaped, metavar="TEXT", help=r"end before this; \n is a newline"
    )
    parser.add_argument("--num-samples", type=int, default=1, metavar="N", help="how many texts (1)")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text (new every time)")
    parser.add_argument("--ignore-end", action="store_true", help="go on where a document would end")
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of text")
    parser.add_argument("--out", metavar="F", help="write to this file instead of the terminal")
    add_run_options(parser, precision="fp32", has_weights=True)  # fp32, so that a text does not depend on its batch
    options = parser.parse_args(arguments)
    for name, lowest in (("max_new_tokens", 1), ("num_samples", 1), ("seed", 0)):
        value = getattr(options, name)
        if value is not None and value < lowest:
            raise UserError(f"--{name.replace('_', '-')} must be {lowest} or more, got {value}")
    if options.interactive and (options.json or options.out or options.num_samples > 1):
        raise UserError("command line: --interactive shows one text at a time; leave out --json, --out, --num-samples")
    if options.temperature == 0:
        report_no_effect(options)
    inputs = {"--prompt-file": options.prompt_file, "--prompts-file": options.prompts_file, **run_inputs(options)}
    options.out = output_path(options.out, "--out", inputs=inputs)
    if options.out is None:
        check_output()
    return options


def load(options: argparse.Namespace, num_texts: int) -> TrainedModel:
    """The model, and as many threads as are worth it for so many texts, where no number is given."""
    trained = load_from_options(options, open_model)
    runtime = trained.runtime
    if options.threads is None and runtime.device.type == "cpu" and is_one_thread_enough(trained.model, num_texts):
        torch.set_num_threads(1)
        return replace(trained, runtime=replace(runtime, threads=1))
    return trained


def report_no_effect(options: argparse.Namespace) -> None:
    """Say which options change nothing where the likeliest token is always taken."""
    usual = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": None}
    without = [f"--{name.replace('_', '-')}" for name, value in usual.items() if getattr(options, name) != value]
    if without:
        tell(f"--temperature 0 takes the likeliest token; no effect: {', '.join(without)}")
    if options.num_samples > 1:
        tell("--temperature 0 takes the likeliest token, so the samples of a prompt are all the same")


def report_unreachable(trained: TrainedModel, stops: Sequence[str]) -> None:
    """Say which stop strings the model cannot write."""
    for stop in stops:
        if trained.tokenizer.unknown(trained.as_read(stop)):
            tell(f"--stop {stop!r}: has characters that the model does not know, so it has no effect")


def read_all_prompts(options: argparse.Namespace) -> list[Prompt]:
    """The prompts that the options name. Raises `DataError` for what is no text in UTF-8."""
    if options.prompts_file is not None:
        return read_prompts(options.prompts_file, "--prompts-file")
    if options.prompt_file is not None:
        return [Prompt(read_prompt(options.prompt_file, "--prompt-file"))]
    return [Prompt(options.prompt)]


def plain_text(texts: Sequence[Text], written: Written) -> Iterator[str]:
    """All texts in pieces, one after the other, each ending its line: the first as it comes, the others by then."""
    shown = 0
    yield texts[shown].prompt
    for text, piece in written:
        if text is texts[shown]:
            yield piece
        while texts[shown].ended:
            yield "\n"
            shown += 1
            if shown == len(texts):
                return
            yield BETWEEN_SAMPLES + texts[shown].prompt + texts[shown].continuation


def deliver(texts: Sequence[Text], written: Written, options: argparse.Namespace, facts: Mapping[str, object]) -> None:
    """Show the texts, or write them to a file. What Ctrl-C interrupts is delivered as far as it has come."""
    if options.out is None and options.prompts_file is None and not options.json:
        for piece in plain_text(texts, written):
            show_text(piece)
        return
    delivery = Delivery(texts, options, facts)
    num_tokens = len(texts) * options.max_new_tokens
    is_hidden = True if delivery.shows_lines else None  # None: where stderr is no terminal
    try:
        with tqdm(total=num_tokens, unit=" tokens", leave=False, dynamic_ncols=True, disable=is_hidden) as bar:
            for text, _ in written:
                bar.update()
                delivery.note(text)
    except KeyboardInterrupt:
        delivery.finish(" as far as it had come")
        raise
    delivery.finish()


class Delivery:
    """Texts that are not watched as they are written: whole ones, in their order, to stdout or to a file."""

    def __init__(self, texts: Sequence[Text], options: argparse.Namespace, facts: Mapping[str, object]) -> None:
        self.texts = texts
        self.out: Path | None = options.out
        self.in_lines = options.prompts_file is not None
        self.as_json = self.in_lines or options.json
        self.shows_lines = self.in_lines and self.out is None
        self.facts = facts
        self.line_of = {text: number // options.num_samples + 1 for number, text in enumerate(texts)}
        self.num_shown = self.num_tokens = 0
        self.started = time.perf_counter()

    def note(self, text: Text) -> None:
        """A token of this text has been drawn, or it has ended. Lines go to stdout as soon as it is their turn."""
        self.num_tokens += not text.reached_end
        if self.shows_lines and self.texts[self.num_shown].ended:
            ready = list(takewhile(lambda text: text.ended, self.texts[self.num_shown :]))
            show_text(self.rendered(ready))
            self.num_shown += len(ready)

    def finish(self, how_far: str = "") -> None:
        """Deliver what has not been yet; of an interrupted command, what there is."""
        begun = [text for text in self.texts[self.num_shown :] if text.ended or text.new_ids]
        if self.out is None:
            show_text(self.rendered(begun) if begun else "")
        elif begun:
            write_output(self.out, self.rendered(begun))
            tell(f"written to {self.out}{how_far}")

    def rendered(self, texts: Sequence[Text]) -> str:
        """Texts as they are delivered."""
        if not self.as_json:
            return BETWEEN_SAMPLES.join(f"{text.prompt}{text.continuation}\n" for text in texts)
        speed = self.num_tokens / (time.perf_counter() - self.started)
        objects = [facts_about(text, speed, self.facts) for text in texts]
        if self.in_lines:
            lines = [{"line": self.line_of[text], **each} for text, each in zip(texts, objects, strict=True)]
            return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        return json.dumps(objects, ensure_ascii=False, indent=2) + "\n"


def facts_about(text: Text, tokens_per_second: float, facts: Mapping[str, object]) -> dict[str, Any]:
    """A text and how it came to be, for JSON. The speed is that of all texts together."""
    return {
        "prompt": text.prompt,
        "text": text.continuation,
        "token_ids": text.new_ids,
        "log_probabilities": text.log_probabilities,
        "tokens": len(text.new_ids),
        "tokens_per_second": tokens_per_second,
        "reached_end": text.reached_end,
        "stopped_at": text.stopped_at,
        "index": text.index,
        **facts,
    }


def facts_of(trained: TrainedModel, options: argparse.Namespace) -> dict[str, Any]:
    """What else it takes to write it again, for JSON."""
    return {
        "max_new_tokens": options.max_new_tokens,
        "stop": options.stop,
        "ignore_end": options.ignore_end,
        "checkpoint": str(trained.checkpoint.path),
        "step": trained.checkpoint.step,
        "precision": trained.runtime.precision,
        "weights": trained.weights,
    }


if __name__ == "__main__":
    run_command(main)
