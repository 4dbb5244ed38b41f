"""Store servers on the loopback interface, each behind a proxy that injects faults, started on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.stores.proxy import Proxy
from tests.stores.running import Running
from tests.training.conftest import cache, run, run_ranks, text_folder, tiny  # noqa: F401 - fixtures
from trainfleet.local_cluster.stores.servers import start

KINDS = ("s3", "gs", "az")


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Running]]:
    """Returns the server of a kind, started at the first call."""
    running: dict[str, Running] = {}
    with ExitStack() as stack:

        def get(kind: str) -> Running:
            if kind not in running:
                proxy = Proxy()
                stack.callback(proxy.close)
                server = stack.enter_context(
                    start(kind, tmp_path_factory.mktemp(f"store-{kind}"), proxy.port)
                )
                proxy.aim(server.port)
                running[kind] = Running(server, proxy)
            return running[kind]

        yield get


@pytest.fixture
def store_server(
    request: pytest.FixtureRequest, servers: Callable[[str], Running], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Running]:
    """The server of one kind. The environment points to its proxy, which is reset before and after a test."""
    running = servers(request.param)
    for name, value in running.environment().items():
        monkeypatch.setenv(name, value)
    running.proxy.repair()
    yield running
    running.proxy.repair()


@pytest.fixture
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A path in the bucket that no other test uses."""
    return tmp_path.name
