"""Nodes: no way to their credentials without a session token, and GPU nodes that only GPU pods are placed on."""

from __future__ import annotations

from collections.abc import Iterable

from policies.rule import UNKNOWN, Resource, Rule, Violation, listed

GPU_TAINT = "nvidia.com/gpu"
GPU_PRESENT = "nvidia.com/gpu.present"
ACCELERATOR = "skypilot.co/accelerator"


def session_tokens(resource: Resource) -> Iterable[Violation]:
    options = resource.props.get("metadataOptions") or {}
    if options.get("httpEndpoint") == "disabled":
        return
    if options.get("httpTokens") != "required":
        yield Violation("metadataOptions.httpTokens is not `required`")


def node_group_template(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("launchTemplate") is None:
        yield Violation("launchTemplate is missing, so metadata options are EKS's own and session tokens are not required")


def eks_gpu_nodes(resource: Resource) -> Iterable[Violation]:
    """A GPU node group is known by its image, its labels or its taint; then it must have all of taint and labels."""
    labels = resource.props.get("labels") or {}
    taints = listed(resource.props.get("taints"))
    tainted = any(taint.get("key") == GPU_TAINT and taint.get("effect") == "NO_SCHEDULE" for taint in taints)
    image = resource.props.get("amiType")
    if not (tainted or GPU_PRESENT in labels or ACCELERATOR in labels or (image is not None and image is not UNKNOWN and "NVIDIA" in image)):
        return
    if not tainted:
        yield Violation(f"no taint {GPU_TAINT} with effect NO_SCHEDULE: pods without a GPU would fill GPU nodes")
    if labels.get(GPU_PRESENT) != "true":
        yield Violation(f"label {GPU_PRESENT}=true is missing: no device plugin would be placed on the nodes")
    accelerator = labels.get(ACCELERATOR)
    if accelerator is None:
        yield Violation(f"label {ACCELERATOR} is missing: SkyPilot would not find the pool at zero nodes")
    elif accelerator != accelerator.lower():
        yield Violation(f"label {ACCELERATOR}={accelerator} is not lower case: SkyPilot skips it")


IMDSV2 = Rule(
    name="imdsv2",
    statement="A node's metadata service asks for a session token.",
    fix="set metadataOptions.httpTokens: required",
    references=("CIS AWS 5.6", "CKV_AWS_79", "AWS-0130"),
    checks={
        "aws:ec2/launchTemplate:LaunchTemplate": session_tokens,
        "aws:ec2/instance:Instance": session_tokens,
        "aws:eks/nodeGroup:NodeGroup": node_group_template,
    },
)
GPU_TAINT_AND_LABEL = Rule(
    name="gpu-taint-and-label",
    statement="A GPU pool carries the GPU taint and the labels that schedulers and autoscalers look for.",
    fix=f"taint the pool {GPU_TAINT}=present:NoSchedule and label it {GPU_PRESENT}=true and {ACCELERATOR}=<name in lower case>",
    references=("SkyPilot#8598",),
    checks={"aws:eks/nodeGroup:NodeGroup": eks_gpu_nodes},
)
RULES = (IMDSV2, GPU_TAINT_AND_LABEL)
