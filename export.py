"""Take a trained model elsewhere: a run in, a Hugging Face folder or a GGUF file for llama.cpp out."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from data.paths import counted, format_size, local_path, shown_path
from errors import ArgumentParser, check_output, command_boundary, run_command
from terminal import tell

if __name__ == "__main__":
    with command_boundary():  # so that Ctrl-C ends quietly also in the second that torch and the model take to load
        import engine.loading  # noqa: F401

from engine.loading import run_inputs
from engine.output import check_unused
from interop.gguf import check_gguf, write_gguf
from interop.huggingface_folder import DTYPES, check_place, write_folder
from interop.opening import open_model


def main(arguments: Sequence[str]) -> int:
    """The command: what was written to stdout, everything else to stderr."""
    options = read_command_line(arguments)
    check_output()
    out: Path = options.out
    check_unused(out, "--out", inputs=run_inputs(options))
    if options.format == "hf":
        check_place(out, overwrite=options.overwrite)
    else:
        check_gguf(out, overwrite=options.overwrite)
    checkpoint = open_model(options.run, options.checkpoint)
    tell(f"export   {checkpoint.where}, {counted(checkpoint.step, 'step')}")
    if options.format == "hf":
        write_folder(out, checkpoint, dtype=options.dtype, overwrite=options.overwrite)
    else:
        write_gguf(out, checkpoint, dtype=options.dtype, report=tell)
    print(f"{shown_path(out)}  {options.format}, {options.dtype}, {format_size(size_of(out))}")
    return 0


def read_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """The options. Raises `UserError` for values that cannot be."""
    parser = ArgumentParser(
        prog="export.py",
        description="Export a trained model for other programs. Without RUN: the newest run in runs/.",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="run folder, checkpoint file or Hugging Face folder")
    parser.add_argument(
        "--format", required=True, choices=["hf", "gguf"], help="hf: a folder for transformers. gguf: for llama.cpp"
    )
    parser.add_argument("--out", required=True, type=local_path, metavar="PATH", help="the folder, or the file")
    parser.add_argument("--dtype", choices=[*DTYPES], default="f32", help="f16: half the size, rounded (f32)")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    parser.add_argument("--checkpoint", default="best", metavar="best|last|PATH", help="which weights (best)")
    options = parser.parse_args(arguments)
    if options.out.name in ("", ".."):  # the folder that we are in, or one above it
        options.out = options.out.resolve()
    return options


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))


if __name__ == "__main__":
    run_command(main)
