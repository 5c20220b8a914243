"""Every setting of the trainer: its type, default, range and meaning.

The kinds of values are in `config.values`; reading recipes and wording errors belongs in `config.load` and
`config.describe`. No torch here: a mistake in a recipe is reported before anything slow is imported.
"""

from itertools import islice
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from config.values import (
    MAX_COUNT,
    MAX_MINUTES,
    MAX_VOCAB_SIZE,
    Count,
    Device,
    Encoding,
    FolderName,
    GroupName,
    PathText,
    PathTexts,
    ProjectName,
    Sha256,
    Switch,
    Tags,
    TokenizerName,
)


class Section(BaseModel):
    """What all sections share: values are never changed, converted or ignored, and every number is finite."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class ModelConfig(Section):
    """The network: its architecture and its size."""

    architecture: Literal["qwen3", "gpt2"] = Field(
        "qwen3",
        description="qwen3: rotary positions, RMSNorm, QK-norm, SwiGLU, no biases. "
        "gpt2: learned positions, LayerNorm, GELU, biases.",
    )
    context_length: Count = Field(128, description="Window in tokens: how far back the model sees when it predicts.")
    d_model: Count = Field(128, description="Width of the vector of each token. A multiple of num_heads.")
    num_heads: Count = Field(
        4,
        description="Attention heads per block, each d_model / num_heads wide (qwen3: even).",
    )
    num_layers: Count = Field(4, description="Blocks, each attention and feed-forward.")
    d_ff: Count | None = Field(
        None,
        description="Inner width of the feed-forward part. "
        "null: 3 x d_model for qwen3, 4 x d_model for gpt2, about equally many weights.",
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of activations zeroed in training. Raise it if val loss turns up.",
    )
    tie_embeddings: bool = Field(
        True,
        description="One weight table for reading tokens and for predicting them: fewer parameters.",
    )

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.num_heads

    @property
    def feed_forward_width(self) -> int:
        """`d_ff`, or the architecture's usual one where that is null."""
        if self.d_ff is not None:
            return self.d_ff
        return self.d_model * (4 if self.architecture == "gpt2" else 3)

    @model_validator(mode="after")
    def check_heads(self) -> Self:
        """Heads share `d_model` evenly, and rotary positions turn pairs of values: an even width."""
        pair = 2 if self.architecture == "qwen3" else 1
        if self.d_model % (pair * self.num_heads) == 0:
            return self
        keys = ["model.d_model", "model.num_heads"]
        if self.d_model % self.num_heads:
            fault = f"model.d_model ({self.d_model}) must be a multiple of model.num_heads ({self.num_heads})"
        else:
            keys.append("model.architecture")
            fault = (
                f"model.d_model / model.num_heads ({self.d_model} / {self.num_heads} = {self.head_size}) "
                "must be even for model.architecture qwen3, whose rotary positions turn pairs"
            )
        widths = nearby_multiples(self.d_model, of=pair * self.num_heads)
        heads = nearby_divisors(self.num_heads, of=self.d_model // pair) if self.d_model % pair == 0 else []
        advice = [f"model.d_model={width}" for width in widths] + [f"model.num_heads={count}" for count in heads]
        raise conflict(f"{fault}; try {' or '.join(advice)}" if advice else fault, *keys)


class DataConfig(Section):
    """The text and how it becomes tokens."""

    source: PathText | PathTexts = Field(
        "stdlib",
        description="The text: a file (also .gz, .bz2, .xz, .zst), a folder, a glob such as 'books/*.txt', an https "
        "URL, - (standard input), a list of these [a.txt, b.txt], or stdlib (the source code of Python's own library).",
    )
    sha256: Sha256 | None = Field(
        None,
        description="SHA-256 that a downloaded source must have. null: not checked. Local files never are.",
    )
    val_source: PathText | PathTexts | None = Field(
        None,
        description="A separate text to measure val loss on, named like source. null: the last part of source.",
    )
    val_fraction: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Share of the text held back to measure val loss, never trained on. "
        "Without effect where val_source is set.",
    )
    encoding: Encoding = Field("utf-8", description="How local and downloaded texts are encoded.")
    newlines: Literal["normalize", "keep"] = Field(
        "normalize", description="normalize: line ends \\r\\n and \\r are read as \\n. keep: as they are."
    )
    unicode: Literal["none", "NFC"] = Field(
        "none",
        description="NFC: letters and their accents are read as one character where there is one, in prompts too.",
    )
    documents: Literal["file", "line", "none"] = Field(
        "file",
        description="What <|endoftext|> ends: every file, every line (names, messages; blank ones are skipped), "
        "or nothing. A lone document has no end.",
    )
    tokenizer: TokenizerName = Field(
        "char",
        description="char: one token per character of the text. byte: one per UTF-8 byte, so any text works. "
        "bpe: frequent strings of bytes, learnt from the text. tiktoken:NAME: a published vocabulary.",
    )
    min_char_count: Count = Field(
        1,
        description="Characters that occur less often share one token, which is never generated. "
        "Without effect where tokenizer is not char.",
    )
    bpe_vocab_size: int = Field(
        1024,
        ge=258,
        le=MAX_VOCAB_SIZE,
        description="Tokens of the vocabulary that bpe learns, <|endoftext|> included. "
        "Without effect where tokenizer is not bpe.",
    )
    unknown: Literal["error", "drop", "extend"] = Field(
        "error",
        description="With train.init_from, characters that the model does not know. error: list them and stop. "
        "drop: leave them out. extend: learn them too. Without effect where there is no init_from.",
    )
    cache_dir: PathText = Field(
        "data/cache",
        description="Folder for downloads and prepared tokens, which are made again where they are missing. "
        "Text from standard input is kept there too, as its only copy: to resume a run on it takes that.",
    )


