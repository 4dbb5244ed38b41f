"""Topologies: the hierarchies of the network in which Kueue places runs, one for each pool that declares one.

A topology cannot be changed, nor the nodes of a flavor with one (CEL rules of both definitions in Kueue
0.17.1). So their names contain a digest of what they are: a change creates others, and the old ones go once
the queue no longer uses them.
"""

from __future__ import annotations

import hashlib
import json

from trainfleet.infra.kubernetes.manifest_model import document
from trainfleet.infra.platform import Pool
from trainfleet.infra.spec.topology import HOST
from trainfleet.infra.spec.topology_levels import topology_levels


@document
class Level:
    node_label: str


@document
class TopologySpec:
    levels: tuple[Level, ...]


def topology_of(pool: Pool) -> TopologySpec | None:
    """The topology of a pool; None if it declares none. The node itself is the lowest level."""
    levels = topology_levels(pool.spec, pool.machine)
    return TopologySpec(tuple(Level(each) for each in (*levels, HOST))) if levels else None


def flavor_name(groups: tuple[Pool, ...]) -> str:
    """The name of the flavor of a pool, and of its topology if it has one."""
    pool = groups[0]
    levels = topology_levels(pool.spec, pool.machine)
    if not levels:
        return pool.spec.pool
    fixed = [levels, sorted({**pool.labels, **pool.selector}.items()), [each.tolerations for each in groups]]
    return f"{pool.spec.pool}-{hashlib.sha256(json.dumps(fixed).encode()).hexdigest()[:8]}"
