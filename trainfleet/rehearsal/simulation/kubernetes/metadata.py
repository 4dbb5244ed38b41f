"""Kubernetes API validation of metadata: names, labels and annotations.

Source: kubernetes pkg/apis/core/validation/validation.go. Values that are not known yet are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.kubernetes.object_access import as_map, is_text
from trainfleet.rehearsal.simulation.kubernetes_types import (
    DNS_1035,
    DNS_LABEL,
    LABEL,
    label_key_fault,
    subdomain,
)
from trainfleet.suggestions import did_you_mean

_DNS_LABELS = {"Namespace"}
_PATH_NAMES = {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
_LONGEST = {"CronJob": 52, "Job": 63}


def metadata_mistakes(kind: str, metadata: Any) -> Iterator[Mistake]:
    """Yield the mistakes in names, labels and annotations."""
    if not isinstance(metadata, dict):
        return
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if is_text(name):
        if kind in _DNS_LABELS:
            good, words = DNS_LABEL.fullmatch(name) is not None, "at most 63 lowercase letters, digits and -"
        elif kind == "Service":
            good, words = (
                DNS_1035.fullmatch(name) is not None,
                "at most 63 lowercase letters, digits and -, beginning with a letter",
            )
        elif kind in _PATH_NAMES:
            good, words = (
                bool(name) and not any(sign in name for sign in "/%") and name not in (".", ".."),
                "no / and no %",
            )
        else:
            most = _LONGEST.get(kind, 253)
            good, words = (
                subdomain(name, most),
                f"at most {most} lowercase letters, digits, - and ., beginning and ending with a letter or"
                " digit",
            )
        if not good:
            yield Mistake("metadata.name", f"{name!r} is not a valid name", words)
    if is_text(namespace) and not DNS_LABEL.fullmatch(namespace):
        yield Mistake(
            "metadata.namespace",
            f"{namespace!r} is not a valid name",
            "at most 63 lowercase letters, digits and -",
        )
    yield from labels_mistakes("metadata.labels", metadata.get("labels"))
    for key in as_map(metadata.get("annotations")):
        if fault := label_key_fault(key.lower()):
            yield Mistake(f'metadata.annotations["{key}"]', f"{key!r} is not a valid key", fault)


def security_levels(labels: Any) -> Iterator[Mistake]:
    """Yield the mistakes in the labels of a namespace that choose its Pod Security levels."""
    levels = ("privileged", "baseline", "restricted")
    for mode in ("enforce", "audit", "warn"):
        key = f"pod-security.kubernetes.io/{mode}"
        value = as_map(labels).get(key)
        if is_text(value) and value not in levels:
            yield Mistake(
                f'metadata.labels["{key}"]',
                f"{value!r} is not one of the values",
                did_you_mean(value, levels),
            )


def labels_mistakes(path: str, labels: Any) -> Iterator[Mistake]:
    """Yield the mistakes in the keys and values of labels."""
    for key, value in as_map(labels).items():
        if fault := label_key_fault(key):
            yield Mistake(f'{path}["{key}"]', f"{key!r} is not a valid key", fault)
        if is_text(value) and value and not LABEL.fullmatch(value):
            yield Mistake(
                f'{path}["{key}"]',
                f"{value!r} is not a valid value",
                "at most 63 letters, digits, - _ and ., beginning and ending with a letter or digit",
            )
