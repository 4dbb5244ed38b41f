"""Gathers the schemas of third-party custom resources from their definitions.

Run `python -m tools.api_facts.gather_crds --from FOLDER`. FOLDER has one folder per Go
module and version (`sigs.k8s.io_karpenter@v1.15.0/`, with `_` for a slash), from `go mod download`, that
contains the YAML of its definitions. Kueue's file is written by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from trainfleet.rehearsal.simulation.facts import FACTS

Schema = dict[str, Any]
_KEPT = (
    "type",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)
_WORTH_SHARING = 200


class _Loader(yaml.CSafeLoader):
    """A YAML loader that reads `=` as text, as Kubernetes does."""


def _plain_text(loader: yaml.CSafeLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:value", _plain_text)


def pruned(schema: Schema) -> Schema:
    """Return only the parts of a schema that can reject a value: no descriptions, status or defaults."""
    kept = {key: schema[key] for key in _KEPT if key in schema}
    if isinstance(kept.get("pattern"), str) and not _compiles(kept["pattern"]):
        kept.pop("pattern")
    properties = {name: pruned(held) for name, held in (schema.get("properties") or {}).items()}
    if properties:
        kept["properties"] = properties
    required = [
        name
        for name in schema.get("required") or ()
        if "default" not in schema.get("properties", {}).get(name, {})
    ]
    if required:
        kept["required"] = required
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            kept[key] = pruned(schema[key])
        elif schema.get(key) is True:
            kept[key] = True
    return kept


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def definitions(folder: Path) -> Iterator[tuple[str, str, Schema]]:
    """Yield the group, `version:Kind` and pruned schema of every served version in a folder's definitions."""
    for file in sorted(folder.rglob("*.y*ml")):
        for document in yaml.load_all(file.read_text(), Loader=_Loader):
            if not isinstance(document, dict) or document.get("kind") != "CustomResourceDefinition":
                continue
            spec = document["spec"]
            for version in spec["versions"]:
                schema = version.get("schema", {}).get("openAPIV3Schema")
                if schema and version.get("served"):
                    whole = dict(schema)
                    whole["properties"] = {
                        name: held
                        for name, held in schema["properties"].items()
                        if name not in ("apiVersion", "kind", "metadata", "status")
                    }
                    yield spec["group"], f"{version['name']}:{spec['names']['kind']}", pruned(whole)


def shared(kinds: dict[str, Schema]) -> dict[str, Any]:
    """Return the kinds with every repeated part moved to `parts` and replaced by a reference."""
    counts: Counter[str] = Counter()

    def count(value: Any) -> None:
        if isinstance(value, dict):
            text = json.dumps(value, sort_keys=True)
            counts[text] += 1
            if counts[text] > 1 and len(text) >= _WORTH_SHARING:
                return
            for item in value.values():
                count(item)

    for schema in kinds.values():
        count(schema)
    parts: dict[str, Any] = {}
    names: dict[str, str] = {}

    def refer(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        text = json.dumps(value, sort_keys=True)
        if counts[text] < 2 or len(text) < _WORTH_SHARING:
            return {key: refer(item) for key, item in value.items()}
        if text not in names:
            names[text] = str(len(names))
            parts[names[text]] = {key: refer(item) for key, item in value.items()}
        return {"$ref": names[text]}

    held = {kind: refer(schema) for kind, schema in sorted(kinds.items())}
    return {"kinds": held, "parts": parts}


def main(arguments: list[str]) -> int:
    """Gather and write one file per group."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--from",
        dest="folder",
        type=Path,
        required=True,
        help="the folder with one folder per project and version",
    )
    parser.add_argument("--out", type=Path, default=FACTS / "kubernetes", help="where the files go")
    options = parser.parse_args(arguments)
    groups: dict[str, dict[str, Schema]] = defaultdict(dict)
    sources: dict[str, str] = {}
    for project in sorted(path for path in options.folder.iterdir() if path.is_dir()):
        for group, kind, schema in definitions(project):
            groups[group][kind] = schema
            sources[group] = project.name.replace("_", "/")
    options.out.mkdir(parents=True, exist_ok=True)
    for group, kinds in sorted(groups.items()):
        held = {"source": f"the definitions of the Go module {sources[group]}", **shared(kinds)}
        lines = [f'{{"source": {json.dumps(held["source"])}']
        for key in ("kinds", "parts"):
            inside = ",\n".join(
                f"{json.dumps(name)}: {json.dumps(part, sort_keys=True, separators=(',', ':'))}"
                for name, part in held[key].items()
            )
            lines.append(f',"{key}": {{\n{inside}\n}}')
        (options.out / f"{group}.json").write_text("\n".join([*lines, "}", ""]))
        sys.stdout.write(f"{group}: {len(kinds)} kinds\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
