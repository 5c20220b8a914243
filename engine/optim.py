"""Which weights are updated how, and how fast: optimizers and the learning-rate schedule."""

import math
from typing import Any, cast

import torch
from torch import nn

from config.schema import OptimConfig
from engine.muon import Muon
from engine.runtime import has_bf16
from errors import CheckpointError

DECAY_SHARE = 0.4  # of a run with the trapezoid schedule: the last part, in which the rate falls
STATE_NAMES = {torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"}, Muon: {"momentum_buffer"}}


class Optimizers:
    """The optimizers of one model, used as one: Muon or AdamW for the blocks' matrices, AdamW for the rest."""

    def __init__(self, model: nn.Module, config: OptimConfig, device: torch.device) -> None:
        self.config = config
        matrices, embeddings, vectors = split_parameters(model)
        adamw_groups: list[dict[str, Any]] = [{"params": embeddings}, {"params": vectors, "weight_decay": 0.0}]
        self.members: list[torch.optim.Optimizer] = []
        if config.optimizer == "muon":
            muon = Muon(
                muon_groups(model),
                learning_rate=config.muon_learning_rate,
                weight_decay=config.weight_decay,
                dtype=torch.bfloat16 if has_bf16(device) else torch.float32,
            )
            self.members.append(muon)
        else:
            adamw_groups.append({"params": matrices})
        self.members.append(
            torch.optim.AdamW(
                adamw_groups,
                lr=config.learning_rate,
                betas=(config.beta1, config.beta2),
                weight_decay=config.weight_decay,
                fused=device.type in ("cpu", "cuda"),
            )
        )
        # GradScaler asks only for what a JointOptimizer has; its annotation wants a real one.
        self.joint = cast(torch.optim.Optimizer, JointOptimizer(self.members))
        self.full_rates = [[group["lr"] for group in member.param_groups] for member in self.members]

    def set_rate(self, factor: float) -> None:
        """Set every learning rate to `factor` times its full value."""
        for member, rates in zip(self.members, self.full_rates, strict=True):
            for group, rate in zip(member.param_groups, rates, strict=True):
                group["lr"] = rate * factor

    @property
    def learning_rate(self) -> float:
        """AdamW's rate as it is set now."""
        rate: float = self.members[-1].param_groups[0]["lr"]
        return rate

    def rates_in_use(self) -> dict[str, float]:
        """The settings that say how large a step is, with their values; those without effect are left out."""
        names = ["learning_rate", *(["muon_learning_rate"] if self.config.optimizer == "muon" else [])]
        if self.config.min_learning_rate > 0:
            names.append("min_learning_rate")
        return {f"optim.{name}": getattr(self.config, name) for name in names}

    def unscale(self, scaler: torch.amp.GradScaler) -> None:
        """Turn scaled gradients into true ones, for clipping."""
        scaler.unscale_(self.joint)

    def step(self, scaler: torch.amp.GradScaler) -> bool:
        """Update the weights once, or not at all where a gradient has overflowed, and drop the gradients.

        Returns whether they were updated.
        """
        updated = scaler.step(self.joint) is not None
        scaler.update()
        for member in self.members:
            member.zero_grad(set_to_none=True)
        return updated

    def state_dict(self) -> list[dict[str, Any]]:
        """The state of every optimizer, in order."""
        return [member.state_dict() for member in self.members]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Take momenta and counters from `states`; rates, decay and betas stay as configured now.

        Raises `CheckpointError` where they are not those of these optimizers.
        """
        try:
            for member, state in zip(self.members, states, strict=True):
                groups = [
                    {**{key: value for key, value in group.items() if key != "params"}, "params": saved["params"]}
                    for group, saved in zip(member.state_dict()["param_groups"], state["param_groups"], strict=True)
                ]
                member.load_state_dict({"state": state["state"], "param_groups": groups})
                check_state(member)
        except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"the optimizers' state does not fit this model ({error}); start a new run"
            ) from error


class JointOptimizer:
    """Several optimizers in the place of one, for a gradient scaler: it then lets all of them step, or none.

    With one at a time, an overflow in some gradients would stop only the optimizer that they belong to.
    """

    def __init__(self, members: list[torch.optim.Optimizer]) -> None:
        self.members = members

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of all members."""
        return [group for member in self.members for group in member.param_groups]

    def step(self) -> bool:
        """Let every member update its weights. The scaler gives the result back where it has called this at all."""
        for member in self.members:
            member.step()
        return True


def check_state(member: torch.optim.Optimizer) -> None:
    """Raise `ValueError` where an optimizer was given a state that it cannot go on from."""
    expected = STATE_NAMES[type(member)]
    for group in member.param_groups:
        for parameter in group["params"]:
            state = member.state.get(parameter, {})
            if state and state.keys() != expected:
                raise ValueError(
                    f"it holds {', '.join(sorted(map(str, state)))} instead of {', '.join(sorted(expected))}"
                )
            for name, value in state.items():
                shape = () if name == "step" else parameter.shape
                if not isinstance(value, torch.Tensor) or value.shape != shape:
                    raise ValueError(f"the shape of {name} is another one")


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter], list[nn.Parameter]]:
    """The model's parameters as (matrices inside the blocks, embeddings and head, norms and biases)."""
    matrices, embeddings, vectors = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            vectors.append(parameter)
        elif name.startswith("blocks."):
            matrices.append(parameter)
        else:
            embeddings.append(parameter)
    return matrices, embeddings, vectors


def muon_groups(model: nn.Module) -> list[dict[str, Any]]:
    """The matrices inside the blocks as groups for `Muon`: what holds three of them, for q, k and v, is set apart."""
    groups: dict[int, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if name.startswith("blocks.") and parameter.dim() == 2:
            groups.setdefault(3 if name.endswith("attention.qkv.weight") else 1, []).append(parameter)
    return [{"params": parameters, "parts": parts} for parts, parameters in groups.items()]


def rate_factor(step: int, progress: float, config: OptimConfig) -> float:
    """The learning rate of update `step` (0 is the first) as a share of the full one; never zero at the first.

    `progress` is the share of the run, by steps or by time, that is over before this update: 0 at the first, below 1
    at the last. Along it `cosine` falls along half a cosine, ½(1 + cos(π·progress)) (SGDR, arXiv:1608.03983,
    equation 5), and `trapezoid` stays flat and falls linearly over the last `DECAY_SHARE` (arXiv:2405.18392, section
    3), both down to `min_learning_rate`. The warm-up, a line over `warmup_steps`, holds where it is lower; so the rate
    also falls at the end of a run that is shorter than its warm-up.
    """
    left = min(1.0, max(0.0, 1 - progress))
    height = math.sin(math.pi / 2 * left) ** 2 if config.schedule == "cosine" else min(1.0, left / DECAY_SHARE)
    lowest = config.min_learning_rate / config.learning_rate
    return min((step + 1) / (config.warmup_steps + 1), lowest + (1 - lowest) * height)
