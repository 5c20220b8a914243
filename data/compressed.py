"""Files as the bytes that they hold: as stored, or unpacked on the way where they are gzip, bzip2, xz or zstd.

What is compressed is recognised by its first bytes, whatever the file is called. Only a chunk is ever in memory,
however much comes out of it. What the bytes mean is not this file's concern. Imports no torch.
"""

import bz2
import contextlib
import hashlib
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Protocol

from data.paths import one_line

_XZ_MEMORY_BYTES = 1 << 30  # a dictionary may claim 4 GiB; the largest preset of xz needs 65 MB
_PACKED_CHUNK_BYTES = 1 << 16
_HEAD_BYTES = 16
_GZIP_WINDOW = 16 + zlib.MAX_WBITS  # 16 asks zlib for gzip's header and its check sum
_BZIP2_BEGINNINGS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")  # of a block, and of the end of an empty stream
_PACKED_ENDINGS = (".gz", ".bz2", ".xz", ".zst", ".zip")
_ZIP_BEGINNINGS = (b"PK\x03\x04", b"PK\x05\x06")  # which is read by nothing here, but is known for what it is
_NOT_SO_ADVICE = "copy or download it again if it is damaged, and give it another name if it is plain text"


class ArchiveError(Exception):
    """Why a compressed file cannot be unpacked, as the rest of a sentence that begins with its name."""


class Decompressor(Protocol):
    """What Python's decompressors have in common. Each unpacks one member of a file."""

    @property
    def eof(self) -> bool:
        """Whether the member is at its end."""

    @property
    def needs_input(self) -> bool:
        """Whether nothing more comes out before more goes in."""

    @property
    def unused_data(self) -> bytes:
        """What was put in beyond the member's end."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """What `data` adds, at most `max_length` bytes of it."""


class GzipDecompressor:
    """zlib's decompressor with the interface of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_GZIP_WINDOW)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail and not self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class Content:
    """An open file: its bytes, and what is known of the stored ones that they have taken so far."""

    def __init__(self, file: FileIO, packing: str | None) -> None:
        self.packing = packing  # gzip, bzip2, xz, zstd; None: the bytes are as stored
        self.num_stored = 0  # bytes read from the file
        self._file = file
        self._digest = hashlib.sha256()

    def chunks(self, chunk_bytes: int) -> Iterator[bytes]:
        """The bytes; the last chunk is empty. Raises `OSError`, and `ArchiveError` where they are not whole."""
        if self.packing is None:
            while chunk := self._read(chunk_bytes):
                yield chunk
        else:
            yield from self._unpacked(self.packing, chunk_bytes)
        yield b""

    def stored_digest(self) -> str:
        """sha256 of the stored bytes read so far, in hex."""
        return self._digest.hexdigest()

    def _read(self, num_bytes: int) -> bytes:
        chunk = self._file.read(num_bytes)
        self._digest.update(chunk)
        self.num_stored += len(chunk)
        return chunk

    def _unpacked(self, packing: str, chunk_bytes: int) -> Iterator[bytes]:
        new, damage = _method(packing)
        try:
            packed = self._next_member(b"")
            while packed:
                decompressor = new()
                while not decompressor.eof:
                    if piece := decompressor.decompress(packed, chunk_bytes):
                        yield piece
                    packed = b""
                    if decompressor.needs_input and not (packed := self._read(_PACKED_CHUNK_BYTES)):
                        raise ArchiveError(f"ends in the middle of its {packing} data; copy or download it again")
                packed = self._next_member(decompressor.unused_data)
        except damage as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's fault
            reason = one_line(error) or "its data make no sense"
            raise ArchiveError(f"is a damaged {packing} file ({reason}); copy or download it again") from error

    def _next_member(self, packed: bytes) -> bytes:
        """Where the next member of the file begins, in `packed` or further on. Zeros may fill the gap between two."""
        while not (packed := packed.lstrip(b"\0")):
            packed = self._read(_PACKED_CHUNK_BYTES)
            if not packed:
                break
        return packed


@contextlib.contextmanager
def open_content(path: Path) -> Iterator[Content]:
    """The file's content. Raises `OSError`, and `ArchiveError` for one that is not what its name says."""
    with path.open("rb", buffering=0) as file:
        head = file.read(_HEAD_BYTES)
        packing = packing_of(head)
        ending = path.suffix.lower()
        if head and packing is None and ending in _PACKED_ENDINGS and not head.startswith(_ZIP_BEGINNINGS):
            raise ArchiveError(f"is called {ending}, but does not begin so; {_NOT_SO_ADVICE}")
        file.seek(0)
        yield Content(file, packing)


def packing_of(head: bytes) -> str | None:
    """How a file that begins so is compressed, if it is."""
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if head.startswith(b"BZh") and head[4:10] in _BZIP2_BEGINNINGS:
        return "bzip2"
    if head.startswith(b"\xfd7zXZ\0"):
        return "xz"
    is_skippable = head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5  # a frame of notes, which may come first
    if head.startswith(b"\x28\xb5\x2f\xfd") or is_skippable:
        return "zstd"
    return None


def _method(packing: str) -> tuple[Callable[[], Decompressor], tuple[type[Exception], ...]]:
    """What makes a decompressor, and the errors by which it reports damage."""
    if packing == "gzip":
        return GzipDecompressor, (zlib.error,)
    if packing == "bzip2":
        return bz2.BZ2Decompressor, (OSError, ValueError)
    if packing == "xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_BYTES), (lzma.LZMAError,)
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        try:
            from backports import zstd
        except ImportError:
            advice = "which this Python cannot read without a library; pip install backports.zstd"
            raise ArchiveError(f"is compressed with zstd, {advice}") from None
    return zstd.ZstdDecompressor, (zstd.ZstdError,)
