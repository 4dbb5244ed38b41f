"""Address ranges: which of them admit so much of the internet that they restrict nothing.

Ranges are compared by the number of public addresses that they admit together, not by their text: 0.0.0.0/1
and 128.0.0.0/1 are the whole internet in two words.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from trainfleet.policies.engine.rule import UNKNOWN, Json

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
WIDEST = {4: 8, 6: 16}
"""IP version to the shortest prefix that can still be one organization's: companies hold whole IPv4 /8 blocks
(IANA IPv4 address space registry), and 2630::/16 is one company's (ARIN).
"""
NOT_PUBLIC = tuple(
    ipaddress.ip_network(each)
    for each in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),  # RFC 1918
        "100.64.0.0/10",  # RFC 6598: shared address space, used for pods
        *("127.0.0.0/8", "169.254.0.0/16"),  # RFC 1122, RFC 3927
        *("fc00::/7", "fe80::/10", "::1/128"),  # RFC 4193, RFC 4291
    )
)


def open_ranges(ranges: Iterable[Json]) -> list[str]:
    """Return the ranges that admit the internet: those that are too wide, otherwise all public ranges if they
    are too wide together. Empty if the ranges restrict access.

    Text that is not an address range (a service tag) and unknown values are left out.
    """
    public = [network for each in ranges if (network := _public(each)) is not None]
    wide = {str(network) for network in public if network.prefixlen < WIDEST[network.version]}
    return sorted(wide or {str(network) for version in WIDEST for network in _together(public, version)})


def _together(networks: list[Network], version: int) -> list[Network]:
    """The networks of this IP version, if they admit more addresses than the widest single range may."""
    same = [network for network in networks if network.version == version]
    if not same:
        return []
    joined: Iterable[Network] = ipaddress.collapse_addresses(same)  # type: ignore[type-var]
    most = 2 ** (same[0].max_prefixlen - WIDEST[version])
    return same if sum(network.num_addresses for network in joined) > most else []


def _public(value: Json) -> Network | None:
    if value is None or value is UNKNOWN:
        return None
    try:
        network = ipaddress.ip_network(str(value).strip(), strict=False)
    except ValueError:
        return None
    inside = any(
        network.version == private.version and network.subnet_of(private)  # type: ignore[arg-type]
        for private in NOT_PUBLIC
    )
    return None if inside else network
