"""The agents of fabrics without a chart: InfiniBand's shared device plugin, and the NCCL plugins of
GPUDirect.

They run only on their own pools, because the plugin of one fabric breaks NCCL on nodes of another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.kubernetes.manifest_model import document
from trainfleet.infra.kubernetes.names import GPU_NAMESPACE
from trainfleet.infra.kubernetes.values.gpu import GPU_LABEL
from trainfleet.infra.platform import HCA_SHARES, Pool
from trainfleet.infra.spec.node_group import POOL_LABEL
from trainfleet.infra.spec.schema import PlatformSpec

INFINIBAND_IMAGE = "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:v1.5.3"
PAUSE_IMAGE = "gke.gcr.io/pause:3.8@sha256:880e63f94b145e46f1b1082bb71b85e21f16b99b180b9996407d61240ceb9830"
HOST_IMAGE = "docker.io/library/debian:12.11-slim"
INJECTOR_IMAGE = (
    "gcr.io/gke-release/nri-device-injector"
    "@sha256:6e79483d52abdc28454bf186320b10a56b0f117a10e8d65d5c74dbb821a76970"
)


@document
class Installer:
    """An image that copies a NCCL plugin to the node, once per boot."""

    image: str
    folders: tuple[tuple[str, str], ...]
    """Folder of the host, and its mount path in the image."""
    script: str
    prepare: str = ""
    """A script to run in the host's namespaces first."""
    devices: bool = False
    """Whether the injector gives pods the fabric's devices, by an annotation (GKE:
    devices.gke.io/container.NAME).
    """


APERTURES = """
modprobe import-helper
iptables -C INPUT -p tcp -j ACCEPT || iptables -I INPUT -p tcp -j ACCEPT
for device in $(lspci -nn -D | grep 1ae0:0084 | cut -d" " -f1); do
  mkdir -p /dev/aperture_devices/$device
  umount -R /dev/aperture_devices/$device || true
  mount --bind $(readlink -f /sys/bus/pci/devices/$device) /dev/aperture_devices/$device
  chmod a+rw /dev/aperture_devices/$device/resource*
done
chmod -R a+r /dev/aperture_devices
"""
"""Exposes the memory of the machine's network cards (PCI id 1ae0:0084) to pods, and opens the host's firewall
for their traffic.
"""

LOG_MARTIANS = """
for file in /proc/sys/net/ipv4/conf/gpu*rdma0/log_martians; do
  if [ -e "$file" ]; then echo 0 > "$file"; fi
done
"""
"""Keeps the kernel from logging every packet of the RDMA interfaces."""

LOCKED_MEMORY = """
mkdir -p /etc/systemd/system/containerd.service.d
printf '[Service]\\nLimitMEMLOCK=infinity\\n' > /etc/systemd/system/containerd.service.d/50-memlock.conf
systemctl daemon-reload
prlimit --memlock=unlimited:unlimited --pid "$(systemctl show --property MainPID --value containerd)"
"""
"""Lets containers lock the memory of their InfiniBand buffers. They inherit containerd's limit, which is 64
KiB on AKS and has no setting there (Azure/AKS#4893). `prlimit` raises the limit of the running containerd
without restarting it, the file that of the next one.
"""

INSTALLERS = {
    # Source: container-engine-accelerators gpudirect-rdma/nccl-rdma-installer.yaml,
    # gpudirect-tcpxo/nccl-tcpxo-installer.yaml and gpudirect-tcpx/nccl-tcpx-installer.yaml: images, folders
    # and copied paths.
    "roce": Installer(
        "us-docker.pkg.dev/gce-ai-infra/gpudirect-gib/nccl-plugin-gib:v1.1.1",
        # `gib` is inside the folder that GKE mounts into every container with a GPU (infra/gcp/fabric.py).
        (
            ("/home/kubernetes/bin/nvidia/lib64", "/target/lib64"),
            ("/home/kubernetes/bin/nvidia/gib", "/target/gib"),
        ),
        # Without --install-nccl: the image has its own NCCL, for its version of CUDA.
        "/scripts/container_entry.sh install && cp -r /var/lib/gib/lib64/. /target/lib64 "
        "&& cp -r /var/lib/gib/. /target/gib",
        prepare=LOG_MARTIANS,
    ),
    "gpudirect-tcpxo": Installer(
        "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo/nccl-plugin-gpudirecttcpx-dev:v1.0.15",
        (("/var/lib", "/var/lib"), ("/home/kubernetes/bin/nvidia/lib64", "/target/lib64")),
        "/bin/sh /scripts/container_entry.sh install --install-nccl "
        "&& cp -r /var/lib/tcpxo/lib64/. /target/lib64",
        prepare=APERTURES,
        devices=True,
    ),
    "gpudirect-tcpx": Installer(
        "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpx/nccl-plugin-gpudirecttcpx-dev:v3.1.9",
        (("/var/lib", "/var/lib"), ("/home/kubernetes/bin/nvidia/lib64", "/target/lib64")),
        "/scripts/container_entry.sh install --install-nccl && cp -r /var/lib/tcpx/lib64/. /target/lib64",
        devices=True,
    ),
}


