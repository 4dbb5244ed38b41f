"""What providers compute and normalize, so that a no-op and a refresh can fail for a real reason.

- `tagsAll` and `effectiveLabels` have the default tags or labels of the provider.
- Outputs that are JSON documents are compact, with sorted keys.
- A list that a resource declares in itself is authoritative: reading it also finds what other resources
  added, which the next update removes and which their own update adds again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.pulumi_values import plain

_DOCUMENTS = re.compile(r"(?i)(policy|policydocument|document)$")
_LABELS = (("tagsAll", "defaultTags", "tags"), ("effectiveLabels", "defaultLabels", "labels"))


@dataclass(frozen=True)
class Inline:
    """A list in one type to which resources of another type add: both at once never settle."""

    type: str
    property: str
    adding: str
    """The type that adds, and its property that names the first one."""
    reference: str
    when: tuple[str, Any] = ("", None)
    """The value of a property with which the resource adds to this list."""


_SECURITY_GROUP, _RULE = "aws:ec2/securityGroup:SecurityGroup", "aws:ec2/securityGroupRule:SecurityGroupRule"
INLINE = (
    # Sources: "NOTE on ..." in the documentation of the resources of terraform-provider-aws.
    Inline(_SECURITY_GROUP, "ingress", _RULE, "securityGroupId", ("type", "ingress")),
    Inline(_SECURITY_GROUP, "egress", _RULE, "securityGroupId", ("type", "egress")),
    Inline(
        _SECURITY_GROUP,
        "ingress",
        "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
        "securityGroupId",
    ),
    Inline(
        _SECURITY_GROUP,
        "egress",
        "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule",
        "securityGroupId",
    ),
    Inline("aws:ec2/routeTable:RouteTable", "routes", "aws:ec2/route:Route", "routeTableId"),
    Inline(
        "aws:iam/role:Role",
        "managedPolicyArns",
        "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
        "role",
    ),
    Inline("aws:iam/role:Role", "inlinePolicies", "aws:iam/rolePolicy:RolePolicy", "role"),
    # Source: documentation of pulumi-azure-native: inline children and resources of their own conflict.
    Inline(
        "azure-native:network:VirtualNetwork", "subnets", "azure-native:network:Subnet", "virtualNetworkName"
    ),
    Inline(
        "azure-native:network:NetworkSecurityGroup",
        "securityRules",
        "azure-native:network:SecurityRule",
        "networkSecurityGroupName",
    ),
    Inline("azure-native:network:RouteTable", "routes", "azure-native:network:Route", "routeTableName"),
)


def normalized(outputs: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return outputs with the provider's default tags or labels, and with normalized JSON documents."""
    found = {name: _document(name, value) for name, value in outputs.items()}
    for name, setting, own in _LABELS:
        if isinstance(found.get(name), dict) and (added := _default_labels(settings.get(setting), own)):
            found[name] = {**added, **found[name]}
    return found


def _document(name: str, value: Any) -> Any:
    if not isinstance(value, str) or not _DOCUMENTS.search(name) or not value.lstrip().startswith("{"):
        return value
    try:
        return json.dumps(json.loads(value), sort_keys=True, separators=(",", ":"))
    except ValueError:
        return value


def _default_labels(given: Any, own: str) -> dict[str, Any]:
    """Return the labels in a provider's setting, which nested settings spell as JSON."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    inner = given.get(own, given) if isinstance(given, dict) else {}
    return dict(inner) if isinstance(inner, dict) else {}


def as_read(record: CloudObject, everything: Iterable[CloudObject]) -> CloudObject:
    """Return a resource as its cloud shows it: authoritative lists with what other resources added."""
    rows = [row for row in INLINE if row.type == record.token and plain(record.inputs).get(row.property)]
    if not rows:
        return record
    records = list(everything)
    for row in rows:
        added = [_entry(row, other) for other in _adding(row, record, records)]
        for values in (record.inputs, record.outputs) if added else ():
            values[row.property] = [*(values.get(row.property) or []), *added]
    return record


def _adding(row: Inline, record: CloudObject, records: list[CloudObject]) -> Iterator[CloudObject]:
    names = {record.id, str(plain(record.outputs).get("name"))}
    for other in records:
        inputs = plain(other.inputs)
        if (
            other.token == row.adding
            and str(inputs.get(row.reference)) in names
            and (not row.when[0] or inputs.get(row.when[0]) == row.when[1])
        ):
            yield other


def _entry(row: Inline, other: CloudObject) -> Any:
    own = {
        key: value for key, value in other.inputs.items() if key != row.reference and not key.startswith("__")
    }
    return own.get("policyArn", "") if row.property == "managedPolicyArns" else own
