"""Reads the file of `pulumi stack export`: what is deployed, without the secrets that are encrypted in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet import json_documents
from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.diff import recorded_shapes
from trainfleet.rehearsal.diff.plugin_components import contents
from trainfleet.rehearsal.simulation.deployed import HIDDEN
from trainfleet.rehearsal.simulation.pulumi_values import SECRET, SIGNATURE
from trainfleet.rehearsal.simulation.schema import packages

NEWEST = 4
"""The newest version of the format that the engine reads."""
MASK = "[secret]"
_EXPORT = "pulumi stack export --stack STACK --file export.json"


@dataclass
class Export:
    """A deployed stack."""

    file: Path
    project: str
    stack: str
    version: int
    time: str
    engine: str
    deployment: dict[str, Any]
    """The `deployment` object that the sandbox's engine imports."""
    resources: list[dict[str, Any]]
    """Its resources with secrets as on the wire."""
    pending: list[str] = field(default_factory=list)
    """Operations that an interrupted command left behind, in words."""
    hidden: list[str] = field(default_factory=list)
    """Properties whose values are encrypted in the file: `name: path`."""
    left_out: list[str] = field(default_factory=list)
    """Resources of packages that are not installed: `name (type)`."""
    features: list[str] = field(default_factory=list)
    """What a reader of version 4 has to support; the engine checks it."""
    inside: frozenset[str] = frozenset()
    """The URNs of resources in components that a plugin builds. A preview without the plugin lacks them."""

    @property
    def compared(self) -> list[dict[str, Any]]:
        """The resources that a preview compares."""
        return [each for each in self.resources if each["urn"] not in self.inside]

    @property
    def document(self) -> dict[str, Any]:
        """The document that the sandbox's engine imports."""
        document: dict[str, Any] = {"version": max(3, self.version), "deployment": self.deployment}
        return document | ({"features": self.features} if self.features else {})

    def notes(self) -> list[str]:
        """Return what a reviewer has to know about the export."""
        external = [_name(each) for each in self.resources if each.get("external")]
        found = [f"Exported{f' on {self.time}' if self.time else ''}; {len(self.resources)} resources."]
        if self.pending:
            found.append(f"Operations that were interrupted, see `pulumi refresh`: {_some(self.pending)}.")
        if self.hidden:
            values = "value is" if len(self.hidden) == 1 else "values are"
            found.append(
                f"{len(self.hidden)} {values} encrypted in the export and not compared: {_some(self.hidden)}."
            )
        if self.left_out:
            found.append(f"Not evaluated, their packages are not simulated: {_some(self.left_out)}.")
        if external:
            found.append(f"Read, not managed by the stack: {_some(external)}.")
        return found


def read(file: Path) -> Export:
    """Read an export of version 1 to 4, or a state file of a self-managed backend.

    Raises:
        InputError: the file cannot be read, is not an export, is too new, or contains no resources.
    """
    document = _document(file)
    version = document.get("version")
    deployment = _deployment(document)
    if deployment is None or not isinstance(version, int) or isinstance(version, bool):
        raise InputError("not a stack export", [Problem(str(file), _why(document), _EXPORT)])
    if not 1 <= version <= NEWEST:
        what = f"has version {version}; this engine reads 1 to {NEWEST}"
        raise InputError(
            "the export cannot be read", [Problem(f"{file}: version", what, "upgrade Trainfleet")]
        )
    wrong = recorded_shapes.problems(recorded_shapes.Deployment, deployment, f"{file}: deployment")
    for index, each in enumerate([] if wrong else deployment.get("resources") or ()):
        wrong += recorded_shapes.problems(recorded_shapes.Resource, each, f"{file}: resources[{index}]")
    if wrong:
        raise InputError("the export is damaged", wrong[:20])
    found = [_with_old_defaults(each) for each in deployment.get("resources") or ()]
    if not found:
        raise InputError(
            "nothing is deployed",
            [Problem(str(file), "contains no resources", "omit --state to compare with a commit")],
        )
    stack, project = _owner(found[0]["urn"])
    manifest = deployment.get("manifest") or {}
    pending = [
        f"{each.get('type', 'operation')} {_name(each['resource'])}"
        for each in deployment.get("pending_operations") or ()
        if isinstance(each.get("resource"), dict)
    ]
    features = document.get("features")
    kept, left_out = _evaluated(_parents_first(found))
    hidden: list[str] = []
    for each in kept:
        for side in ("inputs", "outputs"):
            hidden += [f"{_name(each)}: {path}" for path in _encrypted(each.get(side), "")]
    inside = contents(kept)
    importable = [
        _converted(_without(each, inside), "plaintext") for each in kept if each["urn"] not in inside
    ]
    return Export(
        file,
        project,
        stack,
        version,
        str(manifest.get("time") or "")[:10],
        str(manifest.get("version") or ""),
        {"manifest": _manifest(manifest), "resources": importable},
        [_converted(each, "value") for each in kept],
        pending,
        list(dict.fromkeys(hidden)),
        left_out,
        [str(each) for each in features] if isinstance(features, list) else [],
        frozenset(inside),
    )


def renamed(export: Export, project: str, stack: str) -> Export:
    """Return the export as if it were of another project and stack: its URNs are rewritten."""
    old = (f"urn:pulumi:{export.stack}::{export.project}::", f"::{export.project}-{export.stack}")
    new = (f"urn:pulumi:{stack}::{project}::", f"::{project}-{stack}")
    root = f"{old[0]}pulumi:pulumi:Stack{old[1]}"

    def moved(value: Any) -> Any:
        text = json.dumps(value).replace(root, f"{new[0]}pulumi:pulumi:Stack{new[1]}").replace(old[0], new[0])
        return json.loads(text)

    return Export(
        **{
            **vars(export),
            "deployment": moved(export.deployment),
            "resources": moved(export.resources),
            "inside": frozenset(moved(sorted(export.inside))),
        }
    )


