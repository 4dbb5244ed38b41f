"""Computes the outputs of a simulated resource: its inputs, and a plausible value for every other output.

Values derive from the resource id, so an update in place changes no unrelated output. In the preview of a
create, computed outputs are unknown, as with a real provider.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainfleet.rehearsal.simulation.pulumi_values import SIGNATURE, UNKNOWN
from trainfleet.rehearsal.simulation.schema import Kind, ResourceType, outputs_of

CREATED = "2026-01-01T00:00:00Z"
MAX_DEPTH = 4
_NESTED_COMPUTED = re.compile(r"(Id|Ids|Arn|Arns|Endpoint|Url|Issuer|Fingerprint)$")


@dataclass(frozen=True)
class Identity:
    """What the outputs of a resource derive from.

    `own` holds outputs that the cloud's model computes itself. If `sparse`, an input that the program omits
    is also omitted from the outputs, unless its name suggests a plausible value.
    """

    token: str
    name: str
    id: str
    region: str
    account: str
    own: dict[str, Any]
    sparse: bool = False
    refer: Callable[[type, tuple[str, ...]], Any] | None = None
    """Makes a reference to a resource of a class, for the output at a path; None: there are no references."""


Scalar = Callable[[Identity, str], Any]


def fill(
    resource: ResourceType, inputs: dict[str, Any], identity: Identity, *, preview: bool
) -> dict[str, Any]:
    """Return a resource's outputs: its inputs, with secrets wrapped, and the computed outputs.

    Computed outputs are unknown in the preview of a create. Optional outputs that the program did not set are
    omitted.
    """
    outputs = {key: value for key, value in inputs.items() if not key.startswith("__")}
    for name, declared in resource.outputs.items():
        if name in outputs:
            known = _with_own(outputs[name], identity.own.get(name), preview=preview)
            outputs[name] = _complete(known, declared.kind, identity, (name,), preview=preview)
        elif name in identity.own:
            outputs[name] = UNKNOWN if preview and identity.own[name] is not None else identity.own[name]
        # NOTE: a missing output becomes None in the program and silently drops an input of the next resource.
        elif declared.required and not (
            identity.sparse and name in resource.inputs and not _plausible(name, declared.kind)
        ):
            outputs[name] = UNKNOWN if preview else _make(declared.kind, identity, (name,))
    for copied, source in _ALL_LABELS:
        if copied in resource.outputs:
            outputs[copied] = next(
                (outputs[name] for name in source if isinstance(outputs.get(name), dict)), {}
            )
    return {name: value for name, value in outputs.items() if value is not None}


_ALL_LABELS = (
    ("tagsAll", ("tags",)),
    ("effectiveLabels", ("labels", "resourceLabels", "userLabels")),
    ("pulumiLabels", ("labels", "resourceLabels", "userLabels")),
)
"""Outputs that copy an input and add the provider's own entries. The simulated providers add none."""


def _with_own(value: Any, own: Any, *, preview: bool) -> Any:
    """Return the input with the values that only the cloud knows. The input's own values win."""
    if isinstance(value, dict) and isinstance(own, dict) and SIGNATURE not in value:
        added = {
            key: UNKNOWN if preview else item
            for key, item in own.items()
            if key not in value and not (preview and isinstance(item, dict))
        }
        return {
            key: _with_own(item, own[key], preview=preview) if key in own else item
            for key, item in value.items()
        } | added
    if isinstance(value, list) and isinstance(own, list):
        return (
            [
                _with_own(item, own[min(index, len(own) - 1)], preview=preview)
                for index, item in enumerate(value)
            ]
            if own
            else value
        )
    return value


def _complete(value: Any, kind: Kind, identity: Identity, path: tuple[str, ...], *, preview: bool) -> Any:
    if value == UNKNOWN or len(path) > MAX_DEPTH:
        return value
    if isinstance(value, list) and kind.name == "list" and kind.item:
        return [
            _complete(item, kind.item, identity, (*path, str(index)), preview=preview)
            for index, item in enumerate(value)
        ]
    if isinstance(value, list) and kind.name == "map" and kind.item:
        # Azure accepts a resource's identities as a list of ids and returns a map from id to details.
        return (
            UNKNOWN
            if UNKNOWN in value
            else {str(item): _make(kind.item, identity, (*path, str(item))) for item in value}
        )
    if not isinstance(value, dict) or SIGNATURE in value or kind.name != "object" or kind.cls is None:
        return value
    result = dict(value)
    for name, declared in outputs_of(kind.cls).items():
        if name in result:
            result[name] = _complete(result[name], declared.kind, identity, (*path, name), preview=preview)
        elif declared.required or _NESTED_COMPUTED.search(name):
            result[name] = UNKNOWN if preview else _make(declared.kind, identity, (*path, name))
    return result


def _make(kind: Kind, identity: Identity, path: tuple[str, ...]) -> Any:  # noqa: PLR0911 - one line per kind
    if kind.name == "resource" and kind.cls is not None and identity.refer:
        return identity.refer(kind.cls, path)
    if kind.name == "union":
        return _make(kind.choices[0], identity, path)
    if kind.name == "enum":
        return kind.values[0] if kind.values else ""
    if kind.name == "object" and kind.cls is not None:
        if len(path) > MAX_DEPTH:
            return {}
        return {
            name: _make(declared.kind, identity, (*path, name))
            for name, declared in outputs_of(kind.cls).items()
            if declared.required or not identity.sparse or _plausible(name, declared.kind)
        }
    if kind.name == "list":
        return [_make(kind.item, identity, (*path, "0"))] if kind.item and len(path) <= MAX_DEPTH else []
    if kind.name == "map":
        return {}
    if kind.name == "boolean":
        return False
    if kind.name in ("integer", "number"):
        return 1
    return text(identity, path)


