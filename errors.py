"""The exceptions that a user may meet, and the one boundary of every command that turns them into a line.

Imports nothing heavy, so that a mistake in a recipe is reported before torch is loaded.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, TextIO

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


def run_command(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a command's `main(arguments)` and leave the process with its exit code.

    A `UserError` becomes one line on stderr and exit code 2, Ctrl-C exit code 130; anything else is a fault of
    ours and keeps its traceback.
    """
    use_utf8(sys.stdin, sys.stdout, sys.stderr)
    try:
        code = main(utf8_arguments(sys.argv[1:]))
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (`head`, a pager) has gone. Python would complain once more when it flushes
        # stdout at exit, so stdout is pointed at nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def use_utf8(*streams: TextIO) -> None:
    """Make the streams speak UTF-8 whatever the locale; what cannot be encoded is escaped, never raised."""
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)  # absent where a notebook or a test replaced the stream
        if reconfigure is not None:
            errors = "surrogateescape" if stream is sys.stdin else "backslashreplace"
            reconfigure(encoding="utf-8", errors=errors)


def utf8_arguments(arguments: Sequence[str]) -> list[str]:
    """The command line as UTF-8, whatever locale Python decoded it with. Raises `UserError` for other bytes."""
    decoded = []
    for position, argument in enumerate(arguments, start=1):
        try:
            decoded.append(os.fsencode(argument).decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(
                f"command line, argument {position}: {ascii(argument)} is not UTF-8; "
                "type it in a UTF-8 terminal, or put the text into a file"
            ) from error
    return decoded
