"""Rules on the cluster layer's switches: a feature that is requested must not be disabled as well."""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.infra.spec.receivers import NOBODY
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.pod_patches import patch_problems


def certificates_are_signed(spec: PlatformSpec) -> Iterator[Finding]:
    """With `ray.tls`, a pod without a certificate cannot start or join (Ray documentation, TLS
    authentication).
    """
    if spec.ray.tls and spec.layer.certificates == "none":
        yield Finding(
            ("layer", "certificates"),
            "nothing would sign the certificates that ray.tls requires",
            "own-ca, or ray.tls: false",
            (("ray", "tls"),),
        )


def redis_is_whole(spec: PlatformSpec) -> Iterator[Finding]:
    """An existing Redis has an address and may have a password. The layer creates neither for it."""
    redis = spec.ray.redis
    if redis.mode == "existing" and not redis.address:
        yield Finding(("ray", "redis", "address"), "is missing", "redis://HOST:PORT, or mode: in-cluster")
    for field in ("address", "password_secret"):
        if redis.mode != "existing" and redis.model_dump()[field]:
            yield Finding(
                ("ray", "redis", field),
                f"has no effect with mode: {redis.mode}",
                "leave it out, or mode: existing",
                (("ray", "redis", "mode"),),
            )
    for field in ("image", "storage_gib"):
        if (
            redis.mode != "in-cluster"
            and redis.model_dump()[field] != type(redis).model_fields[field].default
        ):
            yield Finding(
                ("ray", "redis", field),
                f"has no effect with mode: {redis.mode}",
                "leave it out, or mode: in-cluster",
                (("ray", "redis", "mode"),),
            )


def queue_has_its_operator(spec: PlatformSpec) -> Iterator[Finding]:
    """Kueue's RayJob integration watches KubeRay's resources. Its controller does not start without their
    definitions.
    """
    if spec.queue.enabled and not spec.layer.kuberay:
        yield Finding(
            ("layer", "kuberay"),
            "is off, but the queue admits KubeRay's resources",
            "true, or queue.enabled: false",
            (("queue", "enabled"),),
        )


def launchers_have_their_role(spec: PlatformSpec) -> Iterator[Finding]:
    """Launchers are members of a group, and this feature grants the group its permissions."""
    if spec.kubernetes.launchers and not spec.layer.launcher_access:
        yield Finding(
            ("layer", "launcher_access"),
            "is off, so the identities in kubernetes.launchers would have no permissions",
            "true, or no kubernetes.launchers",
            (("kubernetes", "launchers"),),
        )


def a_launcher_token_has_its_account(spec: PlatformSpec) -> Iterator[Finding]:
    """The token is one of the account that `launcher_access` creates."""
    if spec.layer.launcher_token and not spec.layer.launcher_access:
        yield Finding(
            ("layer", "launcher_token"),
            "is a token of an account that launcher_access: false does not create",
            "false, or layer.launcher_access: true",
            (("layer", "launcher_access"),),
        )


def pods_are_changed_by_valid_patches(spec: PlatformSpec) -> Iterator[Finding]:
    """The launchers apply the patches, and set image, command, GPUs and their own labels themselves."""
    given = {"head": spec.pod_template.head, "workers": spec.pod_template.workers}
    for problem in patch_problems({role: patch for role, patch in given.items() if patch}):
        role = problem.where.partition(".")[0]
        yield Finding(("pod_template", role), f"{problem.where}: {problem.what}", problem.fix)
    for index, pool in enumerate(spec.gpu_pools):
        for problem in patch_problems({"workers": pool.pod_template} if pool.pod_template else {}):
            what = f"{problem.where.removeprefix('workers.')}: {problem.what}"
            yield Finding(("gpu_pools", index, "pod_template"), what, problem.fix)


def receivers_have_their_sender(spec: PlatformSpec) -> Iterator[Finding]:
    """Alertmanager is part of monitoring, and has one configuration."""
    monitoring = spec.monitoring
    for key, value in (
        ("alertmanager_secret", monitoring.alertmanager_secret),
        ("receivers", monitoring.receivers),
    ):
        if value and not monitoring.enabled:
            yield Finding(
                ("monitoring", key),
                "has no effect without Alertmanager",
                "leave it out, or monitoring.enabled: true",
                (("monitoring", "enabled"),),
            )
    if monitoring.alertmanager_secret and monitoring.receivers:
        yield Finding(
            ("monitoring", "alertmanager_secret"),
            "is Alertmanager's whole configuration, which `receivers` would replace",
            "one of them",
            (("monitoring", "receivers"),),
        )


NEEDED = {
    "slack": ("secret",),
    "webhook": ("secret",),
    "pagerduty": ("secret",),
    "email": ("to", "sender", "smarthost"),
}
"""What each kind of receiver needs."""
OF_ONE_KIND = {
    "channel": "slack",
    "to": "email",
    "sender": "email",
    "smarthost": "email",
    "username": "email",
}
"""The settings that only one kind of receiver has."""


def receivers_are_complete(spec: PlatformSpec) -> Iterator[Finding]:
    """Alertmanager rejects a receiver without its address and ignores settings of another kind."""
    names = [each.name for each in spec.monitoring.receivers]
    for index, receiver in enumerate(spec.monitoring.receivers):
        path = ("monitoring", "receivers", index)
        values = receiver.model_dump()
        for name in NEEDED[receiver.kind]:
            if not values[name]:
                yield Finding((*path, name), f"is needed by {receiver.kind}", f"a value for `{name}`")
        for name, kind in OF_ONE_KIND.items():
            if values[name] and kind != receiver.kind:
                yield Finding((*path, name), f"has no effect on {receiver.kind}", "leave it out")
        if receiver.kind == "email" and bool(receiver.username) != bool(receiver.secret):
            missing = "secret" if receiver.username else "username"
            what = "is needed: a login is a `username` and a `secret` with its password"
            yield Finding((*path, missing), what, "both, or none for a server without a login")
        if receiver.name in (*names[:index], NOBODY):
            what = f"`{receiver.name}` is taken"
            yield Finding((*path, "name"), what, "another name")
