"""Files of tokenizers that are damaged or hostile. That whole ones come back is tested with each kind."""

import json

import pytest

from data.saved_tokenizer import tokenizer_from_json
from errors import DataError


def char_json(**changes: object) -> str:
    return json.dumps({"format": 1, "kind": "char", "characters": "ab"} | changes)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not a tokenizer file"),
        (char_json()[:-9], "not a tokenizer file"),
        ("[" * 100_000, "not a tokenizer file"),
        ("[1]", "JSON object"),
        ("9" * 5000, "not a tokenizer file"),
        ("{}", "format 1, found None"),
        (char_json(format=0), "expected tokenizer format 1, found 0; the file is damaged"),
        (char_json(format=2), r"written by a newer version \(tokenizer format 2; this one reads 1\): update this prog"),
        (char_json(format=10**400), r"newer version \(tokenizer format 10{56}\.\.\.; this one"),
        (char_json(format=True), "format 1, found True"),
        (char_json(kind="magic"), "char, byte, bpe or tiktoken:NAME, found 'magic'"),
        (char_json(kind=["char"]), "char, byte"),
        (char_json(kind="byte"), "expected the keys format, kind"),
        (char_json(extra="x\ny"), "expected the keys"),
        (char_json(unicode="NFD"), "unicode must be NFC where it is given, found 'NFD'"),
        (char_json(unicode=["NFC"]), "unicode must be NFC"),
        (char_json(has_unknown=False), "has_unknown must be true where it is given, found False"),
        (char_json(characters=""), "at least one"),
        (char_json(characters=["a", "b"]), "at least one"),
        (char_json(characters=None), "at least one"),
        (char_json(characters="ba"), "order of code points"),
        (char_json(characters="aa"), "order of code points"),
        (char_json(characters="a\ud800"), "order of code points"),
    ],
)
def test_a_damaged_or_hostile_tokenizer_file_is_one_clear_line(text: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as error:
        tokenizer_from_json(text, where="runs/x/tokenizer.json")
    assert str(error.value).startswith("runs/x/tokenizer.json: ")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400
