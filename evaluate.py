"""How well a model predicts a text: a run in, its loss on a split or on any text file out."""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice

from config.values import check_encoding
from data.paths import counted
from data.prepare import prepare
from data.sources import file_source
from data.text import read_text
from data.tokenizer import Tokenizer
from errors import ArgumentParser, DataError, UserError, check_output, command_boundary, run_command
from terminal import tell

if __name__ == "__main__":
    with command_boundary():  # so that Ctrl-C ends quietly also in the second that torch and the model take to load
        import engine.loading  # noqa: F401

import numpy as np
import torch

from data.dataset import Split, evaluation_windows, open_split, sliding_windows
from engine.loading import TrainedModel, add_run_options, load_from_options
from engine.processes import ALONE, Processes
from engine.runtime import Runtime
from engine.stopping import explain_out_of_memory
from interop.opening import open_model
from model import GPT, next_token_loss

TOKENS_PER_BATCH = {"cpu": 4096, "cuda": 65536, "mps": 16384}  # enough to keep the device busy
LOGITS_PER_BATCH = 2**26  # of all tokens over the whole vocabulary: 256 MiB in fp32


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation, and the measures that follow from it."""

    loss: float  # nats per token
    tokens: int  # predicted
    chars: int  # that begin in these tokens
    bytes: int  # of UTF-8 in them

    @property
    def bits_per_char(self) -> float:
        """Comparable between tokenizers."""
        return self.loss * self.tokens / math.log(2) / max(1, self.chars)

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers, and with compressors."""
        return self.loss * self.tokens / math.log(2) / max(1, self.bytes)

    @property
    def perplexity(self) -> float:
        """Between how many equally likely tokens the model is undecided."""
        return math.exp(min(self.loss, 700.0))  # beyond that a float overflows


