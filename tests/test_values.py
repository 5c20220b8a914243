"""What a single value may be, apart from the setting it is for."""

import pytest

from config.values import check_encoding, check_folder_name


@pytest.mark.parametrize("name", ["run", "run 2", ".hidden", "你好", "x" * 200])
def test_a_folder_name_is_one_that_every_file_system_takes(name):
    assert check_folder_name(name) == name


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\\b", "a.", "a ", "nul\0", "x" * 201, "what?"])
def test_other_folder_names_are_refused(name):
    with pytest.raises(ValueError, match="folder name"):
        check_folder_name(name)


@pytest.mark.parametrize(
    "name", ["utf-8", "UTF8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp1252", "gbk", "big5"]
)
def test_an_encoding_is_one_of_text_that_can_be_read_piece_by_piece(name):
    assert check_encoding(name) == name


@pytest.mark.parametrize("name", ["", "klingon", "hex", "base64", "zlib", "rot13", "undefined", "utf\0-8", "ütf"])
def test_what_turns_no_bytes_into_text_is_no_encoding(name):
    with pytest.raises(ValueError, match="text encoding"):
        check_encoding(name)
