"""Plausible outputs of a component of a plugin, from the class that its SDK has for it.

An output that is a resource becomes a reference, which the SDK looks up in the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from trainfleet.rehearsal.simulation.kubeconfig import kubeconfig
from trainfleet.rehearsal.simulation.schema import Kind, Package, ResourceType
from trainfleet.rehearsal.simulation.values import Identity, certificate, digest, made_value
from trainfleet.rehearsal.simulation.values import made as made_output_class

Refer = Callable[[type, tuple[str, ...], str], Any]
"""Returns a reference to a resource of a class, from the path of the output and the resource's id, which may
be empty.
"""
_KUBECONFIG = re.compile(r"(?i)^kube_?config(json)?$")


def component_outputs(
    resource: ResourceType,
    inputs: Mapping[str, Any],
    identity: Identity,
    lengths: Mapping[str, int],
    refer: Refer,
) -> dict[str, Any]:
    """Return the outputs of a component.

    Args:
        resource: what the SDK declares.
        inputs: its inputs; see `same_as_inputs`.
        identity: what the values derive from; `own` has those that are known.
        lengths: the number of items of lists; others have one.
        refer: makes the references.
    """
    made = same_as_inputs(resource, inputs)
    made |= {name: value for name, value in _well_known(identity).items() if name in resource.outputs}
    made |= {name: value for name, value in identity.own.items() if name in resource.outputs}
    later: dict[str, Kind] = {}
    for name, declared in resource.outputs.items():
        if name in made:
            continue
        if _refers(declared.kind):
            later[name] = declared.kind
        elif _KUBECONFIG.search(name):
            document = _kubeconfig(identity)
            made[name] = json.dumps(document) if declared.kind.name == "string" else document
        elif declared.kind.name == "list" and declared.kind.item is not None:
            item = declared.kind.item
            made[name] = [
                made_value(item, identity, (name, str(index)))
                for index in range(lengths.get(name, item.name != "any"))
            ]
        elif declared.kind.name != "any":
            made[name] = made_value(declared.kind, replace(identity, refer=_nested(refer)), (name,))
    # A list of everything, such as `subnets`, has the items of the lists of some, such as `publicSubnets`.
    for name in sorted(later, key=lambda each: _is_whole(each, later)):
        made[name] = _references(name, later, made, lengths, refer)
    return made


def same_as_inputs(resource: ResourceType, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs that are inputs, too.

    `natGateways` of an awsx.ec2.Vpc is not: the input says how many, and the output refers to them.
    """
    found = {}
    for name, output in resource.outputs.items():
        given = resource.inputs.get(name)
        if inputs.get(name) is not None and (given is None or _refers(given.kind) == _refers(output.kind)):
            found[name] = inputs[name]
    return found


def _refers(kind: Kind) -> bool:
    return kind.name == "resource" or (
        kind.name in ("list", "map") and kind.item is not None and _refers(kind.item)
    )


def _nested(refer: Refer) -> Callable[[type, tuple[str, ...]], Any]:
    return lambda cls, path: refer(cls, path, "")


def _references(
    name: str, kinds: Mapping[str, Kind], made: Mapping[str, Any], lengths: Mapping[str, int], refer: Refer
) -> Any:
    kind = kinds[name]
    if kind.name == "resource" and kind.cls is not None:
        own = made.get(f"{name}Id")
        return refer(kind.cls, (name,), own if isinstance(own, str) else "")
    if kind.name != "list" or kind.item is None or kind.item.cls is None:
        return {}
    if parts := list(_parts(name, kinds)):
        return [item for part in parts for item in made[part]]
    ids = made.get(f"{name.removesuffix('s')}Ids")
    ids = ids if isinstance(ids, list) else [""] * lengths.get(name, 1)
    return [refer(kind.item.cls, (name, str(index)), str(own)) for index, own in enumerate(ids)]


def _is_whole(name: str, kinds: Mapping[str, Kind]) -> bool:
    return any(_parts(name, kinds))


def _parts(name: str, kinds: Mapping[str, Kind]) -> Iterator[str]:
    """Yield the lists of the same class whose names end with this one."""
    ending = f"{name[0].upper()}{name[1:]}"
    return (each for each, kind in kinds.items() if each.endswith(ending) and kind == kinds[name])


def _well_known(identity: Identity) -> dict[str, Any]:
    """Return what an EKS cluster's identity provider is, whose parts belong together."""
    if not identity.token.startswith("aws:"):
        return {}
    issuer = f"oidc.eks.{identity.region}.amazonaws.com/id/{digest(identity.id, 'oidc')[:32].upper()}"
    return {
        "oidcIssuer": issuer,
        "oidcProviderUrl": f"https://{issuer}",
        "oidcProviderArn": f"arn:aws:iam::{identity.account}:oidc-provider/{issuer}",
    }


def method_result(package: Package, token: str, method: str, identity: Identity) -> dict[str, Any] | None:
    """Return a plausible result of a component's method, or None if the SDK has no such method."""
    declared = package.method(token, method)
    if declared is None:
        return None
    made = made_output_class(declared, identity)
    if "kubeconfig" in method.lower():
        made |= {name: json.dumps(_kubeconfig(identity)) for name in made if name == "result"}
    return made


def _kubeconfig(identity: Identity) -> dict[str, Any]:
    host = f"{digest(identity.id, 'endpoint')[:32].upper()}.gr7.{identity.region}.eks.amazonaws.com"
    server = (
        f"https://{host}"
        if identity.token.startswith("aws:")
        else f"https://{host.split('.', maxsplit=1)[0]}.rehearsal.example"
    )
    return kubeconfig(identity.name, identity.name, server, certificate(identity.id))
