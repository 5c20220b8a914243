"""What the first bytes of a file say about it: text or not, in which encoding, or which format instead.

Nothing is read here, and what follows from it for the user is not decided here. Imports no torch.
"""

import codecs
import re

SAMPLE_BYTES = 1 << 16  # of a file's beginning, enough to tell what it is

_WITH_TEXT = "{what}, not plain text; save its text as a plain text file and name that"
_WITH_FILES = "{what}, not text; unpack it and name a file or the folder"
_FORMATS = (  # where the mark stands, the mark, and what to do
    (0, b"%PDF-", _WITH_TEXT.format(what="a PDF document")),
    (0, b"{\\rtf", _WITH_TEXT.format(what="an RTF document")),
    (0, b"PK\x03\x04", _WITH_TEXT.format(what="a ZIP archive, as .docx, .odt and .epub are")),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", _WITH_TEXT.format(what="a document of an old Office program")),
    (257, b"ustar", _WITH_FILES.format(what="a tar archive")),
    (0, b"7z\xbc\xaf\x27\x1c", _WITH_FILES.format(what="a 7z archive")),
    (0, b"Rar!\x1a\x07", _WITH_FILES.format(what="a RAR archive")),
)
BINARY = "binary data, not text"

_MARKS = (  # of UTF-32 first, since that of UTF-16 is its beginning
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8"),
)
_WIDE_MIN_BYTES = 8  # fewer may look like UTF-16 by accident
# From Latin to Thai, general punctuation, kana with the punctuation of Chinese, Chinese, Korean, wide forms.
_LARGE_SCRIPTS = re.compile("[\t\n\r -\u0e7f\u2000-\u206f\u3000-\u30ff\u4e00-\u9fff\uac00-\ud7a3\uff00-\uffef]")
_BETWEEN_WORDS = re.compile("[\\s,.\u3001\u3002\uff0c]")
_SCRIPTS_SHARE, _SCRIPTS_MIN_CHARS = 0.98, 16
# Tabs, line ends, form feeds and the escapes of coloured logs belong to texts; of random bytes a tenth is among these.
_CONTROLS = re.compile("[\x01-\x07\x0e-\x1a\x1c-\x1f\x7f]")
_CONTROLS_LIMIT = 16  # more than one in so many is binary data
# Those that people have. The library ranks hardly different ones by name; the usual ones win such ties.
_CANDIDATES = ["cp1252", "gb18030", "big5", "cp932", "euc_jp", "cp949", "cp1251", "koi8_r", "cp866", "cp1250"]
_CANDIDATES += ["cp1253", "cp1254"]
_MORE_USUAL = {"cp1250": ["cp1252"], "big5": ["gb18030"], "cp949": ["gb18030", "euc_jp"]}
_TIE = 0.1  # of the library's coherence, from 0 to 1


def binary_kind(head: bytes, encoding: str) -> str | None:
    """What a file that begins with `head` is, if not text, with what to do; None for text, in whatever encoding."""
    for position, mark, kind in _FORMATS:
        if head.startswith(mark, position):
            return kind
    if marked_encoding(head) is not None or _wide_encoding(head) is not None:
        return None
    text = decoded(head, encoding)
    return BINARY if _is_binary(head.decode("latin-1") if text is None else text) else None


def is_blank(head: bytes, encoding: str) -> bool:
    """Whether a whole file is blank of which `head` is the beginning. One that is longer counts as text."""
    if len(head) >= SAMPLE_BYTES:
        return False
    text = decoded(head, marked_encoding(head) or encoding, is_whole=True)
    return text is not None and not text.removeprefix("\ufeff").strip()


def marked_encoding(head: bytes) -> str | None:
    """The encoding that a byte order mark at the beginning gives away: utf-8, utf-16, utf-32."""
    return next((encoding for mark, encoding in _MARKS if head.startswith(mark)), None)


def likely_encoding(sample: bytes, *, but_not: str) -> str | None:
    """The encoding that a piece of text probably has; none that cannot decode it, and not `but_not`."""
    unwanted = codecs.lookup(but_not).name
    guesses = [marked_encoding(sample), _wide_encoding(sample), "utf-8", *_ranked_encodings(sample)]
    for guess in guesses:
        if guess is not None and codecs.lookup(guess).name != unwanted and decoded(sample, guess) is not None:
            return guess
    return None


def is_utf8(head: bytes) -> bool:
    """Whether a file that begins so is text in UTF-8, as ASCII is, too."""
    return b"\0" not in head and may_be(head, "utf-8")


def may_be(head: bytes, encoding: str) -> bool:
    """Whether a file that begins so can be decoded, up to its end where `head` is all of it."""
    return decoded(head, encoding, is_whole=len(head) < SAMPLE_BYTES) is not None


def is_misread(head: bytes, encoding: str) -> bool:
    """Whether a file that begins so is in UTF-8, as no text is by accident, and would be read as other characters."""
    is_other = not head.isascii() and is_utf8(head) and codecs.lookup(encoding).name not in ("utf-8", "utf-8-sig")
    return is_other and may_be(head, encoding)


def is_wide(encoding: str) -> bool:
    """Whether all characters have two or four bytes in this encoding."""
    return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))


def decoded(sample: bytes, encoding: str, *, is_whole: bool = False) -> str | None:
    """The sample as text; None if it is not in this encoding. A character may be cut off at the end of a part."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(sample, is_whole)
    except UnicodeError:
        return None


def _ranked_encodings(sample: bytes) -> list[str]:
    from charset_normalizer import from_bytes  # a library for this case alone

    telling = [line for line in sample.splitlines(keepends=True) if not line.isascii()]
    matches = list(from_bytes(b"".join(telling), cp_isolation=_CANDIDATES))
    if not matches:
        return []
    best = matches[0]
    tied = {
        name
        for match in matches
        if match.chaos == best.chaos and match.coherence >= best.coherence - _TIE
        for name in match.could_be_from_charset
    }
    usual = [name for name in _MORE_USUAL.get(best.encoding, []) if name in tied]
    return [*usual, *(match.encoding for match in matches)]


def _wide_encoding(head: bytes) -> str | None:
    """UTF-16 without its mark: most characters are of ASCII, so that every second byte is zero, or of large scripts.

    The latter only in what would else be binary data, since any text of bytes looks like Chinese when read so.
    """
    zeros = {"utf-16-le": head[1::2].count(0), "utf-16-be": head[::2].count(0)}
    name = max(zeros, key=zeros.__getitem__)
    if len(head) < _WIDE_MIN_BYTES:
        return None
    if zeros[name] * 4 >= len(head):
        text = decoded(head, name)
        return None if text is None or "\0" in text or _CONTROLS.search(text) else name
    if not _is_binary(head.decode("latin-1")):
        return None
    return next((name for name in zeros if _is_text_of_large_scripts(decoded(head, name))), None)


def _is_text_of_large_scripts(text: str | None) -> bool:
    """Of random characters half would do, of those of the wrong byte order less."""
    if text is None or len(text) < _SCRIPTS_MIN_CHARS or "\0" in text or _CONTROLS.search(text):
        return False
    return len(_LARGE_SCRIPTS.findall(text)) >= _SCRIPTS_SHARE * len(text) and _BETWEEN_WORDS.search(text) is not None


def _is_binary(text: str) -> bool:
    return "\0" in text or len(_CONTROLS.findall(text)) * _CONTROLS_LIMIT > len(text) + _CONTROLS_LIMIT
