"""The charts of a stack, as its program describes them: source, version, release, values without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainfleet.rehearsal.simulation.pulumi_values import SIGNATURE, is_secret, plain
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN as WIRE_UNKNOWN

RELEASE = "kubernetes:helm.sh/v3:Release"
CHART = "kubernetes:helm.sh/v4:Chart"
TOKENS = (RELEASE, CHART)
SECRET_MARK = "trainfleet-secret"
"""What a chart gets instead of a secret value."""
UNKNOWN_MARK = "trainfleet-known-after-apply"
"""What a chart gets instead of a value that only an apply knows."""
GONE = frozenset({"delete", "delete-replaced", "discard", "discard-replaced", "read-discard"})
_ASSET, _ARCHIVE = "c44067f5952c0a294b673a41bacd8c17", "0def7320c3a5731c473e5ecbe6d01bc7"
_ELIDED = "<contents elided>"
_CLUSTERS = {
    "aws:eks/cluster:Cluster": "version",
    "gcp:container/cluster:Cluster": "minMasterVersion",
    "azure-native:containerservice:ManagedCluster": "kubernetesVersion",
}
_DEFINITION = "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition"


class NotRenderedError(Exception):
    """Raised if a chart cannot be rendered. `fix` says what would make it possible; it may be empty."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.why, self.fix = why, fix


@dataclass(frozen=True)
class ValuesFile:
    """A file of values: its text, or its path relative to the program; both are None if neither is known."""

    text: str | None
    path: str | None
    digest: str = ""


@dataclass(frozen=True)
class Chart:
    """One chart of one side. Secrets in `values` are SECRET_MARK, unknown values UNKNOWN_MARK."""

    urn: str
    token: str
    chart: str
    version: str
    repository: str
    release: str
    namespace: str
    values: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[ValuesFile, ...] = ()
    skip_crds: bool = False
    include_hooks: bool = False
    """Of a Chart resource: whether hooks are among its objects."""
    unsupported: str = ""
    """An input that a rendering cannot honour; empty if there is none."""
    left_out: tuple[str, ...] = ()
    """The paths of the values that are secret or unknown."""

    @property
    def name(self) -> str:
        """The logical name."""
        return self.urn.rsplit("::", 1)[-1]

    @property
    def is_release(self) -> bool:
        """Whether Helm installs it. Otherwise Pulumi manages each rendered object."""
        return self.token == RELEASE

    @property
    def is_remote(self) -> bool:
        """Whether it is in a repository or a registry, or at a URL."""
        return bool(self.repository) or re.match(r"(oci|https?)://", self.chart) is not None


def charts_of(resources: Iterable[Mapping[str, Any]]) -> dict[str, Chart]:
    """Return the charts among the resources of a state, by URN."""
    found = [each for each in resources if each["type"] in TOKENS and not each.get("delete")]
    return {each["urn"]: _chart(each["urn"], each["type"], each.get("inputs") or {}) for each in found}


def planned_charts(events: Iterable[Mapping[str, Any]]) -> dict[str, Chart]:
    """Return the charts that a preview leaves, by URN, from the metadata of its resource events."""
    return {
        each["urn"]: _chart(each["urn"], each["type"], (each["new"]).get("inputs") or {})
        for each in events
        if each["type"] in TOKENS and each.get("new") and each["op"] not in GONE
    }


def with_texts(charts: Mapping[str, Chart], others: Iterable[Chart]) -> dict[str, Chart]:
    """Return charts with the texts of values files that events leave out and that others have."""
    texts = {file.digest: file.text for each in others for file in each.files if file.text is not None}
    return {
        urn: Chart(
            **{
                **vars(each),
                "files": tuple(
                    ValuesFile(file.text if file.text is not None else texts.get(file.digest), file.path)
                    for file in each.files
                ),
            }
        )
        for urn, each in charts.items()
    }


