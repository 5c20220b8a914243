"""Whatever a command may be given as a model: a run, a checkpoint file, or a Hugging Face folder, as one checkpoint."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from config.schema import Config
from data.paths import local_path
from engine.checkpoint import Checkpoint
from engine.loading import open_run
from errors import CheckpointError, UserError
from interop.hub import fetch, is_hub_name
from interop.huggingface_folder import is_folder_of_weights, read_folder
from terminal import tell


def open_model(
    run: str | Path | None = None, checkpoint: str = "best", report: Callable[[str], None] = tell
) -> Checkpoint:
    """The model of a run, a checkpoint file, a Hugging Face folder or a name on its hub; None: the newest run.

    `checkpoint` is best, last or a file. `report` gets what is otherwise here than with transformers. Raises
    `CheckpointError` for what is missing or damaged, or cannot be expressed by our architectures.
    """
    folder = None if run is None else foreign_folder(str(run))
    if folder is None:
        return open_run(run, checkpoint)
    if checkpoint != "best":
        raise UserError(f"--checkpoint {checkpoint} has no effect where RUN is a Hugging Face folder; leave it out")
    return read_folder(folder, report)


def foreign_folder(name: str) -> Path | None:
    """The Hugging Face folder that is meant, on this machine or brought to it; None where it is anything else."""
    path = local_path(name)
    try:
        if is_folder_of_weights(path):
            return path
        is_there = path.exists()
    except (OSError, ValueError):  # a name too long, say, for which a run has words
        return None
    return fetch(name) if not is_there and is_hub_name(name) else None


def load_base(config: Config, report: Callable[[str], None]) -> Checkpoint:
    """The checkpoint that `train.init_from` names: a file, the best one of a run, or a Hugging Face folder.

    The window of such a folder is cut to `model.context_length` where that is shorter, which is said.
    """
    name = config.train.init_from
    assert name is not None
    try:
        folder = foreign_folder(name)
        if folder is None:
            return open_run(name)
        base = read_folder(folder, report)
    except CheckpointError as error:
        raise CheckpointError(f"train.init_from: {error}") from error
    if config.model.context_length >= base.config.model.context_length:
        return base
    report(f"cropped  model.context_length={config.model.context_length}, of {base.config.model.context_length}")
    return cropped(base, config.model.context_length)


def cropped(base: Checkpoint, context_length: int) -> Checkpoint:
    """The model with a shorter window: of learnt positions, the first ones are kept."""
    model = base.config.model.model_copy(update={"context_length": context_length})
    weights = dict(base.model)
    if model.architecture == "gpt2":
        weights["position_embedding.weight"] = weights["position_embedding.weight"][:context_length].clone()
    return replace(base, config=base.config.model_copy(update={"model": model}), model=weights)
