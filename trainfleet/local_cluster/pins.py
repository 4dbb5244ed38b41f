"""The programs that the cluster is built from: one folder of pins (go.mod, go.sum) per program below
trainfleet/pins/kubernetes. Versions are read from the pins.
"""

from __future__ import annotations

import hashlib
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from trainfleet import pins
from trainfleet.errors import TrainfleetError

PINS = Path(pins.__file__).parent / "kubernetes"


@dataclass(frozen=True)
class Program:
    """An executable: its folder of pins, the package to build (`.` is a main.go in that folder), and the
    module whose version it has.
    """

    name: str
    folder: str
    package: str
    module: str
    flags: str = ""
    """Linker flags; `{version}` is replaced by the module's version."""
    files: tuple[str, ...] = ()
    """Files and folders of the module that are copied next to the executable."""

    @property
    def pins(self) -> Path:
        return PINS / self.folder

    @property
    def version(self) -> str:
        """The version that go.mod pins, without `v`."""
        found = re.search(
            rf"^\s*(?:require )?{re.escape(self.module)} v([\w.+-]+)",
            (self.pins / "go.mod").read_text(),
            re.M,
        )
        if found is None:
            raise TrainfleetError(
                f"trainfleet/pins/kubernetes/{self.folder}/go.mod does not pin {self.module}"
            )
        return found.group(1)

    @property
    def key(self) -> str:
        """The cache key of the build: sources, pins, flags and platform."""
        digest = hashlib.sha256(
            f"{self.package} {self.flags} {platform.system()} {platform.machine()}".encode()
        )
        for path in sorted(self.pins.iterdir()):
            digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()[:16]


KUBE = Program(
    "kube", "kube", ".", "k8s.io/kubernetes", "-X k8s.io/component-base/version.gitVersion=v{version}"
)
COREDNS = Program("coredns", "coredns", ".", "github.com/coredns/coredns")
RAY_OPERATOR = Program(
    "ray-operator",
    "kuberay",
    "github.com/ray-project/kuberay/ray-operator",
    "github.com/ray-project/kuberay/ray-operator",
    files=("config/rbac/role.yaml",),
)
KWOK = Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok")
DEVICE_PLUGIN = Program("device-plugin", "device-plugin", ".", "k8s.io/kubelet")
NETWORK_POLICIES = Program("network-policies", "network-policies", ".", "sigs.k8s.io/kube-network-policies")
KUEUE = Program(
    "kueue",
    "kueue",
    "sigs.k8s.io/kueue/cmd/kueue",
    "sigs.k8s.io/kueue",
    "-X sigs.k8s.io/kueue/pkg/version.GitVersion=v{version}",
    files=("config",),
)
PROGRAMS = (KUBE, COREDNS, RAY_OPERATOR, KWOK, DEVICE_PLUGIN, NETWORK_POLICIES, KUEUE)
OPTIONAL = frozenset({KWOK, DEVICE_PLUGIN, NETWORK_POLICIES, KUEUE})
"""Built only when they are asked for: kwok for simulated nodes, the device plugin for stand-in devices, the
agent for network policies, Kueue for a queue.
"""
