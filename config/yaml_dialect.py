"""The YAML of our recipes: YAML 1.2's plain values instead of PyYAML's YAML 1.1 ones, read and written.

PyYAML by itself reads `1e-3` as text, `no` as false, `012` as 10, `1:30` as 90 and `2024-01-01` as a date.
What a setting may be is none of this file's business.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.composer import Composer, ComposerError
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from errors import ConfigError

NULL_WORDS = {"", "~", "null", "Null", "NULL"}
PYTHON_NULL_WORDS = {"None", "none"}
BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
INTEGER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
BARE = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
# Above this a float no longer holds every integer.
EXACT_FLOAT = 2**53

TAG = "tag:yaml.org,2002:"
PLAIN, TEXT, LIST, MAPPING = f"{TAG}plain", f"{TAG}str", f"{TAG}seq", f"{TAG}map"

PlainValue = None | bool | int | float | str


class Nested:
    """Stands for a list or mapping where no setting can have one, so that it is refused without being built.

    Aliases can make a small file mean a huge or endless structure; what is not built does no harm.
    """

    def __init__(self, node: yaml.Node) -> None:
        self.shown = "[...]" if isinstance(node, yaml.SequenceNode) else "{...}"

    def __repr__(self) -> str:
        return self.shown


class RecipeLoader(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML up to the tree of nodes, where it only tells plain scalars from quoted ones."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)

    def resolve(self, kind: type[yaml.Node], value: object, implicit: object) -> str:
        """The tag of a node that names none itself."""
        if kind is yaml.ScalarNode:
            return PLAIN if isinstance(implicit, tuple) and implicit[0] else TEXT
        return LIST if kind is yaml.SequenceNode else MAPPING

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node; a tag that PyYAML would make some object of (`!!binary`) is refused."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        if tag not in (None, "!", TEXT, LIST, MAPPING):
            fault = f"the tag {tag.replace(TAG, '!!')!r} has no meaning here; write the value without it"
            raise ComposerError(None, None, fault, event.start_mark)
        return super().compose_node(parent, index)


def compose(text: str, where: str) -> yaml.Node | None:
    """The tree of nodes of a YAML text, None for an empty one. Raises `ConfigError` with line and column."""
    try:
        return RecipeLoader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        fault = ", ".join(part for part in (error.context, error.problem) if part)
        hint = "; indent with spaces, not tabs" if "'\\t'" in fault else ""
        raise ConfigError(f"{place}: not valid YAML: {fault}{hint}") from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{where}:{line}: not valid YAML: character {error.character!r} is not allowed") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deeply; a recipe has sections with settings") from error
    except (ValueError, OverflowError) as error:
        # PyYAML lets these through for an escape such as "\U00110000".
        raise ConfigError(f"{where}: not valid YAML: a number or escape is out of range ({error})") from error


def plain_value(text: str) -> PlainValue:
    """The value of an unquoted scalar after YAML 1.2: null, a boolean, a number, or else the text itself.

    Beyond the standard, digits may be grouped (`10_000`), and `1e4`, without a point, is an integer.
    """
    if text in NULL_WORDS:
        return None
    if text in BOOLEANS:
        return BOOLEANS[text]
    if NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    if not NUMBER.fullmatch(text):
        return text
    number = float(text)
    if INTEGER.fullmatch(text):
        # Python refuses to convert thousands of digits; as a float they are infinite, which is refused.
        return int(text) if abs(number) < float("inf") else number
    whole = "." not in text and number.is_integer() and abs(number) <= EXACT_FLOAT
    return int(number) if whole else number


def scalar_value(node: yaml.ScalarNode, *, as_text: bool, nullable: bool) -> PlainValue:
    """The value of a scalar for a setting that takes any text (`as_text`) or null (`nullable`), or neither.

    Where any text is a value, so is the text `no`, `012` or `1e-3`; where null is one, `None` means it too.
    """
    text = node.value
    if node.tag != PLAIN:
        return str(text)
    if text in NULL_WORDS or (nullable and text in PYTHON_NULL_WORDS):
        return None
    return str(text) if as_text else plain_value(text)


def node_value(node: yaml.Node, *, as_text: bool, nullable: bool) -> object:
    """The value of a scalar or of a list of scalars; what is deeper is a `Nested`, which no setting takes."""
    if isinstance(node, yaml.ScalarNode):
        return scalar_value(node, as_text=as_text, nullable=nullable)
    if isinstance(node, yaml.SequenceNode):
        return [
            scalar_value(item, as_text=as_text, nullable=False) if isinstance(item, yaml.ScalarNode) else Nested(item)
            for item in node.value
        ]
    return Nested(node)


def is_null(node: yaml.Node) -> bool:
    """Whether the node is an empty or null scalar."""
    return isinstance(node, yaml.ScalarNode) and node.tag == PLAIN and node.value in NULL_WORDS | PYTHON_NULL_WORDS


def line_of(node: yaml.Node) -> int:
    """The line on which a node begins, counted from 1."""
    return int(node.start_mark.line) + 1


def entries(node: yaml.MappingNode) -> Iterator[tuple[str, int, yaml.Node]]:
    """The key, the line and the value of each entry of a mapping; a key is the text as written."""
    for key, value in node.value:
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else repr(Nested(key))
        yield name, line_of(key), value


def to_yaml(value: object) -> str:
    """A value as this dialect reads it back: text bare where it cannot be misread, else in double quotes."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(quoted, value))}]"
        case str() if not BARE.fullmatch(value) or plain_value(value) != value or value in PYTHON_NULL_WORDS:
            return quoted(value)
        case str():
            return value
    return repr(value)


def quoted(text: str) -> str:
    """A text in YAML's double quotes; what is not printable, and so may not stand in YAML, is escaped."""
    return '"' + "".join(map(escaped, text)) + '"'


def escaped(character: str) -> str:
    """A character as it stands between double quotes."""
    if character in ESCAPES:
        return ESCAPES[character]
    return character if character.isprintable() else f"\\U{ord(character):08x}"
