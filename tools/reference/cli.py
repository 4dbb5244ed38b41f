"""docs/reference/cli.md: every command of `trainfleet`, read from the command tree of the program itself."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from tools.reference.pages import header
from tools.reference.tables import anchor, code, table

PROGRAM = "trainfleet"
COMPLETION = ("install_completion", "show_completion")
"""Options of the shell's completion: shown once, for the program."""
NOT_RUN = "<!-- not run: examples of single commands, with names of other machines; a test parses them -->"
KINDS = {str: "string", int: "integer", float: "number", bool: "flag", Path: "path"}


class Help(NamedTuple):
    """A command's help text in parts."""

    text: list[str]
    examples: list[str]
    exit_codes: str


class Entry(NamedTuple):
    """A command: its full name, the Click command, and the names of its subcommands."""

    name: str
    command: Any
    children: list[str]


def markdown() -> str:
    """The page."""
    from trainfleet.console import EXIT_CODES

    found = list(entries())
    parts = [header("Command line"), f"```text\n{PROGRAM} [OPTIONS] COMMAND [ARGS]...\n```\n"]
    parts.append(
        "`trainfleet COMMAND --help` prints the section of a command. Results go to stdout, progress and"
    )
    parts.append("errors to stderr. With `--json`, stdout holds one JSON document.\n")
    parts.append(_parameters("Option", found[0].command.params))
    parts.append("## Exit codes\n\nThese hold for every command unless its section lists its own.\n")
    parts.append(table(("Code", "Meaning"), _codes(EXIT_CODES)))
    parts.append("## Commands\n")
    parts.append(table(("Command", "Purpose"), _summary(found)))
    for entry in found[1:]:
        parts += _section(entry, EXIT_CODES)
    return "\n".join(parts)


def entries() -> Iterator[Entry]:
    """Every visible command: the program first, each group before its subcommands."""
    import typer

    from trainfleet.cli import app

    program: Any = typer.main.get_command(app)
    context = program.make_context(PROGRAM, [], resilient_parsing=True)
    names = program.list_commands(context)
    yield Entry(PROGRAM, program, names)
    for name in names:
        _, command, _ = program.resolve_command(context, [name])
        yield from _below(f"{PROGRAM} {name}", command, context)


def _below(name: str, command: Any, parent: Any) -> Iterator[Entry]:
    if command.hidden:
        return
    context = command.context_class(command, parent=parent, info_name=command.name)
    children = command.list_commands(context) if hasattr(command, "list_commands") else []
    yield Entry(name, command, children)
    for child in children:
        yield from _below(f"{name} {child}", command.get_command(context, child), context)


def read_help(text: str) -> Help:
    """A help text in parts: paragraphs, the commands below `Examples`, and its own exit codes, if any."""
    paragraphs, examples, exit_codes, in_examples = [], [], "", False
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if re.fullmatch(r"\[bold\]Examples?\[/\]", paragraph.strip()):
            in_examples = True
        elif paragraph.startswith("Exit codes:"):
            exit_codes = _plain(paragraph)
        elif in_examples and not paragraph.strip()[:1].isupper():
            examples += _commands(paragraph)
        else:
            paragraphs.append(_plain(paragraph))
    return Help(paragraphs, examples, exit_codes)


def _commands(paragraph: str) -> list[str]:
    """The commands of a paragraph of examples; a line without a program continues the one before."""
    found: list[str] = []
    for line in map(str.strip, paragraph.splitlines()):
        if found and not re.match(r"[a-z]+( |$)", line):
            found[-1] += f" {line}"
        else:
            found.append(line)
    return [_unmarked(each) for each in found]


def _section(entry: Entry, exit_codes: str) -> Iterator[str]:
    shown = read_help(entry.command.help or "")
    depth = "##" if entry.name.count(" ") == 1 else "###"
    yield f"{depth} {entry.name}\n"
    yield f"```text\n{_usage(entry)}\n```\n"
    yield "\n\n".join(shown.text) + "\n"
    if entry.children:
        links = [f"[{child}](#{anchor(f'{entry.name} {child}')})" for child in entry.children]
        yield f"Subcommands: {', '.join(links)}.\n"
    arguments = [each for each in entry.command.params if each.param_type_name == "argument"]
    for title, found in (("Argument", arguments), ("Option", _options(entry.command))):
        if found:
            yield _parameters(title, found, entry.command)
    if shown.examples:
        yield f"Examples:\n\n{NOT_RUN}\n```sh\n" + "\n".join(shown.examples) + "\n```\n"
    if not entry.children:
        own = shown.exit_codes.removeprefix("Exit codes: ")
        common = not own or shown.exit_codes == exit_codes
        yield "Exit codes: [common](#exit-codes).\n" if common else f"Exit codes: {own}\n"


