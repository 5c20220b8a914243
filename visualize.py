"""Show what a trained model does with a text: one page for the browser, with its attention and its surprise."""

import argparse
from collections.abc import Sequence

from data.paths import counted
from engine.files import output_path, write_output
from errors import ArgumentParser, DataError, check_output, command_boundary, run_command
from terminal import tell

if __name__ == "__main__":
    with command_boundary():  # so that Ctrl-C ends quietly also in the second that torch takes to load
        import torch  # noqa: F401

from engine.inspection import MAX_TOKENS, inspect
from engine.loading import add_run_options, load_from_options
from engine.page import page
from engine.prompts import Prompt, ids_of, known_part, read_prompt
from engine.stopping import explain_out_of_memory


def main(arguments: Sequence[str]) -> int:
    """The command: a page to a file."""
    options = read_command_line(arguments)
    text = Prompt(options.text, "--text")
    if options.text_file is not None:
        text = Prompt(read_prompt(options.text_file, "--text-file"), f"--text-file {options.text_file}")
    if not text.text:
        raise DataError(f"{text.where}: the text is empty; give at least one character")
    trained = load_from_options(options)
    ids = ids_of(trained, known_part(trained, text) if options.skip_unknown else text)
    if not ids:
        raise DataError(f"{text.where}: the model knows none of its characters; give it others")
    shown = ids[:MAX_TOKENS]
    with explain_out_of_memory(trained.checkpoint.config, training=False):
        inspection = inspect(trained, shown)
    made = page(trained, inspection, num_left_out=len(ids) - len(shown))
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
    options.out = output_path(options.out, "--out", inputs={"--text-file": options.text_file})
    if options.out is None:
        check_output()
    return options


if __name__ == "__main__":
    run_command(main)
