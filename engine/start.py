"""What a run starts from: a checkpoint of its own, the weights of another run or chance, and a text that suits it.

Which settings each of these leaves open. How weights are loaded is `engine.state`'s concern.
"""

from collections.abc import Callable
from hashlib import sha256

from config.load import changed_settings, config_to_yaml
from config.schema import Config
from data.dataset import check_long_enough
from data.paths import shown_path
from data.prepare import PreparedData, prepare
from data.sources import STANDARD_INPUT, entries_of
from engine.checkpoint import Checkpoint
from engine.peak import describe_flops
from engine.processes import Processes
from engine.runtime import Runtime
from engine.tracking import Console
from errors import ConfigError, DataError
from model import count_parameters
from terminal import LINE_COLUMNS, folded

# What a resumed run cannot change: its weights, its optimizer or its draws depend on it.
FIXED = ("name", "runs_dir", "seed", "model.", "data.", "optim.optimizer", "train.init_from")
# Where the text lies may change; whether it is the same text, its fingerprint tells.
MOVABLE = ("data.source", "data.val_source", "data.sha256", "data.encoding", "data.cache_dir")
# What belongs to the model that is continued.
INHERITED = ("model.", "data.tokenizer", "data.unicode", "data.min_char_count", "data.bpe_vocab_size")


def report_changes(old: Config, new: Config, report: Callable[[str], None]) -> None:
    """Say which settings a resumed run changes. Raises `ConfigError` for those that it cannot."""
    changes = changed_settings(old, new)
    refused = [
        f"{key} is {in_yaml(before)} in this run and cannot become {in_yaml(after)} on resume; start a new run for that"
        for key, before, after in changes
        if key.startswith(FIXED) and key not in MOVABLE
    ]
    if refused:
        raise ConfigError("\n".join(refused))
    for key, before, after in changes:
        report(f"changed  {key}: {in_yaml(before)} -> {in_yaml(after)}")


def in_yaml(value: object) -> str:
    """A setting's value as a recipe has it, texts in quotation marks."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def inherit(config: Config, base: Checkpoint, report: Callable[[str], None]) -> Config:
    """The settings of a run that continues a model: those of the model are kept, which is said where they differ."""
    mine, its = config, base.config
    model = its.model.model_copy(update={"dropout": mine.model.dropout})
    names = [key.removeprefix("data.") for key in INHERITED if key.startswith("data.")]
    data = mine.data.model_copy(update={name: getattr(its.data, name) for name in names})
    inherited = mine.model_copy(update={"model": model, "data": data})
    where = "" if base.path is None else shown_path(base.path)
    report(f"start    from {where}, step {base.step}")
    for key, asked, kept in changed_settings(mine, inherited):
        report(f"kept     {key}={kept} as in that model, not {asked}")
    return inherited


def prepare_text(config: Config, origin: Checkpoint | None, *, processes: Processes, console: Console) -> PreparedData:
    """The text as tokens. A model that is continued keeps its tokenizer, which its checkpoint holds.

    Raises `UserError` where the text does not suit the settings, or is not the same for all processes.
    """
    known = None if origin is None else origin.tokenizer
    given = known if config.train.init_from is not None else None
    named = entries_of(config.data.source) + entries_of(config.data.val_source)
    if not processes.is_alone and STANDARD_INPUT in named:
        raise DataError(
            "data.source: standard input (-) reaches only one of several processes; save the text to a file"
        )
    processes.agree_on("the settings are not the same", sha256(config_to_yaml(config).encode()).hexdigest())
    if not processes.is_alone and origin is not None and origin.path is not None:
        processes.agree_on("the checkpoint is not the same", sha256(origin.path.read_bytes()).hexdigest())
    prepared = processes.first_on_each_machine(
        lambda: prepare(
            config.data,
            report=console.warn,
            say=console.say,
            show_progress=console.shows_bar,
            tokenizer=given,
            made_before=known,
        )
    )
    processes.agree_on("the text is not the same", prepared.fingerprint)
    check_long_enough(prepared, config.model.context_length)
    check_prompt(config, prepared)
    return prepared


def resolved(config: Config, prepared: PreparedData, runtime: Runtime) -> Config:
    """The settings with what was found out: all that a resumed run needs to be the same."""
    places = {"source": prepared.source, "val_source": prepared.val_source}
    return config.model_copy(
        update={"runtime": runtime.resolved(config.runtime), "data": config.data.model_copy(update=places)}
    )


def check_prompt(config: Config, prepared: PreparedData) -> None:
    """Raise `ConfigError` for a `train.sample_prompt` that the tokenizer does not know."""
    unknown = prepared.tokenizer.unknown(config.train.sample_prompt or "")
    if unknown:
        characters = ", ".join(repr(character) for character in sorted({character for _, character in unknown}))
        raise ConfigError(
            f"train.sample_prompt is {config.train.sample_prompt!r}, but the vocabulary lacks {characters}; "
            "use characters that it has, or data.tokenizer=byte"
        )


def describe(
    config: Config, prepared: PreparedData, *, runtime: Runtime, peak: float, processes: Processes, console: Console
) -> None:
    """Say what is going to be trained, on what, and where.

    `peak` is that of all processes together, in floating-point operations per second.
    """
    model = config.model
    num_parameters = count_parameters(model, prepared.tokenizer.vocab_size)
    for line in prepared.describe().splitlines():
        console.say(f"data     {line}")
    console.say(
        f"model    {model.architecture}, {model.num_layers} layers, {model.num_heads} heads, d_model {model.d_model}, "
        f"context_length {model.context_length}\n         {num_parameters:,} parameters"
    )
    each, together = ("", "") if processes.is_alone else (f"{processes.world_size} processes, each on ", " together")
    console.say(folded(f"device   {each}{runtime.describe()}", LINE_COLUMNS))
    max_steps, warmup_steps = config.train.max_steps, config.optim.warmup_steps
    if max_steps is not None and warmup_steps >= max_steps > 1:
        console.say(
            f"hint     optim.warmup_steps={warmup_steps} lasts longer than the run: the learning rates end far below "
            f"their full height; optim.warmup_steps={max_steps // 20} would not"
        )
    console.say(f"peak     {describe_flops(peak)}{together}, of which MFU is a share")
