"""What the command line shows is what it understands."""

import re
import shlex
from importlib import import_module

import pytest

from rs_keras import cli
from rs_keras.cli import COMMANDS
from rs_keras.cli import main


def usual(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line.strip() for line in lines if line.startswith("  rs-keras ")]


def test_alone_it_shows_five_commands_that_follow_on_each_other(capsys):
    calls = [shlex.split(line)[1:] for line in usual(capsys)]
    parsed = [cli.make_parser().parse_args(call) for call in calls]
    assert [args.command for args in parsed] == [
        "train",
        "certify",
        "report",
        "export",
        "serve",
    ]
    train, certify, report, export, serve = calls
    assert train[-1] == certify[3] == export[1]
    assert certify[-1] == report[1]
    assert export[-1] == serve[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_parses(name):
    lines = import_module(f"rs_keras.cli.{name}").EXAMPLE.splitlines()
    calls = [line for line in lines if line.lstrip().startswith("rs-keras ")]
    assert calls, "an example starts with rs-keras"
    for line in calls:
        args = cli.make_parser().parse_args(shlex.split(line)[1:])
        assert args.command == name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_is_explained(name):
    (commands,) = [a for a in cli.make_parser()._actions if a.choices]
    for action in commands.choices[name]._actions:
        assert action.help, f"{name} {action.option_strings or action.dest}"


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name in COMMANDS:
        assert re.search(rf"^    {name}\b", shown, re.M)
