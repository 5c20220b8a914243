"""The texts that `data.source` names: found or downloaded, listed with their sizes, and read as documents.

Reading means UTF-8 whatever the locale, without byte order marks, line ends as \\n, in chunks of bounded
size. What the text is turned into is not this file's concern. Imports no torch.
"""

import codecs
import difflib
import hashlib
import io
import os
import re
import stat
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from config.schema import DataConfig
from data.download import download
from errors import DataError

STDLIB = "stdlib"
CHUNK_BYTES = 1 << 20  # larger chunks are no faster, since these still fit into the processor's cache

_BLANK_LIMIT_BYTES = 1 << 16  # a longer file counts as text even if it should hold nothing but blanks
_UTF8_BOM = codecs.BOM_UTF8
_UTF16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MAX_LISTED = 8


@dataclass(frozen=True)
class Source:
    """One file of text, which is one document."""

    name: str  # what the user calls it: the file as they wrote it, or the URL
    path: Path
    size: int  # bytes


def resolve_sources(config: DataConfig, *, report: Callable[[str], None], show_progress: bool = False) -> list[Source]:
    """The non-empty files that `data.source` names, in order; what is on the web is downloaded first.

    Skipped files and settings without effect go to `report`. Raises `DataError` for what cannot be read.
    """
    entries = [config.source] if isinstance(config.source, str) else list(config.source)
    num_urls = sum(_scheme(entry) is not None for entry in entries)
    if config.sha256 is not None and num_urls == 0:
        report("data.sha256 is checked for downloads only; it has no effect here")
    if config.sha256 is not None and num_urls > 1:
        raise DataError(f"data.sha256 is the sum of one download, but data.source names {num_urls}; leave it out")
    sources: list[Source] = []
    for entry in entries:
        if _scheme(entry) is not None:
            sources.append(_web_source(entry, config, show_progress=show_progress))
        elif entry == STDLIB:
            sources += stdlib_sources(Path(sysconfig.get_path("stdlib")))
        else:
            sources.append(file_source(entry))
    return _without_blank(sources, report)


def local_path(name: str) -> Path:
    """The path of a name from a recipe or the command line, in UTF-8 whatever the locale; `~` is the home folder."""
    path = Path(os.fsdecode(name.encode("utf-8", "surrogateescape")))
    try:
        return path.expanduser()
    except RuntimeError:  # the ~ of a user that there is not: then it is part of a name like any other
        return path


def shown_path(path: Path) -> str:
    """The path as text for people, the inverse of `local_path`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def file_source(name: str, where: str = "data.source") -> Source:
    """The file of this name, which `where` gave. Raises `DataError` if it is missing or something else than a file."""
    try:
        path = local_path(name)
        status = path.stat()
    except FileNotFoundError:
        raise DataError(f"{where}: there is no file {name!r}; {_nearest(path)}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{where}: cannot read {name!r}: {_reason(error)}") from error
    if stat.S_ISDIR(status.st_mode):
        raise DataError(f"{where}: {name!r} is a folder; name a file in it, or a list of files")
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{where}: {name!r} is not a regular file; save its text to a file and name that")
    return Source(name=name, path=path, size=status.st_size)


def stdlib_sources(folder: Path) -> list[Source]:
    """The modules in the top folder of Python's own library, sorted: a text that every machine has."""
    paths = sorted(path for path in folder.glob("*.py") if path.is_file())
    if not paths:
        raise DataError(
            f"data.source={STDLIB}: this Python has no library sources in {shown_path(folder)}; "
            "train on a text file of yours with data.source=FILE"
        )
    return [Source(name=shown_path(path), path=path, size=path.stat().st_size) for path in paths]


def list_sources(sources: list[Source], report: Callable[[str], None]) -> None:
    """Tell each source with its size; of many, how many there are and their sum."""
    if len(sources) > _MAX_LISTED:
        total = format_size(sum(source.size for source in sources))
        report(f"{len(sources)} files, {total}: {sources[0].name} … {sources[-1].name}")
        return
    for source in sources:
        report(f"{source.name}: {format_size(source.size)}")


