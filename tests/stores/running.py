"""A store server with its proxy, as tests see it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.stores.proxy import Proxy
from trainfleet.local_cluster.stores.servers import Server


@dataclass(frozen=True)
class Running:
    """Both; clients talk to the proxy."""

    server: Server
    proxy: Proxy

    def environment(self) -> dict[str, str]:
        """What tells a client of it."""
        return self.server.environment(self.proxy.port)

    def url(self, path: str) -> str:
        return f"{self.server.url}/{path}"
