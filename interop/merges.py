"""A vocabulary of bytes as the rest of the world writes it: bytes as visible characters, and which pairs merge.

Our byte pairs go by rank: of all neighbours whose bytes together are a token, those with the lowest id merge first.
Others list the pairs, in the order in which they merge. Files are not written here. Imports no torch.
"""

import functools
from collections.abc import Sequence


@functools.cache
def byte_characters() -> tuple[str, ...]:
    """The character that stands for each byte in GPT-2's vocabulary (Radford et al. 2019, encoder.py): 256 of them."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return tuple(chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256))


def visible_text(token: bytes) -> str:
    """The token in such characters."""
    characters = byte_characters()
    return "".join(characters[byte] for byte in token)


def bytes_of(text: str) -> bytes:
    """The inverse of `visible_text`. Raises `ValueError` for other characters."""
    try:
        return bytes(_bytes_by_character()[character] for character in text)
    except KeyError as error:
        raise ValueError(f"{text!r:.40} holds a character that stands for no byte") from error


@functools.cache
def _bytes_by_character() -> dict[str, int]:
    return {character: byte for byte, character in enumerate(byte_characters())}


def merges_of(tokens: Sequence[bytes]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, in the order of the ids of what they make.

    `tokens` in the order of ids, b"" where there is none.
    """
    ids = {token: number for number, token in enumerate(tokens) if token}
    merges = []
    for token in ids:
        cuts = range(1, len(token))
        pairs = sorted(
            (ids[token[:cut]], ids[token[cut:]]) for cut in cuts if token[:cut] in ids and token[cut:] in ids
        )
        merges += [(visible_text(tokens[left]), visible_text(tokens[right])) for left, right in pairs]
    return merges


def merges_of_characters(characters: str) -> list[tuple[str, str]]:
    """The pairs that make each character from its bytes, one byte after the other."""
    merges: dict[tuple[str, str], None] = {}
    for character in characters:
        text = visible_text(character.encode("utf-8"))
        for end in range(1, len(text)):
            merges[text[:end], text[end]] = None
    return [*merges]
