"""Decides as GitLab does which jobs a pipeline has: `rules`, with `if` and `changes`, and `extends`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.ci.expressions import UnknownFormError, tokens_of

TOKEN = re.compile(r"\s*(?:(==|!=|&&|\|\||\(|\))|\"([^\"]*)\"|\$(\w+)|(null)\b)")
RULE_KEYS = {"if", "changes", "when", "allow_failure"}


@dataclass(frozen=True)
class Chosen:
    """How a job takes part in a pipeline."""

    manual: bool = False
    blocks: bool = True
    """Whether later stages wait for it while nobody started it."""
    always: bool = False
    """Whether it runs also after a failure."""


def holds(source: str, variables: Mapping[str, str]) -> bool:
    """Evaluate an `if`. A variable alone is true if it is not empty; an undefined one is null.

    Raises:
        UnknownFormError: it has a form that is not known here.
    """
    tokens = tokens_of(source, TOKEN)
    values = [_either(tokens, variables, source)]
    if tokens:
        raise UnknownFormError(source)
    return bool(values[0])


def _either(tokens: list[re.Match[str]], variables: Mapping[str, str], source: str) -> Any:
    value = _both(tokens, variables, source)
    while _take(tokens, "||"):
        other = _both(tokens, variables, source)
        value = value or other
    return value


def _both(tokens: list[re.Match[str]], variables: Mapping[str, str], source: str) -> Any:
    value = _compared(tokens, variables, source)
    while _take(tokens, "&&"):
        other = _compared(tokens, variables, source)
        value = value and other
    return value


def _compared(tokens: list[re.Match[str]], variables: Mapping[str, str], source: str) -> Any:
    value = _single(tokens, variables, source)
    if operator := _take(tokens, "==", "!="):
        other = _single(tokens, variables, source)
        return (value == other) == (operator == "==")
    return value


def _single(tokens: list[re.Match[str]], variables: Mapping[str, str], source: str) -> Any:
    if not tokens:
        raise UnknownFormError(source)
    if _take(tokens, "("):
        value = _either(tokens, variables, source)
        if not _take(tokens, ")"):
            raise UnknownFormError(source)
        return value
    operator, text, name, _null = tokens.pop(0).groups()
    if operator is not None:
        raise UnknownFormError(source)
    return text if text is not None else variables.get(name) if name is not None else None


def _take(tokens: list[re.Match[str]], *operators: str) -> str:
    return tokens.pop(0)[1] if tokens and tokens[0][1] in operators else ""


def choose(
    rules: Iterable[Mapping[str, Any]], variables: Mapping[str, str], changed: Iterable[str]
) -> Chosen | None:
    """Return how the first rule that holds adds a job; None: the job is not in the pipeline."""
    files = list(changed)
    for rule in rules:
        if set(rule) - RULE_KEYS:
            raise UnknownFormError(str(rule))
        if "if" in rule and not holds(rule["if"], variables):
            continue
        if "changes" in rule and not any(matches(file, rule["changes"]) for file in files):
            continue
        when = rule.get("when", "on_success")
        if when not in ("on_success", "manual", "always", "never"):
            raise UnknownFormError(str(rule))
        if when == "never":
            return None
        # A manual job blocks if a rule makes it manual, unless it is allowed to fail.
        return Chosen(when == "manual", not rule.get("allow_failure", False), when == "always")
    return None


def matches(file: str, patterns: Iterable[str]) -> bool:
    """Whether a path matches one of the globs of `changes`: `*` ends at a slash, `**/` is any folders."""
    for pattern in patterns:
        parts = re.split(r"(\*\*/|\*)", pattern)
        regex = "".join({"**/": "(?:.*/)?", "*": "[^/]*"}.get(part, re.escape(part)) for part in parts)
        if re.fullmatch(regex, file):
            return True
    return False


def extended(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a job with what it extends: maps are merged, lists replaced."""
    job = document[name]
    bases = job.get("extends", [])
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        merged = merge(merged, extended(document, base))
    return merge(merged, {key: value for key, value in job.items() if key != "extends"})


def merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two maps as GitLab does."""
    nested = {
        key: merge(low[key], high[key])
        for key in low.keys() & high.keys()
        if isinstance(low[key], dict) and isinstance(high[key], dict)
    }
    return {**low, **high, **nested}


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$NAME` and `${NAME}` in a value; an unknown variable is empty."""
    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda found: variables.get(found[1] or found[2], ""), text)
