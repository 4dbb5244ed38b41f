"""The cluster's servers: the command line and the configuration file of each.

Each node runs containerd, kubelet and kube-proxy; the first runs the control plane too. Paths below /run,
/var/lib and /var/log are the node's own (node_init.py). Control groups are shared with the
machine, so all of them are below one folder.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainfleet.files import write_whole
from trainfleet.local_cluster import builds, pins, volumes
from trainfleet.local_cluster.pki import LOOPBACK
from trainfleet.local_cluster.state import Node, State

SOCKET = "/run/containerd/containerd.sock"
PAUSE = "localhost/pause:1"
GRACE_S = 50
"""How long a node may be silent before its pods are no longer ready, as in Kubernetes by default."""
TOLERATION_S = 15
"""With several nodes, how long a pod stays on one that is lost or not ready, unless the pod says otherwise.
Kubernetes' default is 300. With one node, a pod that is evicted could run nowhere else: the default stays."""
STORAGE_CLASS = "local"
VOLUMES = "/var/lib/volumes"


@dataclass(frozen=True)
class Server:
    """The command of a server, and its environment variables."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)

    def process_spec(self) -> dict[str, Any]:
        """The entry in processes.json. The node restarts the server when it changes, so it contains a digest
        of the configuration files.
        """
        paths = [Path(argument.rpartition("=")[2]) for argument in self.command]
        files = [path for path in paths if path.parent.name == "config" and path.is_file()]
        configuration = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
        return {"command": self.command, "environment": self.environment, "configuration": configuration}


def write_configuration(state: State) -> None:
    """Write the servers' configuration files."""
    resolver = f"nameserver {state.dns}\nsearch svc.cluster.local cluster.local\noptions ndots:5\n"
    for node in state.nodes:
        files = {
            "resolv.conf": resolver,
            "containerd.toml": _containerd(node),
            "kubelet.yaml": yaml.safe_dump(_kubelet(node)),
            "cni/10-pods.conflist": json.dumps(_pod_network(node), indent=1) + "\n",
        }
        for name, text in files.items():
            write_whole(node.file("config", name), text)


def runtime(node: Node) -> dict[str, Server]:
    """The container runtime, which is enough to import images."""
    return {"containerd": Server(["containerd", "--config", str(node.file("config", "containerd.toml"))])}


def of_node(node: Node) -> dict[str, Server]:
    """What every node runs."""

    def config(name: str) -> str:
        return f"--kubeconfig={node.file('config', name)}.kubeconfig"

    proxy = ["kube-proxy", config("kube-proxy"), f"--hostname-override={node.name}"]
    proxy += [f"--cluster-cidr={node.cluster.pods}", "--proxy-mode=nftables", "--conntrack-max-per-core=0"]
    proxy += ["--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s"]
    kubelet = ["kubelet", config("kubelet"), f"--config={node.file('config', 'kubelet.yaml')}"]
    kubelet += [f"--hostname-override={node.name}", f"--node-ip={node.address}"]
    kubelet += [f"--node-labels=trainfleet.io/cluster={node.cluster.name}"]
    running = runtime(node) | {"kube-proxy": _kube(*proxy), "kubelet": _kube(*kubelet)}
    if node.cluster.network_policies:
        agent = [str(builds.executable(pins.NETWORK_POLICIES))]
        agent += [str(node.file("config", "network-policies.kubeconfig")), str(node.cluster.pods)]
        running["network-policies"] = Server(agent, {"GOGC": "50"})
    if devices := node.settings.devices:
        plugin = str(builds.executable(pins.DEVICE_PLUGIN))
        counts = (f"{resource}={count}" for resource, count in devices.items())
        running["device-plugin"] = Server([plugin, *counts])
    return running