def _usage(entry: Entry) -> str:
    if entry.children:
        return f"{entry.name} COMMAND [ARGS]..."
    parts = [entry.name] + (["[OPTIONS]"] if _options(entry.command) else [])
    for each in entry.command.params:
        if each.param_type_name == "argument" and not each.hidden:
            name = _placeholder(each)
            many = each.nargs != 1 and not name.endswith("...")
            shown = name if each.required or name.startswith("[") else f"[{name}]"
            parts.append(f"{shown}..." if many else shown)
    return " ".join(parts)


def _options(command: Any) -> list[Any]:
    found = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    return [each for each in found if each.name not in COMPLETION]


def _parameters(title: str, found: list[Any], command: Any = None) -> str:
    hints = typing.get_type_hints(inspect.unwrap(command.callback)) if command and command.callback else {}
    rows = [
        (_name(each), _kind(each, hints.get(each.name, bool)), _default(each), _plain(each.help or ""))
        for each in found
    ]
    return table((title, "Type", "Default", "Description"), rows)


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return code(_placeholder(parameter).strip("[]."))
    names = [*parameter.opts, *parameter.secondary_opts]
    return ", ".join(code(each) for each in names)


def _placeholder(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _kind(parameter: Any, hint: Any) -> str:
    """The type in words, with the placeholder of the help, the limits and whether it can be repeated."""
    many = parameter.nargs != 1 or getattr(parameter, "multiple", False)
    inner = _inner(hint)
    if isinstance(inner, type) and issubclass(inner, Enum):
        kind = " or ".join(code(choice.value) for choice in inner)
    elif typing.get_origin(inner) is typing.Literal:
        kind = " or ".join(code(choice) for choice in typing.get_args(inner))
    else:
        kind = KINDS.get(inner, getattr(inner, "__name__", str(inner)).lower())
    if parameter.param_type_name == "option" and parameter.metavar:
        kind += f" {code(parameter.metavar)}"
    limits = ((getattr(parameter, "min", None), "at least"), (getattr(parameter, "max", None), "at most"))
    kind += "".join(f", {word} {bound:g}" for bound, word in limits if bound is not None)
    return f"{kind}, repeatable" if many else kind


def _inner(hint: Any) -> Any:
    """The type of one value: without `None`, and of a list its members'."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _inner(next(each for each in typing.get_args(hint) if each is not type(None)))
    if typing.get_origin(hint) in (list, tuple):
        return _inner(typing.get_args(hint)[0])
    return hint


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return _plain(parameter.show_default)
    value = parameter.default
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value in (None, "") else code(value)


def _summary(found: list[Entry]) -> list[tuple[str, str]]:
    """The command table of the program's own help."""
    from trainfleet.cli import COMMANDS

    rows = [(f"{PROGRAM} {name}", _plain(each.help)) for name, each in COMMANDS.items()]
    visible = {entry.name for entry in found}
    return [(f"[{name}](#{anchor(name)})", text) for name, text in rows if name in visible]


def _codes(text: str) -> Iterator[tuple[str, str]]:
    """`Exit codes: 0 done; 1 it ran and failed.` as rows."""
    for part in text.removeprefix("Exit codes:").strip().rstrip(".").split(";"):
        number, _, meaning = part.strip().partition(" ")
        yield number, meaning


def _plain(text: str) -> str:
    """Help text as Markdown: Rich's dimmed text becomes code, other styles are dropped."""
    return " ".join(_unmarked(re.sub(r"\[dim\](.*?)\[/\]", r"`\1`", text, flags=re.DOTALL)).split())


def _unmarked(text: str) -> str:
    from rich.text import Text

    return Text.from_markup(text).plain
