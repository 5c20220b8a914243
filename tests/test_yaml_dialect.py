"""The YAML of recipes: plain values after YAML 1.2, errors with a place, and no way to hurt the reader."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from config.yaml_dialect import compose, entries, is_null, node_value, plain_value, to_yaml
from errors import ConfigError

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def read(text, *, as_text=False, nullable=True):
    return node_value(compose(text, "x.yaml"), as_text=as_text, nullable=nullable)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1e-08", 1e-8),
        ("1.0e3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-.5e+1", -5.0),
        ("12", 12),
        ("-12", -12),
        ("+12", 12),
        ("012", 12),
        ("10_000", 10_000),
        ("1e3", 1000),
        ("1E5", 100_000),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        (".inf", float("inf")),
        ("-.inf", -float("inf")),
        ("1e999", float("inf")),
        ("9" * 5000, float("inf")),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("0x10", "0x10"),
        ("1__0", "1__0"),
        ("_1", "_1"),
        ("1e", "1e"),
        (".", "."),
        ("nan", "nan"),
        ("inf", "inf"),
        ("٣", "٣"),
        ("none", "none"),
    ],
)
def test_a_plain_scalar_means_what_yaml_1_2_says(text, value):
    assert (plain_value(text), type(plain_value(text))) == (value, type(value))


def test_not_a_number_is_read_so_that_it_can_be_refused():
    assert plain_value(".nan") != plain_value(".nan")


def test_quotes_make_a_text_of_anything():
    assert [read('"1e-3"'), read("'null'"), read('""'), read('"a\\nb"')] == ["1e-3", "null", "", "a\nb"]


def test_where_text_is_wanted_a_plain_scalar_is_its_own_text():
    assert [read(text, as_text=True) for text in ("012", "no", "1e-3", "true")] == ["012", "no", "1e-3", "true"]


def test_none_is_null_only_where_null_is_a_value():
    assert [read("None"), read("none", as_text=True)] == [None, None]
    assert [read("None", nullable=False), read("none", as_text=True, nullable=False)] == ["None", "none"]


def test_a_list_holds_scalars():
    assert read("[a, 012, no]", as_text=True) == ["a", "012", "no"]
    assert read("- 1e-3\n- x") == [0.001, "x"]


def test_what_is_nested_deeper_is_kept_as_a_mark_that_no_setting_takes():
    assert repr(read("[[1], {a: 1}, x]")) == "[[...], {...}, 'x']"
    assert repr(read("{a: 1}")) == "{...}"


def test_an_alias_repeats_its_value():
    root = compose("a: &x 3\nb: *x\n", "x.yaml")
    assert [(key, line, read(node.value)) for key, line, node in entries(root)] == [("a", 1, 3), ("b", 2, 3)]


def test_huge_and_endless_aliases_are_not_expanded():
    levels = "".join(f"- &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 30))
    assert len(read(f"- &l0 [x]\n{levels}")) == 30
    assert repr(read("&a [*a]")) == "[[...]]"
    assert repr(read("&a {b: *a}")) == "{...}"


def test_an_empty_text_has_no_nodes_and_null_words_are_null():
    assert compose("# only a comment\n", "x.yaml") is None
    assert [is_null(compose(text, "x.yaml")) for text in ("~", "null", "None", "''", "x", "[]")] == (
        [True, True, True, False, False, False]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "x.yaml:1:6: not valid YAML: while parsing a flow sequence, expected ',' or ']'"),
        ("a:\n\tb: 1", "x.yaml:2:1: not valid YAML: .*indent with spaces, not tabs"),
        ("a: b: c", "x.yaml:1:5: not valid YAML: mapping values are not allowed here"),
        ("a: *x", "x.yaml:1:4: not valid YAML: found undefined alias 'x'"),
        ("a: 1\n---\nb: 2", "x.yaml:2:1: not valid YAML: expected a single document"),
        ("a: !!binary x", "x.yaml:1:4: not valid YAML: the tag '!!binary' has no meaning here"),
        ("a: !!python/object:os.system x", "the tag '!!python/object:os.system' has no meaning"),
        ("a: 1\nb: \0", "x.yaml:2: not valid YAML: character 0 is not allowed"),
        ('a: "\\U00110000"', "x.yaml: not valid YAML: a number or escape is out of range"),
        ("[" * 5000, "x.yaml: nested too deeply"),
        ("a: " + "{a: " * 5000, "x.yaml: nested too deeply"),
    ],
)
def test_what_is_not_yaml_is_one_line_with_its_place(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        compose(text, "x.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (1e-5, "1e-05"),
        ("data/cache", "data/cache"),
        ("no", "no"),
        ("null", '"null"'),
        ("none", '"none"'),
        ("true", '"true"'),
        ("1e-3", '"1e-3"'),
        ("", '""'),
        ('say "hi"\\\n', '"say \\"hi\\"\\\\\\n"'),
        ("😀", '"😀"'),
        ("\x85\u2028\ufeff", '"\\U00000085\\U00002028\\U0000feff"'),
        (["a", "no"], '["a", "no"]'),
    ],
)
def test_a_value_is_written_so_that_it_cannot_be_misread(value, text):
    assert to_yaml(value) == text


@given(st.none() | st.booleans() | st.integers(-(10**300), 10**300) | FINITE | st.text() | st.lists(st.text()))
def test_whatever_is_written_is_read_back_equal(value):
    again = read(to_yaml(value))
    assert again == value
    assert isinstance(again, bool) == isinstance(value, bool)


@given(st.text(alphabet="-+.eE_0123456789") | st.text())
def test_any_plain_scalar_has_a_value(text):
    plain_value(text)


@given(st.text(alphabet="ab:- \n\t[]{},&*!|>'\"#%@`?\\0\r\x85") | st.text())
def test_any_text_is_yaml_or_a_config_error(text):
    try:
        root = compose(text, "x.yaml")
    except ConfigError:
        return
    assert root is None or isinstance(root, yaml.Node)
    if root is not None:
        repr(node_value(root, as_text=False, nullable=True))
