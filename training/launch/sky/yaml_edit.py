"""Edits a YAML file key by key in its text, so that comments and order stay as the user wrote them. Pure.

Forms that cannot be edited in place (flow mappings, anchors) cause the whole file to be rewritten, which is
reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


def changed(text: str, target: Mapping[str, Any]) -> tuple[str, bool]:
    """The text edited so that it parses as `target`, and whether comments may have been lost."""
    try:
        found = _patched(text, target)
        if yaml.safe_load(found) == target:
            return found, _comments_lost(text, found)
    except (_NotEditableError, yaml.YAMLError):
        pass
    return yaml.safe_dump(dict(target), sort_keys=False, width=150), "#" in text


def _comments_lost(before: str, after: str) -> bool:
    """Whether a comment was removed with its value. A `#` in a value may count as one, which only warns."""
    return any(line[line.index("#") :] not in after for line in before.splitlines() if "#" in line)


class _NotEditableError(Exception):
    """Raised where the text has a form that cannot be edited in place."""


def _patched(text: str, target: Mapping[str, Any]) -> str:
    text = text if not text or text.endswith("\n") else f"{text}\n"
    for _ in range(1000):
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return text + yaml.safe_dump(dict(target), sort_keys=False, width=150)
        edit = _next_edit(text, node, target, 0)
        if edit is None:
            return text
        start, end, new = edit
        text = text[:start] + new + text[end:]
    raise _NotEditableError


Edit = tuple[int, int, str]
"""Start, end, and the new text between them."""


def _next_edit(text: str, node: yaml.Node, target: Mapping[str, Any], indent: int) -> Edit | None:
    """The first edit that brings the mapping `node` closer to `target`; None if they are equal."""
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        raise _NotEditableError
    have = {key.value: (key, value) for key, value in node.value}
    for name, value in target.items():
        if name not in have:
            end = _end_of(text, node.value[-1][1])
            return end, end, _block(name, value, indent)
        key, old = have[name]
        if _value(old) == value:
            continue
        if (
            isinstance(value, Mapping)
            and value
            and isinstance(old, yaml.MappingNode)
            and not old.flow_style
            and old.value
        ):
            deeper = old.value[0][0].start_mark.column
            return _next_edit(text, old, value, deeper)
        start = key.start_mark.index
        return start, _end_of(text, old, key), _block(name, value, indent).removeprefix(" " * indent)
    for name, (key, old) in have.items():
        if name not in target:
            return key.start_mark.index - indent, _end_of(text, old, key), ""
    return None


def _value(node: yaml.Node) -> Any:
    return yaml.safe_load(yaml.serialize(node))


def _end_of(text: str, node: yaml.Node, key: yaml.Node | None = None) -> int:
    """Where the last line of a value ends, after its newline. Later blank lines and comments are not part of
    it.

    NOTE: PyYAML's end mark of a block is the start of whatever follows, including comments before that.
    """
    last = node
    while isinstance(last, yaml.CollectionNode) and not last.flow_style and last.value:
        inner = last.value[-1]
        last = inner[1] if isinstance(inner, tuple) else inner
    at = last.end_mark.index
    if key is not None:
        at = max(at, key.end_mark.index)
    if isinstance(last, yaml.ScalarNode) and last.style in ("|", ">"):
        return at
    newline = text.find("\n", at)
    return len(text) if newline < 0 else newline + 1


def _block(name: str, value: Any, indent: int) -> str:
    lines = yaml.safe_dump({name: value}, sort_keys=False, width=150).splitlines()
    return "".join(f"{' ' * indent}{line}\n" for line in lines)
