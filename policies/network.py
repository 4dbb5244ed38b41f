"""Who can reach the control plane."""

from __future__ import annotations

from collections.abc import Iterable

from policies.rule import Resource, Rule, Violation, listed

WORLD = {"0.0.0.0/0", "::/0"}


def eks_endpoint(resource: Resource) -> Iterable[Violation]:
    """EKS opens the endpoint, and to the world, unless told otherwise."""
    config = resource.props.get("vpcConfig") or {}
    if not config.get("endpointPublicAccess", True):
        return
    ranges = listed(config.get("publicAccessCidrs"))
    if not ranges:
        yield Violation("vpcConfig.endpointPublicAccess is on and vpcConfig.publicAccessCidrs does not restrict it")
    if WORLD & set(ranges):
        yield Violation(f"vpcConfig.publicAccessCidrs holds {', '.join(sorted(WORLD & set(ranges)))}")


NO_OPEN_CONTROL_PLANE = Rule(
    name="no-open-control-plane",
    statement="The control plane answers inside the network, or to named address ranges only.",
    fix="set kubernetes.private_endpoint: true, or name the ranges in network.allowed_cidrs",
    references=("CIS EKS 5.4.1, 5.4.2", "CKV_AWS_38", "CKV_AWS_39", "AWS-0040", "AWS-0041"),
    checks={"aws:eks/cluster:Cluster": eks_endpoint},
)
RULES = (NO_OPEN_CONTROL_PLANE,)
