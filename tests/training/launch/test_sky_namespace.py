"""The namespace of `--on sky --context`: the one in which SkyPilot creates the pods, whatever is requested."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.launch.sky_tasks import recipe, resolved
from trainfleet.errors import InputError
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky.namespace import namespace_of
from trainfleet.training.launch.sky.options import SkyOptions

TEAM = "https://sky.example.com"
CONTEXTS = {"plain": {}, "own": {"namespace": "mine"}}
CONFIGS: list[dict[str, Any]] = [
    {},
    {"kubernetes": {"namespace": "all"}},
    {"kubernetes": {"namespace": "all", "context_configs": {"own": {"namespace": "ours"}}}},
    {
        "kubernetes": {"context_configs": {"own": {"namespace": "ours"}}},
        "active_workspace": "team",
        "workspaces": {"team": {"kubernetes": {"namespace": "teams"}}},
    },
]
ASK = """
import json, sys
from sky.provision.kubernetes.utils import get_namespace
print(json.dumps({each: get_namespace(each) for each in sys.argv[1:]}))
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubeconfig with CONTEXTS, and no configuration of SkyPilot."""
    named = [
        {"name": name, "context": {"cluster": "c", "user": "u", **own}} for name, own in CONTEXTS.items()
    ]
    document = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": named,
        "current-context": "plain",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SKYPILOT_GLOBAL_CONFIG", raising=False)
    monkeypatch.delenv("SKYPILOT_PROJECT_CONFIG", raising=False)
    monkeypatch.delenv("SKYPILOT_API_SERVER_ENDPOINT", raising=False)
    monkeypatch.chdir(tmp_path)


def configure(folder: Path, config: dict[str, Any]) -> None:
    (folder / ".sky").mkdir(exist_ok=True)
    (folder / ".sky" / "config.yaml").write_text(yaml.safe_dump(config))


def namespace(context: str, requested: str | None = None) -> str:
    return namespace_of(context, requested, os.environ)


@pytest.mark.skipif(importlib.util.find_spec("sky") is None, reason="needs SkyPilot")
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("project", [{}, {"kubernetes": {"namespace": "folders"}}], ids=["", "project"])
def test_it_is_the_one_that_skypilot_uses(
    config: dict[str, Any], project: dict[str, Any], tmp_path: Path
) -> None:
    configure(tmp_path, config)
    if project:
        (tmp_path / ".sky.yaml").write_text(yaml.safe_dump(project))
    names = [*CONTEXTS, "unknown"]
    done = subprocess.run([sys.executable, "-c", ASK, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {each: namespace(each) for each in names}


def test_another_namespace_is_rejected_with_the_command_that_sets_it(tmp_path: Path) -> None:
    assert namespace("own", "mine") == "mine"
    with pytest.raises(InputError, match="kubectl config set-context own --namespace other") as raised:
        namespace("own", "other")
    assert "`mine`, the namespace in your kubeconfig" in str(raised.value)
    configure(tmp_path, {"kubernetes": {"namespace": "all"}})
    with pytest.raises(InputError, match=r"config\.yaml(.|\n)*`kubernetes\.namespace`"):
        namespace("own", "mine")


def test_the_kubeconfig_of_a_server_elsewhere_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", TEAM)
    assert namespace("own", "other") == "other"
    configure(tmp_path, {"kubernetes": {"namespace": "all"}})
    assert namespace("own") == "all"


def test_a_launch_looks_for_its_pods_where_skypilot_creates_them(tmp_path: Path) -> None:
    def launched(**options: str) -> str:
        request = Request("lm-small", options=SkyOptions(context="own", image="my/image:1", **options))
        run = resolved(recipe(name="lm-small"), Target(request, (), tmp_path), os.environ)
        return run.platforms["own"].namespace

    assert launched() == "mine"
    with pytest.raises(InputError, match="--namespace other"):
        launched(namespace="other")
