"""The spec's changes of the pods of runs."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from trainfleet.infra.spec.part import Part

EXAMPLE = {"spec": {"imagePullSecrets": [{"name": "registry-login"}]}}


class PodTemplate(Part):
    """Changes of the pods of every run: strategic merge patches of pod templates. A recipe and
    `--pod-template` are applied after them.
    """

    head: dict[str, Any] = {}
    """Of the heads of Ray clusters (KubeRay)."""
    workers: dict[str, Any] = Field({}, examples=[EXAMPLE])
    """Of the pods that train. Their container is called `trainer`."""