class TrainConfig(Section):
    """How long to train, on how much at once, and when to evaluate and save."""

    max_steps: Count | None = Field(
        1000,
        description="Steps (updates of the weights) to train. null: as many as max_minutes allows.",
    )
    max_minutes: float | None = Field(
        None,
        gt=0,
        le=MAX_MINUTES,
        description="Minutes from the start of the command to its end, last evaluation included; resumed runs add up. "
        "null: no limit. Whichever of max_steps, max_minutes and patience comes first ends the run. "
        "An online dashboard may take up to 15 seconds more for its last upload.",
    )
    batch_size: Count = Field(16, description="Sequences of context_length tokens per micro-step.")
    grad_accum_steps: Count = Field(
        1,
        description="Micro-steps averaged into one step: a larger batch in the same memory.",
    )
    eval_interval: Count = Field(
        100,
        description="Steps between evaluations: val loss and a sample.",
    )
    eval_tokens: Count | None = Field(
        None,
        description="Measure val loss on this many first tokens of the validation split. null: on all.",
    )
    log_interval: Count = Field(10, description="Steps between lines of train loss and speed.")
    checkpoint_interval: Count | None = Field(
        None, description="Steps between checkpoints. null: one at each evaluation only."
    )
    keep_checkpoints: Count = Field(2, description="How many of the newest checkpoints to keep, besides the best one.")
    patience: Count | None = Field(
        None,
        description="Stop after so many evaluations without a better val loss. null: never stop early.",
    )
    init_from: PathText | None = Field(
        None,
        description="Start from the weights and the tokenizer of this run, checkpoint or Hugging Face folder instead "
        "of from chance; its model settings are kept.",
    )
    sample_prompt: str | None = Field(
        None, description="How the sample at each evaluation begins. null: the tokenizer's default start."
    )

    @model_validator(mode="after")
    def check_limits(self) -> Self:
        """Something ends the run, by itself and not only with luck."""
        if self.max_steps is None and self.max_minutes is None:
            raise conflict(
                "train.max_steps and train.max_minutes are both null, so that training would never end; "
                "try train.max_minutes=10 or train.max_steps=1000",
                "train.max_steps",
                "train.max_minutes",
            )
        return self


