"""What a run says on stdout at its end: the result, and the commands that go on from it."""

import math

from config.values import MAX_MINUTES
from data.paths import counted
from engine.command_line import Order, command, module_command, training_command
from engine.curve import loss_curve
from engine.run_folder import RunFolder
from engine.state import TrainingState
from engine.tracking import duration


def say_goodbye(run: RunFolder, state: TrainingState, *, quiet: bool) -> None:
    """The result on stdout, and what to do with it; unless `quiet`, the curve of the losses before it."""
    config, progress = state.config, state.progress
    ending, reason = "interrupted", ""
    if state.is_out_of_steps():
        ending = "finished"
    elif state.is_out_of_time():
        ending = f"finished, as train.max_minutes={config.train.max_minutes:g} asks,"
    elif state.is_finished():
        ending, reason = "stopped", f": {counted(config.train.patience or 0, 'evaluation')} without a better val loss"
    for line in [] if quiet else loss_curve(run.metrics_file):
        print(line)
    print(f"{ending} at step {progress.step} after {duration(progress.seconds)}{reason}")
    if progress.best_step is not None:
        print(f"best     val loss {progress.best_val_loss:.4f} at step {progress.best_step}")
    print(f"run      {run.path}")
    if any(run.path.glob("wandb/*run-*")):
        print(f"curves   {module_command('wandb', 'leet', run.path / 'wandb')}")
    if config.tracking.tensorboard:
        print(f"curves   {module_command('tensorboard.main', '--logdir', run.tensorboard)}")
    if progress.best_step is not None:
        print(f"sample   {command('sample.py', run.path)}")
    print(f"resume   {training_command('--resume', run.path, *going_on(state))}", flush=True)


def say_finished(run: RunFolder, state: TrainingState, order: Order) -> None:
    """On stdout, that a run which is to be resumed has ended, by which limit, and how to go on."""
    train, more = state.config.train, going_on(state)
    keys = {setting.partition("=")[0] for setting in more}
    kept = [override for override in order.overrides if override.removeprefix("--").partition("=")[0] not in keys]
    by_time = f", as train.max_minutes={train.max_minutes:g} asks" if state.is_out_of_time() else ""
    command_line = training_command("--resume", order.checkpoint or run.path, *kept, *more)
    print(f"finished already at step {state.progress.step}{by_time}")
    print(f"run      {run.path}")
    print(f"resume   {command_line}")


def going_on(state: TrainingState) -> list[str]:
    """The settings that a finished run must change to go on, none where it is not finished."""
    train, progress = state.config.train, state.progress
    more = []
    if train.max_steps is not None and state.is_out_of_steps():
        more.append(f"train.max_steps={2 * max(train.max_steps, progress.step)}")
    if train.max_minutes is not None and state.is_out_of_time():
        minutes = 2 * max(train.max_minutes, progress.seconds / 60)
        more.append(f"train.max_minutes={min(math.ceil(100 * minutes) / 100, MAX_MINUTES):g}")
    if state.is_out_of_patience():
        more.append("train.patience=null")
    return more
