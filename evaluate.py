"""How well a model predicts a text: mean loss over every token of it, in fixed order."""

import math
from dataclasses import dataclass

import torch

from data.dataset import Split, evaluation_windows
from data.tokenizer import Tokenizer
from engine.runtime import Runtime
from model import GPT, next_token_loss

# Tokens in one forward pass: enough to keep a device busy, few enough for the logits of a large vocabulary.
TOKENS_PER_BATCH = {"cpu": 4096, "cuda": 65536, "mps": 16384}


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation, and the measures that follow from it."""

    loss: float  # nats per token
    tokens: int  # predicted
    characters: int  # in these tokens
    bytes: int

    @property
    def bits_per_char(self) -> float:
        """Comparable between tokenizers."""
        return self.loss * self.tokens / math.log(2) / max(1, self.characters)

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers and with compressors."""
        return self.loss * self.tokens / math.log(2) / max(1, self.bytes)

    @property
    def perplexity(self) -> float:
        """Between how many equally likely tokens the model is undecided."""
        return math.exp(min(self.loss, 700.0))  # beyond that a float overflows


@torch.inference_mode()
def evaluate(
    model: GPT, split: Split, tokenizer: Tokenizer, runtime: Runtime, *, max_tokens: int | None = None
) -> Evaluation:
    """Predict the split's tokens, at most the first `max_tokens`, in windows that do not overlap.

    The same weights always give the same number, and no random generator is touched. Leaves the model in the mode
    that it was in.
    """
    context_length = model.config.context_length
    batch_size = max(1, TOKENS_PER_BATCH[runtime.device.type] // context_length)
    was_training = model.training
    model.eval()
    total, tokens, characters, num_bytes = 0.0, 0, 0, 0
    for idx, targets in evaluation_windows(split, context_length, batch_size, max_tokens):
        with runtime.autocast():
            loss = next_token_loss(model(idx.to(runtime.device)), targets.to(runtime.device))
        total += loss.item() * targets.numel()
        tokens += targets.numel()
        characters += int(tokenizer.chars_per_token[targets].sum())
        num_bytes += int(tokenizer.bytes_per_token[targets].sum())
    model.train(was_training)
    return Evaluation(total / tokens, tokens, characters, num_bytes)
