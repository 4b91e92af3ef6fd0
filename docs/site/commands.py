"""The page of the command line, from its parser."""

import argparse
import html
import re
from collections.abc import Iterator

from rs_keras import _compat
from rs_keras import cli


def page() -> str:
    """Returns Markdown: exit codes, and every command with its arguments."""
    [commands] = (
        action.choices
        for action in _compat.arguments_of(cli.make_parser())
        if isinstance(action.choices, dict)
    )
    parts = [_exit_codes(), _overview(commands)]
    parts += [_section(name, command) for name, command in commands.items()]
    return "\n\n".join(parts)


def _exit_codes() -> str:
    """Makes a table of the codes that `main` says it returns."""
    said = " ".join((cli.main.__doc__ or "").split())
    rows = re.findall(r"(\d+): (.+?)\.(?= \d+: |$)", said)
    table = [f"| {code} | {_text(what)} |" for code, what in rows]
    return "\n".join(["| exit code | |", "| --- | --- |", *table])


def _overview(commands: dict[str, argparse.ArgumentParser]) -> str:
    rows = [
        f"| [`{name}`](#{name}) | {_text(command.description or '')} |"
        for name, command in commands.items()
    ]
    return "\n".join(["| command | |", "| --- | --- |", *rows])


def _section(name: str, command: argparse.ArgumentParser) -> str:
    usage = usage_of(command)
    example = (command.epilog or "").removeprefix("example:").strip()
    return "\n\n".join(
        [
            f"## {name} {{#{name}}}",
            f"{_text(_sentence(command.description or ''))}",
            _block(example),
            *_tables(command),
            f'??? note "Usage"\n\n{_indented(_block(usage))}',
        ]
    )


def usage_of(parser: argparse.ArgumentParser) -> str:
    """Returns a parser's usage in 80 columns, without the word "usage".

    argparse writes it below that word, as wide as the terminal is.
    """
    formatter = argparse.HelpFormatter(parser.prog, width=80)
    groups = parser._mutually_exclusive_groups
    formatter.add_usage(parser.usage, parser._actions, groups, "")
    return formatter.format_help()


def help_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Returns an argument's help with defaults and choices filled in.

    argparse fills them in where it prints a whole page.
    """
    formatter = argparse.HelpFormatter(parser.prog)
    return formatter._expand_help(action) if action.help else ""


def _tables(command: argparse.ArgumentParser) -> Iterator[str]:
    """Yields a table for each group of arguments, under its heading."""
    # argparse has no public way to list the groups.
    for group in command._action_groups:
        rows = [_row(command, one) for one in _compat.arguments_of(group)]
        if rows := [row for row in rows if row]:
            title = f"| {group.title} | |"
            yield "\n".join([title, "| --- | --- |", *rows])


def _row(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    if action.dest == "help":
        return ""
    words = help_of(command, action)
    plain = action.default not in (None, False, [], argparse.SUPPRESS)
    if plain and "default" not in words:
        words = f"{words} (default: {action.default})".strip()
    call = f"<code>{html.escape(_call(action))}</code>".replace("|", "&#124;")
    return f"| {call} | {_text(words)} |"


def _call(action: argparse.Action) -> str:
    """Returns how an argument is written: `-o, --out FILE`."""
    if action.nargs == 0:
        return ", ".join(action.option_strings)
    flags = ", ".join(action.option_strings)
    return f"{flags} {_compat.values_of(action)}".strip()


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _text(words: str) -> str:
    """Returns words as text of a table's cell: no markup but code spans."""
    return re.sub(r"([*_<>|\[\]])", r"\\\1", words)


def _block(text: str) -> str:
    return f"```text\n{text.strip()}\n```"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
