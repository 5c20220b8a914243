"""What a run says on stdout at its end: the result, and the commands that go on from it."""

from engine.command_line import command, module_command, training_command
from engine.run_folder import RunFolder
from engine.state import TrainingState
from engine.tracking import duration


def say_goodbye(run: RunFolder, state: TrainingState) -> None:
    """The result on stdout, and what to do with it."""
    config, progress = state.config, state.progress
    if progress.step >= config.train.max_steps:
        ending = "finished"
    elif state.is_finished():
        ending = f"stopped after {config.train.patience} evaluations without a better val loss,"
    else:
        ending = "interrupted"
    best = ""
    if progress.best_step is not None:
        best = f"; best val loss {progress.best_val_loss:.4f} at step {progress.best_step}"
    print(f"{ending} at step {progress.step} after {duration(progress.seconds)}{best}")
    print(f"run      {run.path}")
    if any(run.path.glob("wandb/*run-*")):
        print(f"curves   {module_command('wandb', 'leet', run.path / 'wandb')}")
    if progress.best_step is not None:
        print(f"sample   {command('sample.py', run.path)}")
    print(f"resume   {training_command('--resume', run.path, *going_on(state))}", flush=True)


def going_on(state: TrainingState) -> list[str]:
    """The settings that a finished run must change to go on, none where it is not finished."""
    train, progress = state.config.train, state.progress
    more = [f"train.max_steps={2 * train.max_steps}"] if progress.step >= train.max_steps else []
    if train.patience is not None and progress.evaluations_since_best >= train.patience:
        more.append("train.patience=null")
    return more
