"""Rows from the schemas of a Terraform provider (goreader/), in the names of the installed Pulumi SDK.

A Pulumi package over a Terraform provider renames each property by rule (`kms_key_id` is `kmsKeyId`, a list
gets a plural name, a block of at most one item is not a list). The installed SDK says which form it took.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainfleet.rehearsal.simulation.conditions import condition
from trainfleet.rehearsal.simulation.knowledge_table import Row
from trainfleet.rehearsal.simulation.property_paths import join_path
from trainfleet.rehearsal.simulation.schema import Kind, Package, Property, inputs_of

Attributes = Mapping[str, Mapping[str, Any]]
Path = tuple[str, ...]
_CASELESS = re.compile(r"case.?insensitive|caseless|^CaseDiffSuppress", re.IGNORECASE)
_ENOUGH = 0.7
"""Smallest share of properties in common of a type and a Terraform resource."""
_SAME = 0.9


@dataclass
class Reading:
    """What was read of the types of one package."""

    rows: dict[str, Row] = field(default_factory=dict)
    terraform: dict[str, str] = field(default_factory=dict)
    """Terraform name by type token."""
    unmatched: list[str] = field(default_factory=list)
    """Types without a Terraform resource."""
    unresolved: list[str] = field(default_factory=list)
    """Inputs of Terraform that the SDK does not have, as `name.path`."""


def read(
    resources: Mapping[str, Any], package: Package, names: Mapping[str, str], every: Iterable[str] = ()
) -> Reading:
    """Return a row for each type of the package.

    Args:
        resources: the output of goreader, by Terraform name.
        package: the installed SDK.
        names: Terraform names by token, as far as they are known.
        every: properties that the provider adds to every resource, so that no schema has them.
    """
    found = Reading()
    types = {token: package.resource(token) for token in package.classes}
    inputs = {token: resource.inputs for token, resource in types.items() if resource is not None}
    found.terraform = {token: name for token, name in names.items() if name in resources and token in inputs}
    others = {token: each for token, each in inputs.items() if token not in found.terraform}
    found.terraform |= _matched(others, resources, package.name)
    for token in sorted(inputs):
        name = found.terraform.get(token)
        if name is None:
            found.unmatched.append(token)
            continue
        found.rows[token] = _row(resources[name], inputs[token], found.unresolved, name, every)
    return found


def _row(
    resource: Mapping[str, Any],
    inputs: Mapping[str, Property],
    lost: list[str],
    name: str,
    every: Iterable[str],
) -> Row:
    row = _Collected()
    for path, attribute in _walk(resource["attributes"] or {}, inputs, (), lost, name):
        row.add(path, attribute)
    for each in resource.get("replacements") or ():
        pulumi = _translated(each["path"], inputs)
        if pulumi is not None:
            row.conditions(pulumi, each["when"], each["code"], inputs)
        elif not each["path"] or _named(each["path"].split(".")[0], inputs):
            row.unclear["*"] = each["code"]
    if resource.get("unread"):
        row.unclear["*"] = "a schema that is too large to read"
    for newer in sorted(inputs.keys() - {path[0] for path in row.seen} - set(every)):
        row.unclear.setdefault(newer, "newer than the source")
    # An index has one file for each symbol: say the package and the symbol.
    return row.row(re.sub(r"/(func|method|var|type)\.(.+)\.goindex$", r" \2", resource["file"]))


@dataclass
class _Collected:
    replace: list[Path] = field(default_factory=list)
    when: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unclear: dict[str, str] = field(default_factory=dict)
    sets: list[Path] = field(default_factory=list)
    caseless: list[Path] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)

    def add(self, path: Path, attribute: Mapping[str, Any]) -> None:
        self.seen.add(path)
        if attribute.get("unread") and path[-1] not in ("tags", "tagsAll"):
            self.unclear[join_path(path)] = "a part of the schema that cannot be read"
        if attribute.get("replace"):
            self.replace.append(path)
        if attribute.get("kind") == "set":
            self.sets.append(path)
        if _CASELESS.search(attribute.get("compare", "")):
            self.caseless.append(path)
        if attribute.get("when") and not attribute.get("replace"):
            self._either(path, attribute["when"], "RequiresReplaceIf of the property")

    def conditions(self, path: Path, texts: Iterable[str], code: str, inputs: Mapping[str, Property]) -> None:
        written = []
        for text in texts:
            event, _, guard = text.partition(" if ")
            if guard:
                of, _, value = guard.partition(" ")
                pulumi = _translated(of, inputs)
                written.append(f"{event} if {join_path(pulumi)} {value}" if pulumi else "")
            else:
                written.append(text)
        self._either(path, written, code)

    def _either(self, path: Path, texts: Iterable[str], code: str) -> None:
        name = join_path(path)
        for text in texts:
            if text == "changes":
                self.replace.append(path)
            elif text:
                condition(name, text)
                self.when[name] = tuple(dict.fromkeys((*self.when.get(name, ()), text)))
            else:
                self.unclear[name] = code

    def row(self, file: str) -> Row:
        replace = [path for path in dict.fromkeys(self.replace) if not _covered(path, self.replace)]
        texts = {join_path(path) for path in replace}
        return Row(
            tuple(sorted(texts)),
            {path: texts_ for path, texts_ in sorted(self.when.items()) if path not in texts},
            {path: code for path, code in sorted(self.unclear.items()) if path not in texts},
            (),
            tuple(sorted(map(join_path, self.sets))),
            tuple(sorted(map(join_path, self.caseless))),
            file,
        )


def _covered(path: Path, all_: Iterable[Path]) -> bool:
    return any(other != path and path[: len(other)] == other for other in all_)


def _walk(
    attributes: Attributes, inputs: Mapping[str, Property], above: Path, lost: list[str], name: str
) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the properties of a schema with their Pulumi paths, those above first."""
    for own, attribute in attributes.items():
        if own == "[*]":
            continue
        found = _named(own, inputs)
        if found is None:
            if attribute.get("input") and own not in ("timeouts", "id", "tags_all"):
                lost.append(f"{name}.{'.'.join((*above, own))}")
            continue
        path = (*above, found)
        yield path, attribute
        if attribute.get("fields") and len(path) < 24:
            nested = _nested(inputs[found].kind)
            if nested is not None:
                steps, below = nested
                yield from _walk(attribute["fields"], below, (*path, *steps), lost, name)


