"""The schema in words: the settings' names, what each must be, what a misspelt name meant, and `--help`.

Everything is derived from `config.schema`, so that no list of settings is kept twice.
"""

import reprlib
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from types import NoneType
from typing import Annotated, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from config.schema import Config, Section
from config.values import HIDDEN_LIMITS, Wording

WIDEST_HELP, NARROWEST_HELP = 96, 64  # columns
TYPE_COLUMN = 38

# What other trainers call our settings: the words that people bring along.
FOREIGN_NAMES = {
    "lr": "optim.learning_rate",
    "max_lr": "optim.learning_rate",
    "min_lr": "optim.min_learning_rate",
    "warmup_iters": "optim.warmup_steps",
    "block_size": "model.context_length",
    "seq_len": "model.context_length",
    "n_layer": "model.num_layers",
    "depth": "model.num_layers",
    "n_head": "model.num_heads",
    "n_embd": "model.d_model",
    "hidden_size": "model.d_model",
    "max_iters": "train.max_steps",
    "max_time": "train.max_minutes",
    "gradient_accumulation_steps": "train.grad_accum_steps",
    "eval_iters": "train.eval_tokens",
    "dataset": "data.source",
    "dtype": "runtime.precision",
    "out_dir": "runs_dir",
}

BASE_WORDS: dict[object, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
}


def sections() -> dict[str, type[Section]]:
    """The sections by name."""
    return {
        name: field.annotation
        for name, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }


def settings() -> dict[str, FieldInfo]:
    """Every setting by its dotted name, in the order of the schema."""
    fields = {name: field for name, field in Config.model_fields.items() if name not in SECTIONS}
    for section, schema in SECTIONS.items():
        fields |= {f"{section}.{name}": field for name, field in schema.model_fields.items()}
    return fields


SECTIONS = sections()
SETTINGS = settings()


def members(annotation: object) -> Iterator[object]:
    """The types that a value may have: those of a union, or the one there is, without their constraints."""
    for member in get_args(annotation) if is_union(annotation) else (annotation,):
        yield get_args(member)[0] if get_origin(member) is Annotated else member


def is_union(annotation: object) -> bool:
    """Whether a value may be one of several types (a literal's and a list's arguments are no such types)."""
    return bool(get_args(annotation)) and get_origin(annotation) not in (Annotated, Literal, list)


def takes_null(field: FieldInfo) -> bool:
    """Whether null is a value of this setting."""
    return NoneType in members(field.annotation)


def takes_list(field: FieldInfo) -> bool:
    """Whether a list is a value of this setting."""
    return any(get_origin(member) is list for member in members(field.annotation))


def takes_text(field: FieldInfo) -> bool:
    """Whether any text may be a value of this setting, so that what looks like a number is a text too."""
    return str in members(field.annotation)


def expected(field: FieldInfo) -> str:
    """What a value of this setting must be, in words: `a number of at least 0 and below 1, or null`."""
    for part in field.metadata:
        if isinstance(part, Wording):
            return part.text
    union = get_args(field.annotation) if is_union(field.annotation) else (field.annotation,)
    return ", or ".join(in_words(member, field.metadata) for member in union)


def in_words(member: object, constraints: Sequence[object]) -> str:
    """One type that a setting may have in words, with its range where it is a number."""
    if get_origin(member) is Annotated:
        member, *constraints = get_args(member)
        # Pydantic keeps the bounds of a `Field` inside of an `Annotated` one level deeper.
        constraints = [part for outer in constraints for part in getattr(outer, "metadata", [outer])]
    for constraint in constraints:
        if isinstance(constraint, Wording):
            return constraint.text
    if get_origin(member) is Literal:
        *others, last = map(str, get_args(member))
        return f"{', '.join(others)} or {last}" if others else last
    bounds = [*filter(None, map(bound_in_words, constraints))] if member in (int, float) else []
    return " ".join([BASE_WORDS[member], " and ".join(bounds)]).rstrip()


def bound_in_words(bound: object) -> str | None:
    """A limit of a number in words; None for one that nobody comes near."""
    match bound:
        case Ge(ge=limit):
            return f"of at least {limit}"
        case Gt(gt=limit):
            return f"above {limit}"
        case Lt(lt=limit):
            return f"below {limit}"
        case Le(le=limit) if limit not in HIDDEN_LIMITS:
            return f"at most {limit}"
    return None


def shown(value: object) -> str:
    """A value as a message shows it: spelt as in YAML, and never longer than a line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = brief.maxlong = 60
    brief.maxlevel = 2
    return brief.repr(value)


def shown_name(key: str) -> str:
    """A name as a message shows it: as it is, unless it would spoil the line."""
    return key if key.isprintable() and len(key) <= 80 else shown(key)


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The one of `names` that `name` was probably meant to be, or None where none is near."""
    by_folded = {candidate.casefold(): candidate for candidate in names}
    matches = get_close_matches(name.casefold(), by_folded, n=1, cutoff=cutoff)
    return by_folded[matches[0]] if matches else None


def nearest_setting(key: str) -> str | None:
    """The dotted name of the setting that `key` was probably meant to be, in whatever section it is."""
    last = key.rpartition(".")[2]
    by_last = {dotted.rpartition(".")[2]: dotted for dotted in SETTINGS}
    known = by_last | FOREIGN_NAMES
    plain = last.casefold().replace("-", "_")
    if plain in known:
        return known[plain]
    dotted = nearest(key, SETTINGS, cutoff=0.8)
    if dotted is not None:
        return dotted
    match = nearest(last, by_last)
    return by_last[match] if match else None


def describe_settings() -> str:
    """Every setting with its default, type and meaning, by section, as `--help` prints them: for this terminal."""
    width = min(WIDEST_HELP, max(NARROWEST_HELP, shutil.get_terminal_size().columns))
    lines: list[str] = []
    section = None
    for key, field in SETTINGS.items():
        head = key.rpartition(".")[0]
        if head != section:
            section = head
            about = SECTIONS[head] if head else Config
            lines += ["", *textwrap.wrap(f"{head or 'the run'}: {(about.__doc__ or '').strip()}", width)]
        lines += describe_setting(key, field, width)
    return "\n".join(lines).strip()


def describe_setting(key: str, field: FieldInfo, width: int) -> list[str]:
    """The lines of one setting, of at most `width` columns."""
    default = field.default if isinstance(field.default, str) else shown(field.default)
    head = f"  {key}={default}".ljust(TYPE_COLUMN - 2) + "  "
    hanging, indent = " " * TYPE_COLUMN, " " * 6
    kind = textwrap.wrap(expected(field), width, initial_indent=head, subsequent_indent=hanging, break_on_hyphens=False)
    return kind + textwrap.wrap(str(field.description), width, initial_indent=indent, subsequent_indent=indent)