class OptimConfig(Section):
    """How the weights follow the gradients."""

    optimizer: Literal["muon", "adamw"] = Field(
        "muon",
        description="muon: Muon for the blocks' matrices, AdamW for all else; learns more per step. "
        "adamw: AdamW for everything.",
    )
    learning_rate: float = Field(
        1e-3,
        gt=0,
        description="Peak learning rate of AdamW. Too high: the loss jumps; too low: slow.",
    )
    muon_learning_rate: float = Field(
        0.01, gt=0, description="Peak learning rate of Muon. Without effect where optimizer is adamw."
    )
    min_learning_rate: float = Field(
        0.0,
        ge=0,
        description="AdamW's learning rate at the end of the schedule, at most learning_rate. "
        "Muon's shrinks by the same proportion.",
    )
    weight_decay: float = Field(0.1, ge=0, description="Pull of the matrices towards zero, times the learning rate.")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's memory of gradients; nearer to 1 is longer.")
    beta2: float = Field(0.99, ge=0, lt=1, description="AdamW's memory of squared gradients; nearer to 1 is longer.")
    grad_clip: float | None = Field(
        1.0, gt=0, description="Gradients with a larger norm are scaled down to this norm. null: never."
    )
    warmup_steps: int = Field(
        50,
        ge=0,
        le=MAX_COUNT,
        description="Steps over which the learning rate rises from 0 to what the schedule has by then.",
    )
    schedule: Literal["cosine", "trapezoid"] = Field(
        "cosine",
        description="Over the whole run, warm-up included, by its steps or minutes, whichever are further gone. "
        "cosine: falls along half a cosine. trapezoid: stays, then falls.",
    )

    @model_validator(mode="after")
    def check_learning_rates(self) -> Self:
        """The schedule only falls."""
        if self.min_learning_rate > self.learning_rate:
            raise conflict(
                f"optim.min_learning_rate ({self.min_learning_rate!r}) must be at most optim.learning_rate "
                f"({self.learning_rate!r}); try optim.min_learning_rate={self.learning_rate / 10:g}",
                "optim.min_learning_rate",
                "optim.learning_rate",
            )
        return self


class RuntimeConfig(Section):
    """The machine: where and how to compute."""

    device: Device = Field("auto", description="auto: cuda, else mps (Apple), else cpu. cuda:1: the second GPU.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="Number format of matrix products. auto: the fastest that is safe on the device.",
    )
    compile: Switch = Field(
        "auto",
        description="Whether torch.compile translates the model: faster steps after a slow start.",
    )
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads. null: torch's own choice.")


class TrackingConfig(Section):
    """Where the curves go, besides metrics.jsonl in the run folder."""

    wandb: Literal["offline", "online", "disabled"] = Field(
        "offline",
        description="offline: files in the run folder, uploaded later if you like. online: the dashboard of "
        "Weights & Biases, needs an account. disabled: nothing.",
    )
    wandb_project: ProjectName = Field("tiny-gpt", description="Project of the run on Weights & Biases.")
    wandb_group: GroupName | None = Field(None, description="Group of the run there, as of several seeds. null: none.")
    wandb_tags: Tags = Field([], description="Tags of the run there, to find it by.")
    tensorboard: bool = Field(
        False,
        description="Whether metrics, samples and settings are written for TensorBoard too, in tensorboard/ of the "
        "run folder. Needs the library tensorboard.",
    )


class Config(Section):
    """All settings of one training run."""

    name: FolderName | None = Field(
        None,
        description="The run's folder inside runs_dir. null: the recipe's name, then with -2, -3, …",
    )
    runs_dir: PathText = Field("runs", description="Folder that holds the run folders.")
    seed: int = Field(
        1337,
        ge=0,
        le=2**63 - 1,
        description="Start of all randomness. Same seed, same machine: same run, where train.max_minutes is null.",
    )
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    optim: OptimConfig = OptimConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    tracking: TrackingConfig = TrackingConfig()


def conflict(text: str, *keys: str) -> PydanticCustomError:
    """The error of settings that are valid one by one but not together; `keys` are theirs, dotted."""
    return PydanticCustomError("conflict", "{text}", {"text": text, "keys": keys})


def nearby_multiples(value: int, *, of: int) -> list[int]:
    """The multiples of `of` just below and just above `value` that a setting may have."""
    below = value // of * of
    return [multiple for multiple in (below, below + of) if 0 < multiple <= MAX_COUNT]


def nearby_divisors(value: int, *, of: int) -> list[int]:
    """The divisors of `of` nearest to `value` on either side, looking no further than 64 numbers each way."""
    start = min(value - 1, of)
    below = (n for n in range(start, max(start - 64, 0), -1) if of % n == 0)
    above = (n for n in range(value + 1, min(value + 64, of) + 1) if of % n == 0)
    return [*islice(below, 1), *islice(above, 1)]
