"""The plug-in of SkyPilot's server: a cluster that answers counts as a network, SkyPilot checks everything
else, and the number of controllers is limited.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("sky")

from trainfleet.training.launch.sky import plugin
from trainfleet.training.launch.sky.configure import PLUGIN
from trainfleet.training.launch.sky.plugin import Trainfleet, addresses


def kubeconfig(file: Path, **servers: str) -> dict[str, str]:
    """A kubeconfig with one context per server."""
    document = {
        "clusters": [
            {"name": f"of-{name}", "cluster": {"server": server}} for name, server in servers.items()
        ],
        "contexts": [{"name": name, "context": {"cluster": f"of-{name}"}} for name in servers],
    }
    file.write_text(yaml.safe_dump(document))
    return {"KUBECONFIG": str(file)}


def test_only_the_clusters_of_skypilot_are_called(tmp_path: Path) -> None:
    env = kubeconfig(
        tmp_path / "config", a="https://10.0.0.1:6443", b="https://b.example", c="https://10.0.0.1:6443"
    )
    assert list(addresses(env, ["a", "b"])) == [("10.0.0.1", 6443), ("b.example", 443)]
    assert list(addresses(env, None)) == [("10.0.0.1", 6443), ("b.example", 443)], "each once"
    assert list(addresses(env, [])) == []


@pytest.mark.parametrize("text", [None, "", "[", "clusters: 3", "clusters: [{}]", "- a"])
def test_an_empty_kubeconfig_does_not_count_as_a_network(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    assert list(addresses({"KUBECONFIG": str(file)}, None)) == []


def test_a_cluster_that_answers_counts_as_a_network_and_otherwise_skypilot_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sky import exceptions
    from sky.backends import backend_utils
    from sky.utils import controller_utils

    asked: list[str] = []

    def theirs() -> None:
        asked.append("theirs")
        raise exceptions.NetworkError("down")

    async def theirs_too() -> None:
        theirs()

    monkeypatch.setattr(backend_utils, "check_network_connection", theirs)
    monkeypatch.setattr(backend_utils, "async_check_network_connection", theirs_too)
    monkeypatch.setattr(controller_utils, "get_number_of_jobs_controllers", lambda: 12)
    Trainfleet().install(None)
    Trainfleet().install(None)
    assert controller_utils.get_number_of_jobs_controllers() == 2
    now: Any = backend_utils
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv(
            "KUBECONFIG", kubeconfig(tmp_path / "config", a=f"https://127.0.0.1:{port}")["KUBECONFIG"]
        )
        now.check_network_connection()
        asyncio.run(now.async_check_network_connection())
    assert asked == []
    with pytest.raises(exceptions.NetworkError):
        now.check_network_connection()
    with pytest.raises(exceptions.NetworkError):
        asyncio.run(now.async_check_network_connection())
    assert asked == ["theirs", "theirs"], "once each, even if the plug-in is installed twice"


def test_skypilot_loads_the_plug_in_by_its_name_without_the_rest_of_the_project(tmp_path: Path) -> None:
    assert f"{plugin.__name__}.Trainfleet" == PLUGIN
    (tmp_path / "plugins.yaml").write_text(f"plugins:\n- class: {PLUGIN}\n")
    script = (
        "import sys; from sky.server import plugins as p; p.load_plugins(p.ExtensionContext(context=p.PluginContext.CONTROLLER));"
        "from sky.backends import backend_utils as b; print(b.check_network_connection.__module__, 'torch' in sys.modules)"
    )
    environment = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "SKYPILOT_SERVER_PLUGINS_CONFIG": str(tmp_path / "plugins.yaml"),
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [plugin.__name__, "False"], done.stderr
