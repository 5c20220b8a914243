"""The texts that `data.source` and `data.val_source` name: found or downloaded, and listed with their sizes.

Which files a folder or a pattern gives is `data.folders`' concern, and reading a text that of `data.text`.
Imports no torch.
"""

import contextlib
import difflib
import heapq
import os
import re
import stat
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from config.schema import DataConfig
from data.compressed import ArchiveError, open_content
from data.download import download
from data.folders import Identity, Search, Skip, Skipped, has_pattern, identity
from data.memory import is_out_of_memory
from data.paths import escaped, format_size, local_path, one_line, path_name, shown_path
from data.recognize import SAMPLE_BYTES, binary_kind, is_blank, is_misread
from data.standard_input import FOLDER, is_copy, keep, standard_input
from errors import DataError

STDLIB = "stdlib"
STANDARD_INPUT = "-"

_MAX_LISTED, _NUM_LARGEST = 8, 3
_Setting = str | list[str]


@dataclass(frozen=True)
class Source:
    """One file of text, which is one document."""

    name: str  # what the user calls it: the file as they wrote it, or the URL
    path: Path
    size: int  # bytes, as stored
    setting: str = "data.source"  # the setting or option that named it
    encoding: str | None = None  # the one it has whatever data.encoding says


@dataclass(frozen=True)
class ResolvedSources:
    """The files of both settings, and the settings such that they name these files again, without the pipe."""

    train: list[Source]
    val: list[Source]  # empty where data.val_source is null
    source: _Setting
    val_source: _Setting | None
    title: str  # what people call the text of data.source
    val_title: str | None


@dataclass(frozen=True)
class _Context:
    """What all entries of one setting share."""

    setting: str
    config: DataConfig
    piped: Path | None  # what standard input held
    show_progress: bool
    skipped: Skipped = field(default_factory=Skipped)
    misread: list[str] = field(default_factory=list)  # the names of texts that are in another encoding than they say

    @property
    def search(self) -> Search:
        return Search(local_path(self.config.cache_dir), shown_path, self.skipped)


def resolve_sources(
    config: DataConfig, *, report: Callable[[str], None], show_progress: bool = False
) -> ResolvedSources:
    """The non-empty files that the settings name, in order; what is on the web is downloaded first.

    Skipped files and settings without effect go to `report`. Raises `DataError` for what cannot be read.
    """
    settings = {"data.source": entries_of(config.source), "data.val_source": entries_of(config.val_source)}
    settings = {setting: entries for setting, entries in settings.items() if entries}
    _check_sum(config, settings, report=report)
    piped = _keep_standard_input(config, settings)
    found = {}
    for setting, entries in settings.items():
        context = _Context(setting, config, piped, show_progress)
        try:
            candidates = [candidate for entry in entries for candidate in _candidates(entry, context)]
            found[setting] = _sift(candidates, context)
        finally:  # what was skipped explains an error, too
            context.skipped.tell(report, setting)
        _tell_misread(context, report)
        _check_any_left(found[setting], candidates, context=context)
    train, val = found["data.source"], found.get("data.val_source", [])
    _tell_overlap(train, val, report=report)
    source, val_source = (_without_pipe(value, piped) for value in (config.source, config.val_source))
    assert source is not None
    val_title = None if config.val_source is None else _title(config.val_source)
    return ResolvedSources(train, val, source, val_source, _title(config.source), val_title)


def file_source(name: str, where: str = "data.source") -> Source:
    """The file of this name, which `where` gave. Raises `DataError` if it is missing or something else than a file."""
    try:
        path = local_path(name)
        status = path.stat()
    except FileNotFoundError:
        raise DataError(f"{where}: {_what_is_missing(name, path, where)}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{where}: cannot read {name!r}: {_reason(error)}") from error
    if stat.S_ISDIR(status.st_mode):
        raise DataError(f"{where}: {name!r} is a folder; name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{where}: {name!r} is not a regular file; save its text to a file and name that")
    return Source(name=escaped(name), path=path, size=status.st_size, setting=where)


def stdlib_sources(folder: Path, where: str = "data.source") -> list[Source]:
    """The modules in the top folder of Python's own library, sorted: a text that every machine has."""
    paths = sorted(path for path in folder.glob("*.py") if path.is_file())
    if not paths:
        raise DataError(
            f"{where}={STDLIB}: this Python has no library sources in {shown_path(folder)}; "
            f"train on a text file of yours with {where}=FILE"
        )
    return [Source(shown_path(path), path, path.stat().st_size, where, encoding="utf-8") for path in paths]


