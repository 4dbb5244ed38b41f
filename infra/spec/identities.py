"""The part `identities` of the spec."""

from __future__ import annotations

from pydantic import Field

from trainfleet.infra.spec.part import Part


class Identities(Part):
    """Who the control plane, the nodes and the pods are to the cloud. Default: the platform creates them."""

    existing: dict[str, str] = {}
    """Identities of yours that the platform uses instead of creating its own, by purpose: role ARNs (aws),
    service accounts (gcp), resource ids of user-assigned managed identities (azure). `trainfleet spec
    identities` lists the purposes, and what each identity must be allowed to do.
    """
    permission_boundary: str = Field("", examples=["arn:aws:iam::111122223333:policy/boundary"])
    """aws: the policy that bounds every role which the platform creates. Default: none."""
