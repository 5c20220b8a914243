"""All that changes while a run trains, and its way into a checkpoint and back.

When to update, evaluate and save is the training loop's business.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from config.schema import Config
from data.prepare import PreparedData
from data.tokenizer import CharTokenizer
from engine.checkpoint import Checkpoint
from engine.optim import Optimizers
from engine.processes import ALONE, Processes
from engine.products import install_fast_products
from engine.runtime import Runtime, derived_seed, generator_states, restore_generator_states
from errors import CheckpointError
from model import GPT

OVERFITTING_EVALUATIONS = 3  # without a better val loss, before overfitting is pointed out


@dataclass
class Progress:
    """How far a run has come."""

    step: int = 0  # updates made
    seconds: float = 0.0  # spent so far, in all its parts
    best_step: int | None = None
    best_val_loss: float = math.inf
    train_loss_at_best: float = math.inf
    evaluations_since_best: int = 0
    overfitting_said: bool = False
    overflows: int = 0  # steps without an update, since a gradient was too large for fp16
    seconds_before_training: float = 0.0  # from the start of the run to its first step
    minutes_used_up: float = 0.0  # the largest `max_minutes` that the run has come to the end of, 0 for none

    def note_evaluation(self, val_loss: float, train_loss: float) -> None:
        """Take note of an evaluation at the current step; a loss that is not a number is never the best."""
        if val_loss < self.best_val_loss:
            self.best_step, self.best_val_loss, self.train_loss_at_best = self.step, val_loss, train_loss
            self.evaluations_since_best = 0
        else:
            self.evaluations_since_best += 1

    def is_overfitting(self, train_loss: float) -> bool:
        """Whether val loss has been rising for a while although train loss falls, and nobody has said so yet."""
        rising = self.evaluations_since_best >= OVERFITTING_EVALUATIONS
        return rising and train_loss < self.train_loss_at_best and not self.overfitting_said


class TrainingState:
    """Model, optimizers, scaler, generators and progress of one run, on the run's device."""

    def __init__(self, config: Config, prepared: PreparedData, runtime: Runtime, processes: Processes = ALONE) -> None:
        self.config = config
        self.prepared = prepared
        self.runtime = runtime
        self.processes = processes
        torch.manual_seed(config.seed)  # draws the weights and, later, dropout
        self.windows = torch.Generator().manual_seed(config.seed)  # draws the batches
        self.model = GPT(config.model, prepared.tokenizer.vocab_size).to(runtime.device)
        install_fast_products(self.model, runtime)
        self.optimizers = Optimizers(self.model, config.optim, runtime.device)
        self.scaler = runtime.make_scaler()
        self.progress = Progress()
        self.losses = LossWatch(runtime.device)
        if processes.rank > 0:  # the weights are those of all, but everybody has dropout of their own
            torch.manual_seed(derived_seed(config.seed, processes.rank))

    @property
    def tokens_per_step(self) -> int:
        """How many tokens one update learns from, in all processes together."""
        train = self.config.train
        sequences = train.grad_accum_steps * train.batch_size * self.processes.world_size
        return sequences * self.config.model.context_length

    def is_finished(self) -> bool:
        """Whether the last step is done, the time is up, or patience has run out."""
        return self.is_out_of_steps() or self.is_out_of_time() or self.is_out_of_patience()

    def is_out_of_steps(self) -> bool:
        """Whether `max_steps` are made."""
        max_steps = self.config.train.max_steps
        return max_steps is not None and self.progress.step >= max_steps

    def is_out_of_time(self) -> bool:
        """Whether the run has come to its end for want of time, of which it has not got more since."""
        max_minutes = self.config.train.max_minutes
        return max_minutes is not None and self.progress.minutes_used_up >= max_minutes

    def is_out_of_patience(self) -> bool:
        """Whether val loss has not become better for too long."""
        patience = self.config.train.patience
        return patience is not None and self.progress.evaluations_since_best >= patience

    def checkpoint(self, file_sizes: dict[str, int]) -> Checkpoint:
        """What `restore` continues from, with the live tensors: to be saved before the next step.

        `file_sizes` are those of the files that the run appends to.
        """
        data = {
            "fingerprint": self.prepared.fingerprint,
            "num_documents": self.prepared.num_documents,
            "start_id": self.prepared.start_id,
        }
        return Checkpoint(
            step=self.progress.step,
            config=self.config,
            tokenizer=self.prepared.tokenizer,
            model=self.model.state_dict(),
            data=data,
            progress={**asdict(self.progress), "losses": self.all_losses(), "file_sizes": file_sizes},
            optimizers=self.optimizers.state_dict(),
            scaler=self.scaler.state_dict(),
            generators={"windows": self.windows.get_state(), **self.all_generator_states()},
            world_size=self.processes.world_size,
        )

    def all_losses(self) -> dict[str, Any]:
        """The running sums of the losses of all processes, that of the main one first."""
        mine = self.losses.state()
        sums = self.processes.gather(torch.tensor(mine["sum"], dtype=torch.float64))
        return {**mine, "sums_of_others": [float(other) for other in sums[1:]]}

    def all_generator_states(self) -> dict[str, Tensor]:
        """Torch's generators of all processes: `cpu` is that of the main one, `cpu.1` that of process 1."""
        return {
            name if rank == 0 else f"{name}.{rank}": state
            for name, mine in generator_states(self.runtime.device).items()
            for rank, state in enumerate(self.processes.gather(mine))
        }

    def start_from(self, base: Checkpoint) -> None:
        """Take the weights of another run before the first step; characters that it did not know get average rows."""
        weights = base.make_model(self.runtime.device).state_dict()
        old, new = base.tokenizer, self.prepared.tokenizer
        if new.fingerprint != old.fingerprint:
            assert isinstance(old, CharTokenizer)
            assert isinstance(new, CharTokenizer)
            rows = torch.from_numpy(new.ids_of(old)).to(self.runtime.device)
            for name in {"token_embedding.weight", "lm_head.weight"} & weights.keys():
                # Not all the same, and as likely as any: what was drawn for them, around the mean.
                grown = self.model.state_dict()[name] + weights[name].mean(0)
                grown[rows] = weights[name]
                weights[name] = grown
        self.model.load_state_dict(weights)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up where the checkpoint was made. Raises `CheckpointError` where it does not fit model or data."""
        if checkpoint.data["fingerprint"] != self.prepared.fingerprint:
            raise CheckpointError(
                f"{checkpoint.where}: was trained on another text than data.source={self.config.data.source} is now; "
                "bring that text back, or start a new run"
            )
        if checkpoint.world_size != self.processes.world_size:
            raise CheckpointError(
                f"{checkpoint.where}: was trained by {checkpoint.world_size} processes, and now there are "
                f"{self.processes.world_size}; start as many again (torchrun --standalone --nproc-per-node "
                f"{checkpoint.world_size} train.py … on one machine), or a new run with train.init_from"
            )
        self.model.load_state_dict(checkpoint.fitting_weights(self.model))
        names = [field.name for field in fields(Progress) if field.name in checkpoint.progress]
        self.progress = Progress(**{name: checkpoint.progress[name] for name in names})
        losses = dict(checkpoint.progress["losses"])
        if not self.processes.is_main:
            losses["sum"] = losses["sums_of_others"][self.processes.rank - 1]
        self.losses.restore(losses)
        try:
            self.optimizers.load_state_dict(checkpoint.optimizers)
            if checkpoint.scaler:  # empty where the run did not need one so far
                self.scaler.load_state_dict(checkpoint.scaler)
            self.windows.set_state(checkpoint.generators["windows"])
            suffix = "" if self.processes.is_main else f".{self.processes.rank}"
            mine = {
                name.removesuffix(suffix): state
                for name, state in checkpoint.generators.items()
                if name.endswith(suffix)
            }
            restore_generator_states(mine, self.runtime.device)
        except CheckpointError as error:
            raise CheckpointError(f"{checkpoint.where}: {error}") from error
        except (KeyError, RuntimeError, TypeError) as error:
            raise CheckpointError(
                f"{checkpoint.where}: not as it was written ({str(error).splitlines()[0]}); resume from another one"
            ) from error


class LossWatch:
    """The mean loss since it was last asked for, and the first step that was not finite.

    Kept on the device, where looking at every loss would make the CPU wait for the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.sum = torch.zeros((), device=device)
        self.steps = 0
        self.first_bad_step = torch.full((), -1, dtype=torch.int64, device=device)

    def add(self, step: int, loss: Tensor, grad_norm: Tensor | None) -> None:
        """Note one step. `grad_norm` is None where a scaler deals with gradients that overflow."""
        self.sum += loss
        self.steps += 1
        finite = loss.isfinite() if grad_norm is None else loss.isfinite() & grad_norm.isfinite()
        self.first_bad_step = torch.where(finite | (self.first_bad_step >= 0), self.first_bad_step, step)

    def bad_step(self) -> int | None:
        """The first step with a loss or gradient that is not finite, or None. Waits for the device."""
        step = int(self.first_bad_step)
        return step if step >= 0 else None

    def take_mean(self) -> float:
        """The mean loss of the steps since the last call, in nats per token. Waits for the device."""
        mean = self.sum.item() / max(1, self.steps)
        self.sum.zero_()
        self.steps = 0
        return mean

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {"sum": self.sum.item(), "steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from an earlier `state`."""
        self.sum.fill_(state["sum"])
        self.steps = state["steps"]