def _nested(kind: Kind) -> tuple[Path, Mapping[str, Property]] | None:
    """Return the steps from a property to its object's properties, and these."""
    steps: Path = ()
    while kind.name == "list" and kind.item is not None:
        kind, steps = kind.item, (*steps, "[*]")
    for choice in (kind, *kind.choices):
        if choice.name == "object" and choice.cls is not None:
            return steps, inputs_of(choice.cls)
    return None


def _translated(path: str, inputs: Mapping[str, Property]) -> Path | None:
    """Return the Pulumi path of `vpc_config.0.subnet_ids`."""
    steps: Path = ()
    if not path:
        return None
    parts = path.split(".")
    for part in parts:
        if part.isdigit() or part == "#":
            continue
        found = _named(part, inputs)
        if found is None:
            return None
        nested = _nested(inputs[found].kind)
        steps = (*steps, found)
        if nested is not None:
            extra, inputs = nested
            if part != parts[-1]:
                steps = (*steps, *extra)
    return steps


def camel(name: str) -> str:
    """Return `kmsKeyId` for `kms_key_id`."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _named(name: str, inputs: Mapping[str, Property]) -> str | None:
    """Return the Pulumi name of a Terraform property, among those that the SDK has."""
    base = camel(name)
    choices = (base, *_plurals(base), *_singulars(base))
    exact = next((each for each in choices if each in inputs), None)
    if exact is not None:
        return exact
    flat = {each.lower(): each for each in inputs}
    return next((flat[each.lower()] for each in choices if each.lower() in flat), None)


def _plurals(name: str) -> tuple[str, ...]:
    return (f"{name}s", f"{name}es", f"{name[:-1]}ies" if name.endswith("y") else f"{name}s")


def _singulars(name: str) -> tuple[str, ...]:
    return (
        *((f"{name[:-3]}y",) if name.endswith("ies") else ()),
        *((name[:-2],) if name.endswith("es") else ()),
        *((name[:-1],) if name.endswith("s") else ()),
        # The package takes a resource where Terraform takes its id or ARN.
        *((name[:-2],) if name.endswith("Id") else (name[:-3],) if name.endswith("Arn") else ()),
    )


def snake(name: str) -> str:
    """Return `lustre_file_system` for `LustreFileSystem`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _matched(
    types: Mapping[str, Mapping[str, Property]], resources: Mapping[str, Any], package: str
) -> dict[str, str]:
    """Match types with Terraform resources by their properties and names; best pairs first."""
    prefix = {"gcp": "google"}.get(package, package)
    shapes = {
        name: {
            _flat(own)
            for own, each in (resource["attributes"] or {}).items()
            if each.get("input") and own != "tags_all"
        }
        for name, resource in resources.items()
    }
    by_word: dict[str, set[str]] = {}
    for name in shapes:
        for word in name.split("_")[1:]:
            by_word.setdefault(word, set()).add(name)
    pairs: list[tuple[float, float, str, str]] = []
    for token, inputs in types.items():
        module, own_name = token.split(":")[1].split("/")[0], snake(token.split(":")[-1])
        expected, short = f"{prefix}_{module}_{own_name}", f"{prefix}_{own_name}"
        own = {_flat(each) for each in inputs} - {"region"}
        words = {*own_name.split("_"), module, *snake(module).split("_")}
        near = set().union(*(by_word.get(word, ()) for word in words))
        for name in near | {each for each in shapes if module in each.replace("_", "")}:
            other = shapes[name] - {"region"}
            share = len(own & other) / len(own | other) if own | other else float(name in (expected, short))
            if share >= (_ENOUGH if name not in (expected, short) else 0.5):
                alike = max(difflib.SequenceMatcher(None, each, name).ratio() for each in (expected, short))
                pairs.append((share + 2 * alike, share, token, name))
    result: dict[str, str] = {}
    used: set[str] = set()
    for _, _, token, name in sorted(pairs, reverse=True):
        if token not in result and name not in used:
            result[token] = name
            used.add(name)
    for _, share, token, name in sorted(pairs, reverse=True):
        if token not in result and share > _SAME:  # a second name of the same resource
            result[token] = name
    return result


def _flat(name: str) -> str:
    """Return what a property's names in Terraform and Pulumi have in common."""
    flat = re.sub(r"_(id|arn)$", "", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).replace("_", "")
    return re.sub(r"(ies|es|s|y|e)$", "", flat)
