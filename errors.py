"""The exceptions that a user may meet, and the boundary of every command that turns them into one line.

Imports nothing heavy, so that a mistake in a recipe is reported before torch is loaded.
"""

import argparse
import codecs
import contextlib
import errno
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TextIO

from terminal import tell

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """A mistake that the user can put right. The message says where, what was found, and what to do."""


class ConfigError(UserError):
    """A setting that is unknown, of the wrong type, out of range, or in conflict with another."""


class DataError(UserError):
    """A text that is missing, unreadable, too short, or does not fit the model."""


class CheckpointError(UserError):
    """A run or checkpoint that is missing, damaged, or not ours."""


class DeviceError(UserError):
    """A device or precision that this machine does not have."""


class ArgumentParser(argparse.ArgumentParser):
    """A parser whose complaints are `UserError`s, like every other mistake on the command line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"command line: {' '.join(message.split())}; see --help")


def run_command(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a command's `main(arguments)` within the boundary, and leave the process with its exit code."""
    with command_boundary() as arguments:
        code = main(arguments)
    # At exit Python looks for cycles among all that torch has ever made, most of a second for memory that is given
    # back anyway.
    gc.freeze()
    sys.exit(code)


@contextlib.contextmanager
def command_boundary() -> Iterator[list[str]]:
    """The command's arguments. What goes wrong inside ends the process as the user should see it.

    A `UserError` becomes one line on stderr, folded on a terminal, and exit code 2; Ctrl-C exit code 130; a reader of
    our output that has gone away ends it quietly. Anything else is a fault of ours and keeps its traceback.
    """
    if sys.stderr is None:  # closed by the shell: what is meant for it would be printed to stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - until the process ends
    use_utf8(sys.stdin, sys.stdout, sys.stderr)
    try:
        try:
            yield utf8_arguments(sys.argv[1:])
        except SystemExit:  # so --help ends
            flush_output()
            raise
        flush_output()
    except UserError as error:
        tell(f"error: {error}")
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        tell("interrupted")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        drop_output(sys.stdout)
        sys.exit(0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):  # the disk's end, or one's share
            raise
        drop_output(sys.stdout)
        tell(f"error: {error}; make room on that disk")
        sys.exit(EXIT_USER_ERROR)


def check_output() -> None:
    """Raise `UserError` where the shell has closed stdout, which is what a command's result goes to."""
    if sys.stdout is None:
        raise UserError(
            "standard output is closed, so the result would be lost; leave it open, or redirect it to a file"
        )


def flush_output() -> None:
    """Write out what stdout still holds, while failures are still reported as they should be."""
    if sys.stdout is not None:  # it is None where the shell closed it
        sys.stdout.flush()


def drop_output(stream: TextIO) -> None:
    """Point a stream at nothing. Python would complain once more when it flushes what could not be written, at exit."""
    with contextlib.suppress(OSError, ValueError):  # a stand-in for the stream need not be a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def use_utf8(*streams: TextIO | None) -> None:
    """Make the streams speak UTF-8 whatever the locale; what cannot be encoded is escaped, never raised."""
    codecs.register_error("as-bytes-or-escaped", as_bytes_or_escaped)
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)  # absent where it is closed or replaced
        if reconfigure is not None:
            errors = "surrogateescape" if stream is sys.stdin else "as-bytes-or-escaped"
            reconfigure(encoding="utf-8", errors=errors)


def as_bytes_or_escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    """How to encode what UTF-8 cannot: bytes of a path that Python could not decode as they were, the rest escaped."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


def utf8_arguments(arguments: Sequence[str]) -> list[str]:
    """The command line as UTF-8, whatever locale Python decoded it with. Raises `UserError` for other bytes."""
    decoded = []
    for position, argument in enumerate(arguments, start=1):
        try:
            decoded.append(os.fsencode(argument).decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(
                f"command line, argument {position}: {argument!a} is not UTF-8; "
                "type it in a UTF-8 terminal, or put the text into a file"
            ) from error
    return decoded
