"""What objects in a cluster are billed as: the cloud resources that they order. Imports no Pulumi.

Pods cost nothing by themselves: they run on nodes, which are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainfleet.infra.catalog.planned import Charge, Charges, Plan, Planned


def _service(service: Planned, _plan: Plan) -> Iterator[Charge]:
    if service.get("spec.type") == "LoadBalancer":
        yield Charge("load-balancer", 1, 1)


def _claim(claim: Planned, _plan: Plan) -> Iterator[Charge]:
    """A claim orders a disk from its storage class, unless it names a volume or no class."""
    if claim.get("spec.volumeName") or claim.get("spec.storageClassName", "default") == "":
        return
    yield Charge(
        f"volume of the storage class {claim.get('spec.storageClassName', 'default')}", 1, 1, claim.name
    )


CHARGES: Mapping[str, Charges] = {
    "kubernetes:core/v1:Service": _service,
    "kubernetes:core/v1:PersistentVolumeClaim": _claim,
}
"""Type to how it is billed."""
BUDGETS: Mapping[str, object] = {}
