"""EC2 machines for Ray's launcher.

The head creates the workers, so its profile must allow it to start instances and to pass the workers'
profile; by default Ray creates `ray-autoscaler-v1`. Workers get `--identity`, which cannot start anything.
"""

from __future__ import annotations

from trainfleet.training.launch.ray_up.cluster_yaml import Document
from trainfleet.training.launch.ray_up.cluster_yaml import node_types as types
from trainfleet.training.launch.ray_up.run_spec import RunSpec

HEAD_TYPE = "m7i.xlarge"
CPU_TYPE = "m7i.2xlarge"
MACHINE_IMAGE = (
    "resolve:ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)
"""AWS's base image with the driver, Docker and NVIDIA's container toolkit; EC2 resolves the newest."""
ROOT = "/dev/sda1"
HEAD_GIB, WORKER_GIB = 100, 200


def provider(run: RunSpec) -> Document:
    """Where the machines are created. Released ones are terminated: stopped ones would cost disks."""
    zone = {"availability_zone": run.zone} if run.zone else {}
    return {"type": "aws", "region": run.outputs.region, **zone, "cache_stopped_nodes": False}


def auth(run: RunSpec) -> Document:  # noqa: ARG001 - every cloud has the same arguments
    """In addition to the user: Ray creates a key."""
    return {}


def node_types(run: RunSpec) -> Document:
    """Head and workers."""
    worker = _machine(run, run.pool.instance_type if run.pool is not None else CPU_TYPE, WORKER_GIB)
    if run.identity:
        worker["IamInstanceProfile"] = {"Arn" if run.identity.startswith("arn:") else "Name": run.identity}
    if run.pool is not None and run.pool.spot:
        worker["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time"},
        }
    return types(run, _machine(run, HEAD_TYPE, HEAD_GIB), worker)


def login(run: RunSpec) -> list[str]:
    """Log Docker in to ECR with the machine's identity."""
    host = run.image.partition("/")[0]
    if ".dkr.ecr." not in host:
        return []
    region = host.split(".")[3]
    return [
        f"aws ecr get-login-password --region {region} | docker login --username AWS --password-stdin {host}"
    ]


def _machine(run: RunSpec, instance_type: str, gib: int) -> Document:
    disk = {"VolumeSize": gib, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
    tags = [
        {"Key": "trainfleet:run", "Value": run.recipe.name},
        {"Key": "trainfleet:platform", "Value": run.outputs.name or "none"},
    ]
    return {
        "InstanceType": instance_type,
        "ImageId": run.machine_image or MACHINE_IMAGE,
        "BlockDeviceMappings": [{"DeviceName": ROOT, "Ebs": disk}],
        # IMDSv2 only; a container is one hop further away.
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
        "TagSpecifications": [{"ResourceType": "instance", "Tags": tags}],
    }