@torch.inference_mode()
def evaluate(
    model: GPT,
    split: Split,
    tokenizer: Tokenizer,
    runtime: Runtime,
    *,
    max_tokens: int | None = None,
    stride: int | None = None,
    processes: Processes = ALONE,
) -> Evaluation:
    """Predict the split's tokens, at most the first `max_tokens`, each once.

    The windows do not overlap. With a `stride` they do (`sliding_windows`): every token then has more context, and
    the work is `context_length / stride` times as much.
    Several `processes` share the work, and all get the result of the whole. The same weights always give the same
    number, and no random generator is touched. Leaves the model in the mode that it was in.
    """
    context_length = model.config.context_length
    tokens_per_batch = min(TOKENS_PER_BATCH[runtime.device.type], LOGITS_PER_BATCH // model.vocab_size)
    batch_size = max(1, tokens_per_batch // context_length)
    was_training = model.training
    model.eval()
    total, tokens, chars, num_bytes = 0.0, 0, 0, 0
    if stride is None:
        batches = evaluation_windows(split, context_length, batch_size, max_tokens)
    else:
        batches = sliding_windows(split, context_length, batch_size, stride=stride, max_tokens=max_tokens)
    for idx, targets in islice(batches, processes.rank, None, processes.world_size):
        with runtime.autocast():
            hidden = model.hidden_states(idx.to(runtime.device))[:, -targets.shape[1] :]  # (B, N, C)
            loss = next_token_loss(model.lm_head(hidden), targets.to(runtime.device))
        total += loss.item() * targets.numel()
        tokens += targets.numel()
        chars += int(tokenizer.chars_per_token[targets.numpy()].sum())
        num_bytes += int(tokenizer.bytes_per_token[targets.numpy()].sum())
    model.train(was_training)
    total, *counts = processes.sum([total, tokens, chars, num_bytes])
    tokens, chars, num_bytes = map(int, counts)  # exact up to 2**53
    return Evaluation(total / tokens, tokens, chars, num_bytes)


def main(arguments: Sequence[str]) -> int:
    """The command: the measures to stdout."""
    options = read_command_line(arguments)
    check_output()
    trained = load_from_options(options, open_model)
    check_stride(options.stride, trained.model.config.context_length)
    if options.text_file is None:
        split = own_split(trained, options.split)
    else:
        split = text_split(trained, options.text_file, encoding=options.encoding, skip_unknown=options.skip_unknown)
    with explain_out_of_memory(trained.checkpoint.config, training=False):
        result = evaluate(trained.model, split, trained.tokenizer, trained.runtime, stride=options.stride)
    if options.json:
        print(json_line(result, trained, split, options.stride))
    else:
        print(plain_text(result, trained, split, options.stride))
    return 0


def json_line(result: Evaluation, trained: TrainedModel, split: Split, stride: int | None) -> str:
    """The measures, and what they are of, as one object."""
    facts = {
        "loss": result.loss,
        "bits_per_char": result.bits_per_char,
        "bits_per_byte": result.bits_per_byte,
        "perplexity": result.perplexity,
        **{key: value for key, value in asdict(result).items() if key != "loss"},
        "stride": stride,
        "text": split.name,
        "checkpoint": str(trained.checkpoint.path),
        "step": trained.checkpoint.step,
        "precision": trained.runtime.precision,
        "weights": trained.weights,
    }
    return json.dumps(facts, ensure_ascii=False)


def plain_text(result: Evaluation, trained: TrainedModel, split: Split, stride: int | None) -> str:
    """The same in lines to read."""
    how = "side by side" if stride is None else f"every {stride}"
    rounded = ", weights of 8 bits" if trained.weights == "int8" else ""
    return "\n".join(
        (
            f"checkpoint     {trained.checkpoint.path}",
            f"text           {split.name}",
            f"device         {trained.runtime.describe()}{rounded}",
            f"loss           {result.loss:.4f} nats per token",
            f"bits per char  {result.bits_per_char:.4f}",
            f"bits per byte  {result.bits_per_byte:.4f}",
            f"perplexity     {result.perplexity:.4f}",
            f"predicted      {result.tokens:,} tokens, {result.chars:,} characters, {result.bytes:,} bytes",
            f"windows        of {trained.model.config.context_length:,} tokens, {how}",
        )
    )


def read_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """The options. Raises `UserError` for values that cannot be."""
    parser = ArgumentParser(prog="evaluate.py", description="Measure how well a trained model predicts a text.")
    parser.add_argument("run", metavar="RUN", help="run folder, checkpoint file or Hugging Face folder")
    texts = parser.add_mutually_exclusive_group()
    texts.add_argument("--split", choices=["val", "train"], default="val", help="part of the run's own text (val)")
    texts.add_argument("--text-file", metavar="F", help="any other text file")
    parser.add_argument(
        "--encoding", metavar="NAME", type=encoding_name, help="of that file (as data.encoding of the run)"
    )
    parser.add_argument("--skip-unknown", action="store_true", help="leave out what the model does not know of it")
    parser.add_argument(
        "--stride",
        type=int,
        metavar="N",
        help="let windows overlap, each N tokens after the one before: more than context_length - N tokens of context "
        "for all, context_length / N times the time (no overlap)",
    )
    parser.add_argument("--json", action="store_true", help="print one object")
    add_run_options(parser, has_weights=True)
    options = parser.parse_args(arguments)
    if options.text_file is None and (options.encoding is not None or options.skip_unknown):
        raise UserError(
            "command line: --encoding and --skip-unknown are for a --text-file; name one, or leave them out"
        )
    return options


def check_stride(stride: int | None, context_length: int) -> None:
    """Raise `UserError` for a stride with which windows of this model would leave tokens out, or never move on."""
    if stride is not None and not 1 <= stride <= context_length:
        raise UserError(
            f"--stride must be from 1 to {context_length} (this model's context_length), got {stride}; "
            f"N takes {context_length} / N times as long as without"
        )


def encoding_name(name: str) -> str:
    """The name of an encoding that Python knows. Raises `UserError` for another one."""
    try:
        return check_encoding(name)
    except ValueError as error:
        raise UserError(f"--encoding must be one that Python knows, such as utf-8 or cp1252, got {name!r}") from error


def own_split(trained: TrainedModel, name: str) -> Split:
    """A split of the text that the model was trained on. Raises `DataError` where that text has changed."""
    config = trained.checkpoint.config.data
    if not trained.checkpoint.data["fingerprint"]:
        raise DataError(f"{trained.checkpoint.where}: a model without a text of its own; name one with --text-file")
    continued = trained.checkpoint.config.train.init_from is not None
    prepared = prepare(
        config,
        report=tell,
        tokenizer=trained.tokenizer if continued else None,
        made_before=trained.tokenizer,
    )
    if prepared.fingerprint != trained.checkpoint.data["fingerprint"]:
        raise DataError(
            f"data.source={prepared.title}: not the text that the model was trained on any more; "
            "bring that text back, or evaluate on this one with --text-file"
        )
    return open_split(prepared, "train" if name == "train" else "val")


def text_split(trained: TrainedModel, name: str, *, encoding: str | None, skip_unknown: bool) -> Split:
    """A text file in the model's tokens, read as its training text was.

    Raises `DataError` for unknown characters, unless `skip_unknown`, and for less than two tokens.
    """
    tokenizer, data = trained.tokenizer, trained.checkpoint.config.data
    source = file_source(name, where="--text-file")
    text = "".join(read_text(source, encoding=encoding or data.encoding, newlines=data.newlines))
    encode = tokenizer.encode_lines if data.documents == "line" else tokenizer.encode_stream
    try:
        ids = np.concatenate([np.empty(0, np.uint8), *encode([text], drop_unknown=skip_unknown)])
    except DataError as error:
        raise DataError(f"--text-file {name}: {error}; or --skip-unknown") from error
    if not trained.has_documents:
        ids = ids[ids != tokenizer.end_id]
    newline = "\n" if data.documents == "line" else ""
    num_skipped = sum(character != newline for _, character in tokenizer.unknown(text)) if skip_unknown else 0
    if num_skipped:
        share = f"{counted(num_skipped, 'character')} ({num_skipped / len(text):.2%} of the text)"
        tell(f"{share} left out, which the model does not know")
    if len(ids) < 2:
        raise DataError(
            f"--text-file {name}: has {counted(len(ids), 'token')}, and at least 2 are needed to predict one"
        )
    num_unknown = int(np.isin(ids, tokenizer.never_generated).sum())
    if num_unknown:
        share = f"{num_unknown:,} characters ({num_unknown / len(ids):.2%})"
        tell(f"{share} are unknown to the model; they count as one and the same, which is easy to predict")
    return Split(name, ids)


if __name__ == "__main__":
    run_command(main)
