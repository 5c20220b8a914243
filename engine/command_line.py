"""Command lines, both ways: what `train.py` was asked for, and the commands that users are told to type.

No torch here, so that a mistake is reported at once.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from config.load import describe_settings, is_override, load_config
from config.schema import Config
from data.sources import local_path
from engine.run_folder import RunFolder, check_name, find_run
from errors import ArgumentParser, UserError

ROOT = Path(__file__).resolve().parents[1]  # where the commands are
QUICKSTART = ROOT / "config" / "quickstart.yaml"


@dataclass(frozen=True)
class Order:
    """What the command line asks for."""

    config: Config
    stem: str  # names the run where the config does not
    resumed: RunFolder | None
    checkpoint: Path | None  # to resume from
    overwrite: bool
    dry_run: bool
    quiet: bool


def read_command_line(arguments: Sequence[str]) -> Order:
    """The order that the arguments give. Raises `UserError` for mistakes in them or in the recipe."""
    parser = ArgumentParser(
        prog="train.py",
        usage="python train.py [RECIPE.yaml] [section.key=value ...] [--resume RUN] [--overwrite] [--dry-run]",
        description="Train a small GPT on a text. Without a recipe: config/quickstart.yaml.",
        epilog=describe_settings(),
    )
    parser.add_argument("recipe", nargs="?", type=local_path, metavar="RECIPE.yaml", help="settings of the run")
    parser.add_argument("--resume", metavar="RUN", help="go on with this run (a run folder or a checkpoint file)")
    parser.add_argument("--overwrite", action="store_true", help="replace the run of the same name")
    parser.add_argument("--dry-run", action="store_true", help="show settings, data, size and duration; train nothing")
    parser.add_argument("--quiet", action="store_true", help="show the result and warnings only")
    rest, overrides = split_arguments(arguments)
    options = parser.parse_args(rest)
    run = checkpoint = None
    recipe = options.recipe or QUICKSTART
    if options.resume is not None:
        if options.recipe or options.overwrite:
            surplus = options.recipe or "--overwrite"
            raise UserError(f"command line: --resume goes on with the run's own settings, so {surplus} must go")
        run, checkpoint = find_run(options.resume)
        checkpoint = checkpoint or run.find("last")
        recipe = run.config_file
    config = load_config(recipe, overrides)
    if run is None:
        check_name(local_path(config.runs_dir), config.name, overwrite=options.overwrite)
    return Order(
        config=config,
        stem=recipe.stem,
        resumed=run,
        checkpoint=checkpoint,
        overwrite=options.overwrite,
        dry_run=options.dry_run,
        quiet=options.quiet,
    )


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options and recipe, then the settings. Paths may hold `=` too, as those of runs called `lr=1e-3` do."""
    rest: list[str] = []
    overrides: list[str] = []
    before = ""
    for argument in arguments:
        (overrides if before != "--resume" and is_override(argument) else rest).append(argument)
        before = argument
    return rest, overrides


def command(script: str, *arguments: object) -> str:
    """A command line that can be pasted into a shell, in the folder that this process runs in."""
    found = shutil.which("python")
    is_ours = found is not None and Path(found).parent == Path(sys.executable).parent
    where = script if Path.cwd() == ROOT else str(ROOT / script)
    words = ["python" if is_ours else sys.executable, where, *map(str, arguments)]
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)
