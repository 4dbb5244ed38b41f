"""Which tokens of an outside issuer, such as a CI system, sign in to a cloud: workload identity pools of
Google Cloud and federated credentials of Azure. Roles of AWS: documents.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainfleet.rehearsal.diff.grants.model import LATER, Grant, Index, Kind, Planned
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN

EXCHANGE = "token exchange"
POOL_PROVIDER = "gcp:iam/workloadIdentityPoolProvider:WorkloadIdentityPoolProvider"
CREDENTIAL = "azure-native:managedidentity:FederatedIdentityCredential"


def of_pool_provider(resource: Planned, index: Index) -> Iterator[Grant]:
    """Yield which tokens a provider of a workload identity pool accepts, and as whom it admits them."""
    inputs = resource.inputs
    if inputs.get("disabled"):
        return
    oidc = inputs.get("oidc")
    parts = (
        str(inputs.get("attributeCondition") or ""),
        _part("the audience is", oidc.get("allowedAudiences") if isinstance(oidc, Mapping) else None),
        _part("the token is mapped by", inputs.get("attributeMapping")),
    )
    yield Grant(
        Kind.ALLOW, _issuer(inputs, index), EXCHANGE, f"identities of {resource.shown}", _joined(parts)
    )


def of_credential(resource: Planned, index: Index) -> Iterator[Grant]:
    """Yield which tokens become an identity by its federated credential."""
    inputs = resource.inputs
    parts = (
        _part("the subject is", inputs.get("subject")),
        _part("the audience is", inputs.get("audiences")),
        _part("it matches", inputs.get("claimsMatchingExpression")),
    )
    identity = index.shown(inputs.get("resourceName"), "user assigned identity")
    yield Grant(
        Kind.ALLOW, f"a token of {index.shown(inputs.get('issuer'))}", EXCHANGE, identity, _joined(parts)
    )


def _issuer(inputs: Mapping[str, Any], index: Index) -> str:
    for kind in ("oidc", "aws", "saml", "x509"):
        settings = inputs.get(kind)
        if isinstance(settings, Mapping):
            named = settings.get("issuerUri") or settings.get("accountId")
            return f"a token of {index.shown(named) if named else kind}"
    return f"a token of {index.shown(inputs.get('oidc'), 'an issuer')}"


def _part(words: str, value: Any) -> str:
    if value in (None, "", [], {}):
        return ""
    return f"{words} {value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)}"


def _joined(parts: tuple[str, ...]) -> str:
    return ", ".join(part for part in parts if part).replace(UNKNOWN, LATER)
