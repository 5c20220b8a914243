"""The checkpoint file: what it holds, how it is written, and how it is read back without trusting it.

How its parts came to be (optimizers, generators, tokens) and which files a run keeps is decided elsewhere.
"""

import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from config.load import config_from_dict, config_to_dict
from config.schema import Config
from data.tokenizer import Tokenizer, tokenizer_from_json
from engine.run_folder import Best, RunFolder, checkpoint_files, replacing
from errors import CheckpointError, UserError
from model import GPT

FORMAT = 1
KIND = "tiny-gpt checkpoint"
# Everything that torch.load raises for files that are cut short, damaged, or not checkpoints at all.
LOAD_ERRORS = (
    RuntimeError,
    EOFError,
    pickle.UnpicklingError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    ImportError,
    MemoryError,
)


@dataclass
class Checkpoint:
    """All that is needed to sample from a model, and to go on training it as if nothing had happened."""

    step: int  # updates made
    config: Config
    tokenizer: Tokenizer
    model: dict[str, Tensor]
    data: dict[str, Any]  # plain facts of the prepared text: fingerprint, documents, where a text starts
    progress: dict[str, Any]  # best so far and running sums, see train.py
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    scaler: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, Tensor] = field(default_factory=dict)
    path: Path | None = None  # where it was loaded from

    def make_model(self, device: torch.device) -> GPT:
        """The model with its weights, in evaluation mode. Raises `CheckpointError` where they do not fit."""
        model = GPT(self.config.model, self.tokenizer.vocab_size)
        model.load_state_dict(self.fitting_weights(model))
        return model.to(device).eval()

    def fitting_weights(self, model: GPT) -> dict[str, Tensor]:
        """The weights under the model's names, in fp32. Raises `CheckpointError` for others, or for nan among them."""
        weights = {name.removeprefix("module.").removeprefix("_orig_mod."): w for name, w in self.model.items()}
        expected = model.state_dict()
        for name in sorted(expected.keys() | weights.keys()):
            if name not in weights or name not in expected or weights[name].shape != expected[name].shape:
                raise CheckpointError(f"{self.path}: weight {name!r} does not fit the model that its config describes")
            if not weights[name].isfinite().all():
                raise CheckpointError(
                    f"{self.path}: weight {name!r} at step {self.step} is not finite; use an earlier checkpoint"
                )
        return {name: tensor.float() for name, tensor in weights.items()}


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint so that `path` is at every moment absent, the old file, or the whole new one."""
    content = {
        "kind": KIND,
        "format": FORMAT,
        "torch": str(torch.__version__),
        **{key: value for key, value in vars(checkpoint).items() if key != "path"},
        "config": config_to_dict(checkpoint.config),
        "tokenizer": checkpoint.tokenizer.to_json(),
    }
    with replacing(path) as temporary, temporary.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint onto the CPU, executing nothing that the file may hold. Raises `CheckpointError`."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    except LOAD_ERRORS as error:
        raise CheckpointError(
            f"{path}: damaged, or not a checkpoint of this program; {other_checkpoints(path)}"
        ) from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise CheckpointError(f"{path}: not a checkpoint of this program; {other_checkpoints(path)}")
    if content.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format {content.get('format')!r}, but this version reads {FORMAT}; use the one that wrote it"
        )
    names = Checkpoint.__dataclass_fields__.keys() - {"path"}
    missing = sorted(names - content.keys())
    if missing:
        raise CheckpointError(f"{path}: incomplete, without {', '.join(missing)}; {other_checkpoints(path)}")
    parts = {name: content[name] for name in names}
    try:
        parts["config"] = config_from_dict(parts["config"], str(path))
        parts["tokenizer"] = tokenizer_from_json(parts["tokenizer"], str(path))
    except UserError as error:
        raise CheckpointError(str(error)) from error
    return Checkpoint(**parts, path=path)


def other_checkpoints(path: Path) -> str:
    """What to try instead of a file that cannot be used."""
    others = [other.name for other in checkpoint_files(path.parent) if other != path]
    return f"others in {path.parent}: {', '.join(reversed(others))}" if others else "there is no other beside it"


def save_to_run(run: RunFolder, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write a checkpoint into its run, note it where it is the best so far, and drop what need not be kept."""
    path = run.checkpoint_file(checkpoint.step)
    save_checkpoint(path, checkpoint)
    best = checkpoint.progress["best_step"]
    if best == checkpoint.step:
        run.note_best(Best(best, checkpoint.progress["best_val_loss"]))
    run.thin_out(keep)
    return path
