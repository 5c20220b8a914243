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
from data.paths import local_path, shown_path
from engine.lock import check_free
from engine.new_run import check_name
from engine.run_folder import RunFolder, checkpoint_files, find_run
from engine.tensorboard import check_tensorboard
from errors import ArgumentParser, UserError

ROOT = Path(__file__).resolve().parents[1]  # where the commands are
QUICKSTART = ROOT / "config" / "quickstart.yaml"


@dataclass(frozen=True)
class Order:
    """What the command line asks for."""

    config: Config
    stem: str  # names the run where the config does not
    resumed: RunFolder | None
    checkpoint: Path | None  # to resume from, where one was named: which is the last may change until it is locked
    overrides: tuple[str, ...]  # as they were given
    overwrite: bool
    dry_run: bool
    quiet: bool

    def resume_instead(self, checkpoint: Path) -> str:
        """What to do where another checkpoint than the one to resume from can be used."""
        resume = training_command("--resume", checkpoint, *self.overrides)
        return f"go on from the newest whole one: {resume}"


def read_command_line(arguments: Sequence[str]) -> Order:
    """The order that the arguments give. Raises `UserError` for mistakes in them or in the recipe."""
    parser = ArgumentParser(
        prog="train.py",
        usage="python train.py [RECIPE.yaml] [section.key=value ...]\n"
        "                       [--resume RUN] [--overwrite] [--dry-run] [--quiet]",
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
        check_resumable(run, options.resume)
        if not options.dry_run and os.environ.get("RANK", "0") == "0":  # torchrun's first process locks it for all
            check_free(run.path)
        recipe = run.config_file
    config = load_config(recipe, overrides)
    check_tensorboard(config)
    if options.overwrite and config.name is None:
        config = config.model_copy(update={"name": recipe.stem})  # what it would be called if it were the first
    if run is None:
        check_name(local_path(config.runs_dir), config.name, overwrite=options.overwrite)
    return Order(
        config=config,
        stem=recipe.stem,
        resumed=run,
        checkpoint=checkpoint,
        overrides=tuple(overrides),
        overwrite=options.overwrite,
        dry_run=options.dry_run,
        quiet=options.quiet,
    )


def check_resumable(run: RunFolder, given: str) -> None:
    """Raise `UserError` where a run has no checkpoint to resume from, or no settings."""
    if run.config_file.is_file():
        run.find("last")
    elif checkpoint_files(run.checkpoints):
        sample = command("sample.py", run.path)
        raise UserError(
            f"--resume {given}: {shown_path(run.config_file)} is missing, so that run cannot be resumed; "
            f"put it back, or use what was trained as it is: {sample}"
        )
    else:
        raise UserError(f"--resume {given}: the checkpoint does not lie in the folder of a run")


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
    where = script if Path.cwd() == ROOT else str(ROOT / script)
    return in_shell("python" if is_on_path("python") else sys.executable, where, *arguments)


def training_command(*arguments: object) -> str:
    """`train.py` with these arguments, by as many processes as there are now, for a user to paste."""
    world_size, local_world_size = (int(os.environ.get(name) or 1) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if world_size == 1:
        return command("train.py", *arguments)
    starter = ["torchrun"] if is_on_path("torchrun") else [sys.executable, "-m", "torch.distributed.run"]
    several = ["--nnodes", world_size // local_world_size, "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:PORT"]
    machines = ["--standalone"] if world_size == local_world_size else several
    where = "train.py" if Path.cwd() == ROOT else str(ROOT / "train.py")
    return in_shell(*starter, *machines, "--nproc-per-node", local_world_size, where, *arguments)


def module_command(module: str, *arguments: object) -> str:
    """The same for the command of an installed package, by the module that runs it: `package` or `package.main`."""
    program = module.partition(".")[0]
    words = [program] if is_on_path(program) else [sys.executable, "-m", module]
    return in_shell(*words, *arguments)


def is_on_path(program: str) -> bool:
    """Whether the shell finds the program of that name which belongs to our interpreter."""
    found = shutil.which(program)
    return found is not None and Path(found).parent == Path(sys.executable).parent


def in_shell(*words: object) -> str:
    """The words as a shell takes them."""
    texts = [str(word) for word in words]
    return subprocess.list2cmdline(texts) if os.name == "nt" else shlex.join(texts)
