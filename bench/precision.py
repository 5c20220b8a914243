"""From which size on bf16 pays on a CPU: one forward and backward pass of the model in fp32 and in bf16.

The rule that follows from it is `engine.runtime.BF16_FROM_PARAMETERS`. Run: python bench/precision.py
"""

import argparse
from collections.abc import Callable

from common import alternate, machine, model_config, print_table

import torch  # isort: skip
from engine.runtime import BF16_FROM_PARAMETERS, Runtime  # isort: skip
from model import GPT, count_parameters, next_token_loss  # isort: skip

VOCAB_SIZE = 65
SIZES = [  # context_length, d_model, num_heads, num_layers, batch_size
    (8, 16, 2, 2, 4),
    (32, 32, 2, 2, 8),
    (64, 48, 3, 2, 8),
    (64, 64, 2, 2, 8),
    (64, 64, 2, 4, 12),
    (64, 96, 3, 4, 12),
    (64, 128, 4, 4, 12),
    (128, 192, 6, 6, 12),
    (256, 384, 6, 6, 8),
]


def contender(model: GPT, idx: torch.Tensor, precision: str) -> Callable[[], None]:
    """One forward and backward pass."""
    runtime = Runtime(torch.device("cpu"), precision, compile=False, threads=0, reason="measured")

    def run() -> None:
        with runtime.autocast():
            loss = next_token_loss(model(idx), idx)
        loss.backward()
        model.zero_grad()

    return run


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(f"{machine()}; the trainer takes bf16 from {BF16_FROM_PARAMETERS:,} parameters on\n")
    rows = []
    for architecture in ("gpt2", "qwen3"):
        for size in SIZES:
            config = model_config(architecture, size)
            context_length, d_model, _, num_layers, batch_size = size
            model = GPT(config, VOCAB_SIZE)
            idx = torch.randint(VOCAB_SIZE, (batch_size, context_length))
            large = d_model > 128
            times = alternate({p: contender(model, idx, p) for p in ("fp32", "bf16")}, rounds=7 if large else 40)
            shape = f"{num_layers} layers, d {d_model}, {batch_size}×{context_length}"
            milliseconds = [f"{1000 * seconds:.2f}" for seconds in times.values()]
            ratio = f"{times['fp32'] / times['bf16']:.2f}"
            rows.append([architecture, shape, f"{count_parameters(config, VOCAB_SIZE):,}", *milliseconds, ratio])
    print_table(["architecture", "shape", "parameters", "fp32, ms", "bf16, ms", "fp32 ÷ bf16"], rows)


if __name__ == "__main__":
    main()
