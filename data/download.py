"""A file from the web, downloaded once and kept: whole and with the right sum, or not at all.

Imports no torch.
"""

import hashlib
import http.client
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import IO

from tqdm import tqdm

from data.durable import cache_errors, kept_file
from data.paths import counted, one_line
from errors import DataError

TIMEOUT_SECONDS = 20.0  # for the connection, and for each wait for more bytes; a slow download may take longer

_CHUNK_BYTES = 1 << 18
_USER_AGENT = "tiny-gpt-trainer"  # some hosts refuse urllib's own name


class _DownloadError(Exception):
    """Why the network or the server did not give the file, in one line."""


def download(
    url: str,
    folder: Path,
    *,
    sha256: str | None = None,
    show_progress: bool = False,
    timeout_seconds: float = TIMEOUT_SECONDS,
    setting: str = "data.source",
) -> Path:
    """The file in `folder` that holds what the URL gave, now or on an earlier call. `setting` named it.

    With `sha256` (hex) only a file with that sum is taken. Raises `DataError` if the network, the server, the
    sum or the disk is not as it should be; then nothing is kept.
    """
    path = folder / _file_name(url)
    expected = None if sha256 is None else sha256.lower()
    with cache_errors(folder, "read the download in"):
        if path.is_file() and (expected is None or _sum(path) == expected):
            return path
    try:
        with kept_file(folder, path.name, purpose="keep the download in") as kept:
            found = _fetch(url, kept.file, show_progress=show_progress, timeout_seconds=timeout_seconds)
            if expected is not None and found != expected:
                raise DataError(
                    f"{setting}: {url}: the sha256 of the download is {found}, but data.sha256 is {expected}; "
                    "the file on the server has changed, or data.sha256 is that of another file"
                )
    except _DownloadError as error:
        advice = f"{setting}=FILE uses a copy that is already on this machine"
        raise DataError(f"{setting}: cannot download {url}: {error}; {advice}") from error
    return path


def _fetch(url: str, file: IO[bytes], *, show_progress: bool, timeout_seconds: float) -> str:
    """Write the body of the response to `file`. Returns its sha256."""
    digest = hashlib.sha256()
    received = 0
    try:
        request = urllib.request.Request(url, headers={"User-Agent": _USER_AGENT})
        response = urllib.request.urlopen(request, timeout=timeout_seconds)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _DownloadError(_reason(error)) from error
    with response:
        length = response.headers.get("Content-Length", "")
        expected = int(length) if length.isdecimal() else None
        bar = tqdm(total=expected, unit="B", unit_scale=True, desc="download", disable=not show_progress)
        with bar:
            while chunk := _read(response):
                file.write(chunk)
                digest.update(chunk)
                received += len(chunk)
                bar.update(len(chunk))
    if expected is not None and received != expected:
        raise _DownloadError(f"the connection ended after {received:,} of {counted(expected, 'byte')}")
    if not received:
        raise _DownloadError("the server sent an empty file")
    return digest.hexdigest()


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(_CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _DownloadError(_reason(error)) from error


def _reason(error: Exception) -> str:
    """Why the network failed, in one line."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return one_line(f"the server answered {error.code} {error.reason}")
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return one_line(text)


def _file_name(url: str) -> str:
    """Unique for the URL, and still readable for people."""
    last = urllib.parse.unquote(url.split("?")[0].rstrip("/").rsplit("/", 1)[-1])
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", last)[-60:]
    return f"{hashlib.sha256(url.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}-{readable}"


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
