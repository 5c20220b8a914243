"""A page that shows what a model does with a text: one file of HTML that needs nothing else, and asks for nothing.

`page.html` and what it is filled with stand beside this file; what the model does is `engine.inspection`'s
business. Whatever a text holds, it comes to the browser as data and is shown as text.
"""

import base64
import codecs
import html
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from data.paths import counted
from data.tokenizer import Tokenizer
from engine.inspection import Attention, Inspection
from engine.loading import TrainedModel
from model import count_parameters

PARTS = Path(__file__).parent


def page(trained: TrainedModel, inspection: Inspection, text: str, *, num_left_out: int = 0) -> str:
    """The page about a text, of which `num_left_out` tokens follow those that were inspected.

    The text is that of the tokens, with a newline for `<|endoftext|>`; characters that share a token are told apart.
    """
    parts = {
        "title": html.escape(f"{run_name(trained)}: what a small GPT does with a text"),
        "style": (PARTS / "page.css").read_text(encoding="utf-8"),
        "attention": (PARTS / "page_attention.js").read_text(encoding="utf-8"),
        "script": (PARTS / "page.js").read_text(encoding="utf-8"),
        # No tag can begin in it, whatever the text holds.
        "data": json.dumps(page_data(trained, inspection, text, num_left_out)).replace("<", "\\u003c"),
    }
    template = (PARTS / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)  # once: what is filled in is no template


def page_data(trained: TrainedModel, inspection: Inspection, text: str, num_left_out: int) -> dict[str, object]:
    """What `page.js` draws. Arrays of numbers are fp32, little-endian, in base64."""
    config, pieces = trained.model.config, trained.tokenizer.pieces
    ids, likeliest = inspection.ids, inspection.likeliest.tolist()
    used = sorted({*ids, *(token for position in likeliest for token in position)})
    number_of = {token: number for number, token in enumerate(used)}
    units = list(whole_characters([pieces[token] for token in ids]))
    attention = inspection.attention
    _, num_heads, num_positions, head_size = attention.q.shape
    return {
        "facts": facts(trained, inspection, units),
        "note": " Queries and keys are normalised and rotated by position." if config.architecture == "qwen3" else "",
        "pieces": [shown_piece(trained.tokenizer, token) for token in used],
        "tokens": [number_of[token] for token in ids],
        "units": units,
        "texts": list(split_like(text, [b"".join(pieces[token] for token in ids[slice(*unit)]) for unit in units])),
        "num_left_out": num_left_out,
        "start": num_positions - 1,  # selected when the page opens
        "most_bits": max(1, round(math.log2(trained.model.vocab_size))),  # the surprise of one who knows nothing
        "surprises": in_base64(inspection.surprises),
        "ranks": inspection.ranks.tolist(),
        "likeliest": [[number_of[token] for token in position] for position in likeliest],
        "probabilities": in_base64(inspection.probabilities),
        "attention": {
            "layers": config.num_layers,
            "heads": num_heads,
            "head_size": head_size,
            "positions": num_positions,
            "q": in_base64(attention.q),
            "k": in_base64(attention.k),
            "v": in_base64(attention.v),
            "weights": in_base64(triangles(attention)),
        },
    }


def facts(trained: TrainedModel, inspection: Inspection, units: Sequence[tuple[int, int]]) -> str:
    """One sentence each about the model and the text."""
    config, surprises = trained.model.config, inspection.surprises[1:]
    parameters = count_parameters(config, trained.model.vocab_size)
    text = counted(len(units), "character" if trained.tokenizer.kind in ("char", "byte") else "piece")
    predicted = f", {surprises.double().mean().item():.3f} bits of surprise per token" if len(surprises) else ""
    return (
        f"{run_name(trained)}, step {trained.checkpoint.step:,}: {config.architecture}, "
        f"{counted(config.num_layers, 'layer')}, {counted(config.num_heads, 'head')}, d_model {config.d_model}, "
        f"{parameters:,} parameters. {text}, {counted(len(inspection.ids), 'token')}{predicted}."
    )


def run_name(trained: TrainedModel) -> str:
    """What the run is called: the name of its folder, or of a checkpoint file that lies elsewhere."""
    path = trained.checkpoint.path
    if path is None:
        return "model"
    path = path.resolve()
    return path.parent.parent.name if path.parent.name == "checkpoints" else path.stem


def whole_characters(pieces: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """The text's smallest parts that hold no half character: of each its first token, and the one behind its last.

    Joined, the pieces are UTF-8, but for an end that may be cut.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    first = 0
    for position, piece in enumerate(pieces, start=1):
        decoder.decode(piece)
        if not decoder.getstate()[0] or position == len(pieces):  # nothing waits for its other bytes
            yield first, position
            first = position


def split_like(text: str, parts: Sequence[bytes]) -> Iterator[str]:
    """The text in pieces of as many characters as the parts have; a part without any stands for a newline."""
    start = 0
    for part in parts:
        length = len(part.decode("utf-8", "replace")) or 1
        yield text[start : start + length]
        start += length


def shown_piece(tokenizer: Tokenizer, token: int) -> tuple[str, str]:
    """A token's kind for the page (text, bytes or name) and its text; bytes that are no characters in hexadecimal."""
    if token == tokenizer.end_id:
        return "name", "end of text"
    if token in tokenizer.never_generated:
        return "name", "rare one"
    piece = tokenizer.pieces[token]
    try:
        return "text", piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes", piece.hex(" ")


def triangles(attention: Attention) -> Tensor:
    """The weights without the zeros above the diagonals: (L, nh, P, P) → (L, nh, P · (P + 1) / 2)."""
    rows, columns = torch.tril_indices(*attention.weights.shape[-2:])
    return attention.weights[..., rows, columns]


def in_base64(numbers: Tensor) -> str:
    """The numbers as the page reads them."""
    return base64.b64encode(numbers.float().contiguous().numpy().astype("<f4").tobytes()).decode("ascii")
