"""How text fits into lines: the columns that it takes, and messages that a terminal shows folded at its edge.

In a log file or a pipe a message stays one line, so that it can be searched for. What is said is others' business.
"""

import os
import re
import sys
import unicodedata
from typing import TextIO

LINE_COLUMNS = 80  # that a line of our own wording may take
NARROWEST = 40  # no message is folded to less
INDENT = 4  # of the lines that a message goes on in, where it has no label to stand beside

_LABEL = re.compile(r"\w+ {2,}")  # of a line about the state of things: `hint     `
_QUOTED = r"""'[^'\n]*'|"[^"\n]*\""""
# What a shell is to take: a program that our messages name and a first argument that tells it from prose, then all up
# to a comma, semicolon, colon or bracket that ends a word.
_PROGRAM = rf"(?:{_QUOTED}|[^\s'\"(]*python[\d.]*|pip|torchrun|wandb|tensorboard)"
_FIRST = rf"(?:-m\b|-?-\w+|install\b|leet\b|sync\b|login\b|(?:{_QUOTED}|[^\s'\"]*\.py\b))"
_REST = rf"(?: (?:{_QUOTED}|[^\s'\"),;:]|[),;:](?!\s|$))+)*"
_COMMAND = rf"\(?{_PROGRAM} {_FIRST}{_REST}[),;:]*"
_NAME = rf"(?:[\w.-]+=|\()?(?:{_QUOTED})\S*"  # in quotation marks, with what is written to it; it may have spaces
_UNIT = re.compile(rf"(\s*)({_COMMAND}|{_NAME}|\S+)")


def columns(text: str) -> int:
    """The columns that a terminal gives to the text: two to a Chinese character or an emoji, none to a mark on one."""
    return sum(map(_columns_of_one, text))


def _columns_of_one(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def width_of(stream: TextIO | None) -> int | None:
    """The columns of the terminal that a stream goes to; None where it is none, or does not know them."""
    try:
        if stream is None or not stream.isatty():
            return None
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # a terminal that has gone; a stream that is closed
        return None


def folded(message: str, width: int | None) -> str:
    """The message in lines of at most `width` columns, broken between words; as it is where the width is not known.

    A command, a path and a name in quotation marks stay whole, on a line of their own where they are longer than one.
    """
    if width is None:
        return message
    return "\n".join(_folded_line(line, max(width, NARROWEST)) for line in message.split("\n"))


def _folded_line(line: str, width: int) -> str:
    if columns(line) <= width:
        return line
    label = _LABEL.match(line)
    indent = " " * (label.end() if label else INDENT)
    lines = [""]
    for space, unit in _UNIT.findall(line):
        if lines[-1].strip() and columns(lines[-1] + space + unit) > width:
            lines.append(indent + unit)
        else:
            lines[-1] += space + unit
    return "\n".join(lines)


def cut(text: str, width: int) -> list[str]:
    """The text in pieces of at most `width` columns, cut wherever it must be; one that is empty where the text is."""
    pieces, used = [""], 0
    for character in text:
        more = _columns_of_one(character)
        if used and used + more > width:
            pieces.append("")
            used = 0
        pieces[-1] += character
        used += more
    return pieces


def tell(message: str) -> None:
    """Put a message on stderr at once, folded where that is a terminal; nowhere where the shell has closed it."""
    if sys.stderr is not None:
        print(folded(message, width_of(sys.stderr)), file=sys.stderr, flush=True)
