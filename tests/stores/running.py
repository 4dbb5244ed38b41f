"""A running store server and its proxy."""

from __future__ import annotations

from dataclasses import dataclass

from tests.stores.proxy import Proxy
from trainfleet.local_cluster.stores.servers import Server


@dataclass(frozen=True)
class Running:
    """A server and its proxy. Clients connect to the proxy."""

    server: Server
    proxy: Proxy

    def environment(self) -> dict[str, str]:
        """The variables that point a client to the proxy."""
        return self.server.environment(self.proxy.port)

    def url(self, path: str) -> str:
        return f"{self.server.url}/{path}"