def control_plane(state: State) -> dict[str, Server]:
    """The servers that must answer before the others start."""
    clients, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    etcd = ["etcd", "--name=node", "--data-dir=/var/lib/etcd", "--logger=zap", "--log-outputs=stderr"]
    etcd += [f"--quota-backend-bytes={2 << 30}", "--auto-compaction-retention=1"]
    etcd += [f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"]
    etcd += [f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"]
    etcd += [f"--initial-cluster=node={peers}"]
    return {
        "etcd": Server(etcd),
        **runtime(state.control_plane),
        "kube-apiserver": _kube("kube-apiserver", *_apiserver(state)),
    }


def clients(state: State) -> dict[str, Server]:
    """The clients of the API server on the first node."""

    def config(name: str) -> str:
        return f"--kubeconfig={state.file('config', name)}.kubeconfig"

    pki = state.file("pki")
    controllers = ["kube-controller-manager", config("kube-controller-manager")]
    controllers += ["--use-service-account-credentials=true", "--leader-elect=false"]
    controllers += [f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.crt"]
    controllers += [f"--cluster-signing-cert-file={pki}/ca.crt", f"--cluster-signing-key-file={pki}/ca.key"]
    controllers += ["--allocate-node-cidrs=false", f"--cluster-cidr={state.pods}"]
    controllers += [f"--service-cluster-ip-range={state.services}", f"--node-monitor-grace-period={GRACE_S}s"]
    operator = [str(builds.executable(pins.RAY_OPERATOR)), config("ray-operator")]
    operator += ["--enable-leader-election=false", "--enable-metrics=true", "--metrics-addr=:8080"]
    operator += ["--health-probe-bind-address=:8082", "--log-stdout-encoder=console"]
    operator_environment = {"ENABLE_INIT_CONTAINER_INJECTION": "false", "GOMEMLIMIT": "512MiB"}
    return {
        "kube-controller-manager": _kube(*controllers),
        "kube-scheduler": _kube("kube-scheduler", config("kube-scheduler"), "--leader-elect=false"),
        **of_node(state.control_plane),
        "ray-operator": Server(operator, operator_environment),
        "volumes": _volumes(state),
    }


def simulated(state: State) -> dict[str, Server]:
    """kwok, which acts as the kubelet of simulated nodes."""
    command = [str(builds.executable(pins.KWOK)), "--manage-all-nodes=false"]
    command += [f"--kubeconfig={state.file('config', 'kwok.kubeconfig')}"]
    command += ["--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"]
    command += [f"--cidr={state.pods}", f"--node-ip={state.node_address}"]
    return {"kwok": Server(command)}


def _kube(program: str, *flags: str) -> Server:
    # Idle servers release memory sooner, at the price of more garbage collections.
    return Server([str(builds.executable(pins.KUBE)), program, *flags], {"GOGC": "50"})


def _apiserver(state: State) -> list[str]:
    pki = state.file("pki")
    toleration = TOLERATION_S if len(state.nodes) > 1 else 300
    return [
        "--etcd-servers=http://127.0.0.1:2379",
        f"--service-cluster-ip-range={state.services}",
        f"--advertise-address={state.node_address}",
        "--secure-port=6443",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--event-ttl=6h",
        f"--default-not-ready-toleration-seconds={toleration}",
        f"--default-unreachable-toleration-seconds={toleration}",
        # Needs etcd's progress notifications, which Debian's 3.4 lacks: each list would wait for a time-out.
        "--feature-gates=SizeBasedListCostEstimate=false",
    ]


def _containerd(node: Node) -> str:
    # Without restrict_oom_score_adj, runc fails on machines where root cannot lower the score: "can't get
    # final child's PID from pipe: EOF".
    disabled = ", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in ("btrfs", "zfs", "devmapper"))
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [{disabled}]
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE}"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{node.cluster.registries}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node.file("config", "cni")}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def _kubelet(node: Node) -> dict[str, Any]:
    pki, authority = node.file("pki"), node.cluster.file("pki", "ca.crt")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "x509": {"clientCAFile": str(authority)},
            "webhook": {"enabled": True},
            "anonymous": {"enabled": False},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/kubelet.crt",
        "tlsPrivateKeyFile": f"{pki}/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        # A kernel setting that node_init.TUNABLES lacks is an error, not a change of the machine.
        "protectKernelDefaults": True,
        "enforceNodeAllocatable": [],
        "clusterDNS": [str(node.cluster.dns)],
        "clusterDomain": "cluster.local",
        "resolvConf": str(node.file("config", "resolv.conf")),
        "evictionPressureTransitionPeriod": "15s",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        # Images are never removed, not even from a full disk: no registry could provide them again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "imageMinimumGCAge": "87600h",
        "nodeStatusUpdateFrequency": "5s",
        "containerLogMaxSize": "20Mi",
        "maxPods": 200,
        # Of a new node only; `up` taints existing ones.
        "registerWithTaints": [as_taint(text) for text in node.settings.taints],
    }


def as_taint(text: str) -> dict[str, str]:
    """The taint of the text `KEY[=VALUE]:EFFECT`."""
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return {"key": key, "value": value, "effect": effect}


def _pod_network(node: Node) -> dict[str, Any]:
    # ptp, not bridge: traffic between pods is routed, so a service's answers pass the node's rules without
    # br_netfilter.
    ipam = {"type": "host-local", "ranges": [[{"subnet": str(node.pods)}]], "routes": [{"dst": "0.0.0.0/0"}]}
    plugins: list[dict[str, Any]] = [
        {"type": "ptp", "ipMasq": False, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}


def _volumes(state: State) -> Server:
    pki = state.file("pki")
    command = [sys.executable, "-I", "-S", volumes.__file__, LOOPBACK, str(pki), STORAGE_CLASS, VOLUMES]
    return Server(command)
