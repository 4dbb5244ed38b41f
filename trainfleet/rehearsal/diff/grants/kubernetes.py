"""What Kubernetes objects allow: the rules of each role for the subjects that are bound to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainfleet.rehearsal.diff.grants.model import LATER, Grant, Index, Kind, Planned, listed
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN

_GROUP = "kubernetes:rbac.authorization.k8s.io/"


def grants(resource: Planned, index: Index) -> Iterator[Grant]:
    """Yield what a binding allows. A role by itself allows nobody anything."""
    kind = resource.token.rsplit(":", 1)[-1]
    if not resource.token.startswith(_GROUP) or kind not in ("RoleBinding", "ClusterRoleBinding"):
        return
    space = _meta(resource).get("namespace") if kind == "RoleBinding" else None
    where = f"in namespace {_shown(space or 'default')}" if kind == "RoleBinding" else "in every namespace"
    reference = resource.inputs.get("roleRef")
    subjects = [_subject(one, space) for one in listed(resource.inputs.get("subjects"))]
    role = _role(reference, space, index)
    for who in subjects:
        if role is not None:
            yield from _rules(role, who, where)
        else:
            yield Grant(Kind.ROLE, who, _reference(reference), where)


def _rules(role: Planned, who: str, where: str) -> Iterator[Grant]:
    if role.inputs.get("aggregationRule"):
        yield Grant(Kind.UNRESOLVED, who, f"what {role.shown} collects from other roles", where)
    for rule in listed(role.inputs.get("rules")):
        if not isinstance(rule, Mapping):
            yield Grant(Kind.UNRESOLVED, who, f"a rule of {role.shown}: {_shown(rule)}", where)
            continue
        names = [f" {_shown(name)}" for name in listed(rule.get("resourceNames"))] or [""]
        targets = [
            f"{_kind(group, kind)}{name} {where}"
            for group in listed(rule.get("apiGroups")) or [""]
            for kind in listed(rule.get("resources"))
            for name in names
        ] + [f"the path {_shown(path)}" for path in listed(rule.get("nonResourceURLs"))]
        for verb in listed(rule.get("verbs")):
            for target in targets:
                yield Grant(Kind.ALLOW, who, _shown(verb), target)


def _kind(group: Any, kind: Any) -> str:
    name = "every resource" if kind == "*" else _shown(kind)
    return f"{name} of every API group" if group == "*" else f"{name}.{_shown(group)}" if group else name


def _role(reference: Any, space: Any, index: Index) -> Planned | None:
    if not isinstance(reference, Mapping):
        return None
    kind, name = reference.get("kind"), reference.get("name")
    for role in index.resources:
        if role.token.startswith(_GROUP) and role.token.endswith(f":{kind}"):
            meta = _meta(role)
            same_space = kind == "ClusterRole" or (meta.get("namespace") or "default") == (space or "default")
            if meta.get("name") == name != UNKNOWN and same_space:
                return role
    return None


def _reference(reference: Any) -> str:
    if not isinstance(reference, Mapping):
        return LATER
    return f"{_shown(reference.get('kind'))} {_shown(reference.get('name'))}"


def _subject(subject: Any, space: Any) -> str:
    if not isinstance(subject, Mapping):
        return _shown(subject)
    kind, name = subject.get("kind"), _shown(subject.get("name"))
    if kind == "ServiceAccount":
        return f"service account {_shown(subject.get('namespace') or space or 'default')}/{name}"
    return f"{str(kind).lower()} {name}"


def _meta(resource: Planned) -> Mapping[str, Any]:
    found = resource.inputs.get("metadata")
    return found if isinstance(found, Mapping) else {}


def _shown(value: Any) -> str:
    return str(value).replace(UNKNOWN, LATER)
