"""A cluster that no stack describes, as the contract would: only where it is, and what its pods run.

Used for `--context`. Easy to get wrong: what is not known is empty, so such a cluster has no GPU pools, no queue, no identity in a
cloud and no price; with SkyPilot, GPUs are found by the labels of the nodes that are there.
"""

from __future__ import annotations

from importlib.metadata import version

from infra.contract import CONTRACT_VERSION, PlatformOutputs


def bare_platform(context: str, namespace: str, image: str, storage: str) -> PlatformOutputs:
    """The outputs of a platform of which only these are known."""
    return PlatformOutputs(
        contract_version=CONTRACT_VERSION,
        trainfleet_version=version("trainfleet"),
        name=context,
        cloud="local",
        account="",
        region="",
        environment="",
        kube_context=context,
        kubeconfig="",
        bucket_url=storage,
        registry="",
        image=image,
        namespace=namespace,
        service_account="",
        training_identity="",
        pod_labels={},
        queue="",
        priority_classes=[],
        launcher_account="",
        launcher_token_secret="",
        autoscaler="",
        shared_volume="",
        secrets=[],
        pools=[],
        ray_version="",
        ray_tls=False,
        ray_token_auth=True,
        ray_certificates=None,
    )
