"""Evaluates `${{ }}` of GitHub Actions for the forms that the generated workflows use; another one is an error."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TOKEN = re.compile(r"\s*(?:('(?:[^']|'')*')|(&&|\|\||==|!=|[!(),])|([\w*-]+(?:\.[\w*-]+)*))")
STATUS = ("always", "success", "failure", "cancelled")


class UnknownFormError(Exception):
    """Raised for an expression that this does not evaluate."""


class Context:
    """What expressions see: the contexts by name, the folder for `hashFiles`, and whether a step failed."""

    def __init__(self, values: Mapping[str, Any], folder: Path = Path(), *, failed: bool = False) -> None:
        self.values, self.folder, self.failed = values, folder, failed


def interpolate(text: Any, context: Context) -> Any:
    """Replace the expressions in a text, and in the texts of a map or list."""
    if isinstance(text, Mapping):
        return {key: interpolate(value, context) for key, value in text.items()}
    if isinstance(text, list):
        return [interpolate(value, context) for value in text]
    if not isinstance(text, str):
        return text
    return re.sub(r"\$\{\{(.*?)\}\}", lambda found: shown(evaluate(found[1], context)), text)


def condition(text: Any, context: Context) -> bool:
    """Evaluate an `if`; without a status function, it also requires that nothing failed."""
    source = str(text).strip().removeprefix("${{").removesuffix("}}")
    value = bool(evaluate(source, context))
    return value if re.search(rf"\b({'|'.join(STATUS)})\(", source) else value and not context.failed


def shown(value: Any) -> str:
    """Return a value as GitHub writes it into a text."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def tokens_of(source: str, token: re.Pattern[str]) -> list[re.Match[str]]:
    """Split an expression.

    Raises:
        UnknownFormError: a part of it is not a token.
    """
    tokens, position = [], 0
    while source[position:].strip():
        match = token.match(source, position)
        if match is None:
            raise UnknownFormError(source)
        tokens.append(match)
        position = match.end()
    return tokens


def evaluate(source: str, context: Context) -> Any:
    """Evaluate one expression.

    Raises:
        UnknownFormError: it has a form, a context or a function that is not known here.
    """
    tokens = tokens_of(source, TOKEN)
    parser = _Parser(source, tokens, context)
    value = parser.either()
    if parser.position != len(tokens):
        raise UnknownFormError(source)
    return value


class _Parser:
    def __init__(self, source: str, tokens: list[re.Match[str]], context: Context) -> None:
        self.source, self.tokens, self.context, self.position = source, tokens, context, 0

    def take(self, *required: str) -> str:
        """Consume the next token if it is one of these operators; return it, or an empty text."""
        if self.position < len(self.tokens) and self.tokens[self.position][2] in required:
            self.position += 1
            return str(self.tokens[self.position - 1][2])
        return ""

    def either(self) -> Any:
        value = self.both()
        while self.take("||"):
            other = self.both()
            value = value or other
        return value

    def both(self) -> Any:
        value = self.compared()
        while self.take("&&"):
            other = self.compared()
            value = value and other
        return value

    def compared(self) -> Any:
        value = self.single()
        while operator := self.take("==", "!="):
            equal = shown(value).lower() == shown(self.single()).lower()  # GitHub ignores the case
            value = equal if operator == "==" else not equal
        return value

    def single(self) -> Any:
        if self.take("!"):
            return not self.single()
        if self.take("("):
            value = self.either()
            if not self.take(")"):
                raise UnknownFormError(self.source)
            return value
        if self.position == len(self.tokens):
            raise UnknownFormError(self.source)
        literal, _, name = self.tokens[self.position].groups()
        self.position += 1
        if literal is not None:
            return literal[1:-1].replace("''", "'")
        if name is None:
            raise UnknownFormError(self.source)
        return self.call(name) if self.take("(") else self.look_up(name)

    def call(self, name: str) -> Any:
        values: list[Any] = []
        while not self.take(")"):
            values.append(self.either())
            self.take(",")
        functions: dict[str, Callable[..., Any]] = {
            "contains": lambda where, what: what in where,
            "hashFiles": self.digest,
            "always": lambda: True,
            "success": lambda: not self.context.failed,
            "failure": lambda: self.context.failed,
        }
        if name not in functions:
            raise UnknownFormError(self.source)
        return functions[name](*values)

    def digest(self, *names: str) -> str:
        found = hashlib.sha256()
        for name in names:
            found.update((self.context.folder / name).read_bytes())
        return found.hexdigest()

    def look_up(self, name: str) -> Any:
        first, *rest = name.split(".")
        if first in ("true", "false"):
            return first == "true"
        if first not in self.context.values:
            raise UnknownFormError(f"{self.source}: no context `{first}` here")
        value = self.context.values[first]
        for index, part in enumerate(rest):
            if part == "*":
                tail = rest[index + 1 :]
                return [_path(each, tail) for each in value]
            value = _path(value, [part])
        return value


def _path(value: Any, parts: list[str]) -> Any:
    for part in parts:
        value = value.get(part, "") if isinstance(value, Mapping) else ""
    return value
