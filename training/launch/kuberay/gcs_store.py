"""GCS fault tolerance: Ray's control store (GCS) in an external Redis, so that a new head knows the workers
of the last one (docs.ray.io, "GCS fault tolerance in KubeRay").

A run then has a pod for its driver, because a job whose driver runs on the head ends with the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from trainfleet.errors import Problem
from trainfleet.infra.outputs.contract import PlatformOutputs
from trainfleet.training.launch.kuberay.options import KubeRayOptions

DEFAULT_PORT = 6379
PASSWORD_KEY = "password"
"""The key of the Secret that `--redis-secret` names."""
SCHEMES = ("redis", "rediss")
WITHOUT = "the platform has no Redis for Ray's control store"


@dataclass(frozen=True)
class GcsStore:
    """A Redis that pods reach."""

    address: str
    """redis://HOST:PORT, or rediss:// with TLS. NOTE: Ray rejects a Redis cluster of several shards."""
    secret: str
    """The Secret with its password, or empty."""
    key: str

    def options(self) -> dict[str, Any]:
        """KubeRay's `gcsFaultToleranceOptions`. The keys in Redis are prefixed by the cluster's UID, and a
        Job of KubeRay deletes them with the cluster.
        """
        reference = {"valueFrom": {"secretKeyRef": {"name": self.secret, "key": self.key}}}
        return {"redisAddress": self.address, **({"redisPassword": reference} if self.secret else {})}


def gcs_store(
    options: KubeRayOptions, outputs: PlatformOutputs, *, default: bool
) -> tuple[GcsStore | None, list[Problem]]:
    """The store that a launch uses, None for Ray's own in the head's memory, and the mistakes in the options.

    Args:
        options: what the user chose.
        outputs: the platform.
        default: whether `auto` uses the platform's store.
    """
    requested, flag = options.gcs_fault_tolerance, options.flag
    if requested == "never":
        return None, [
            Problem(flag(name), "does nothing with --gcs-fault-tolerance never", "leave out one of them")
            for name, value in (("redis", options.redis), ("redis_secret", options.redis_secret))
            if value
        ]
    if options.redis_secret and not options.redis:
        what = "is the password of --redis, which is not given"
        return None, [Problem("--redis-secret", what, "add --redis redis://HOST:PORT")]
    if options.redis:
        address, problems = _address(options.redis)
        return GcsStore(address, options.redis_secret or "", PASSWORD_KEY), problems
    redis = outputs.ray_redis
    if requested == "auto" and (redis is None or not default):
        return None, []
    if redis is not None:
        return GcsStore(redis.address, redis.password_secret, redis.password_key), []
    fix = "--redis redis://HOST:PORT, or ray.redis in the spec of the platform"
    return None, [Problem("--gcs-fault-tolerance always", WITHOUT, fix)]


def _address(text: str) -> tuple[str, list[Problem]]:
    """The address with scheme and port, as Ray reads it."""
    fix = "redis://HOST:PORT, or rediss://HOST:PORT with TLS"
    parts = urlsplit(text if "://" in text else f"redis://{text}")
    if parts.username or parts.password:
        what = "has a password, which would be stored in the cluster's objects"
        return text, [Problem("--redis", what, "put it into a Secret, and name it with --redis-secret")]
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        port = 0
    if parts.scheme not in SCHEMES or not parts.hostname or not port or parts.path.strip("/"):
        return text, [Problem("--redis", f"`{text}` is not the address of a Redis", fix)]
    if parts.hostname in ("localhost", "127.0.0.1", "::1"):
        return text, [
            Problem("--redis", f"in a pod, {parts.hostname} is the pod", "an address that pods reach")
        ]
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}", []
