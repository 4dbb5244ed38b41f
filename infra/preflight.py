"""Preflight: what must be true of the account and the network before the first `pulumi up`.

Each infra/<cloud>/preflight.py lists the checks of its cloud, computed from the spec. A check that the spec
decides has a result; any other names the read-only request that answers it, and holds the function that
makes it. Nothing here makes a request: preflight_requests.py does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from trainfleet.dates import today
from trainfleet.infra.cloud_support import support
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.kubernetes_support import SERVICES, versions_of

Status = Literal["ok", "warning", "problem", "open", "not checked"]
PLACES = ("laptop", "ci", "runner")
"""Where a stack is applied from, as in `trainfleet rehearse --from`."""
TOPICS = (
    "caller", "api-server", "version", "apis", "members", "quota", "zones", "reservation", "names", "budget",
)  # fmt: skip
"""What the checks are about."""


@dataclass(frozen=True)
class Answer:
    """What a request found."""

    status: Status
    found: str
    """What is so, in a few words."""


class NotAnsweredError(Exception):
    """Raised when a request has no answer: no permission, no network, a disabled API. Its text is the
    reason.
    """


@dataclass(frozen=True)
class PreflightCheck:
    """One thing that must be true, with its result if the spec decides it."""

    topic: str
    """What the check is about, one of TOPICS."""
    needs: str
    """What must be true."""
    request: str = ""
    """The read-only request that answers it; empty if the spec decides."""
    status: Status = "open"
    answer: Callable[[Any], Answer] | None = None
    """Makes the request, with the `Account` of infra/<cloud>/account.py; None if the spec decides."""


def preflight_checks(spec: PlatformSpec) -> tuple[PreflightCheck, ...]:
    """Return the checks of a platform: those that all clouds share, then the cloud's own."""
    if not support(spec.cloud).creates_cluster:
        return ()
    own: Iterator[PreflightCheck] = import_module(f"trainfleet.infra.{spec.cloud}.preflight").checks(spec)
    return (*(api_server(spec, place) for place in PLACES), *_version(spec), *own)


def api_server(spec: PlatformSpec, place: str) -> PreflightCheck:
    """Whether `pulumi up` reaches the API server from a place; it installs the cluster layer through it."""
    endpoint, access = support(spec.cloud).endpoint(spec), spec.kubernetes.access
    public, private = (", ".join(map(str, each)) for each in (access.public_ranges, access.private_ranges))
    if endpoint == "dns":
        return PreflightCheck("api-server", f"from {place}: the DNS endpoint, for whom IAM lets in", "", "ok")
    if endpoint == "public":
        needs = f"from {place}: the public endpoint, with an address in {public}"
        return PreflightCheck("api-server", needs, f"the public address of {place}")
    if place == "runner":
        needs = f"from {place}: the private endpoint, with an address in {private}"
        return PreflightCheck("api-server", needs, f"the private address of {place}")
    needs = f"from {place}: nothing, the endpoint is private (a machine in {private} is a runner)"
    return PreflightCheck("api-server", needs, "", "problem")


def _version(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    day = today()
    for row in versions_of(spec.cloud):
        if row.version != spec.kubernetes.version:
            continue
        needs = f"Kubernetes {row.version} in standard support of {SERVICES[spec.cloud]}, until {row.end}"
        status: Status = "problem" if not row.supported(day) else "warning" if row.ends_soon(day) else "ok"
        yield PreflightCheck("version", needs, "", status)


def decided_problems(checks: tuple[PreflightCheck, ...], place: str) -> list[PreflightCheck]:
    """Return the problems that the spec decides, for somebody who applies from this place."""
    return [
        each
        for each in checks
        if each.status == "problem"
        and (each.topic != "api-server" or each.needs.startswith(f"from {place}:"))
    ]
