"""What a pod of a run gets to use its pool's fabric. Every launcher applies the same settings. Pure.

Only whole nodes use a fabric, and only in runs over several: half a node would block the other half's
adapters, and a single node has no peers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainfleet.infra.outputs.contract import PoolOutput

NEEDS_A_DAEMON = "gpudirect-tcp"
"""Prefix of the fabrics whose NCCL plugin needs a daemon in the same pod, with the capability NET_ADMIN and
folders of the host. The Pod Security level `baseline` of the training namespace admits neither.

Source: container-engine-accelerators gpudirect-tcpx and gpudirect-tcpxo, nccl-test.yaml (tcpx-daemon,
tcpxo-daemon).
"""


@dataclass(frozen=True)
class FabricSettings:
    """What is added to a pod; empty if the pod uses no fabric.

    No capability is among them: the nodes let pods lock memory, and IPC_LOCK has no effect for a user other
    than root (NVIDIA/nvidia-container-toolkit#2037).
    """

    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    """Extended resources, both requested and limited."""


def fabric_settings(pool: PoolOutput | None, gpus_per_pod: int, pods: int) -> FabricSettings:
    """The settings of a worker's pod.

    Args:
        pool: the pool that the pods run on; None for nodes without GPUs.
        gpus_per_pod: the GPUs of each pod.
        pods: the number of pods with GPUs in the run.
    """
    if pool is None or not _uses_fabric(pool, gpus_per_pod, pods):
        return FabricSettings()
    resources = {pool.rdma_resource: pool.rdma_nics} if pool.rdma_resource else {}
    return FabricSettings(pool.pod_annotations, pool.environment, resources)


def unusable_fabric(pool: PoolOutput | None, gpus_per_pod: int, pods: int) -> str:
    """Why the run's pods could not use the fabric that the pool has; empty if they could."""
    if pool is None or not (_uses_fabric(pool, gpus_per_pod, pods) and pool.rdma.startswith(NEEDS_A_DAEMON)):
        return ""
    return (
        f"{pool.rdma} of pool {pool.name} needs a daemon with access to the node in every pod, which the"
        " namespace does not admit; a run on one node does not need it"
    )


def _uses_fabric(pool: PoolOutput, gpus_per_pod: int, pods: int) -> bool:
    return pool.rdma != "none" and gpus_per_pod == pool.per_node and pods > 1
