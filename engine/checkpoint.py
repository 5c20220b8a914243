"""The checkpoint file: what it holds, how it is written, and how it is read back without trusting it.

How its parts came to be (optimizers, generators, tokens) and which files a run keeps is decided elsewhere.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from config.load import config_from_dict, config_to_dict
from config.schema import Config
from data.paths import shown_path
from data.saved_tokenizer import tokenizer_from_json
from data.tokenizer import Tokenizer
from engine.archive import DamagedError, read_archive
from engine.files import replacing
from engine.run_folder import Best, RunFolder, checkpoint_files
from errors import CheckpointError, UserError
from model import GPT, count_parameters

FORMAT = 2  # 1: weights of `qwen3` and groups of Muon were others
KIND = "tiny-gpt checkpoint"
WRAPPERS = re.compile(r"^((module|_orig_mod)\.)+")  # what DistributedDataParallel and torch.compile put before names
Count = Annotated[int, Field(ge=0, lt=2**63)]


class Part(BaseModel):
    """A part of the file: these keys with values of exactly these types, and whatever else was put there."""

    model_config = ConfigDict(strict=True, extra="allow", arbitrary_types_allowed=True)


class DataPart(Part):
    """Plain facts of the prepared text."""

    fingerprint: str
    num_documents: Annotated[Count, Field(ge=1)]
    start_id: Count


class LossPart(Part):
    """The running sum of losses since they were last shown."""

    sum: float
    steps: Count
    sums_of_others: list[float] = []  # of all processes but the main one


class ProgressPart(Part):
    """How far the run had come."""

    step: Count
    seconds: float = Field(ge=0, allow_inf_nan=False)
    best_step: Count | None
    best_val_loss: float
    train_loss_at_best: float
    evaluations_since_best: Count
    overfitting_said: bool
    overflows: int = Field(0, ge=0)
    seconds_before_training: float = Field(0.0, ge=0, allow_inf_nan=False)
    minutes_used_up: float = Field(0.0, ge=0, allow_inf_nan=False)
    losses: LossPart
    file_sizes: dict[str, int]


class GroupPart(Part):
    """Which parameters, by number, one set of an optimizer's settings is for."""

    params: list[int]


class OptimizerPart(Part):
    """What an optimizer remembers, by the number of the parameter."""

    state: dict[int, dict[str, Tensor]]
    param_groups: list[GroupPart]


class Content(Part):
    """The whole file, but for what marks it as ours. Config and tokenizer have readers of their own."""

    step: Count
    config: dict[str, Any]
    tokenizer: str
    model: dict[str, Tensor]
    data: DataPart
    progress: ProgressPart
    optimizers: list[OptimizerPart]
    scaler: dict[str, float | int]
    generators: dict[str, Tensor]
    world_size: int = Field(1, ge=1)


@dataclass
class Checkpoint:
    """All that is needed to sample from a model, and to go on training it as if nothing had happened."""

    step: int  # updates made
    config: Config
    tokenizer: Tokenizer
    model: dict[str, Tensor]
    data: dict[str, Any]  # as `DataPart`
    progress: dict[str, Any]  # as `ProgressPart`
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    scaler: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, Tensor] = field(default_factory=dict)
    world_size: int = 1  # processes that trained together
    path: Path | None = None  # where it was loaded from

    @property
    def where(self) -> str:
        """What errors call it."""
        return f"checkpoint of step {self.step}" if self.path is None else shown_path(self.path)

    def make_model(self, device: torch.device) -> GPT:
        """The model with its weights, in evaluation mode. Raises `CheckpointError` where they do not fit."""
        config, vocab_size = self.config.model, self.tokenizer.vocab_size
        weights = self.plain_weights()
        given = sum(
            w.numel() for name, w in weights.items() if not (config.tie_embeddings and name == "lm_head.weight")
        )
        expected = count_parameters(config, vocab_size)
        if given != expected:  # found out before memory is taken for a model of that size
            raise CheckpointError(
                f"{self.where}: holds {given:,} weights, but the model that its config describes has {expected:,}; "
                "the file is not as it was written; use another one"
            )
        model = GPT(config, vocab_size)
        model.load_state_dict(self.fitting_weights(model))
        return model.to(device).eval()

    def plain_weights(self) -> dict[str, Tensor]:
        """The weights under the names that a model has which nothing wraps."""
        return {WRAPPERS.sub("", name): weight for name, weight in self.model.items()}

    def fitting_weights(self, model: GPT) -> dict[str, Tensor]:
        """The weights under the model's names. Raises `CheckpointError` for others, or for nan among them."""
        weights, expected = self.plain_weights(), model.state_dict()
        for name in sorted(expected.keys() | weights.keys()):
            if name not in weights or name not in expected or weights[name].shape != expected[name].shape:
                raise CheckpointError(
                    f"{self.where}: weight {name!r} does not fit the model that its config describes; use another file"
                )
            if not weights[name].isfinite().all():
                raise CheckpointError(
                    f"{self.where}: weight {name!r} at step {self.step} is not finite; use an earlier checkpoint"
                )
        return weights


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint so that `path` is at every moment absent, the old file, or the whole new one."""
    content = {
        "kind": KIND,
        "format": FORMAT,
        "torch": str(torch.__version__),
        **{key: value for key, value in vars(checkpoint).items() if key != "path"},
        "config": config_to_dict(checkpoint.config),
        "tokenizer": checkpoint.tokenizer.to_json(),
        "model": dict(checkpoint.model),
    }
    with replacing(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # what the disk refused; torch then complains of its position
                raise error.__context__ from None
            raise
        file.flush()
        os.fsync(file.fileno())


class UnusableError(CheckpointError):
    """A checkpoint that is not as it was written. Another one may be."""


def name_instead(whole: Path) -> str:
    """What to do where another checkpoint is whole, in the words that fit every command."""
    return f"the newest whole one is {shown_path(whole)}: name it instead, as RUN or with --checkpoint"


def load_checkpoint(path: Path, *, offer: Callable[[Path], str] = name_instead) -> Checkpoint:
    """Read a checkpoint onto the CPU, executing nothing that the file may hold.

    Raises `CheckpointError` for everything that `save_checkpoint` has not written as it is now. Where another one
    beside it is whole, it says so in the words that `offer` has for the newest of them.
    """
    try:
        return read_checkpoint(path)
    except UnusableError as error:
        whole = newest_whole(path)
        raise CheckpointError(f"{error}; {nothing_beside(path) if whole is None else offer(whole)}") from error


def newest_whole(path: Path) -> Path | None:
    """The newest of the other checkpoints in the folder that can be used, if any."""
    for other in reversed(checkpoint_files(path.parent)):
        if other != path and is_whole(other):
            return other
    return None


def is_whole(path: Path) -> bool:
    """Whether a checkpoint can be used."""
    try:
        read_checkpoint(path)
    except CheckpointError:
        return False
    return True


def nothing_beside(path: Path) -> str:
    """Why no other checkpoint is offered."""
    others = [other.name for other in checkpoint_files(path.parent) if other != path]
    if not others:
        return "there is no other beside it"
    return f"nor can another one beside it be used ({', '.join(reversed(others))})"


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint. Raises `UnusableError` where it is not as it was written, `CheckpointError` for other formats."""
    content = read_content(path)
    if not isinstance(content, dict) or not isinstance(content.get("kind"), str) or content["kind"] != KIND:
        raise UnusableError(f"{shown_path(path)}: not a checkpoint of this program")
    if type(content.get("format")) is not int or content["format"] != FORMAT:
        raise CheckpointError(
            f"{shown_path(path)}: format {content.get('format')!r:.40}, but this version reads {FORMAT}; "
            "use the version that wrote it"
        )
    try:
        names = Content.model_fields.keys() & content.keys()
        check_parts(Content.model_validate({name: content[name] for name in names}))
        checkpoint = Checkpoint(**{name: content[name] for name in names}, path=path)
        checkpoint.config = config_from_dict(content["config"], shown_path(path))
        checkpoint.tokenizer = tokenizer_from_json(content["tokenizer"], shown_path(path))
        if checkpoint.data["start_id"] >= checkpoint.tokenizer.vocab_size:
            raise ValueError(f"data.start_id {checkpoint.data['start_id']} is not in the vocabulary")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UnusableError(wrong_part(path, fault)) from error
    except (ValueError, UserError) as error:
        raise UnusableError(wrong_part(path, str(error).removeprefix(f"{shown_path(path)}: "))) from error
    return checkpoint


