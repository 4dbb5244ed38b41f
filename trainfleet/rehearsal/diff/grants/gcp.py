"""What Google Cloud resources allow: IAM members, bindings and policies, firewalls and control planes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from trainfleet.rehearsal.diff.grants.federation import POOL_PROVIDER, of_pool_provider
from trainfleet.rehearsal.diff.grants.model import (
    ANYWHERE,
    LATER,
    Grant,
    Index,
    Kind,
    Planned,
    listed,
    port_range,
)
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN

_IAM = re.compile(r"^gcp:.*:(?P<of>\w*?)(?:IAM|Iam)(?P<form>Member|Binding|Policy)$")
_NOT_TARGETS = {"role", "member", "members", "condition", "policyData", "location", "region", "zone", "etag"}
_MODULES = {"serviceaccount": "service account"}
"""What the grants of a module are on, where the type does not say it."""
_PUBLIC = {"allUsers": "anyone", "allAuthenticatedUsers": "anyone with a Google account"}


def grants(resource: Planned, index: Index) -> Iterator[Grant]:
    """Yield what a Google Cloud resource allows."""
    if match := _IAM.match(resource.token):
        yield from _iam(resource, match["of"], match["form"], index)
    elif resource.token == "gcp:compute/firewall:Firewall":
        yield from _firewall(resource, index)
    elif resource.token == "gcp:container/cluster:Cluster":
        yield from _cluster(resource, index)
    elif resource.token == POOL_PROVIDER:
        yield from of_pool_provider(resource, index)


def _iam(resource: Planned, of: str, form: str, index: Index) -> Iterator[Grant]:
    inputs, on = resource.inputs, _target(resource, of, index)
    if form != "Policy":
        yield from _members(inputs, on, index)
        return
    data = inputs.get("policyData")
    try:
        bindings = json.loads(data)["bindings"] if isinstance(data, str) else None
    except (ValueError, KeyError, TypeError):
        bindings = None
    if not isinstance(bindings, list):
        why = LATER if isinstance(data, str) and UNKNOWN in data else "the document cannot be read"
        yield Grant(Kind.UNRESOLVED, "somebody", why, on)
        return
    for binding in bindings:
        yield from _members(binding, on, index)


def _members(binding: Any, on: str, index: Index) -> Iterator[Grant]:
    if not isinstance(binding, dict) and not hasattr(binding, "get"):
        return
    condition = binding.get("condition")
    text = json.dumps(condition, sort_keys=True, default=str).replace(UNKNOWN, LATER) if condition else ""
    for member in [*listed(binding.get("member")), *listed(binding.get("members"))]:
        yield Grant(Kind.ROLE, _member(member, index), index.shown(binding.get("role")), on, text)


def _member(member: Any, index: Index) -> str:
    text = str(member)
    kind, found, value = text.partition(":")
    if text in _PUBLIC:
        return _PUBLIC[text]
    if text == UNKNOWN or not found:
        return index.shown(member)
    noun = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).lower()
    return index.shown(value, noun)


def _target(resource: Planned, of: str, index: Index) -> str:
    """Return what the grant is on: the only property except the role, the member and the place."""
    noun = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", of).lower()
    others = {
        key: value
        for key, value in resource.inputs.items()
        if key not in _NOT_TARGETS and not key.startswith("__") and isinstance(value, str)
    }
    own = {key: value for key, value in others.items() if key not in ("project", "projectId")}
    value = next(iter((own or others).values()), None)
    module = resource.token.split(":")[1].split("/")[0]
    return index.shown(value, noun or _MODULES.get(module, module.removesuffix("s")))


def _firewall(resource: Planned, index: Index) -> Iterator[Grant]:
    inputs = resource.inputs
    if inputs.get("disabled"):
        return
    outward = inputs.get("direction") == "EGRESS"
    keys = ("destinationRanges",) if outward else ("sourceRanges", "sourceTags", "sourceServiceAccounts")
    ends = [_end(key, value, index) for key in keys for value in listed(inputs.get(key))] or [ANYWHERE]
    network = index.shown(inputs.get("network"), "network")
    targets = [
        f"{noun} {index.shown(value)} in {network}"
        for key, noun in (("targetTags", "instances tagged"), ("targetServiceAccounts", "instances of"))
        for value in listed(inputs.get(key))
    ] or [network]
    for key, denied in (("allows", False), ("denies", True)):
        for rule in listed(inputs.get(key)):
            if not isinstance(rule, dict):
                yield Grant(Kind.UNRESOLVED, "somebody", f"{key}: {index.shown(rule)}", network)
                continue
            for what in [
                port_range(rule.get("protocol"), text) for text in listed(rule.get("ports")) or [None]
            ]:
                for end in ends:
                    for target in targets:
                        yield Grant(*_rule(outward, denied, end, what, target))


def _rule(outward: bool, denied: bool, end: str, what: str, target: str) -> tuple[Kind, str, str, str]:
    if denied:
        return Kind.BLOCK, end, f"{what} {'to' if outward else 'from'} {end}", target
    return Kind.EGRESS if outward else Kind.INGRESS, end, what, target


def _end(key: str, value: Any, index: Index) -> str:
    noun = {"sourceTags": "instances tagged", "sourceServiceAccounts": "instances of"}.get(key, "")
    return f"{noun} {index.shown(value)}".strip()


def _cluster(resource: Planned, index: Index) -> Iterator[Grant]:
    private = resource.inputs.get("privateClusterConfig") or {}
    if isinstance(private, dict) and private.get("enablePrivateEndpoint"):
        return
    listed_networks = resource.inputs.get("masterAuthorizedNetworksConfig")
    blocks = listed(listed_networks.get("cidrBlocks")) if isinstance(listed_networks, dict) else None
    sources = (
        [ANYWHERE]
        if blocks is None
        else [index.shown(one.get("cidrBlock") if isinstance(one, dict) else one) for one in blocks]
    )
    for source in sources:
        yield Grant(Kind.INGRESS, source, "tcp 443", f"the API server of {resource.shown}")