@contextlib.contextmanager
def reading(source: Source) -> Iterator[None]:
    """Turn what the file system or a damaged archive refuses inside into a `DataError` that names the source."""
    try:
        yield
    except ArchiveError as error:
        raise DataError(f"{source.setting}: {source.name!r} {error}") from error
    except OSError as error:
        if is_out_of_memory(error):
            raise
        raise DataError(f"{source.setting}: cannot read {source.name!r}: {_reason(error)}") from error


def read_head(source: Source) -> bytes:
    """The first bytes of the text, `SAMPLE_BYTES` of them where there are as many. Raises `DataError`."""
    head = b""
    with reading(source), open_content(source.path) as content:
        for chunk in content.chunks(SAMPLE_BYTES):
            head += chunk
            if len(head) >= SAMPLE_BYTES:
                break
    return head[:SAMPLE_BYTES]


def list_sources(sources: list[Source], report: Callable[[str], None]) -> None:
    """Tell each source with its size, a line each; of many, how many there are, their sum, and the largest."""
    if len(sources) <= _MAX_LISTED:
        for source in sources:
            report(f"{source.name}: {format_size(source.size)}")
        return
    report(f"{len(sources):,} files, {format_size(sum(source.size for source in sources))}; the largest:")
    for source in heapq.nlargest(_NUM_LARGEST, sources, key=lambda source: source.size):
        report(f"    {source.name}: {format_size(source.size)}")


def entries_of(value: _Setting | None) -> list[str]:
    """What `data.source` or `data.val_source` names: one or several, or nothing."""
    return [value] if isinstance(value, str) else list(value or ())


def _title(value: _Setting) -> str:
    if isinstance(value, str):
        return "standard input" if value == STANDARD_INPUT else escaped(value)
    return f"{len(value)} sources"


def _check_sum(config: DataConfig, settings: dict[str, list[str]], *, report: Callable[[str], None]) -> None:
    urls = {entry for entries in settings.values() for entry in entries if _scheme(entry) is not None}
    if config.sha256 is not None and not urls:
        report("data.sha256 is checked for downloads only; it has no effect here")
    if config.sha256 is not None and len(urls) > 1:
        names = " and ".join(setting for setting, entries in settings.items() if urls & {*entries})
        raise DataError(f"data.sha256 is the sum of one download, but {names} names {len(urls)}; leave it out")


def _keep_standard_input(config: DataConfig, settings: dict[str, list[str]]) -> Path | None:
    users = [setting for setting, entries in settings.items() for entry in entries if entry == STANDARD_INPUT]
    if not users:
        return None
    if len(users) > 1:
        raise DataError(
            f"{' and '.join(dict.fromkeys(users))}: - is there {len(users)} times, but standard input is read only "
            "once; save that text to a file and name the file"
        )
    return keep(standard_input(users[0]), local_path(config.cache_dir) / FOLDER, setting=users[0])


def _without_pipe(value: _Setting | None, piped: Path | None) -> _Setting | None:
    """The setting with the file in place of standard input."""
    if value is None or piped is None:
        return value
    named = [path_name(piped) if entry == STANDARD_INPUT else entry for entry in entries_of(value)]
    return named[0] if isinstance(value, str) else named


def _candidates(entry: str, context: _Context) -> list[tuple[Source, bool]]:
    """The files of one entry, each with whether it has been found rather than named: then it need not be text."""
    setting = context.setting
    if entry == STDLIB:
        return [(source, False) for source in stdlib_sources(Path(sysconfig.get_path("stdlib")), setting)]
    if entry == STANDARD_INPUT and context.piped is not None:
        return [(Source("standard input", context.piped, context.piped.stat().st_size, setting), False)]
    if _scheme(entry) is not None:
        return [(_web_source(entry, context), False)]
    path = local_path(entry)
    try:
        if os.path.isdir(path):  # noqa: PTH112 - unlike the method it never raises
            return _found(context.search.files_below(_allowed(path, entry, context=context)), entry, context=context)
        if has_pattern(entry) and not os.path.lexists(path):
            return _found(context.search.matches(path), entry, context=context)
    except OSError as error:
        place = shown_path(Path(os.fsdecode(error.filename))) if error.filename else entry
        raise DataError(f"{setting}: cannot read {place!r}: {_reason(error)}") from error
    return [(file_source(entry, setting), False)]


