"""The part `ray` of a spec: Ray, its operator, and the Redis of its clusters."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainfleet.infra.spec.part import Part


class Redis(Part):
    """A Redis in which Ray clusters keep their control store, so that they survive the loss of their head."""

    mode: Literal["none", "in-cluster", "existing"] = "none"
    """in-cluster: one pod with a volume, in the training namespace. existing: `address`, for example a
    managed Redis of the cloud. It must have one shard.
    """
    address: str = Field(
        "", pattern=r"^(rediss?://[^/@\s]+:\d+)?$", examples=["rediss://redis.example.com:6379"]
    )
    """Of an existing Redis: redis://HOST:PORT, or rediss:// with TLS. Network policies open this port to the
    pods of trainings; of a service in the cluster, NAME.NAMESPACE.svc, in its namespace only.
    """
    password_secret: str = Field(
        "", max_length=253, pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", examples=["redis-password"]
    )
    """Secret in the training namespace with an existing Redis' password (key `password`), which you create.
    Empty: it requires none.
    """
    image: str = "docker.io/library/redis:7.2.7-bookworm"
    """Container image of the pod in the cluster."""
    storage_gib: int = Field(8, ge=1)
    """Size of its volume."""


class Ray(Part):
    """Ray and its operator."""

    operator: str = Field("1.6.0", pattern=r"^\d+\.\d+\.\d+$", examples=["1.6.0"])
    """Version of the KubeRay operator, three numbers."""
    version: str = Field("2.60.0", pattern=r"^\d+\.\d+\.\d+$", examples=["2.60.0"])
    """Version of Ray in the training image, three numbers."""
    tls: bool = True
    """Encrypt Ray's internal traffic."""
    token_auth: bool = True
    """Require a token for Ray's endpoints."""
    image: str = ""
    """Container image of training pods. Empty = this release's image in the platform's registry."""
    redis: Redis = Redis()
