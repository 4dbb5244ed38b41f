"""Preflight with the user's credentials: make the read-only requests of the checks, several at a time.

infra/<cloud>/account.py sends the requests of its cloud. A request without an answer is one row, never an
error: the others still tell something.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Protocol
from urllib.request import urlopen

from trainfleet.infra.cloud_support import support
from trainfleet.infra.preflight import Answer, NotAnsweredError, PreflightCheck
from trainfleet.infra.spec.schema import PlatformSpec

AT_ONCE = 8
"""Requests at a time: quotas of read requests are far above."""
TIMEOUT_S = 10
"""Seconds to connect, and to wait for an answer."""
CONNECT_S = 5
ADDRESS_SERVICE = "https://checkip.amazonaws.com"
"""Answers with the caller's public address as text (EC2 user guide, security group rules)."""


@dataclass(frozen=True)
class Cluster:
    """A cluster of the account that has the platform's name."""

    host: str
    """The host name or address of its API server; empty while it is created."""
    platform: str
    """The platform in its tags; empty if it has none."""


class Account(Protocol):
    """A cloud account as its owner's credentials show it. Every method only reads."""

    def who(self) -> str:
        """Return whose credentials these are."""

    def cluster(self) -> Cluster | None:
        """Return the cluster with the platform's name, or None."""


@dataclass(frozen=True)
class Answered:
    """A check with what was found."""

    check: PreflightCheck
    found: str = ""


def connect(spec: PlatformSpec, settings: Mapping[str, Any]) -> Account:
    """Return the account with the credentials that the cloud's own tools would use.

    Args:
        spec: the platform.
        settings: the provider settings of its stack file, such as `aws:profile`.

    Raises:
        MissingToolError: there are no credentials; the message says how to log in.
    """
    account: Account = import_module(f"trainfleet.infra.{spec.cloud}.account").connect(spec, settings)
    return account


def answer_checks(
    spec: PlatformSpec, checks: Iterable[PreflightCheck], place: str, account: Account
) -> list[Answered]:
    """Answer the checks in their order. This machine is taken as `place`; other places are left out."""
    kept = [each for each in checks if each.topic != "api-server" or each.needs.startswith(f"from {place}:")]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="preflight") as pool:
        return list(pool.map(lambda check: _answered(spec, check, account), kept))


def _answered(spec: PlatformSpec, check: PreflightCheck, account: Account) -> Answered:
    try:
        if check.topic == "api-server":
            answer = reachable(spec, check, account)
        elif check.answer is None:
            return Answered(check)
        else:
            answer = check.answer(account)
    except NotAnsweredError as reason:
        answer = Answer("not checked", str(reason))
    except LookupError as missing:
        answer = Answer("not checked", f"the account has no {missing}")
    return Answered(replace(check, status=answer.status), answer.found)


def reachable(spec: PlatformSpec, check: PreflightCheck, account: Account) -> Answer:
    """Whether this machine reaches the API server: by a TLS connection if the cluster exists, else by this
    machine's address.
    """
    try:
        cluster = account.cluster()
    except NotAnsweredError:
        cluster = None
    if cluster and cluster.host:
        return _connection(cluster.host)
    if check.status != "open":
        return Answer(check.status, "no cluster yet")
    access = spec.kubernetes.access
    if support(spec.cloud).endpoint(spec) == "public":
        return _within([public_address()], access.public_ranges, "public address")
    return _within(private_addresses(), access.private_ranges, "private address")


def _within(addresses: list[IPv4Address], ranges: tuple[IPv4Network, ...], noun: str) -> Answer:
    shown = ", ".join(map(str, addresses)) or "none"
    if any(address in each for address in addresses for each in ranges):
        return Answer("ok", f"this machine's {noun}: {shown}")
    return Answer("problem", f"this machine's {noun} is in none of the ranges: {shown}")


def _connection(host: str) -> Answer:
    """Whether a TLS handshake with an API server works. Nothing is sent, so its certificate is not checked:
    the cluster's own CA signed it.
    """
    name, _, port = host.partition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((name, int(port or 443)), CONNECT_S) as plain,
            context.wrap_socket(plain, server_hostname=name),
        ):
            return Answer("ok", f"TLS connection to {host}")
    except OSError as error:
        return Answer("problem", f"no TLS connection to {host}: {error or type(error).__name__}")


def public_address() -> IPv4Address:
    """Return this machine's public address, as a server on the internet sees it.

    Raises:
        NotAnsweredError: there is no answer, or none that is an IPv4 address.
    """
    try:
        with urlopen(ADDRESS_SERVICE, timeout=TIMEOUT_S) as answer:
            return IPv4Address(answer.read(64).decode("ascii").strip())
    except (OSError, ValueError) as error:
        raise NotAnsweredError(f"this machine's public address: {ADDRESS_SERVICE}: {error}") from error


def private_addresses() -> list[IPv4Address]:
    """Return the private addresses of this machine's interfaces."""
    import psutil

    found = [
        ipaddress.IPv4Address(each.address)
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family == socket.AF_INET
    ]
    return [each for each in found if each.is_private and not each.is_loopback]


def unused_name(account: Account, name: str, exists: bool, platform: str) -> Answer:
    """Whether a fixed name is free: a resource of that name is in the way, unless the platform exists."""
    if not exists:
        return Answer("ok", "free")
    cluster = account.cluster()
    if cluster and cluster.platform == platform:
        return Answer("ok", f"{name} exists, and so does this platform")
    return Answer("problem", f"{name} exists: import or delete it")


def enough(quota: float, used: float | None, needed: int) -> Answer:
    """Compare a quota with what the pools need at their largest."""
    free = quota - (used or 0)
    found = f"quota {quota:g}" + ("" if used is None else f", {used:g} in use")
    if quota < needed:
        return Answer("problem", found)
    return Answer("warning" if free < needed else "ok", found)
