"""The table of commands becomes the parser that it describes."""

import argparse

import pytest

from rs_keras.cli import _parser


def parser_of(flags):
    parser = _parser.Parser(prog="test")
    _parser.add_flags(parser, flags)
    return parser


def test_every_key_of_the_table_is_known():
    tables = [*_parser.TABLE.values()]
    commands = {
        key
        for table in tables
        for key, value in table.items()
        if not isinstance(value, dict)
    }
    assert commands == {"help", "example", "shared", "tensorflow"}
    used = {name for table in tables for name in table.get("shared", ())}
    assert used == set(_parser.SHARED)


def test_a_flag_is_declared_once_for_a_command():
    for command, table in _parser.TABLE.items():
        names = [*table]
        for shared in table.get("shared", ()):
            names += _parser.SHARED[shared]
        assert len(set(names)) == len(names), command


def test_the_help_names_every_method():
    text = _parser.TABLE["train"]["--method"]["help"]
    assert "{" not in text
    names = text.partition(", or a variant")[0].split(", ")
    assert {"gaussian", "macer", "catrs"} <= set(names)


def test_types_and_defaults():
    parser = parser_of(
        {
            "--n": {"type": "int", "default": 3, "help": "h"},
            "--radii": {"type": "radii", "help": "h"},
            "-o --out": {"help": "h"},
            "logs": {"nargs": "+", "help": "h"},
        }
    )
    args = parser.parse_args(["a", "b", "--radii", "0,0.5", "-o", "x"])
    assert (args.n, args.radii, args.out) == (3, [0.0, 0.5], "x")
    assert args.logs == ["a", "b"]


def test_flags_that_exclude_each_other(capsys):
    parser = parser_of(
        {
            "--model": {"one_of": "source", "required": True, "help": "h"},
            "--servers": {"one_of": "source", "required": True, "help": "h"},
        }
    )
    assert parser.parse_args(["--model", "m"]).servers is None
    for words, error in (
        ([], "one of the arguments --model --servers is required"),
        (["--model", "m", "--servers", "s"], "not allowed with argument"),
    ):
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(words)
        assert ended.value.code == 2
        assert error in capsys.readouterr().err


def test_groups_are_headings_of_the_help():
    flag = {"help": "h", "group": "servers"}
    text = parser_of({"--a": flag, "--b": flag}).format_help()
    assert text.count("servers:") == 1
    assert text.index("servers:") < text.rindex("--a A")


def test_keyed_is_a_seed():
    assert (_parser.seed("keyed"), _parser.seed("7")) == ("keyed", 7)


def test_radii_are_numbers():
    with pytest.raises(argparse.ArgumentTypeError, match="Received: 1;2"):
        _parser.radii("1;2")
