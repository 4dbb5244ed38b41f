"""Changes a YAML file key by key in its text, so that comments, order and the rest of it stay as the user
wrote them. Pure.

Used for SkyPilot's configuration. Easy to get wrong: a value's place in the text is where PyYAML says it
starts and ends, and the end
of a block is the start of whatever comes next, comments before that included; what cannot be changed in place
(a flow
mapping, an anchor) makes the whole file be written anew, which the caller is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


def changed(text: str, wanted: Mapping[str, Any]) -> tuple[str, bool]:
    """The text that reads as `wanted`, and whether comments may have been lost on the way."""
    try:
        found = _patched(text, wanted)
        if yaml.safe_load(found) == wanted:
            return found, _comments_lost(text, found)
    except (_NotHereError, yaml.YAMLError):
        pass
    return yaml.safe_dump(dict(wanted), sort_keys=False, width=150), "#" in text


def _comments_lost(before: str, after: str) -> bool:
    """Whether a comment went with the value that it stood behind; a `#` in a value may be taken for one,
    which costs a needless word.
    """
    return any(line[line.index("#") :] not in after for line in before.splitlines() if "#" in line)


class _NotHereError(Exception):
    """Raised where the text has a form that is not changed in place."""


def _patched(text: str, wanted: Mapping[str, Any]) -> str:
    text = text if not text or text.endswith("\n") else f"{text}\n"
    for _ in range(1000):
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return text + yaml.safe_dump(dict(wanted), sort_keys=False, width=150)
        edit = _next_edit(text, node, wanted, 0)
        if edit is None:
            return text
        start, end, new = edit
        text = text[:start] + new + text[end:]
    raise _NotHereError


Edit = tuple[int, int, str]
"""From, to, and the new text between."""


def _next_edit(text: str, node: yaml.Node, wanted: Mapping[str, Any], indent: int) -> Edit | None:
    """The first change that brings the mapping `node` nearer to `wanted`; nothing when it is there."""
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        raise _NotHereError
    have = {key.value: (key, value) for key, value in node.value}
    for name, value in wanted.items():
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
        if name not in wanted:
            return key.start_mark.index - indent, _end_of(text, old, key), ""
    return None


def _value(node: yaml.Node) -> Any:
    return yaml.safe_load(yaml.serialize(node))


def _end_of(text: str, node: yaml.Node, key: yaml.Node | None = None) -> int:
    """Where the last line of a value ends, after its newline; blank lines and comments behind it are not its
    own.
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
