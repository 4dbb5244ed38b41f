"""Renders a chart with `helm template`, twice, so that what is random in it is known."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.rehearsal.diff.change import SECRET
from trainfleet.rehearsal.diff.helm.chart import SECRET_MARK, UNKNOWN_MARK, Chart, NotRenderedError
from trainfleet.rehearsal.diff.helm.command import RENDER_SECONDS, last_line, run_helm
from trainfleet.rehearsal.simulation.changes import changes, value_at
from trainfleet.rehearsal.simulation.property_paths import Path as Path_
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN as WIRE_UNKNOWN

Key = tuple[str, str, str, str]
"""API group, kind, namespace and name of an object."""
RANDOM = "[random]"
"""Replaces a value that differs in each rendering."""


@dataclass(frozen=True)
class Rendered:
    """An object that a chart renders."""

    key: Key
    body: Mapping[str, Any]
    from_crds: bool = False
    """Whether it is in the chart's `crds` folder, which Helm installs once and never changes."""

    @property
    def api_version(self) -> str:
        """For example `apps/v1`."""
        return str(self.body["apiVersion"])

    @property
    def token(self) -> str:
        """The type token that the Kubernetes provider has for it."""
        version = self.api_version if "/" in self.api_version else f"core/{self.api_version}"
        return f"kubernetes:{version}:{self.key[1]}"

    @property
    def hook(self) -> bool:
        """Whether Helm recreates it at a point of the release, outside of the objects that it keeps."""
        return "helm.sh/hook" in self._annotations

    @property
    def keep(self) -> bool:
        """Whether it stays in the cluster if it leaves the chart."""
        return self._annotations.get("helm.sh/resource-policy") == "keep"

    @property
    def _annotations(self) -> Mapping[str, Any]:
        found = (self.body.get("metadata") or {}).get("annotations")
        return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True)
class Rendering:
    """What a chart renders: objects that are the same each time, and what is random."""

    objects: Mapping[Key, Rendered]
    """Every value that differs between two renderings is RANDOM."""
    random: frozenset[Key] = frozenset()
    """The objects with such values."""
    random_names: int = 0
    """Objects that exist in one of two renderings only."""
    version: str = ""
    """The version of the chart; empty if there is no chart."""


@dataclass(frozen=True)
class Target:
    """The cluster that a chart is rendered for."""

    kubernetes: str = ""
    """Empty: the version that helm was built for."""
    api_versions: tuple[str, ...] = ()


def render(chart: Chart, source: Path, program: Path | None, target: Target, scratch: Path) -> Rendering:
    """Render a chart twice.

    Raises:
        NotRenderedError: helm rejects the chart or its values, or its output is not YAML of objects.
    """
    home = Path(tempfile.mkdtemp(dir=scratch, prefix="helm-"))
    arguments = _arguments(chart, source, program, target, home)
    first, second = (objects_of(_output(arguments, home), chart) for _ in range(2))
    both = {key: each for key, each in first.items() if key in second}
    random = set[Key]()
    for key, each in both.items():
        if paths := [one.path for one in changes(each.body, second[key].body)]:
            random.add(key)
            both[key] = replace(each, body=_without(each.body, paths))
    version = chart.version or _own_version(source) or chart.chart
    return Rendering(both, frozenset(random), len(first) - len(both), version)


def _without(body: Mapping[str, Any], paths: Iterable[Path_]) -> Mapping[str, Any]:
    """Return an object with RANDOM at the paths that it has."""
    body = copy.deepcopy(dict(body))
    for path in paths:
        above = value_at(body, path[:-1])
        index = int(path[-1][1:-1]) if path[-1].startswith("[") else 0
        if isinstance(above, dict):
            above[path[-1]] = RANDOM
        elif isinstance(above, list) and index < len(above):
            above[index] = RANDOM
    return body


