"""A cluster that no stack describes, as the contract would: only where it is, and what its pods run.

Used for `--context`. Easy to get wrong: what is not known is empty, so such a cluster has no GPU pools, no
queue, no identity in a
cloud and no price; with SkyPilot, GPUs are found by the labels of the nodes that are there.
"""

from __future__ import annotations

from trainfleet.infra.outputs.contract import PlatformOutputs, partly_known


def bare_platform(context: str, namespace: str, image: str, storage: str) -> PlatformOutputs:
    """The outputs of a platform of which only these are known."""
    return partly_known(
        context, "local", kube_context=context, namespace=namespace, image=image, bucket_url=storage
    )
