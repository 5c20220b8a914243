"""The README.md of an exported model: what it is, what it was trained on, how good it is, how to use it."""

import math
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from config.load import config_to_dict
from data.paths import counted, escaped
from data.sources import entries_of
from data.tokenizer import Tokenizer
from engine.checkpoint import Checkpoint
from engine.start import in_yaml
from model import count_parameters

USE = """```python
from transformers import pipeline

write = pipeline("text-generation", model="PATH OF THIS FOLDER")
print(write({prompt!r}, max_new_tokens={length})[0]["generated_text"])
```"""


def model_card(checkpoint: Checkpoint, dtype: str) -> str:
    """The card in Markdown, with what Hugging Face's hub reads at its top. Of paths on this machine, the names only."""
    model, tokenizer = checkpoint.config.model, checkpoint.tokenizer
    num_parameters = count_parameters(model, tokenizer.vocab_size)
    length = min(200, max(1, model.context_length - 1))  # GPT-2 has no positions behind its window
    lines = (
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n",
        f"# A small {model.architecture} model\n",
        f"{num_parameters:,} parameters in {dtype}: {model.num_layers} layers, {model.num_heads} heads, d_model "
        f"{model.d_model}, windows of {model.context_length} tokens.\n",
        f"- Text: {_text(checkpoint)}",
        f"- Tokens: {_tokens(tokenizer)}",
        f"- Training: {counted(checkpoint.step, 'step')}",
        f"- Loss: {_losses(checkpoint)}",
        f"\n## Use\n\n{USE.format(prompt=_prompt(tokenizer), length=length)}\n",
        f"## Settings\n\n```yaml\n{_settings(checkpoint)}\n```",
    )
    return "\n".join(lines) + "\n"


def _settings(checkpoint: Checkpoint) -> str:
    """What decides about the training, a line for each setting."""
    sections: dict[str, Any] = config_to_dict(checkpoint.config)
    return "\n".join(
        f"{section}.{name}: {in_yaml(value)}"
        for section in (("model", "data", "train", "optim") if checkpoint.data["fingerprint"] else ("model",))
        for name, value in sections[section].items()
        if name not in ("source", "val_source", "cache_dir", "init_from", "sample_prompt")
    )


def _text(checkpoint: Checkpoint) -> str:
    if not checkpoint.data["fingerprint"]:
        return "unknown; the model was imported"
    names = entries_of(checkpoint.config.data.source)
    # Of an address the path only: what stands behind it may be a key.
    paths = [urlsplit(name).path if "://" in name else name for name in names]
    return ", ".join(f"`{escaped(Path(path).name)}`" for path in paths)


def _prompt(tokenizer: Tokenizer) -> str:
    """Something that the model knows and that can be read: the first such token."""
    texts = (tokenizer.decode([token]) for token in range(tokenizer.vocab_size))
    return next((text for text in texts if text.isalpha() and text.isascii()), "") or tokenizer.decode([0])


def _tokens(tokenizer: Tokenizer) -> str:
    what = {"char": "characters", "byte": "bytes of UTF-8", "bpe": "byte pairs learnt from the text"}
    size = f"{tokenizer.vocab_size:,} with `<|endoftext|>`, which ends a document"
    return f"{what.get(tokenizer.kind, f'`{tokenizer.kind}`')}, {size}"


def _losses(checkpoint: Checkpoint) -> str:
    """What is known of the loss of these weights."""
    progress = checkpoint.progress
    if progress.get("best_step") != checkpoint.step or not math.isfinite(progress["best_val_loss"]):
        return "not measured at this step"
    val, train = progress["best_val_loss"], progress.get("train_loss_at_best", math.inf)
    beside = f", {train:.4f} on the training text" if math.isfinite(train) else ""
    return f"{val:.4f} nats per token on text held back{beside}"