def infiniband_plugin(spec: PlatformSpec, pools: Sequence[Pool], parent: pulumi.Resource) -> None:
    """The shared device plugin: every pod that requests the resource gets all InfiniBand adapters of its
    node. It announces the resource only after containers may lock memory.

    Source: Mellanox/k8s-rdma-shared-dev-plugin README (configList) and deployment/k8s/base.
    """
    prefix, _, resource = next(
        (pool.rdma_resource for pool in pools if pool.rdma_resource), "rdma/ib"
    ).partition("/")
    selectors = {"vendors": ["15b3"], "linkTypes": ["infiniband"]}
    config = {
        "periodicUpdateInterval": 300,
        "configList": [
            {
                "resourceName": resource,
                "resourcePrefix": prefix,
                "rdmaHcaMax": HCA_SHARES,
                "selectors": selectors,
            }
        ],
    }
    settings = k8s.core.v1.ConfigMap(
        f"{spec.name}-infiniband-config",
        metadata=k8s.meta.v1.ObjectMetaArgs(name="infiniband-device-plugin", namespace=GPU_NAMESPACE),
        data={"config.json": json.dumps(config)},
        opts=pulumi.ResourceOptions(parent=parent, delete_before_replace=True),
    )
    sockets = [
        ("device-plugins", "/var/lib/kubelet/device-plugins"),
        ("plugins-registry", "/var/lib/kubelet/plugins_registry"),
        ("devices", "/dev"),
    ]
    container = k8s.core.v1.ContainerArgs(
        name="infiniband-device-plugin",
        image=INFINIBAND_IMAGE,
        security_context=k8s.core.v1.SecurityContextArgs(privileged=True),
        resources=_small(),
        volume_mounts=[
            *(k8s.core.v1.VolumeMountArgs(name=name, mount_path=path) for name, path in sockets),
            k8s.core.v1.VolumeMountArgs(
                name="config", mount_path="/k8s-rdma-shared-dev-plugin", read_only=True
            ),
        ],
    )
    volumes = [
        *(_host_folder(name, path) for name, path in sockets),
        k8s.core.v1.VolumeArgs(
            name="config", config_map=k8s.core.v1.ConfigMapVolumeSourceArgs(name="infiniband-device-plugin")
        ),
    ]
    agent = Agent(
        "infiniband-device-plugin",
        [container],
        volumes,
        [_on_host("locked-memory", LOCKED_MEMORY)],
        host_processes=True,
        after=(settings,),
    )
    _agent(spec, pools, parent, agent)


def nccl_plugin(spec: PlatformSpec, fabric: str, pools: Sequence[Pool], parent: pulumi.Resource) -> None:
    """A pod per node whose init container copies the fabric's NCCL plugin to the host."""
    installer = INSTALLERS[fabric]
    names = [f"folder-{index}" for index in range(len(installer.folders))]
    copy = k8s.core.v1.ContainerArgs(
        name="install",
        image=installer.image,
        command=["/bin/sh", "-c"],
        args=[f"set -ex; {installer.script}"],
        security_context=k8s.core.v1.SecurityContextArgs(privileged=True),
        resources=_small(),
        volume_mounts=[
            k8s.core.v1.VolumeMountArgs(name=name, mount_path=inside)
            for name, (_, inside) in zip(names, installer.folders, strict=True)
        ],
    )
    sleep = k8s.core.v1.ContainerArgs(name="pause", image=PAUSE_IMAGE, resources=_small())
    volumes = [
        _host_folder(name, path, create=True)
        for name, (path, _) in zip(names, installer.folders, strict=True)
    ]
    first = [_on_host("prepare", installer.prepare), copy] if installer.prepare else [copy]
    _agent(
        spec,
        pools,
        parent,
        Agent(f"nccl-{fabric}", [sleep], volumes, first, host_processes=bool(installer.prepare)),
    )
    if installer.devices:
        sockets = [("devices", "/dev"), ("injector", "/var/run/nri")]
        inject = k8s.core.v1.ContainerArgs(
            name="inject",
            image=INJECTOR_IMAGE,
            security_context=k8s.core.v1.SecurityContextArgs(privileged=True),
            resources=_small(),
            volume_mounts=[k8s.core.v1.VolumeMountArgs(name=name, mount_path=path) for name, path in sockets],
        )
        _agent(
            spec,
            pools,
            parent,
            Agent(f"devices-{fabric}", [inject], [_host_folder(name, path) for name, path in sockets]),
        )


