"""Show what a trained model does with a text: one page for the browser, with its attention and its surprise."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from data.paths import counted
from engine.output import output_path, write_output
from errors import ArgumentParser, DataError, check_output, command_boundary, run_command
from terminal import tell

if __name__ == "__main__":
    with command_boundary():  # so that Ctrl-C ends quietly also in the second that torch and the model take to load
        import engine.loading  # noqa: F401

from engine.inspection import MAX_TOKENS, inspect
from engine.loading import TrainedModel, add_run_options, load_from_options, run_inputs
from engine.page import page
from engine.prompts import Prompt, ids_of, known_part, read_prompt, report_rare
from engine.stopping import explain_out_of_memory
from interop.opening import open_model


def main(arguments: Sequence[str]) -> int:
    """The command: a page to a file."""
    options = read_command_line(arguments)
    text = Prompt(options.text, "--text")
    if options.text_file is not None:
        text = Prompt(read_prompt(options.text_file, "--text-file"), f"--text-file {options.text_file}")
    if not text.text:
        raise DataError(f"{text.where}: the text is empty; give at least one character")
    trained = load_from_options(options, open_model)
    ids, as_read = read_as_trained(trained, text, skip_unknown=options.skip_unknown)
    if not ids:
        raise DataError(f"{text.where}: the model knows none of its characters; give it others")
    report_rare(trained, ids, text.where)
    shown = ids[:MAX_TOKENS]
    with explain_out_of_memory(trained.checkpoint.config, training=False):
        inspection = inspect(trained, shown)
    made = page(trained, inspection, as_read, num_left_out=len(ids) - len(shown))
    num_recorded = inspection.attention.q.shape[2]
    if num_recorded < len(ids):
        shown_part = f"the first {len(shown):,} are shown, " if len(shown) < len(ids) else ""
        kept = f"attention is kept for the first {num_recorded:,}"
        tell(f"{counted(len(ids), 'token')}: {shown_part}{kept}")
    if options.out is None:
        print(made, end="")
    else:
        write_output(options.out, made)
        tell(f"written to {options.out} ({len(made) / 1e6:.1f} MB); open it in a browser")
    return 0


def read_as_trained(trained: TrainedModel, text: Prompt, *, skip_unknown: bool) -> tuple[list[int], str]:
    """A text in tokens, read as the training text was, and the characters that were read.

    Where lines were documents, `<|endoftext|>` stands for each line's end, and blank lines are left out. Raises
    `DataError` for characters that the model lacks, unless `skip_unknown`.
    """
    tokenizer = trained.tokenizer
    read = tokenizer.normalize(trained.as_read(text.text))
    by_line = trained.checkpoint.config.data.documents == "line"
    lines = [line for line in read.split("\n") if line] if by_line else [read]
    if skip_unknown:
        known_part(trained, replace(text, text="".join(lines)))  # says what is left out
        lines = list(map(tokenizer.known, lines))
    ids: list[int] = []
    for number, line in enumerate(lines):
        ids += [tokenizer.end_id] * (number > 0) + ids_of(trained, replace(text, text=line))
    if by_line and lines and read.endswith("\n"):
        return [*ids, tokenizer.end_id], "\n".join([*lines, ""])
    return ids, "\n".join(lines)


def read_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """The options. Raises `UserError` for values that cannot be."""
    parser = ArgumentParser(
        prog="visualize.py",
        description="Make a page that shows what a trained model does with a text: how each\n"
        "character surprises it, what it expects next, and where its attention looks.\n"
        "Without RUN: the newest run in runs/.",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="run folder (runs/NAME) or checkpoint file")
    texts = parser.add_mutually_exclusive_group(required=True)
    texts.add_argument("--text", metavar="TEXT", help="the text")
    texts.add_argument("--text-file", metavar="F", help="the same from a file; - is standard input")
    parser.add_argument("--skip-unknown", action="store_true", help="leave out what the model does not know of it")
    parser.add_argument("--out", required=True, metavar="F", help="the page's file, say page.html; - is stdout")
    add_run_options(parser, precision="fp32")
    options = parser.parse_args(arguments)
    options.out = output_path(options.out, "--out", inputs={"--text-file": options.text_file, **run_inputs(options)})
    if options.out is None:
        check_output()
    return options


if __name__ == "__main__":
    run_command(main)
