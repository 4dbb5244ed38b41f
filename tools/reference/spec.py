"""docs/reference/spec.md: every key of the platform spec, read from its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools.reference.pages import header
from tools.reference.tables import anchor, code, table

EXAMPLE = Path(__file__).with_name("spec_example.yaml")
DEFINITIONS = "#/$defs/"
INTRODUCTION = """The platform spec is the value of `trainfleet:platform` in a stack file,
`stacks/Pulumi.<env>.yaml`. This page lists its keys. Paths are those that messages and `--set` use.
`[]` marks an entry of a list.

- Check a spec: `trainfleet spec check <stack>`. It reports every mistake at once, with the line of each.
- Complete and check a spec in an editor: put `# yaml-language-server: $schema=./platform.schema.json` in the
  first line of the stack file. `trainfleet spec schema` prints that schema.
- Unknown keys are rejected. `trainfleet spec check` also applies the rules between keys and those of each
  cloud. The JSON Schema covers single keys only.
"""
TYPES = {"array": "list", "object": "mapping"}
FORMATS = {"ipv4network": "IPv4 range", "date": "date", "path": "path"}


class Section(NamedTuple):
    """A group of keys: its path (empty for the root), its schema, and how it may occur."""

    path: str
    schema: dict[str, Any]
    note: str


def markdown() -> str:
    """The page."""
    found = list(sections())
    parts = [header("Platform spec"), INTRODUCTION, _contents(found)]
    for section in found:
        parts.append(f"## {section.path or 'Top level'}\n")
        if section.path:
            parts.append(" ".join(filter(None, [_text(section.schema), section.note])) + "\n")
        rows = [_row(section, name, each) for name, each in section.schema["properties"].items()]
        parts.append(table(("Key", "Type", "Default", "Allowed values", "Description"), rows))
    parts.append("## Example\n\nA production platform on AWS. It passes `trainfleet spec check`.\n")
    parts.append(f"```yaml\n{EXAMPLE.read_text(encoding='utf-8')}```\n")
    return "\n".join(parts)


def sections() -> Iterator[Section]:
    """The groups of keys, each before the groups in it."""
    platform, definitions = _schema()
    yield from _sections(Section("", platform, ""), definitions)


def keys() -> list[str]:
    """The path of every key, as the page shows it."""
    return [_join(section.path, name) for section in sections() for name in section.schema["properties"]]


def undescribed() -> list[str]:
    """Keys without a description of their own or of the group that they hold."""
    _, definitions = _schema()
    found = []
    for section in sections():
        for name, each in section.schema["properties"].items():
            group = _group(each, definitions)
            if not each.get("description") and not (group and _text(group.schema)):
                found.append(_join(section.path, name))
    return found


def _schema() -> tuple[dict[str, Any], dict[str, Any]]:
    from trainfleet.infra.spec.json_schema import stack_schema

    definitions = stack_schema()["$defs"]
    return definitions["PlatformSpec"], definitions


def _sections(section: Section, definitions: dict[str, Any]) -> Iterator[Section]:
    yield section
    for name, each in section.schema["properties"].items():
        group = _group(each, definitions)
        if group is not None:
            path = _join(section.path, name + group.path)
            yield from _sections(Section(path, group.schema, group.note), definitions)


def _group(key: dict[str, Any], definitions: dict[str, Any]) -> Section | None:
    """The group that a key holds, with what its path gets (`[]` for a list); None for a plain value."""
    path, note, schema = "", "", key
    if schema.get("type") == "array":
        path, note, schema = "[]", "A list; each entry has these keys.", schema.get("items", {})
    for choice in schema.get("anyOf", []):
        if "$ref" in choice:
            note, schema = "Optional.", choice
    if "$ref" not in schema:
        return None
    held = definitions[schema["$ref"].removeprefix(DEFINITIONS)]
    return Section(path, held, note) if "properties" in held else None


def _row(section: Section, name: str, key: dict[str, Any]) -> tuple[str, ...]:
    """The row of a key; a key that holds a group links to the group's section."""
    _, definitions = _schema()
    path = _join(section.path, name)
    group = _group(key, definitions)
    if group is not None:
        shown = _join(section.path, name + group.path)
        kind = "list of groups" if group.path else "group"
        return (
            f"`{path}`",
            kind,
            "",
            "",
            f"{_text(key) or _text(group.schema)} See [{shown}](#{anchor(shown)}).",
        )
    default = "required" if name in section.schema.get("required", []) else _default(key)
    resolved = _resolved(key, definitions)
    return f"`{path}`", _type(resolved, definitions), default, _allowed(resolved, definitions), _text(key)


def _resolved(key: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The key's schema, with what it refers to put in."""
    if "$ref" in key:
        return {**definitions[key["$ref"].removeprefix(DEFINITIONS)], **key}
    return key


def _choices(key: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas of which a value matches one."""
    choices: list[dict[str, Any]] = key.get("anyOf") or key.get("oneOf") or []
    return choices


def _type(key: dict[str, Any], definitions: dict[str, Any]) -> str:
    key = _resolved(key, definitions)
    if choices := _choices(key):
        return " or ".join(_type(choice, definitions) for choice in choices)
    if key.get("format") in FORMATS:
        return FORMATS[key["format"]]
    kind = str(key.get("type", "any"))
    if kind == "array":
        return f"list of {_type(key.get('items', {}), definitions)}"
    if kind == "object" and isinstance(key.get("additionalProperties"), dict):
        return f"mapping of string to {_type(key['additionalProperties'], definitions)}"
    return TYPES.get(kind, kind)


def _allowed(key: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Choices and limits in words."""
    key = _resolved(key, definitions)
    if "enum" in key:
        return ", ".join(code(_plain(choice)) for choice in key["enum"])
    if choices := _choices(key):
        return "; ".join(filter(None, (_allowed(choice, definitions) for choice in choices)))
    parts = [
        f"{word} {key[name]:g}"
        for name, word in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "below"),
        )
        if name in key
    ]
    lengths = (("minLength", "characters"), ("minItems", "entries"))
    parts += [f"at least {key[name]} {unit}" for name, unit in lengths if name in key]
    if "pattern" in key:
        parts.append(f"matches `{key['pattern']}`")
    if key.get("type") == "array" and (each := _allowed(key.get("items", {}), definitions)):
        parts.append(f"each entry: {each}")
    return ", ".join(parts)


def _default(key: dict[str, Any]) -> str:
    value = key.get("default")
    return "" if value is None else code(_plain(value) if value != "" else '""')


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _text(schema: dict[str, Any]) -> str:
    text = " ".join(str(schema.get("description", "")).split())
    return f"Deprecated. {text}" if schema.get("deprecated") else text


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _contents(found: list[Section]) -> str:
    titles = [section.path or "Top level" for section in found] + ["Example"]
    return "Sections: " + ", ".join(f"[{title}](#{anchor(title)})" for title in titles) + ".\n"
