"""The nodes of a Ray cluster as its head knows them, from the state API of its dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TIMEOUT_S = 10.0
LIMIT = 10_000
"""The most that the state API returns (`RAY_MAX_LIMIT_FROM_API_SERVER`)."""


@dataclass(frozen=True)
class RayNodes:
    """Addresses of nodes. One that was lost and replaced at the same address is in both sets."""

    alive: frozenset[str] = field(default_factory=frozenset)
    dead: frozenset[str] = field(default_factory=frozenset)


def ray_nodes(address: str, env: Mapping[str, str]) -> RayNodes:
    """Ask a head for its nodes.

    Args:
        address: URL of the head's dashboard.
        env: has `RAY_AUTH_TOKEN` if the head requires it.

    Raises:
        requests.RequestException: it does not answer, or rejects the request.
        ValueError: the answer has another form than Ray 2.60's.
    """
    import requests

    token = env.get("RAY_AUTH_TOKEN", "")
    answer = requests.get(
        f"{address}/api/v0/nodes",
        params={"limit": LIMIT},
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=TIMEOUT_S,
    )
    answer.raise_for_status()
    try:
        rows = answer.json()["data"]["result"]["result"]
        states = [(str(row["node_ip"]), row["state"]) for row in rows]
    except (KeyError, TypeError) as error:
        raise ValueError(f"unexpected answer of {address}") from error
    return RayNodes(
        frozenset(ip for ip, state in states if state == "ALIVE"),
        frozenset(ip for ip, state in states if state == "DEAD"),
    )