def read_content(path: Path) -> Any:
    """What the file holds, of whatever kind that is. Raises `UnusableError` where it is damaged."""
    try:
        return read_archive(path)
    except OSError as error:
        raise UnusableError(f"{shown_path(path)}: {error.strerror or error}") from error
    except DamagedError as error:
        raise UnusableError(f"{shown_path(path)}: damaged, or not a checkpoint of this program") from error


def check_parts(content: Content) -> None:
    """Raise `ValueError` for tensors that are no plain ones of their kind, and for steps that differ."""
    for name, weight in content.model.items():
        if not weight.is_floating_point():
            raise ValueError(f"model: {name!r} is not a plain tensor of floats")
    for name, state in content.generators.items():
        if state.dtype != torch.uint8 or state.dim() != 1:
            raise ValueError(f"generators: {name!r} is not the state of one")
    if content.progress.step != content.step:
        raise ValueError(f"step {content.step}, but progress.step {content.progress.step}")
    if content.progress.best_step is not None and not math.isfinite(content.progress.best_val_loss):
        raise ValueError("progress.best_val_loss is not a number")


def wrong_part(path: Path, fault: str) -> str:
    return f"{shown_path(path)}: not as it was written ({'; '.join(fault.splitlines())})"


def save_to_run(run: RunFolder, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write a checkpoint into its run, note which is the best so far, and drop what need not be kept."""
    path = run.checkpoint_file(checkpoint.step)
    save_checkpoint(path, checkpoint)
    finish_save(run, checkpoint.progress, keep=keep)
    return path


def finish_save(run: RunFolder, progress: Mapping[str, Any], *, keep: int) -> None:
    """What follows on a save, also where the process was killed before it came to that."""
    run.clear_leftovers()
    run.note_best(best_of(progress))
    run.thin_out(keep)


def best_of(progress: Mapping[str, Any]) -> Best | None:
    """The best evaluation of the run so far."""
    return None if progress["best_step"] is None else Best(progress["best_step"], progress["best_val_loss"])


def go_back(run: RunFolder, progress: Mapping[str, Any], report: Callable[[str], None]) -> None:
    """Make the checkpoint of that progress the last one of its run. Later ones are set aside, which is said.

    The best stays the best, also where it was set aside, until an evaluation is as good. One that is damaged does not.
    """
    later = run.later_than(progress["step"])
    if later:  # first of all: a killed process must not leave the id of a run whose steps are told anew
        run.wandb_id_file.unlink(missing_ok=True)  # what comes is another run there: a server forgets no step
    best = run.known_best()
    if best is not None and run.file_of(best) in later and not is_whole(run.file_of(best)):
        run.best_file.unlink(missing_ok=True)
    aside = [run.set_aside(path).name for path in later]
    run.note_best(best_of(progress))
    if aside:
        report(
            f"back     to step {progress['step']}: what came later is kept as {', '.join(aside)}; "
            "metrics.jsonl and samples.txt are cut back"
        )
