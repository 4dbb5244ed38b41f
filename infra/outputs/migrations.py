"""How a contract of an earlier version becomes one of the next. Imports no Pulumi."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Migration = Callable[[dict[str, Any]], dict[str, Any]]


def _to_2(document: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had only AWS's own node pools and existing clusters, no launcher account and no
    certificates.
    """
    pools = document.get("pools")
    grown = [
        {"kind": "nodes", "pod_annotations": {}, "environment": {}, **pool}
        if isinstance(pool, dict)
        else pool
        for pool in (pools if isinstance(pools, list) else [])
    ]
    added: dict[str, Any] = {
        "account": "",
        "pod_labels": {},
        "priority_classes": ["trainfleet-high", "trainfleet-normal", "trainfleet-low"],
        "launcher_account": "",
        "launcher_token_secret": "",
        "ray_certificates": None,
    }
    return {**added, **document, **({"pools": grown} if isinstance(pools, list) else {})}


def _to_3(document: dict[str, Any]) -> dict[str, Any]:
    """Version 2 had one capacity in each pool, and left the keys of a store to the launcher."""
    pools = document.get("pools")
    unknown = {"groups": [], "one_group_label": "", "pod_cpus": 0.0, "pod_memory_gib": 0.0}
    grown = [
        {**unknown, **pool} if isinstance(pool, dict) else pool
        for pool in (pools if isinstance(pools, list) else [])
    ]
    return {"storage_secret": "", **document, **({"pools": grown} if isinstance(pools, list) else {})}


def _to_4(document: dict[str, Any]) -> dict[str, Any]:
    """Version 3 changed no pods, and had no Redis."""
    return {"pod_template": {"head": {}, "workers": {}}, "ray_redis": None, **document}


def _to_5(document: dict[str, Any]) -> dict[str, Any]:
    """Version 4 had pools without a topology and without changes of their pods."""
    pools = document.get("pools")
    added: dict[str, Any] = {"queue_annotations": {}, "pod_template": {}}
    grown = [
        {**added, **pool} if isinstance(pool, dict) else pool
        for pool in (pools if isinstance(pools, list) else [])
    ]
    return {**document, **({"pools": grown} if isinstance(pools, list) else {})}


def _to_6(document: dict[str, Any]) -> dict[str, Any]:
    """Version 5 had no signer: pods signed their own certificates."""
    certificates = document.get("ray_certificates")
    added = {"signer": "", "audience": "", "ca_config": ""}
    grown = {**added, **certificates} if isinstance(certificates, dict) else certificates
    return {**document, **({"ray_certificates": grown} if "ray_certificates" in document else {})}


MIGRATIONS: dict[int, Migration] = {1: _to_2, 2: _to_3, 3: _to_4, 4: _to_5, 5: _to_6}
"""By version: the migration to the next one. Raise `contract.CONTRACT_VERSION` together with a new step."""