def _chart(urn: str, token: str, inputs: Mapping[str, Any]) -> Chart:
    options = inputs.get("repositoryOpts") or {}
    repository = options.get("repo") if isinstance(options, Mapping) else None
    left_out: list[str] = []
    values = _masked(inputs.get("values") or {}, "", left_out)
    files = [_file(each) for each in inputs.get("valueYamlFiles") or () if isinstance(each, Mapping)]
    return Chart(
        urn,
        token,
        _text(inputs.get("chart")),
        _text(inputs.get("version")),
        _text(repository),
        _text(inputs.get("name")) or urn.rsplit("::", 1)[-1],
        _text(inputs.get("namespace")) or "default",
        values if isinstance(values, dict) else {},
        tuple(files),
        skip_crds=plain(inputs.get("skipCrds")) is True,
        include_hooks=plain(inputs.get("includeHooks")) is True,
        unsupported=next((name for name in ("postrender", "postRenderer") if inputs.get(name)), ""),
        left_out=tuple(left_out),
    )


def _text(value: Any) -> str:
    value = _masked(value, "", [])
    return value if isinstance(value, str) else ""


def _file(value: Mapping[str, Any]) -> ValuesFile:
    text, path = value.get("text"), value.get("path")
    return ValuesFile(
        text if isinstance(text, str) and text != _ELIDED else None,
        path if isinstance(path, str) else None,
        str(value.get("hash") or ""),
    )


def _masked(value: Any, path: str, left_out: list[str]) -> Any:
    """Return a value without secrets and unknown values; add their paths to `left_out`."""
    if is_secret(value) or value == "[secret]":
        left_out.append(path)
        return SECRET_MARK
    if isinstance(value, Mapping):
        if value.get(SIGNATURE) in (_ASSET, _ARCHIVE):
            return _asset(value, path, left_out)
        return {key: _masked(item, f"{path}.{key}" if path else key, left_out) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, f"{path}[{index}]", left_out) for index, item in enumerate(value)]
    if isinstance(value, str) and WIRE_UNKNOWN in value:
        left_out.append(path)
        return value.replace(WIRE_UNKNOWN, UNKNOWN_MARK)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _asset(value: Mapping[str, Any], path: str, left_out: list[str]) -> str:
    """Return the text of an asset among the values, or a mark that differs with its contents."""
    text = value.get("text")
    if isinstance(text, str) and text != _ELIDED:
        return text
    left_out.append(path)
    return f"trainfleet-file-{str(value.get('hash') or '')[:12]}"


def kubernetes_version(resources: Iterable[Mapping[str, Any]]) -> str:
    """Return the version of the cluster among resources; empty without one, or with several versions."""
    found = {
        str(version)
        for each in resources
        if (name := _CLUSTERS.get(each["type"]))
        and isinstance(version := (each.get("inputs") or {}).get(name), str)
    }
    version = found.pop() if len(found) == 1 else ""
    return version if re.match(r"v?\d+\.\d+", version) else ""


def api_versions(resources: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the API versions that the definitions and the custom objects among resources show, sorted."""
    return sorted({version for each in resources for version in _api_versions(each)})


def _api_versions(resource: Mapping[str, Any]) -> Iterator[str]:
    package, _, rest = str(resource["type"]).partition(":")
    group_version, _, kind = rest.partition(":")
    if package != "kubernetes" or group_version.startswith("helm.sh/"):
        return
    if resource["type"] == _DEFINITION:
        spec = plain((resource.get("inputs") or {}).get("spec") or {})
        for version in spec.get("versions") or ():
            if isinstance(version, Mapping) and version.get("served", True):
                yield from _both(f"{spec.get('group')}/{version.get('name')}", spec.get("names") or {})
    elif "." in group_version and not group_version.partition("/")[0].endswith(".k8s.io"):
        yield from _both(group_version, {"kind": kind})


def _both(group_version: str, names: Mapping[str, Any]) -> Iterator[str]:
    yield group_version
    if names.get("kind"):
        yield f"{group_version}/{names['kind']}"
