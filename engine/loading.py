"""A trained model, ready for use: where every command but training begins."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from config.load import load_config
from data.tokenizer import Tokenizer
from engine.checkpoint import Checkpoint, load_checkpoint
from engine.products import install_fast_products
from engine.row_products import round_to_int8
from engine.run_folder import find_run
from engine.runtime import Runtime, choose_device, choose_runtime
from errors import ArgumentParser, UserError
from model import GPT, count_parameters

Opener = Callable[[str | Path | None, str], Checkpoint]  # of RUN and --checkpoint, see `open_run`


@dataclass(frozen=True)
class TrainedModel:
    """A model with its weights, and what is needed to feed it."""

    model: GPT  # in evaluation mode, on the runtime's device
    tokenizer: Tokenizer
    runtime: Runtime
    checkpoint: Checkpoint
    weights: str = "exact"  # or int8: then the model's are what 8 bits leave of them

    @property
    def start_id(self) -> int:
        """What a text begins with where there is no prompt."""
        return int(self.checkpoint.data["start_id"])

    @property
    def has_documents(self) -> bool:
        """Whether the text had several documents, so that the model has learnt where one ends."""
        return int(self.checkpoint.data["num_documents"]) > 1

    def as_read(self, text: str) -> str:
        """The text with its line ends as those of the training text became."""
        if self.checkpoint.config.data.newlines == "keep":
            return text
        return text.replace("\r\n", "\n").replace("\r", "\n")


def open_run(run: str | Path | None = None, checkpoint: str = "best") -> Checkpoint:
    """What was saved of a run: `run` and `checkpoint` as for `load_model`."""
    folder, file = find_run(None if run is None else str(run))
    if file is not None and checkpoint != "best":
        raise UserError(f"--checkpoint {checkpoint} has no effect where RUN is itself a checkpoint file; leave one out")
    return load_checkpoint(file or folder.find(checkpoint))


def load_model(
    run: str | Path | None = None,
    *,
    checkpoint: str = "best",
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    weights: str = "exact",
    open_model: Opener = open_run,
) -> TrainedModel:
    """The model of a run: a run folder, a checkpoint file, or None for the newest run in `runs/`.

    `checkpoint` is best, last or a file, `weights` exact or int8 (8 bits each, on a CPU). Needs neither the text nor
    the cache that the model was trained with. `interop.opening.open_model` opens Hugging Face folders, too. Raises
    `CheckpointError` for what is missing or damaged, `ConfigError` and `DeviceError` for settings.
    """
    if weights not in ("exact", "int8"):
        raise UserError(f"--weights must be exact or int8, got {weights!r}")
    overrides = [f"runtime.device={device}", f"runtime.precision={precision}"]
    if threads is not None:
        overrides.append(f"runtime.threads={threads}")
    config = load_config(None, overrides).runtime
    loaded = open_model(run, checkpoint)
    trained = loaded.config.runtime
    if precision == "auto" and choose_device(device).type == trained.device.partition(":")[0]:
        config = config.model_copy(update={"precision": trained.precision})  # so that it measures what training did
    runtime = choose_runtime(config, count_parameters(loaded.config.model, loaded.tokenizer.vocab_size))
    if precision == "auto" and config.precision != "auto":
        runtime = replace(runtime, reason="as trained")
    if weights == "int8" and runtime.device.type != "cpu":
        raise UserError(f"--weights int8 is for CPUs, and the device is {runtime.device}; leave it out")
    model = loaded.make_model(runtime.device)
    if weights == "int8":
        round_to_int8(model)
    install_fast_products(model, runtime)
    return TrainedModel(model, loaded.tokenizer, runtime, loaded, weights)


def add_run_options(parser: ArgumentParser, *, precision: str = "auto", has_weights: bool = False) -> None:
    """The options that every command on a trained run takes, besides RUN itself; see `load_from_options`.

    `precision` is the default: what suits the command. `has_weights`: whether it can compute with weights of 8 bits.
    """
    parser.add_argument("--checkpoint", default="best", metavar="best|last|PATH", help="which weights (best)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (auto)")
    parser.add_argument("--precision", default=precision, help=f"auto, fp32, bf16 or fp16 ({precision})")
    parser.add_argument("--threads", type=int, help="CPU threads (torch's own choice)")
    if has_weights:
        text = "int8: 8 bits each, several times as fast for large models, a little worse (exact)"
        parser.add_argument("--weights", choices=["exact", "int8"], default="exact", help=text)


def run_inputs(options: argparse.Namespace) -> dict[str, str | None]:
    """What the command reads of the run, under its options: not to be written to."""
    file = None if options.checkpoint in ("best", "last") else options.checkpoint
    return {"model (RUN)": options.run, "--checkpoint": file}


def load_from_options(options: argparse.Namespace, open_model: Opener = open_run) -> TrainedModel:
    """The model that the options of `add_run_options` and RUN name, read by `open_model`."""
    return load_model(
        options.run,
        checkpoint=options.checkpoint,
        device=options.device,
        precision=options.precision,
        threads=options.threads,
        weights=getattr(options, "weights", "exact"),
        open_model=open_model,
    )
