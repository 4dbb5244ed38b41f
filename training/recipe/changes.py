"""Which recipe keys may change between a checkpoint and the run that resumes from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

FREE_KEYS = (
    "scaling",
    "limits",
    "notifications",
    "pod_template",
    "log",
    "profile",
    "storage",
    "checkpoint.keep_last",
    "checkpoint.keep_best",
    "checkpoint.keep_every",
    "checkpoint.patience",
    "checkpoint.tolerate",
    "strategy",
    "sharding",
    "activation_checkpointing",
    "compile",
    "data_loading",
    "deterministic",
    "batch.micro_batch",
    "publish",
    "tune",
    "workload.model.loss_chunk",
    "workload.data.memory_mib",
    "workload.data.disk_gib",
    "workload.data.store",
)
"""Keys that change a loss by no more than rounding."""
FIXED_KEYS = ("optimizer.name",)
"""Keys that may never change: a checkpoint has the state of one optimizer, which another does not have."""


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], allowed: Iterable[str] = ()
) -> list[tuple[str, Any, Any]]:
    """Key, old and new value of each difference between two dumped recipes that is neither free
    nor allowed, or fixed.
    """
    before, after = dict(flatten(old)), dict(flatten(new))
    free = (*FREE_KEYS, *allowed)
    return [
        (key, before.get(key), after.get(key))
        for key in sorted(changed_keys(old, new))
        if key in FIXED_KEYS or not any(key == each or key.startswith(f"{each}.") for each in free)
    ]


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> frozenset[str]:
    """The keys whose values differ in two dumped recipes."""
    before, after = dict(flatten(old)), dict(flatten(new))
    return frozenset(key for key in {*before, *after} if before.get(key) != after.get(key))


def flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a dumped recipe by dotted key."""
    for key, member in value.items():
        if isinstance(member, Mapping):
            yield from flatten(member, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", list(member) if isinstance(member, tuple) else member
