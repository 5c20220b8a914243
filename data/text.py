"""A source read as text: decoded, in chunks of bounded size, without byte order mark, line ends as wanted.

What is not text, or not in the expected encoding, is refused with the place and a way out. Where texts come from is
`data.sources`' concern, and what they are turned into is no concern of this file. Imports no torch.
"""

import codecs
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from data.compressed import open_content
from data.recognize import (
    BINARY,
    SAMPLE_BYTES,
    binary_kind,
    decoded,
    is_utf8,
    is_wide,
    likely_encoding,
    marked_encoding,
    may_be,
)
from data.sources import Source, read_head, reading
from errors import DataError

CHUNK_BYTES = 1 << 20  # larger chunks are no faster, since these still fit into the processor's cache

_WITHOUT_SURROGATES = ("utf-8", "utf-8-sig")  # decoders that never give half of a pair
_MANY = 8  # so many characters of UTF-8 are no accident


class EncodingError(DataError):
    """A text is not in the encoding that it was read in; `likely` is the one that it seems to be in, if any."""

    def __init__(self, source: Source, found: str, likely: str | None) -> None:
        super().__init__(f"{source.name}: {found}; {_way_out(source, likely)}")
        self.source = source
        self.found = found
        self.likely = likely


def ignore(_: object) -> None:
    """For whoever does not want to hear."""


def changed_while_read(name: str) -> DataError:
    """The error for a file that is not what it was a pass before."""
    return DataError(f"{name}: the file was changed while it was being read; run the command again")


def content_digest(source: Source, *, advance: Callable[[int], object] = ignore) -> str:
    """sha256 of the file's bytes as stored, in hex. `advance` hears how many are done. Raises `DataError`."""
    digest = hashlib.sha256()
    with reading(source), source.path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()


def read_text(
    source: Source,
    *,
    encoding: str = "utf-8",
    newlines: Literal["normalize", "keep"] = "normalize",
    expected_digest: str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    advance: Callable[[int], object] = ignore,
    on_normalized: Callable[[Source], object] = ignore,
) -> Iterator[str]:
    """The document in pieces of about `chunk_bytes`, no character and no line end cut in two.

    `advance` hears how many bytes of the file, as stored, have been used. With normalize all line ends become \\n, and
    `on_normalized` hears of it at the end if there were others. Raises `DataError` for bytes that are not text, and,
    after the last piece, if the file is not the one with `expected_digest` (`content_digest`).
    """
    encoding = source.encoding or encoding
    _check_beginning(source, encoding)
    line_ends = io.IncrementalNewlineDecoder(None, translate=newlines == "normalize")
    pieces = _decoded(source, encoding, chunk_bytes=chunk_bytes, advance=advance, expected_digest=expected_digest)
    for piece in pieces:
        if text := line_ends.decode(piece):
            yield text
    if text := line_ends.decode("", final=True):
        yield text
    found = line_ends.newlines  # None, one of them, or a tuple
    if newlines == "normalize" and found not in (None, "\n"):
        on_normalized(source)


def _decoded(
    source: Source,
    encoding: str,
    *,
    chunk_bytes: int,
    advance: Callable[[int], object],
    expected_digest: str | None,
) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(encoding)()
    may_give_surrogates = codecs.lookup(encoding).name not in _WITHOUT_SURROGATES
    fed = stored = 0  # bytes given to the decoder, and bytes of the file that they have taken
    is_first = True
    with reading(source), open_content(source.path) as content:
        for chunk in content.chunks(chunk_bytes):
            state = decoder.getstate()
            fed += len(chunk)
            try:
                piece = decoder.decode(chunk, not chunk)
            except UnicodeError as error:
                if not chunk and (cut_off := _cut_off(source, encoding, error=error, fed=fed)) is not None:
                    raise cut_off from error
                raise _undecodable(source, encoding, error=error, fed=fed) from error
            if "\0" in piece or (may_give_surrogates and not _is_whole(piece)):
                decoder.setstate(state)
                raise _no_character(source, encoding, decoder=decoder, chunk=chunk, offset=fed - len(chunk))
            if piece:
                yield piece.removeprefix("\ufeff") if is_first else piece
                is_first = False
            advance(content.num_stored - stored)
            stored = content.num_stored
    if expected_digest is not None and content.stored_digest() != expected_digest:
        raise changed_while_read(source.name)


def _check_beginning(source: Source, encoding: str) -> None:
    """Raise `DataError` where the first bytes show that the file is something else."""
    head = read_head(source)
    marked = marked_encoding(head)
    if marked is not None and not codecs.lookup(encoding).name.startswith(marked):
        found = f"begins with the byte order mark of {marked.upper()}, so it is not {encoding.upper()}"
        raise EncodingError(source, found, marked)
    kind = binary_kind(head, encoding)
    text = decoded(head, encoding)
    # Bytes that cannot be decoded, and NULs, are reported with their place when they are reached.
    if kind is not None and (kind != BINARY or (text is not None and "\0" not in text)):
        raise DataError(f"{source.name}: this is {kind}")


