"""Foundation: the components that the cluster, its nodes and filesystems are built on."""

from __future__ import annotations

from dataclasses import dataclass

from trainfleet.infra.gcp.apis import Apis
from trainfleet.infra.gcp.fabric import Fabric
from trainfleet.infra.gcp.identity import Identity
from trainfleet.infra.gcp.keys import Keys
from trainfleet.infra.gcp.network import Network


@dataclass(frozen=True)
class Foundation:
    apis: Apis
    keys: Keys
    network: Network
    identity: Identity
    fabric: Fabric
