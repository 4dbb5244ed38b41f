"""A plugin of SkyPilot's API server for managed jobs, enabled by `trainfleet sky setup --managed`.

Before SkyPilot considers pods lost, it probes the network at 8.8.8.8 and 1.1.1.1, so behind a firewall that
allows only the clusters no job ever recovers. It also starts as many controllers as fit into memory.

NOTE: a network failure must still be reported as one, or healthy jobs would be restarted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import sky
import yaml
from sky.server import plugins

from trainfleet import yaml_limits

ANSWER_S = 2.0
LOG = logging.getLogger(__name__)


class Trainfleet(plugins.BasePlugin):
    """Probes the clusters before SkyPilot's two addresses, and limits the controllers.

    Args:
        controllers: processes that manage jobs; each can manage hundreds, and launch eight at once.
    """

    def __init__(self, controllers: int = 2) -> None:
        self.controllers = controllers

    def install(self, extension_context: Any) -> None:  # noqa: ARG002 - SkyPilot's own signature
        from sky.backends import backend_utils
        from sky.utils import controller_utils

        def network(first: Callable[[], None]) -> Callable[[], None]:
            return lambda: None if any_answers() else first()

        def network_async(first: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
            async def check() -> None:
                if not await asyncio.to_thread(any_answers):
                    await first()

            return check

        def controllers(first: Callable[[], int]) -> Callable[[], int]:
            return lambda: max(1, min(self.controllers, first()))

        _replace(backend_utils, "check_network_connection", network)
        _replace(backend_utils, "async_check_network_connection", network_async)
        _replace(controller_utils, "get_number_of_jobs_controllers", controllers)


def _replace(module: ModuleType, name: str, made: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace a function of SkyPilot 0.14.1; a version that has none works as SkyPilot intends."""
    first = vars(module).get(name)
    if first is None:
        text = "Trainfleet: SkyPilot %s has no %s.%s to replace"
        LOG.warning(text, sky.__version__, module.__name__, name)
    elif first.__module__ != __name__:  # a server loads its plugins twice in one process
        vars(module)[name] = made(first)


def any_answers() -> bool:
    """Whether one of the clusters that SkyPilot may use accepts a connection."""
    return any(_connects(host, port) for host, port in addresses(os.environ, _allowed_contexts()))


def _allowed_contexts() -> list[str] | None:
    """The contexts that the user allows SkyPilot; None: all, also in a version that does not say it."""
    import sky

    try:
        from sky import skypilot_config

        found = skypilot_config.get_nested(("kubernetes", "allowed_contexts"), None)
    except (ImportError, AttributeError) as error:
        text = "Trainfleet: SkyPilot %s does not say which contexts it allows: %s"
        LOG.warning(text, sky.__version__, error)
        return None
    return found if isinstance(found, list) else None


def addresses(env: Any, allowed: list[str] | None) -> Iterator[tuple[str, int]]:
    """Host and port of each cluster in the kubeconfig, each once; only of the `allowed` contexts if given."""
    seen = set()
    files = [Path(each).expanduser() for each in env.get("KUBECONFIG", "").split(os.pathsep) if each] or [
        Path.home() / ".kube" / "config"
    ]
    for file in files:
        try:
            document = yaml_limits.load(file.read_text(encoding="utf-8")) or {}
            clusters = {each["name"]: each["cluster"]["server"] for each in document.get("clusters") or []}
            selected = [
                each["context"]["cluster"]
                for each in document.get("contexts") or []
                if allowed is None or each["name"] in allowed
            ]
        except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, AttributeError):
            continue  # SkyPilot itself reports what is wrong with it
        for server in (urlsplit(str(clusters.get(name, ""))) for name in selected):
            address = (server.hostname or "", server.port or (80 if server.scheme == "http" else 443))
            if address[0] and address not in seen:
                seen.add(address)
                yield address


def _connects(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), ANSWER_S):
            return True
    except OSError:
        return False