def _document(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(
            "cannot read the export", [Problem(str(file), error.strerror or str(error))]
        ) from error
    except UnicodeDecodeError as error:
        raise InputError("not a stack export", [Problem(str(file), "is not UTF-8 text", _EXPORT)]) from error
    try:
        document = json_documents.parse(text)
    except ValueError as error:
        what = "is empty" if not text.strip() else f"is not JSON: {error}"
        raise InputError("not a stack export", [Problem(str(file), what, _EXPORT)]) from error
    if not isinstance(document, dict):
        raise InputError("not a stack export", [Problem(str(file), "is not a JSON object", _EXPORT)])
    return document


def _deployment(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the deployment of an export, or of a state file, whose `latest` some commands capitalize."""
    checkpoint = document.get("checkpoint")
    checkpoint = checkpoint if isinstance(checkpoint, dict) else {}
    found = document.get("deployment") or checkpoint.get("latest") or checkpoint.get("Latest")
    if found is None and ("deployment" in document or "stack" in checkpoint):
        return {}
    return found if isinstance(found, dict) else None


def _why(document: Mapping[str, Any]) -> str:
    if "steps" in document or "resourcePreEvent" in document:
        return "is a preview, not a state: pass it with --events"
    return "has no `version` and `deployment`"


def _owner(urn: str) -> tuple[str, str]:
    stack, _, rest = urn.removeprefix("urn:pulumi:").partition("::")
    return stack, rest.partition("::")[0]


def _name(resource: Mapping[str, Any]) -> str:
    return str(resource.get("urn", "")).rsplit("::", 1)[-1]


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    # The magic is a checksum of the engine that wrote the manifest; an import computes it again.
    return {"time": manifest.get("time") or "2000-01-01T00:00:00Z", "magic": "", "version": ""}


def _with_old_defaults(resource: dict[str, Any]) -> dict[str, Any]:
    """Return a resource of version 1, which keeps defaults apart, in the form of version 3."""
    if not isinstance(defaults := resource.get("defaults"), dict):
        return resource
    rest = {key: value for key, value in resource.items() if key != "defaults"}
    inputs = {**defaults, **(resource.get("inputs") or {}), "__defaults": sorted(defaults)}
    return {**rest, "inputs": inputs}


def _parents_first(resources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the resources in an order that the engine accepts: old exports list children before parents."""
    by_urn = {each["urn"]: each for each in resources}
    placed: set[int] = set()
    done: set[int] = set()
    found: list[dict[str, Any]] = []

    for each in resources:
        waiting = [each]
        while waiting:  # no recursion: a chain of parents may be as long as the file
            top = waiting[-1]
            if id(top) not in placed:
                placed.add(id(top))
                needed = [
                    top.get("parent"),
                    str(top.get("provider") or "").rpartition("::")[0],
                    *(top.get("dependencies") or ()),
                ]
                known = [by_urn[urn] for urn in needed if urn in by_urn]
                waiting += [above for above in reversed(known) if id(above) not in placed]
                continue
            waiting.pop()
            if id(top) not in done:
                done.add(id(top))
                found.append(top)
    return found


# ---- packages


def _evaluated(resources: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the resources that can be previewed, and those of other packages, in words."""
    simulated = packages()
    gone: set[str] = set()
    left_out = []
    for each in resources:
        package = each["type"].split(":")[0]
        if each["type"].startswith("pulumi:providers:"):
            package = each["type"].split(":")[2]
            if package not in simulated:
                gone.add(each["urn"])
        elif each.get("custom") and package not in simulated and not each["type"].startswith("pulumi:"):
            gone.add(each["urn"])
            left_out.append(f"{_name(each)} ({each['type']})")
    return [_without(each, gone) for each in resources if each["urn"] not in gone], left_out


def _without(resource: dict[str, Any], gone: set[str]) -> dict[str, Any]:
    """Return a resource that depends on no resource that is left out."""
    if not gone:
        return resource
    found = dict(resource)
    if "dependencies" in found:
        found["dependencies"] = [urn for urn in found["dependencies"] or () if urn not in gone]
    if "propertyDependencies" in found:
        found["propertyDependencies"] = {
            name: [urn for urn in urns or () if urn not in gone]
            for name, urns in (found["propertyDependencies"] or {}).items()
        }
    if found.get("deletedWith") in gone:
        del found["deletedWith"]
    return found


# ---- secrets


def _encrypted(value: Any, path: str) -> Iterator[str]:
    if value == MASK:
        yield path
    elif isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET:
            if "plaintext" not in value:
                yield path
            return
        for key, item in value.items():
            yield from _encrypted(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _encrypted(item, f"{path}[{index}]")


def _converted(value: Any, form: str) -> Any:
    """Return a value with secrets as an import (`plaintext`: JSON text) or the wire (`value`) has them."""
    if value == MASK:
        return _secret(HIDDEN, form)
    if isinstance(value, list):
        return [_converted(item, form) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get(SIGNATURE) != SECRET:
        return {key: _converted(item, form) for key, item in value.items()}
    try:
        return _secret(json_documents.parse(value["plaintext"]), form)
    except (KeyError, ValueError, TypeError):
        return _secret(HIDDEN, form)


def _secret(value: Any, form: str) -> dict[str, Any]:
    return {SIGNATURE: SECRET, form: json.dumps(value) if form == "plaintext" else value}