@document
class Agent:
    """A pod on every node of some pools."""

    name: str
    containers: list[k8s.core.v1.ContainerArgs]
    volumes: list[k8s.core.v1.VolumeArgs]
    init: list[k8s.core.v1.ContainerArgs] | None = None
    host_processes: bool = False
    after: tuple[pulumi.Resource, ...] = ()


def _agent(spec: PlatformSpec, pools: Sequence[Pool], parent: pulumi.Resource, agent: Agent) -> None:
    labels = {"app.kubernetes.io/name": agent.name}
    of_pools = [
        _term(GPU_LABEL, ["true"]),
        _term(POOL_LABEL, sorted({pool.spec.pool for pool in pools})),
    ]
    k8s.apps.v1.DaemonSet(
        f"{spec.name}-{agent.name}",
        metadata=k8s.meta.v1.ObjectMetaArgs(name=agent.name, namespace=GPU_NAMESPACE, labels=labels),
        spec=k8s.apps.v1.DaemonSetSpecArgs(
            selector=k8s.meta.v1.LabelSelectorArgs(match_labels=labels),
            template=k8s.core.v1.PodTemplateSpecArgs(
                metadata=k8s.meta.v1.ObjectMetaArgs(labels=labels),
                spec=k8s.core.v1.PodSpecArgs(
                    priority_class_name="system-node-critical",
                    automount_service_account_token=False,
                    # The plugins read the host's network interfaces.
                    host_network=True,
                    host_pid=agent.host_processes or None,
                    affinity=k8s.core.v1.AffinityArgs(
                        node_affinity=k8s.core.v1.NodeAffinityArgs(
                            required_during_scheduling_ignored_during_execution=k8s.core.v1.NodeSelectorArgs(
                                node_selector_terms=[
                                    k8s.core.v1.NodeSelectorTermArgs(match_expressions=of_pools)
                                ]
                            )
                        )
                    ),
                    tolerations=[k8s.core.v1.TolerationArgs(operator="Exists")],
                    init_containers=agent.init,
                    containers=agent.containers,
                    volumes=agent.volumes,
                ),
            ),
        ),
        opts=pulumi.ResourceOptions(parent=parent, depends_on=list(agent.after), delete_before_replace=True),
    )


def _on_host(name: str, script: str) -> k8s.core.v1.ContainerArgs:
    """A container that runs a script in the host's namespaces."""
    return k8s.core.v1.ContainerArgs(
        name=name,
        image=HOST_IMAGE,
        command=["nsenter", "-at", "1", "--", "sh", "-ec", script],
        security_context=k8s.core.v1.SecurityContextArgs(privileged=True),
        resources=_small(),
    )


def _term(label: str, values: list[str]) -> k8s.core.v1.NodeSelectorRequirementArgs:
    return k8s.core.v1.NodeSelectorRequirementArgs(key=label, operator="In", values=values)


def _small() -> k8s.core.v1.ResourceRequirementsArgs:
    return k8s.core.v1.ResourceRequirementsArgs(
        requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "256Mi"}
    )


def _host_folder(name: str, path: str, *, create: bool = False) -> k8s.core.v1.VolumeArgs:
    kind = "DirectoryOrCreate" if create else None
    return k8s.core.v1.VolumeArgs(
        name=name, host_path=k8s.core.v1.HostPathVolumeSourceArgs(path=path, type=kind)
    )
