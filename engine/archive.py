"""What a file holds that torch.save wrote, read without trusting it: nothing runs, nothing small becomes large.

torch.load executes nothing by itself when it reads weights only. What it does not do is compare checksums, and
stop what is declared to be larger, longer or deeper than the file could hold. What the values mean is not checked here.
"""

import pickle
import pickletools
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

# Far beyond what any model of ours needs.
MAX_OPERATIONS = 1_000_000  # of the pickle: a million take seconds
MAX_VALUES = 1_000_000
MAX_DEPTH = 30  # of dicts and lists in each other
# All that a pickle of plain tensors and plain types refers to. torch allows more, some of which allocates at will.
GLOBALS = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_tensor_v2"
    r"|torch (Double|Float|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Storage"
)
# Everything that zipfile and torch.load raise for files that are cut short, damaged, or not checkpoints at all.
LOAD_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    ArithmeticError,
    TypeError,
    AttributeError,
    AssertionError,
    ImportError,
    MemoryError,
)


MARK_OF_FOLDER = 0x10  # among the attributes of an entry, as MS-DOS had them


class DamagedError(Exception):
    """The file is not whole, or was never one of plain tensors and plain types."""


def read_archive(path: Path) -> Any:
    """What the file holds, on the CPU. Raises `DamagedError`, or `OSError` where it cannot be read at all."""
    try:
        with path.open("rb") as file:
            size = check_whole(file)
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
        check_extent(content, size)
    except LOAD_ERRORS as error:
        raise DamagedError(str(error)) from error
    return content


def check_whole(file: BinaryIO) -> int:
    """The size of the file in bytes. Raises one of `LOAD_ERRORS` where a byte has changed since it was written.

    torch.save does not compress; a small compressed file, or one whose parts overlap, could fill the memory.
    """
    size = file.seek(0, 2)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise zipfile.BadZipFile("compressed")
        if sum(entry.file_size for entry in entries) > size or len({entry.filename for entry in entries}) < len(
            entries
        ):
            raise zipfile.BadZipFile("parts that overlap")
        # torch reads nothing of what is marked as a folder, and leaves the tensor as the memory happens to be.
        if any(entry.is_dir() or entry.external_attr & MARK_OF_FOLDER for entry in entries):
            raise zipfile.BadZipFile("a folder in the place of a file")
        if any(entry.header_offset < 0 for entry in entries):  # as a wrong place of the directory makes it
            raise zipfile.BadZipFile("a part before the beginning")
        damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(damaged)
        (pickled,) = (entry for entry in entries if entry.filename.endswith("/data.pkl"))
        check_pickle(archive.read(pickled))
    return size


def check_pickle(pickled: bytes) -> None:
    """Raise `UnpicklingError` for a pickle of other things than plain ones, or for one that takes too long."""
    for number, (operation, argument, _) in enumerate(pickletools.genops(pickled)):
        if number >= MAX_OPERATIONS:
            raise pickle.UnpicklingError("too long")
        if operation.name == "PROTO" and argument != 2:  # torch.load warns of others, and may not know what follows
            raise pickle.UnpicklingError(f"protocol {argument}")
        if operation.name == "GLOBAL" and not GLOBALS.fullmatch(str(argument)):
            raise pickle.UnpicklingError(f"refers to {argument}")


def check_extent(content: Any, size: int) -> None:
    """Raise `ValueError` where the values are more than `size` bytes can hold: stretched or repeated ones."""
    left: list[tuple[Any, int]] = [(content, 0)]
    num_values = num_bytes = 0
    while left:
        value, depth = left.pop()
        parts: list[Any] = []
        if isinstance(value, Tensor):
            if value.layout != torch.strided or not value.is_contiguous():
                raise ValueError("a tensor that is not a plain one")
            num_bytes += value.numel() * value.element_size()
        elif isinstance(value, dict):
            parts = [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            parts = [*value]
        num_values += len(parts)
        if num_bytes > 2 * size or num_values > MAX_VALUES or depth > MAX_DEPTH:  # 2: tied weights have two names
            raise ValueError("more than the file can hold")
        left.extend((part, depth + 1) for part in parts)