def _undecodable(source: Source, encoding: str, *, error: UnicodeError, fed: int) -> DataError:
    """The error for bytes that the decoder refused, after `fed` bytes in all."""
    if not isinstance(error, UnicodeDecodeError):  # UTF-16 and UTF-32 want a byte order mark
        return _wrong(source, encoding, found=f"this is not {encoding.upper()} ({error})", sample=read_head(source))
    offset = fed - len(error.object) + error.start  # the object ends with the last byte fed
    found = error.object[error.start : error.start + 1]
    sample = read_head(source) if offset < SAMPLE_BYTES // 2 else _surroundings(error.object, error.start)
    place = f"byte {offset} (counted from 0) is 0x{found.hex()}, which is not {encoding.upper()}"
    return _wrong(source, encoding, found=place, sample=sample)


def _cut_off(source: Source, encoding: str, *, error: UnicodeError, fed: int) -> DataError | None:
    """The error for UTF-16 or UTF-32 that ends within a character, if that is what the decoder refused at the end."""
    if not is_wide(encoding) or not isinstance(error, UnicodeDecodeError) or is_utf8(read_head(source)):
        return None
    start = fed - len(error.object) + error.start
    return DataError(
        f"{source.name}: ends in the middle of the {encoding.upper()} character that begins at byte {start} (counted "
        "from 0), so the file is cut off; copy or download it again"
    )


def _no_character(
    source: Source, encoding: str, *, decoder: codecs.IncrementalDecoder, chunk: bytes, offset: int
) -> DataError:
    """The error for a NUL or half of a surrogate pair in what `chunk`, at this offset, adds to the text."""
    start = offset - len(decoder.getstate()[0])
    piece = ""
    for position, byte in enumerate(chunk, start=offset + 1):
        piece = decoder.decode(bytes([byte]))
        if "\0" in piece or not _is_whole(piece):
            break
        if not decoder.getstate()[0]:  # nothing is pending: a character begins here
            start = position
    place = f"byte {start} (counted from 0)"
    if "\0" not in piece:
        return DataError(
            f"{source.name}: {place} begins half of a surrogate pair, which is no character; repair the file"
        )
    likely = likely_encoding(read_head(source), but_not=encoding)
    if likely is not None and likely.startswith("utf-16"):
        return EncodingError(source, f"{place} is 0x00, as in UTF-16", likely)
    return DataError(f"{source.name}: {place} is 0x00: this is {BINARY}")


def _is_whole(piece: str) -> bool:
    """Whether there is no half of a surrogate pair in it."""
    try:
        piece.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _surroundings(data: bytes, position: int) -> bytes:
    """What is around the position, from the beginning of a line on, so that no character is cut."""
    reach = SAMPLE_BYTES // 2
    before = data[max(0, position - reach) : position]
    return before[before.find(b"\n") + 1 :] + data[position : position + reach]


def _wrong(source: Source, encoding: str, *, found: str, sample: bytes) -> DataError:
    """The error for bytes that are not in the encoding, with advice from what the text around them looks like."""
    if binary_kind(sample, encoding) is not None:
        return DataError(f"{source.name}: {found}; this is {BINARY}")
    if codecs.lookup(encoding).name in _WITHOUT_SURROGATES:
        text = sample.decode(errors="replace")
        num_damaged = text.count("\ufffd")
        num_right = sum(character > "\x7f" for character in text) - num_damaged
        if num_right >= _MANY * num_damaged:
            advice = "all else around it is UTF-8, so the file may be damaged; repair that place"
            return DataError(f"{source.name}: {found}; {advice}")
    return EncodingError(source, found, likely_encoding(sample, but_not=encoding))


def read_with_others(error: EncodingError, others: Iterable[Source]) -> DataError:
    """The error for a text that is read with others: where they differ in encoding, which file to convert."""
    likely = error.likely
    if likely is None or error.source.encoding is not None:
        return error
    own = [source for source in others if source.encoding is None and source.path != error.source.path]
    other = next((source for source in own if not _may_be_in(source, likely)), None)
    if other is None:
        return error
    convert = other if codecs.lookup(likely).name == "utf-8" else error.source
    return DataError(
        f"{error.source.name}: {error.found}; it may be {likely}, but {other.name!r} is not, and all files are read in "
        f"one encoding: convert {convert.name!r} to UTF-8, and use data.encoding=utf-8"
    )


def _may_be_in(source: Source, encoding: str) -> bool:
    """Whether a file that begins as this one may be in the encoding. What is in UTF-8 as well is in that."""
    head = read_head(source)
    if not may_be(head, encoding):
        return False
    if codecs.lookup(encoding).name in _WITHOUT_SURROGATES or not is_utf8(head):
        return True
    return head.isascii() and not is_wide(encoding)


def _way_out(source: Source, likely: str | None) -> str:
    """How to have a text read that is in the likely encoding. Only for sources in settings there is one for that."""
    looks = "" if likely is None else f"it may be {likely}: "
    if source.encoding is not None or not source.setting.startswith("data."):
        return f"{looks}convert the file to UTF-8 and try again"
    if likely is None:
        return "name its encoding with data.encoding, or convert the file to UTF-8"
    return f"{looks}try data.encoding={likely}, or convert the file to UTF-8"