def format_size(num_bytes: int) -> str:
    """The size for people, in the decimal units that `ls` and file managers show."""
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    size = float(num_bytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def content_digest(source: Source, *, advance: Callable[[int], object] = lambda num_bytes: None) -> str:
    """sha256 of the file's bytes, in hex. `advance` hears how many are done. Raises `DataError`."""
    digest = hashlib.sha256()
    for chunk in _raw_chunks(source, CHUNK_BYTES):
        digest.update(chunk)
        advance(len(chunk))
    return digest.hexdigest()


def read_text(
    source: Source,
    *,
    expected_digest: str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    advance: Callable[[int], object] = lambda num_bytes: None,
) -> Iterator[str]:
    """The document in pieces of about `chunk_bytes`, no character and no line end cut in two.

    `advance` hears how many bytes of the file have been used. Raises `DataError` for bytes that are not text,
    and, after the last piece, if the file is not the one with `expected_digest` (`content_digest`).
    """
    digest = hashlib.sha256()
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    at_start = True
    for chunk, piece in _decoded(source, chunk_bytes):
        digest.update(chunk)
        if at_start and piece:
            piece = piece.removeprefix("\ufeff")
            at_start = False
        text = newlines.decode(piece, final=not chunk)
        if text:
            yield text
        advance(len(chunk))
    if expected_digest is not None and digest.hexdigest() != expected_digest:
        raise DataError(f"{source.name}: the file was changed while it was being read; run the command again")


def _decoded(source: Source, chunk_bytes: int) -> Iterator[tuple[bytes, str]]:
    """Chunks of the file and what each adds to the text; the last one is empty and ends the text."""
    head = rest = b""
    offset = 0  # of `rest` in the file
    for chunk in _raw_chunks(source, chunk_bytes):
        head = head or chunk[:2]
        nul = chunk.find(b"\0")
        if nul >= 0:
            raise _not_text(source, head, offset + len(rest) + nul, b"\0")
        data = rest + chunk
        try:
            piece, used = codecs.utf_8_decode(data, "strict", not chunk)
        except UnicodeDecodeError as error:
            raise _not_text(source, head, offset + error.start, data[error.start : error.start + 1]) from error
        offset += used
        rest = data[used:]
        yield chunk, piece


def _raw_chunks(source: Source, chunk_bytes: int) -> Iterator[bytes]:
    """The file's bytes; the last chunk is empty."""
    chunk = b"?"
    try:
        with source.path.open("rb", buffering=0) as file:
            while chunk:
                chunk = file.read(chunk_bytes)
                yield chunk
    except OSError as error:
        raise DataError(f"data.source: cannot read {source.name!r}: {_reason(error)}") from error


def _not_text(source: Source, head: bytes, offset: int, found: bytes) -> DataError:
    place = f"{source.name}: byte {offset} (counted from 0) is 0x{found.hex()}"
    if head in _UTF16_BOMS:
        return DataError(f"{place}: this is UTF-16, not UTF-8; save the file as UTF-8 and try again")
    if found == b"\0":
        return DataError(f"{place}: this is binary data, not text; data.source takes text files in UTF-8")
    return DataError(f"{place}, which is not UTF-8; convert the file to UTF-8 and try again")


def _web_source(url: str, config: DataConfig, *, show_progress: bool) -> Source:
    scheme = _scheme(url)
    if scheme not in ("http", "https"):
        raise DataError(f"data.source: {url!r}: downloads work with http and https, not with {scheme}")
    folder = local_path(config.cache_dir) / "downloads"
    path = download(url, folder, sha256=config.sha256, show_progress=show_progress)
    return Source(name=url, path=path, size=path.stat().st_size)


def _scheme(entry: str) -> str | None:
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", entry)
    return match[1].lower() if match else None


def _without_blank(sources: list[Source], report: Callable[[str], None]) -> list[Source]:
    kept = []
    for source in sources:
        if _is_blank(source):
            if len(sources) > 1:
                report(f"{source.name}: skipped, the file is empty")
        else:
            kept.append(source)
    if not kept:
        what = f"{sources[0].name!r} is empty" if len(sources) == 1 else "all of the files are empty"
        raise DataError(f"data.source: {what}; a model needs some text to learn from")
    return kept


def _is_blank(source: Source) -> bool:
    if source.size > _BLANK_LIMIT_BYTES:
        return False
    content = b"".join(_raw_chunks(source, _BLANK_LIMIT_BYTES))
    return not content.removeprefix(_UTF8_BOM).strip()


def _nearest(path: Path) -> str:
    """What to do about a missing file: the nearest name in its folder, if there is one."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"there is no folder {shown_path(path.parent)!r} either"
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {shown_path(path.with_name(near[0]))!r}?" if near else "check the name and the folder"


def _reason(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
