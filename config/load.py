"""From a recipe and the command line to a `Config`, and back to YAML; all problems at once.

The meaning of settings is in `config.schema`, their names and wording in `config.describe`, the YAML in
`config.yaml_dialect`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from pydantic.fields import FieldInfo

from config.describe import (
    SECTIONS,
    SETTINGS,
    describe_settings,
    nearest,
    nearest_setting,
    shown,
    shown_name,
    takes_list,
    takes_null,
    takes_text,
)
from config.draft import Draft
from config.schema import Config
from config.yaml_dialect import (
    NULL_WORDS,
    PYTHON_NULL_WORDS,
    compose,
    entries,
    is_null,
    node_value,
    plain_value,
    to_yaml,
)
from errors import ConfigError

__all__ = [
    "changed_settings",
    "config_from_dict",
    "config_to_dict",
    "config_to_yaml",
    "describe_settings",
    "is_override",
    "load_config",
    "nearest",
]

RECIPES_DIR = Path(__file__).parent
COMMAND_LINE = "command line"
# A recipe is a few thousand bytes; whoever names a larger file meant to name a text.
MAX_RECIPE_BYTES = 100_000


def load_config(recipe: Path | None, overrides: Sequence[str] = (), *, base: Config | None = None) -> Config:
    """The settings of a run: defaults (or `base`), then the recipe, then the overrides; the last one wins.

    An override is `section.key=value` or `--section.key=value`. Raises `ConfigError` with all problems, one a
    line.
    """
    draft = Draft()
    if base is not None:
        for key, value in flatten(base).items():
            draft.put(key, value, "saved settings")
    if recipe is not None:
        read_recipe(recipe, draft)
    for override in overrides:
        read_override(override, draft)
    return draft.finish()


def config_from_dict(mapping: Mapping[str, object], where: str) -> Config:
    """The settings in plain nested values, as a checkpoint holds them; errors call their origin `where`."""
    draft = Draft()
    for key, value in mapping.items():
        if key not in SECTIONS:
            put(key, value, where, draft)
        elif isinstance(value, Mapping):
            for name, inner in value.items():
                put(f"{key}.{name}", inner, where, draft, in_section=True)
        elif value is not None:
            draft.refuse_section(key, value, where)
    return draft.finish()


def config_to_dict(config: Config) -> dict[str, object]:
    """The settings as plain nested values: dict, list, str, int, float, bool and None."""
    return config.model_dump()


def config_to_yaml(config: Config) -> str:
    """The settings as a recipe, which loads to an equal `Config`."""
    lines = []
    for key, value in config_to_dict(config).items():
        if isinstance(value, dict):
            lines += ["", f"{key}:", *(f"  {name}: {to_yaml(inner)}" for name, inner in value.items())]
        else:
            lines.append(f"{key}: {to_yaml(value)}")
    return "\n".join(lines) + "\n"


def is_override(argument: str) -> bool:
    """Whether an argument is a setting, `section.key=value` or `--section.key=value`, and not an option or a path."""
    name, equals, _ = argument.removeprefix("--").partition("=")
    if argument.startswith("--"):
        return bool(equals) and name != "resume"  # a mistyped option too: the settings know what is meant
    return bool(equals) and not {"/", os.sep} & set(name)


def changed_settings(old: Config, new: Config) -> list[tuple[str, object, object]]:
    """The settings that differ: dotted name, old value, new value."""
    before, after = flatten(old), flatten(new)
    return [(key, before[key], after[key]) for key in SETTINGS if before[key] != after[key]]


def flatten(config: Config) -> dict[str, object]:
    """The values by dotted name."""
    flat: dict[str, object] = {}
    for key, value in config_to_dict(config).items():
        flat |= {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def read_recipe(path: Path, draft: Draft) -> None:
    """Add what a recipe says to the draft. Raises `ConfigError` where it cannot be read at all."""
    root = compose(read_text(path), str(path))
    if root is None or is_null(root):
        return
    if not isinstance(root, yaml.MappingNode):
        raise not_a_recipe(path, "it holds no settings such as 'seed: 1'")
    for name, place, node in unique_entries(root, "", str(path), draft):
        if name not in SECTIONS:
            put_node(name, node, place, draft)
        elif isinstance(node, yaml.MappingNode):
            for inner_name, inner_place, inner in unique_entries(node, f"{name}.", str(path), draft):
                put_node(f"{name}.{inner_name}", inner, inner_place, draft, in_section=True)
        elif not is_null(node):
            draft.refuse_section(name, node_value(node, as_text=False, nullable=True), place)


def read_text(path: Path) -> str:
    """The text of a recipe. Raises `ConfigError` where there is none to be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_RECIPE_BYTES + 1)
        if len(content) > MAX_RECIPE_BYTES:
            raise not_a_recipe(path, f"it has more than {MAX_RECIPE_BYTES} bytes")
        return content.decode("utf-8")
    except FileNotFoundError as error:
        raise no_such_recipe(path) from error
    except IsADirectoryError as error:
        hint = f"to go on with that run: --resume {path}" if (path / "config.yaml").exists() else "name a YAML file"
        raise ConfigError(f"{path}: a folder, not a recipe; {hint}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise not_a_recipe(path, f"it is not UTF-8 at byte {error.start}") from error


def not_a_recipe(path: Path, reason: str) -> ConfigError:
    """The error of a file that is no YAML recipe; people name their text where the recipe belongs."""
    return ConfigError(f"{path}: not a recipe, {reason}; to train on it as a text: data.source={path}")


def no_such_recipe(path: Path) -> ConfigError:
    """The error of a recipe that does not exist, with those that do, the nearest by name first."""
    here = Path.cwd()
    recipes = sorted(RECIPES_DIR.glob("*.yaml"))
    ours = {r.stem: str(r.relative_to(here) if r.is_relative_to(here) else r) for r in recipes}
    meant = nearest(path.stem, ours)
    hint = f"did you mean {ours[meant]}? " if meant else ""
    return ConfigError(f"{path}: no such recipe; {hint}There are {', '.join(ours.values())}")


def unique_entries(
    node: yaml.MappingNode, prefix: str, path: str, draft: Draft
) -> Iterator[tuple[str, str, yaml.Node]]:
    """The key, place and value of each entry; a key that was there before is a problem, not an entry."""
    lines: dict[str, int] = {}
    for name, line, value in entries(node):
        place = f"{path}:{line}"
        if name in lines:
            draft.refuse(f"{shown_name(prefix + name)} is set twice, in line {lines[name]} already", place)
        else:
            lines[name] = line
            yield name, place, value


def put_node(key: str, node: yaml.Node, place: str, draft: Draft, *, in_section: bool = False) -> None:
    """Add one entry of a recipe to the draft."""
    if key.rpartition(".")[2] == "<<":
        draft.refuse("merge keys (<<) are not part of recipes; write the settings out", place)
        return
    about = SETTINGS.get(key)
    value = None if about is None else node_value(node, as_text=takes_text(about), nullable=takes_null(about))
    put(key, value, place, draft, in_section=in_section)


def put(key: str, value: object, place: str, draft: Draft, *, in_section: bool = False) -> None:
    """Add a value to the draft where the key names a setting; one of a section must stand inside of it."""
    if key in SETTINGS and ("." in key) == in_section:
        draft.put(key, value, place)
    else:
        draft.refuse_unknown(str(key), place)


def read_override(override: str, draft: Draft) -> None:
    """Add what an argument such as `optim.learning_rate=1e-3` says to the draft."""
    key, equals, text = override.removeprefix("--").partition("=")
    about = SETTINGS.get(key)
    if not equals:
        meant = nearest_setting(key)
        hint = f"; did you mean {meant}=VALUE?" if meant else ""
        draft.refuse(f"{shown(override)} is not of the form section.key=value{hint}", COMMAND_LINE)
    elif key in SECTIONS:
        draft.refuse_section(key, text, COMMAND_LINE)
    elif about is None:
        draft.refuse_unknown(key, COMMAND_LINE)
    else:
        try:
            draft.put(key, override_value(text, about), COMMAND_LINE)
        except ConfigError as error:
            draft.refuse(f"{key}: {shown(text)} begins like a list but is none: {error}", COMMAND_LINE)


def override_value(text: str, about: FieldInfo) -> object:
    """The value of an override: as in YAML, but a setting that takes any text takes it as it stands.

    Raises `ConfigError` for a list that does not end, or not at the end.
    """
    if text.startswith(("'", '"')):
        try:
            node = compose(text, COMMAND_LINE)
        except ConfigError:
            return text  # merely a text that begins with a quotation mark
        return str(node.value) if isinstance(node, yaml.ScalarNode) else text
    if text.startswith("[") and takes_list(about):
        items = compose(text, COMMAND_LINE)
        return text if items is None else node_value(items, as_text=True, nullable=False)
    if takes_null(about) and text in (NULL_WORDS | PYTHON_NULL_WORDS) - {""}:
        return None
    # An empty value is an empty text and never null: a shell makes it of a variable that is not set.
    return text if takes_text(about) or not text else plain_value(text.strip())