def made_value(kind: Kind, identity: Identity, path: tuple[str, ...]) -> Any:
    """Return a plausible value of a type; the last step of `path` is its name."""
    return _make(kind, identity, path)


def made(cls: type, identity: Identity) -> dict[str, Any]:
    """Return plausible values for every property of an output class, e.g. of a function's result."""
    return {name: _make(declared.kind, identity, (name,)) for name, declared in outputs_of(cls).items()}


def _plausible(name: str, kind: Kind) -> bool:
    """Return whether the name of a value suggests a plausible text."""
    return kind.name == "string" and any(re.search(pattern, name) for pattern, _ in _BY_NAME)


def text(identity: Identity, path: tuple[str, ...]) -> str:
    """Return a plausible text for a computed output, based on the last step of its path."""
    name = next((step for step in reversed(path) if not step.isdigit()), "")
    if name == "arn" and len(path) == 1:
        return arn(identity)
    if identity.token.startswith("aws:") and (match := _AWS_ID.search(name)):
        return f"{_AWS_IDS[match.group(1).lower()]}-0{digest(identity.id, *path)[:16]}"
    for pattern, make in _BY_NAME:
        if re.search(pattern, name):
            return str(make(identity, ".".join(path)))
    return f"{identity.name}-{digest(identity.id, *path)[:8]}"


def arn(identity: Identity) -> str:
    """Return an ARN of the resource, in its service and region."""
    service = identity.token.split(":")[1].split("/")[0] if identity.token.count(":") == 2 else "service"
    kind = identity.token.rsplit(":", 1)[-1].lower()
    return f"arn:aws:{service}:{identity.region}:{identity.account}:{kind}/{identity.id}"


def digest(*parts: str) -> str:
    """Return hexadecimal digits that depend only on the parts."""
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


def certificate(seed: str) -> str:
    """Return base64 text in the format of a PEM certificate authority. The certificate is not valid."""
    body = base64.b64encode(hashlib.sha512(seed.encode()).digest()).decode()
    return base64.b64encode(
        f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n".encode()
    ).decode()


def address(*seed: str) -> str:
    """Return a private IPv4 address that depends only on the seed."""
    first, second = int(digest(*seed)[:6], 16), int(digest(*seed, "x")[:6], 16)
    return f"10.{first % 255}.0.{1 + second % 254}"


def _host(identity: Identity, path: str) -> str:
    return f"{digest(identity.id, path)[:12]}.{identity.region}.rehearsal.example"


def _number_in(identity: Identity, path: str, top: int) -> int:
    return int(digest(identity.id, path)[:6], 16) % top


_AWS_IDS = {
    "routetable": "rtb",
    "networkacl": "acl",
    "internetgateway": "igw",
    "natgateway": "nat",
    "transitgateway": "tgw",
    "allocation": "eipalloc",
    "dhcpoptions": "dopt",
    "vpcendpoint": "vpce",
    "prefixlist": "pl",
    "launchtemplate": "lt",
    "snapshot": "snap",
    "volume": "vol",
    "image": "ami",
    "instance": "i",
}
"""The prefixes of EC2's ids, by what a property names (EC2 user guide, resource IDs)."""
_AWS_ID = re.compile(rf"(?i)({'|'.join(_AWS_IDS)})ids?$")

_BY_NAME: tuple[tuple[str, Scalar], ...] = (
    (
        r"(?i)arns?$",
        lambda i, p: (
            f"arn:aws:{i.token.split(':')[1].split('/')[0]}:{i.region}:{i.account}"
            f":{p.rsplit('.', 1)[-1]}/{digest(i.id, p)[:17]}"
        ),
    ),
    (r"(?i)(ownerid|accountid|registryid|accountnumber)$", lambda i, _: i.account),
    (r"(?i)^region$|locationname$", lambda i, _: i.region),
    (r"(?i)availabilityzone$", lambda i, _: f"{i.region}a"),
    (r"(?i)securitygroupids?$", lambda i, p: f"sg-0{digest(i.id, p)[:16]}"),
    (r"(?i)subnetids?$", lambda i, p: f"subnet-0{digest(i.id, p)[:16]}"),
    (r"(?i)vpcids?$", lambda i, p: f"vpc-0{digest(i.id, p)[:16]}"),
    (r"(?i)(networkinterface|eni)ids?$", lambda i, p: f"eni-0{digest(i.id, p)[:16]}"),
    (r"(?i)cidr(block|s)?$", lambda i, p: f"10.{_number_in(i, p, 255)}.0.0/16"),
    (r"(?i)(ip|ipaddress|ipaddresses|ips)$", lambda i, p: address(i.id, p)),
    (r"(?i)(issuer|endpoint|url|uri|selflink)s?$", lambda i, p: f"https://{_host(i, p)}"),
    (r"(?i)(dnsname|domainname|hostname|fqdn|domain|dns)s?$", _host),
    (r"(?i)(certificate|certificateauthority|cacert|^data)$", lambda i, p: certificate(i.id + p)),
    (r"(?i)(thumbprint|fingerprint|etag|hash|checksum)s?$", lambda i, p: digest(i.id, p)[:40]),
    (r"(?i)(createdat|createdon|date|time|timestamp|updatedat|updatedon|at)$", lambda *_: CREATED),
    (r"(?i)(status|state)$", lambda *_: "ACTIVE"),
    (r"(?i)version$", lambda *_: "1"),
    (r"(?i)^name$", lambda i, _: i.name),
    (r"(?i)ids?$", lambda i, p: digest(i.id, p)[:17]),
)
