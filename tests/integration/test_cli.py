"""What the command line shows is what it understands."""

import re
import shlex

import keras
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


def parser_of(name):
    (commands,) = [a for a in cli.make_parser()._actions if a.choices]
    return commands.choices[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_parses(name):
    lines = parser_of(name).epilog.splitlines()
    calls = [line for line in lines if line.lstrip().startswith("rs-keras ")]
    assert calls, "an example starts with rs-keras"
    for line in calls:
        args = cli.make_parser().parse_args(shlex.split(line)[1:])
        assert args.command == name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_is_explained(name):
    for action in parser_of(name)._actions:
        assert action.help, f"{name} {action.option_strings or action.dest}"


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name in COMMANDS:
        assert re.search(rf"^    {name}\b", shown, re.M)


def test_a_command_that_is_not_there_names_the_nearest(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["dmo"])
    assert ended.value.code == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("rs-keras: `COMMAND` must be one of train, tune, ")
    assert error.endswith("Received: COMMAND='dmo'. Did you mean 'demo'?")
    assert hint == "see rs-keras --help"


@pytest.mark.parametrize(
    ("call", "command", "why"),
    [
        ("table", "rs-keras table", "required: LOG"),
        ("table a --no", "rs-keras table", "unrecognized arguments: --no"),
        ("certify mnist", "rs-keras certify", "--model --servers is required"),
        (
            "table a --radii 0;1",
            "rs-keras table",
            "such as 0,0.25,0.5. Received: 0;1",
        ),
        ("predict d --model m --n x", "rs-keras predict", "value: 'x'"),
        ("--no", "rs-keras", "unrecognized arguments: --no"),
    ],
)
def test_a_call_that_is_wrong_gets_one_line_and_a_hint(
    call, command, why, capsys
):
    with pytest.raises(SystemExit) as ended:
        main(call.split())
    assert ended.value.code == 2
    said = capsys.readouterr()
    error, hint = said.err.splitlines()
    assert error.startswith(f"{command}: ")
    assert error.endswith(why)
    assert hint == f"see {command} --help"
    assert said.out == ""


def save_model(path, shape):
    keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(3, 1),
            keras.layers.GlobalAveragePooling2D(),
        ]
    ).save(path)
    return str(path)


@pytest.mark.parametrize(
    ("shape", "takes"), [([8, 8, 3], "8x8x3"), ([None, None, 3], "?x?x3")]
)
@pytest.mark.parametrize(
    "command",
    ["predict", "decide --radius 0.1", "decide --radius 0.1 --out", "certify"],
)
def test_images_of_another_shape_than_the_models(
    command, shape, takes, tmp_path, capsys
):
    model = save_model(tmp_path / "c.keras", shape)
    log = tmp_path / "log.tsv"
    name, *words = command.split()
    if name == "certify":
        words = ["--out"]
    words += [str(log)] * ("--out" in words)
    call = [name, "fashion_mini", "--model", model, "--sigma", "0.5", *words]
    assert main(call) == 2
    assert capsys.readouterr().err == (
        f"rs-keras {name}: `DATA` must have images of the model's shape: the "
        f"model takes {takes} images; fashion_mini has 28x28x1\n"
    )
    assert not log.exists()


def test_images_of_another_shape_than_a_saved_models(tmp_path, capsys):
    save_model(tmp_path / "c.keras", [8, 8, 3])
    model = keras.saving.load_model(tmp_path / "c.keras")
    model.export(tmp_path / "saved", verbose=False)
    words = ["--model", str(tmp_path / "saved"), "--sigma", "0.5"]
    assert main(["predict", "fashion_mini", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("takes 8x8x3 images; fashion_mini has 28x28x1")


def test_a_model_of_any_size_takes_what_has_its_channels(tmp_path, capsys):
    model = save_model(tmp_path / "c.keras", [None, None, 1])
    words = ["fashion_mini", "--model", model, "--sigma", "0.5", "--n", "20"]
    assert main(["predict", *words, "--max-examples", "1"]) == 0
    assert capsys.readouterr().err == ""


MISSING = {
    "log": ("table nofile.tsv", "`LOG`", "read"),
    "one log of two": ("table good.tsv nofile.tsv", "`LOG`", "read"),
    "image": (
        "certify nofile.png --model c.keras --sigma 0.5",
        "`DATA`",
        "read",
    ),
    "recipe": ("train --recipe nofile.json", "`--recipe`", "read"),
    "plot": ("plot good.tsv -o no/nofile.png", "`--out`", "written"),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_file_that_is_not_there_is_told_with_its_argument(
    case, tmp_path, monkeypatch, capsys
):
    call, argument, use = MISSING[case]
    monkeypatch.chdir(tmp_path)
    save_model("c.keras", [8, 8, 3])
    header = "idx label predict radius correct time".replace(" ", "\t")
    (tmp_path / "good.tsv").write_text(f"{header}\n0\t1\t1\t0.5\t1\t1.0\n")
    assert main(call.split()) == 2
    name = next(word for word in call.split() if "nofile" in word)
    assert capsys.readouterr().err == (
        f"rs-keras {call.split()[0]}: {argument} must name a file that can "
        f"be {use}. Received: {name} (No such file or directory)\n"
    )


def test_a_folder_that_cannot_be_made(tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.touch()
    words = ["fashion_mini", "--method", "gaussian", "--sigma", "0.5"]
    assert main(["train", *words, "--out", str(taken)]) == 2
    assert capsys.readouterr().err == (
        "rs-keras train: `--out` must name a folder that can be written. "
        f"Received: {taken} (File exists)\n"
    )


def test_a_file_that_no_argument_names_is_told_by_itself(monkeypatch, capsys):
    def run(args):
        raise PermissionError(13, "Permission denied", "some/where")

    monkeypatch.setattr("rs_keras.cli.table.run", run)
    assert main(["table", "a.tsv"]) == 2
    told = "rs-keras table: some/where: Permission denied\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_line_says_what_the_command_does(name):
    verb = parser_of(name).description.split()[0]
    assert verb.endswith("s")
