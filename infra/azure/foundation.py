"""Foundation: the components that the cluster, its nodes and filesystems are built on."""

from __future__ import annotations

from dataclasses import dataclass

from trainfleet.infra.azure.group import Group
from trainfleet.infra.azure.identity import Identity
from trainfleet.infra.azure.keys import Keys
from trainfleet.infra.azure.network import Network
from trainfleet.infra.azure.registry import Registry
from trainfleet.infra.azure.workspace import Workspace


@dataclass(frozen=True)
class Foundation:
    group: Group
    workspace: Workspace
    keys: Keys
    network: Network
    identity: Identity
    registry: Registry
