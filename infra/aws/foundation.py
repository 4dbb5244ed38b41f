"""Foundation: the components that the cluster, its nodes and filesystems are built on."""

from __future__ import annotations

from dataclasses import dataclass

from trainfleet.infra.aws.identity import Identity
from trainfleet.infra.aws.keys import Keys
from trainfleet.infra.aws.network import Network
from trainfleet.infra.aws.storage import Storage


@dataclass(frozen=True)
class Foundation:
    keys: Keys
    network: Network
    identity: Identity
    storage: Storage
