"""A Redis with a password on this machine, at the address by which pods reach it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.conftest import until
from tests.cluster.debian import unpacked
from trainfleet.local_cluster.stores.servers import free_port

PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblua5.1-0", "liblzf1", "libatomic1")
PASSWORD = "not-a-secret-of-anyone"


@dataclass(frozen=True)
class Redis:
    """A running server."""

    address: str
    client: tuple[str, ...]
    libraries: str

    def ask(self, *command: str) -> str:
        """The answer to a command."""
        done = subprocess.run(
            [*self.client, *command],
            env={**os.environ, "LD_LIBRARY_PATH": self.libraries, "REDISCLI_AUTH": PASSWORD},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()

    def keys(self) -> list[str]:
        """The names of all keys."""
        return self.ask("KEYS", "*").split()


@contextlib.contextmanager
def redis(host: str, folder: Path) -> Iterator[Redis]:
    """Run a server until the end of the block."""
    folder.mkdir()
    root = unpacked(folder, *PACKAGES) / "usr"
    libraries, port = str(root / "lib" / "x86_64-linux-gnu"), free_port()
    client = (str(root / "bin" / "redis-cli"), "-h", host, "-p", str(port))
    server = Redis(f"redis://{host}:{port}", client, libraries)
    configuration = (
        f"bind {host}\nport {port}\nrequirepass {PASSWORD}\nappendonly yes\ndir {folder}\nsave ''\n"
    )
    (folder / "redis.conf").write_text(configuration)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(root / "bin" / "redis-server"), str(folder / "redis.conf")],
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: server.ask("PING") == "PONG", "Redis answers", 30)
        yield server
    finally:
        process.terminate()
        process.wait(30)