def _own_version(source: Path) -> str:
    """Return the version that a chart's folder says it has; empty for an archive."""
    try:
        document = yaml_limits.load((source / "Chart.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return ""
    return str(document.get("version") or "") if isinstance(document, dict) else ""


def _arguments(chart: Chart, source: Path, program: Path | None, target: Target, home: Path) -> list[str]:
    arguments = ["template", f"--namespace={chart.namespace}", "--include-crds", "--skip-tests"]
    for index, text in enumerate(_value_files(chart, program)):
        file = home / f"values-{index}.yaml"
        file.write_text(text, encoding="utf-8")
        arguments.append(f"--values={file}")
    arguments += [f"--kube-version={target.kubernetes}"] if target.kubernetes else []
    arguments += [f"--api-versions={version}" for version in target.api_versions]
    # A name that is not known yet may be longer than Helm accepts.
    return [*arguments, "--", chart.release[:53].rstrip("-."), str(source)]


def _value_files(chart: Chart, program: Path | None) -> Iterator[str]:
    """Yield the values in the order in which later ones win."""
    for each in chart.files:
        if each.text is not None:
            yield each.text
            continue
        path = (program / each.path).resolve() if program is not None and each.path else None
        if path is None or not path.is_file():
            raise NotRenderedError(
                f"its values file {each.path or '(a text)'} is not available on both sides"
            )
        yield path.read_text(encoding="utf-8")
    yield json.dumps(chart.values)


def _output(arguments: Sequence[str], home: Path) -> str:
    done = run_helm(arguments, RENDER_SECONDS, home)
    if done.code:
        line = last_line(done.error)
        missing = "missing in charts/" in line
        fix = "commit its charts/ folder (helm dependency build)" if missing else ""
        raise NotRenderedError(f"helm cannot render it: {line.replace(str(home), '')}", fix)
    return done.output


def objects_of(text: str, chart: Chart) -> dict[Key, Rendered]:
    """Return the objects of `helm template`, which names the file of each in a comment. Of a Chart resource,
    only those that Pulumi manages.

    Raises:
        NotRenderedError: it is not YAML.
    """
    found: dict[Key, Rendered] = {}
    for source, document in _documents(text):
        try:
            yaml_limits.check_limits(document)
            bodies = [*yaml.load_all(document, Loader=_LOADER)]
        except (yaml.YAMLError, ValueError) as error:
            line = str(error).splitlines()[0]
            raise NotRenderedError(f"what {source or 'it'} renders is not YAML: {line}") from error
        for body in _flat(map(_plain, bodies)):
            each = Rendered(_key(body, chart.namespace), body, "/crds/" in source)
            if chart.is_release or not (
                (each.hook and not chart.include_hooks) or (each.from_crds and chart.skip_crds)
            ):
                found[each.key] = each
    return found


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _documents(text: str) -> Iterator[tuple[str, str]]:
    """Yield the file and the text of each part; a file of the `crds` folder may hold several documents."""
    source, lines = "", list[str]()
    for line in text.splitlines():
        if line.startswith("# Source: "):
            if lines:
                yield source, "\n".join(lines)
            source, lines = line.removeprefix("# Source: "), []
        else:
            lines.append(line)
    yield source, "\n".join(lines)


def _flat(bodies: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    for body in bodies:
        if not isinstance(body, Mapping):
            continue
        if str(body.get("kind", "")).endswith("List") and isinstance(body.get("items"), list):
            yield from _flat(body["items"])
        elif isinstance(body.get("metadata"), Mapping) and body.get("apiVersion") and body.get("kind"):
            yield body


def _plain(value: Any) -> Any:
    """Return a document with JSON's types only, and the marks of what was left out as a page shows them."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return value.replace(SECRET_MARK, SECRET).replace(UNKNOWN_MARK, WIRE_UNKNOWN)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _key(body: Mapping[str, Any], namespace: str) -> Key:
    group = str(body["apiVersion"]).rpartition("/")[0]
    metadata = body["metadata"]
    name = metadata.get("name") or metadata.get("generateName") or ""
    return group, str(body["kind"]), str(metadata.get("namespace") or namespace), str(name)
