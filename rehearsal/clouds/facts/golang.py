"""Reads the composite literals of Go source: just enough to see a provider's schemas as data.

Used by `providers.py`. A value is text, a number, or a `Node`. Easy to get wrong: a function's body is skipped but for what it returns
first, so a schema that is built by statements is seen only in part, and what is not understood stands as a node without parts.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/
    |(?P<raw>`[^`]*`)|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<rune>'(?:[^'\\]|\\.)+')
    |(?P<number>-?\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)
    |(?P<sign>:=|\.\.\.|&&|\|\||[=!<>]=|<-|<<|>>|.)""",
    re.X | re.S,
)
_OPEN = {"(": ")", "[": "]", "{": "}"}


@dataclass
class Node:
    """A name (`schema.TypeInt`), a call (`name` and `parts`) or a literal (`name` is its type, `parts` its entries by key or index)."""

    kind: str
    name: str = ""
    parts: list[tuple[Any, Any]] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """Return the entry of a literal by its key."""
        return next((value for name, value in self.parts if name == key), None)

    def values(self) -> list[Any]:
        """Return the entries without their keys."""
        return [value for _, value in self.parts]


Token = tuple[str, str]


def tokens(source: str) -> list[Token]:
    """Return the tokens of a file, without comments."""
    return [(match.lastgroup, match.group()) for match in _TOKEN.finditer(source) if match.lastgroup]


def declarations(source: str) -> Iterator[tuple[str, list[Token]]]:
    """Yield each function's or variable's name with the tokens of what it is: the function's body, or the value."""
    found = tokens(source)
    position = depth = 0
    while position < len(found):
        kind, word = found[position]
        if word in _OPEN:
            depth += 1
        elif word in _OPEN.values():
            depth -= 1
        if depth == 0 and word == "func" and found[position + 1][0] == "name" and found[position + 2][1] == "(":
            start = _body(found, position + 2)
            end = _closing(found, start)
            yield found[position + 1][1], found[start + 1 : end]
            position = end + 1
            continue
        if word in ("var", "const") and depth == 0 and kind == "name":
            position = yield from _variables(found, position)
            continue
        position += 1


def _variables(found: list[Token], position: int) -> Generator[tuple[str, list[Token]], None, int]:
    """Yield the variables of one `var` or `const`, and return where the next declaration begins."""
    grouped = found[position + 1][1] == "("
    end = _closing(found, position + 1) if grouped else len(found)
    position += 2 if grouped else 1
    while position < end:
        name = found[position][1]
        while position < end and found[position][1] != "=":
            if found[position][1] in ("func", "type") and not grouped:
                return position
            position += 1
        rest = found[position + 1 : end]
        yield name, rest
        position += 1 + Reader(rest).skipped()
        if not grouped:
            break
    return end + 1 if grouped else position


def _body(found: list[Token], position: int) -> int:
    """Return where the body of a function begins whose parameters begin at `position`."""
    position = _closing(found, position) + 1
    while found[position][1] != "{" or found[position - 1][1] in ("interface", "struct"):
        position = _closing(found, position) + 1 if found[position][1] in _OPEN else position + 1
    return position


def _closing(found: list[Token], position: int) -> int:
    depth = 0
    while position < len(found):
        word = found[position]
        if word[0] == "sign":
            depth += (word[1] in _OPEN) - (word[1] in _OPEN.values())
            if depth == 0:
                return position
        position += 1
    return len(found) - 1


def returned(body: list[Token]) -> Iterator[Any]:
    """Yield what a function returns, statement by statement."""
    position = 0
    while position < len(body):
        if body[position] == ("name", "return") and position + 1 < len(body):
            yield Reader(body[position + 1 :]).expression()
        position += 1


class Reader:
    """Reads one expression after the other."""

    def __init__(self, found: list[Token]) -> None:
        self.found = found
        self.position = 0

    def peek(self) -> str:
        return self.found[self.position][1] if self.position < len(self.found) else ""

    def skipped(self) -> int:
        """Return how many tokens the expression here has."""
        self.expression()
        return self.position

    def expression(self) -> Any:
        value = self._operand()
        while self.peek() in ("+", "*", "-", "/", "||", "&&", "==", "!=", "<", ">", "|"):
            sign = self.peek()
            self.position += 1
            other = self._operand()
            value = value + other if sign == "+" and isinstance(value, str) and isinstance(other, str) else Node("other")
        return value

    def _operand(self) -> Any:  # noqa: PLR0911 - one line per kind
        if self.position >= len(self.found):
            return Node("other")
        kind, word = self.found[self.position]
        self.position += 1
        if kind == "raw":
            return word[1:-1]
        if kind == "text":
            return _unquoted(word)
        if kind == "number":
            return float(word.replace("_", "")) if re.search(r"[.e]", word) else int(word.replace("_", ""))
        if word in ("&", "*", "!", "-"):
            value = self._operand()
            return -value if word == "-" and isinstance(value, (int, float)) else value
        if word == "{":
            return self._literal("")
        if word == "(":
            value = self.expression()
            self.position += self.peek() == ")"
            return value
        if word == "func":
            return self._function()
        if word in ("[", "map"):
            return self._typed(word)
        return self._named(word) if kind == "name" else Node("other")

    def _function(self) -> Node:
        while self.peek() not in ("{", ""):
            self.position = _closing(self.found, self.position) + 1 if self.peek() in ("(", "[") else self.position + 1
        end = _closing(self.found, self.position)
        body = self.found[self.position + 1 : end]
        self.position = end + 1
        return Node("function", parts=[(None, value) for value in returned(body)][:1])

    def _typed(self, word: str) -> Any:
        """A literal of a slice or a map: `[]string{...}`, `map[string]*schema.Schema{...}`."""
        name = word
        while self.peek() not in ("{", ",", ")", ""):
            name += self.peek()
            self.position += 1
            if name.endswith(("interface", "struct")):
                self.position = _closing(self.found, self.position) + 1
        if self.peek() != "{":
            return Node("other")
        self.position += 1
        return self._literal(name)

    def _named(self, word: str) -> Any:
        name = word
        while True:
            if self.peek() == "." and self.position + 1 < len(self.found) and self.found[self.position + 1][0] == "name":
                name += "." + self.found[self.position + 1][1]
                self.position += 2
            elif self.peek() == "{" and (name[:1].isupper() or "." in name):
                self.position += 1
                return self._literal(name)
            elif self.peek() == "(":
                self.position += 1
                call = Node("call", name, self._entries(")"))
                while self.peek() == ".":  # a method of what was returned
                    self.position += 2
                    if self.peek() == "(":
                        self.position += 1
                        self._entries(")")
                return call
            elif self.peek() == "[":
                self.position = _closing(self.found, self.position) + 1
            else:
                return {"true": True, "false": False}.get(name, Node("name", name))

    def _literal(self, name: str) -> Node:
        return Node("literal", name, self._entries("}"))

    def _entries(self, closing: str) -> list[tuple[Any, Any]]:
        parts: list[tuple[Any, Any]] = []
        while self.peek() not in (closing, ""):
            before = self.position
            value = self.expression()
            if self.peek() == ":":
                self.position += 1
                key = value.name if isinstance(value, Node) else value
                parts.append((key, self.expression()))
            else:
                parts.append((None, value))
            while self.peek() in (",", "..."):
                self.position += 1
            if self.position == before:
                self.position += 1
        self.position += 1
        return parts


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "'": "'"}


def _unquoted(word: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), word[1:-1])
