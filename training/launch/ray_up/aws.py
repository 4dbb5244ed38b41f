"""Machines on AWS, as Ray's launcher asks EC2 for them. Used by `document`; like its siblings `gcp`, `azure`
and `onprem`.

Easy to get wrong: the head makes the workers, so its own profile must be allowed to start instances and to
pass the workers' profile on;
without one Ray makes `ray-autoscaler-v1`. Workers get `--identity` and no right to start anything.
"""

from __future__ import annotations

from trainfleet.training.launch.ray_up.cluster_yaml import Document
from trainfleet.training.launch.ray_up.cluster_yaml import node_types as types
from trainfleet.training.launch.ray_up.run_spec import Site

HEAD_TYPE = "m7i.xlarge"
CPU_TYPE = "m7i.2xlarge"
MACHINE_IMAGE = (
    "resolve:ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)
"""AWS's own base image with the driver, Docker and NVIDIA's container toolkit; EC2 itself looks up the
newest.
"""
ROOT = "/dev/sda1"
HEAD_GIB, WORKER_GIB = 100, 200


def provider(site: Site) -> Document:
    """Where the machines are made. A machine that is given back is ended, not kept for later: kept disks
    cost.
    """
    zone = {"availability_zone": site.zone} if site.zone else {}
    return {"type": "aws", "region": site.outputs.region, **zone, "cache_stopped_nodes": False}


def auth(site: Site) -> Document:  # noqa: ARG001 - the siblings have the same arguments
    """Beside user and key; without a key Ray makes one."""
    return {}


def node_types(site: Site) -> Document:
    """Head and workers."""
    worker = _machine(site, site.pool.instance_type if site.pool is not None else CPU_TYPE, WORKER_GIB)
    if site.identity:
        worker["IamInstanceProfile"] = {"Arn" if site.identity.startswith("arn:") else "Name": site.identity}
    if site.pool is not None and site.pool.spot:
        worker["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time"},
        }
    return types(site, _machine(site, HEAD_TYPE, HEAD_GIB), worker)


def login(site: Site) -> list[str]:
    """Let Docker pull from ECR by the machine's own identity."""
    host = site.image.partition("/")[0]
    if ".dkr.ecr." not in host:
        return []
    region = host.split(".")[3]
    return [
        f"aws ecr get-login-password --region {region} | docker login --username AWS --password-stdin {host}"
    ]


def head_setup(site: Site) -> list[str]:  # noqa: ARG001 - the siblings have the same arguments
    """What Ray's autoscaler needs on the head."""
    return ["python -c 'import boto3' 2>/dev/null || pip install 'boto3>=1.34'"]


def _machine(site: Site, instance_type: str, gib: int) -> Document:
    disk = {"VolumeSize": gib, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
    tags = [
        {"Key": "trainfleet:run", "Value": site.recipe.name},
        {"Key": "trainfleet:platform", "Value": site.outputs.name or "none"},
    ]
    return {
        "InstanceType": instance_type,
        "ImageId": site.machine_image or MACHINE_IMAGE,
        "BlockDeviceMappings": [{"DeviceName": ROOT, "Ebs": disk}],
        # Tokens are asked of whoever wants the machine's credentials; a container is one hop further away.
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
        "TagSpecifications": [{"ResourceType": "instance", "Tags": tags}],
    }
