"""YAML: numbers as people write them, and errors with their place."""

import pytest

from rapo_rllib.cli.values import yaml_file, yaml_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-6", 5e-6),
        ("1e4", 1e4),
        ("-2E+3", -2e3),
        ("1.e2", 100.0),
        ("0.5", 0.5),
        ("1e4x", "1e4x"),
        ("[1e-3, {a: 2e-3}]", [1e-3, {"a": 2e-3}]),
        (".5e3", 500.0),
        ("1_000", 1000),
        ("1_000.5", 1000.5),
        ("0x1F", 31),
        ("0o17", 15),
        ("0b11", 3),
        ("-.inf", float("-inf")),
        ("true", True),
        ("~", None),
        ("", None),
        ("nobody", "nobody"),
        ("12:30", "12:30"),
        ("1:30:00.5", "1:30:00.5"),
        ("2024-05-01", "2024-05-01"),
        ("=", "="),
        ("no", False),
        ("On", True),
        ("010", "010"),
        ("'no'", "no"),
        ("1.2.3", "1.2.3"),
        ("+", "+"),
        (".", "."),
        ("e5", "e5"),
    ],
)
def test_values(text: str, value) -> None:
    assert yaml_value(text) == value
    assert type(yaml_value(text)) is type(value)


def test_a_merge_may_be_overwritten() -> None:
    assert yaml_value("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}")["b"] == {"x": 1, "y": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: {c: 1, c: 2}", "line 2, column 11: not YAML: key 'c' is given twice"),
        ("a:\n\t- 1", "line 2, column 1: not YAML: found character"),
        ("a: [1", "line 1, column 6: not YAML: expected ',' or ']'"),
        ("a: !!python/object:os.system x", "line 1, column 4: not YAML: could not determine a constructor"),
        ("a: *b", "line 1, column 4: not YAML: found undefined alias"),
        ("a: \x00", "not YAML: "),
        (
            "x:\n  lr: {{ lr }}",
            "line 2, column 8: not YAML: a key must be a single name (a template {{ … }} must be filled in)",
        ),
        ("? [1, 2]\n: 3", "line 1, column 3: not YAML: a key must be a single name"),
        ("a: !!int x", "not YAML: "),
        ("a: !!timestamp x", "not YAML: "),
    ],
)
def test_errors_have_a_place(text: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        yaml_value(text)
    assert message in str(raised.value)


def test_an_unreadable_file(tmp_path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\xff")
    with pytest.raises(ValueError, match="cannot be read: 'utf-8' codec"):
        yaml_file(tmp_path / "latin.yaml")


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"\xef\xbb\xbfa: 1\nb: \xc3\xa9\n")
    assert yaml_file(tmp_path / "job.yaml") == {"a": 1, "b": "é"}
