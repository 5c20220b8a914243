"""What becomes of a memory that is used up: one line for people, whichever library noticed it.

How much of it something takes is that file's own concern. Imports no torch.
"""

import errno
import mmap
from types import TracebackType

from data.paths import one_line
from errors import DataError

_ADVICE = (
    "close other programs or raise the limit (ulimit -v shows it); data.tokenizer=byte with data.documents=file "
    "takes least"
)


class MemoryBoundary:
    """Turns a memory that is used up inside into a `DataError`.

    It has an `__exit__` of its own since the panics of libraries in Rust are no `Exception`s, and the one of pyo3 can
    be told by its name alone. Ctrl-C and all else pass.
    """

    def __enter__(self) -> None:
        """Nothing is needed before."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, MemoryError) or is_out_of_memory(error):
            raise DataError(f"the memory was used up while the text was prepared; {_ADVICE}") from error
        if kind is not None and kind.__name__ == "PanicException":
            raise DataError(
                f"a library gave up while the text was prepared ({one_line(error)[:200]}), as one does "
                f"that gets no memory or no threads; {_ADVICE}"
            ) from error


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the system had no memory to give, which is no fault of a file."""
    return isinstance(error, OSError) and error.errno == errno.ENOMEM


def check_available(num_bytes: int) -> None:
    """Raise `OSError` where the limits leave no such amount, for a library that would else hang or abort."""
    mmap.mmap(-1, num_bytes, access=mmap.ACCESS_COPY).close()  # untouched, it takes no memory
