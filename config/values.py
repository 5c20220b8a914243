"""The kinds of values that settings have: their limits, and what they must be in words.

Which settings there are is `config.schema`'s concern. Imports no torch.
"""

import codecs
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

# Far above anything trainable, far below what overflows the size of a tensor.
MAX_COUNT = 1_000_000_000
MAX_VOCAB_SIZE = 1_000_000  # several times the largest that is published
MAX_MINUTES = 1_051_200.0  # two years
HIDDEN_LIMITS = (MAX_COUNT, MAX_MINUTES)  # said only to whoever exceeds them


@dataclass(frozen=True)
class Wording:
    """What a value of an annotated type must be, in words, where the type alone does not say it."""

    text: str


def check_folder_name(value: str) -> str:
    """`value` where every common file system takes it as the name of one folder; otherwise `ValueError`."""
    usable = (
        value.isprintable()
        and 0 < len(value.encode()) <= 200
        and not set(value) & set('<>:"/\\|?*')
        and value[0] != " "
        and value[-1] not in " ."
    )
    if not usable:
        raise ValueError("not usable as a folder name")
    return value


def check_encoding(value: str) -> str:
    """`value` where Python can read text with it; otherwise `ValueError`."""
    try:
        codecs.getincrementaldecoder(value)
        "a".encode(value)  # raises for codecs that are none of text
    except (LookupError, ValueError) as error:
        raise ValueError("not a text encoding") from error
    return value


Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
FolderName = Annotated[
    str,
    AfterValidator(check_folder_name),
    Wording("one folder's name, without slashes, any of < > : \" | ? *, or a dot or space at its end"),
]
# A file name cannot hold a NUL anywhere; Python raises ValueError for it, far from the setting.
PathText = Annotated[str, StringConstraints(pattern=r"^[^\x00]*[^\x00\s][^\x00]*$"), Wording("text that is not blank")]
PathTexts = Annotated[list[PathText], Field(min_length=1), Wording("a list of such texts")]
Encoding = Annotated[
    str, AfterValidator(check_encoding), Wording("an encoding that Python knows, such as utf-8, cp1252 or gb18030")
]
TokenizerName = Annotated[
    str,
    StringConstraints(pattern="^(char|byte|bpe|tiktoken:[A-Za-z0-9_-]{1,40})$"),
    Wording("char, byte, bpe or tiktoken:NAME, such as tiktoken:gpt2"),
]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-fA-F]{64}$", to_lower=True), Wording("64 hexadecimal digits")]
Device = Annotated[
    str,
    StringConstraints(pattern="^(auto|cpu|mps|cuda(:[0-9]{1,3})?)$"),
    Wording("auto, cpu, cuda, cuda:N or mps"),
]
ProjectName = Annotated[
    str,
    StringConstraints(pattern=r"^[^/\\#?%:\x00-\x1f]{1,128}$"),
    Wording(r"a name of 1 to 128 characters without / \ # ? % :"),
]
GroupName = Annotated[
    str,
    StringConstraints(pattern=r"^[^\x00-\x1f]{1,128}$"),
    Wording("a name of 1 to 128 characters"),
]
Tag = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]{1,64}$"), Wording("a text of 1 to 64 characters")]
Tags = Annotated[list[Tag], Wording("a list of texts of 1 to 64 characters, such as [baseline, small]")]
Switch = Annotated[Literal["auto"] | bool, Wording("auto, true or false")]