def _allowed(folder: Path, entry: str, *, context: _Context) -> Path:
    why = context.search.excluded(folder)
    if why is not None:
        raise DataError(f"{context.setting}: {entry!r} is a {why.value[0]}; name a folder or file of your own text")
    return folder


def _found(paths: list[Path], entry: str, *, context: _Context) -> list[tuple[Source, bool]]:
    if not paths:
        what = "there is no file in the folder" if not has_pattern(entry) else "no file matches"
        advice = "hidden files do not count, and ** stands for folders at any depth"
        raise DataError(f"{context.setting}: {what} {entry!r}; check the name ({advice})")
    return [(Source(shown_path(path), path, path.stat().st_size, context.setting), True) for path in paths]


def _sift(candidates: list[tuple[Source, bool]], context: _Context) -> list[Source]:
    """The candidates to read: each once, none that is blank, and none that was found and is not text."""
    kept: dict[Identity, Source] = {}
    for source, was_found in candidates:
        with reading(source):
            key = identity(source.path)
        if key in kept:
            context.skipped.add(Skip.REPEATED, source.name)
            continue
        head = read_head(source)
        encoding = source.encoding or context.config.encoding
        if was_found and binary_kind(head, encoding) is not None:
            context.skipped.add(Skip.BINARY, source.name)
        elif is_blank(head, encoding):
            context.skipped.add(Skip.EMPTY, source.name)
        else:
            kept[key] = source
            if source.encoding is None and is_misread(head, encoding):
                context.misread.append(source.name)
    return list(kept.values())


def _tell_misread(context: _Context, report: Callable[[str], None]) -> None:
    """Warn of texts of which other characters are read than they hold."""
    if context.misread:
        more = f" (and {len(context.misread) - 1:,} more)" if len(context.misread) > 1 else ""
        report(
            f"{context.setting}: {context.misread[0]}{more} seems to be UTF-8, but is read as "
            f"{context.config.encoding}; if its characters come out wrong, use data.encoding=utf-8"
        )


def _check_any_left(left: list[Source], candidates: list[tuple[Source, bool]], *, context: _Context) -> None:
    if left:
        return
    if len(candidates) == 1:
        what = f"{candidates[0][0].name!r} is {'binary' if Skip.BINARY in context.skipped.names else 'empty'}"
    elif Skip.BINARY in context.skipped.names:
        what = f"none of the {len(candidates):,} files holds text"
    else:
        what = "all of the files are empty"
    raise DataError(f"{context.setting}: {what}; a model needs some text to learn from")


def _tell_overlap(train: list[Source], val: list[Source], *, report: Callable[[str], None]) -> None:
    """Warn of texts that are trained on and then measured on."""
    trained = {identity(source.path) for source in train} if val else set()
    both = [source.name for source in val if identity(source.path) in trained]
    if both:
        more = f" and {len(both) - 1:,} more" if len(both) > 1 else ""
        report(
            f"data.val_source: {both[0]}{more} belongs to data.source too; "
            "the model is trained on it, so val loss will not show how well it does on new text"
        )


def _web_source(url: str, context: _Context) -> Source:
    scheme = _scheme(url)
    if scheme not in ("http", "https"):
        raise DataError(f"{context.setting}: {url!r}: downloads work with http and https, not with {scheme}")
    config = context.config
    folder = local_path(config.cache_dir) / "downloads"
    path = download(url, folder, sha256=config.sha256, show_progress=context.show_progress, setting=context.setting)
    return Source(escaped(url), path, path.stat().st_size, context.setting)


def _scheme(entry: str) -> str | None:
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", entry)
    return match[1].lower() if match else None


def _what_is_missing(name: str, path: Path, where: str) -> str:
    """What is there in the place of a file, and what to do about it."""
    if path.is_symlink():
        return f"{name!r} is a broken link to {path_name(path.readlink())!r}; name the file itself"
    if is_copy(path):
        return (
            f"there is no file {name!r}: the text came from standard input and its copy is gone; "
            f"pipe it in again with {where}=-"
        )
    return f"there is no file {name!r}; {_nearest(path)}"


def _nearest(path: Path) -> str:
    """What to do about a missing file: the nearest name in its folder, if there is one."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"there is no folder {shown_path(path.parent)!r} either"
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {shown_path(path.with_name(near[0]))!r}?" if near else "check the name and the folder"


def _reason(error: OSError | ValueError) -> str:
    return one_line((isinstance(error, OSError) and error.strerror) or error)
