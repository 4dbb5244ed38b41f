"""The parts of SkyPilot that are not its public interface: each is present in the installed version, and has a
fallback for one that lacks it. The range of versions is that of pyproject.toml.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.training.launch.fake_sky import FakeSky
from tests.training.launch.sky_tasks import document, recipe
from trainfleet.errors import TrainfleetError
from trainfleet.training.launch.sky.event_stream import note_of, reasons_in
from trainfleet.training.launch.sky.skypilot import PRIVATE_KEY, VERSION, parse, with_public_keys

ROOT = Path(__file__).parents[3]
needs_sky = pytest.mark.skipif(
    importlib.util.find_spec("sky") is None, reason="needs SkyPilot: pip install 'trainfleet[sky]'"
)
PRIVATE = {
    "sky.backends.backend_utils": ("check_network_connection", "async_check_network_connection"),
    "sky.utils.controller_utils": ("get_number_of_jobs_controllers",),
    "sky.schemas.api.responses": ("StatusResponse",),
    "sky.skypilot_config": ("get_nested",),
    "sky.provision.constants": ("HEAD_NODE_TAGS",),
}
"""What is patched or read, by module: without it the plugin warns, or a wait is not explained."""


@needs_sky
@pytest.mark.timeout(300)
@pytest.mark.parametrize("module", PRIVATE)
def test_the_installed_version_has_what_is_patched(module: str) -> None:
    missing = set(PRIVATE[module]) - set(vars(importlib.import_module(module)))
    assert not missing, f"SkyPilot {metadata.version('skypilot')} has no {missing}: see the fallbacks"


@needs_sky
@pytest.mark.timeout(300)
def test_what_the_stand_in_has_is_in_the_installed_version_with_its_parameters() -> None:
    import sky

    public = {name: each for name, each in vars(FakeSky).items() if name[0] != "_" and name != "state"}
    assert "launch" in public
    for name, stand_in in public.items():
        known = set(inspect.signature(getattr(sky, name)).parameters)
        _, *parameters = inspect.signature(stand_in).parameters.values()
        assert {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} <= known, name


@needs_sky
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("queue_v2", {"refresh", "skip_finished", "all_users", "job_ids", "fields"}),
        ("launch", {"name"}),
        ("cancel", {"job_ids"}),
    ],
)
def test_the_calls_for_managed_jobs_have_their_parameters(name: str, parameters: set[str]) -> None:
    from sky import jobs

    assert parameters <= set(inspect.signature(getattr(jobs, name)).parameters)


@needs_sky
@pytest.mark.timeout(300)
def test_the_plugin_of_a_version_without_the_functions_warns_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from trainfleet.training.launch.sky import plugin

    other = ModuleType("sky.backends.backend_utils")
    with caplog.at_level(logging.WARNING):
        plugin._replace(other, "check_network_connection", lambda first: first)
    assert "check_network_connection" not in vars(other)
    assert f"SkyPilot {metadata.version('skypilot')} has no sky.backends.backend_utils" in caplog.text


@needs_sky
@pytest.mark.timeout(300)
def test_a_version_that_does_not_say_which_contexts_it_allows_asks_all(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sky import skypilot_config

    from trainfleet.training.launch.sky import plugin

    monkeypatch.delattr(skypilot_config, "get_nested")
    with caplog.at_level(logging.WARNING):
        assert plugin._allowed_contexts() is None
    assert f"SkyPilot {metadata.version('skypilot')} does not say which contexts" in caplog.text


@needs_sky
def test_the_label_of_a_first_pod_is_that_of_the_installed_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from sky.provision import constants

    from trainfleet.training.launch.sky import pods

    assert pods.SKY_HEAD_LABEL in constants.HEAD_NODE_TAGS
    pod = {"metadata": {"name": "shared-head", "labels": {}}, "status": {"phase": "Running"}}
    monkeypatch.setattr(pods, "live_pods", lambda *_: [("near", pod)])
    assert not pods.idle({"near": "training"}, "", 1), "without it, SkyPilot is asked"


def test_without_the_private_key_the_first_pool_is_tried_with_the_public_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def from_yaml_config(given: dict[str, Any]) -> dict[str, Any]:
        if PRIVATE_KEY in str(given):
            raise ValueError(f"Additional properties are not allowed ('{PRIVATE_KEY}' was unexpected)")
        return given

    sky = SimpleNamespace(Task=SimpleNamespace(from_yaml_config=from_yaml_config))
    monkeypatch.setitem(sys.modules, "sky", sky)  # type: ignore[arg-type] - the part that is called
    made = document(recipe(), "aws-prod")
    found = parse(made)
    (first, *others) = made["resources"]["ordered"]
    assert others
    assert found["config"] == first[PRIVATE_KEY]
    assert found["resources"] == {key: value for key, value in first.items() if key != PRIVATE_KEY}


def test_another_rejection_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_yaml_config(given: dict[str, Any]) -> None:
        raise ValueError("no such key: image_id")

    sky = SimpleNamespace(Task=SimpleNamespace(from_yaml_config=from_yaml_config))
    monkeypatch.setitem(sys.modules, "sky", sky)  # type: ignore[arg-type] - the part that is called
    with pytest.raises(TrainfleetError, match="SkyPilot rejects the task: no such key: image_id"):
        parse(document(recipe(), "aws-prod"))


@needs_sky
@pytest.mark.timeout(300)
def test_the_installed_version_accepts_both_forms() -> None:
    made = document(recipe(), "aws-prod")
    assert len(parse(made).resources) == len(made["resources"]["ordered"])
    (only,) = parse(with_public_keys(made)).resources
    assert only.cluster_config_overrides == made["resources"]["ordered"][0][PRIVATE_KEY]


def test_an_unknown_log_line_is_neither_news_nor_a_reason() -> None:
    """Another version words its log differently: the log is kept, and only the explanation is lost."""
    line = "Provisioning finished on context `near` after 12 s"
    assert note_of(line) is None
    assert reasons_in(line) == []


def declared() -> str:
    """SkyPilot's range in pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (text,) = [each for each in extras["sky"] if each.startswith("skypilot")]
    return str(text)


def test_the_oldest_supported_version_is_the_one_that_is_tested() -> None:
    assert declared() == f"skypilot[kubernetes]>={VERSION},<0.15"
    assert VERSION in (ROOT / "docs" / "multi-cloud.md").read_text()


@needs_sky
@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_the_newest_supported_version_passes_these_tests(tmp_path: Path) -> None:
    """In an environment of its own, where the index has a newer one than the installed."""
    uv = str(Path(sys.executable).with_name("uv"))
    dry = [uv, "pip", "install", "--dry-run", "--upgrade-package", "skypilot", "--python", sys.executable]
    done = subprocess.run([*dry, declared()], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        pytest.skip(f"the package index is unreachable: {done.stderr.strip().splitlines()[-1]}")
    newer = re.search(r"\+ skypilot==(\S+)", done.stderr)
    if newer is None:
        return  # the installed version is the newest
    made = [
        uv,
        "venv",
        "--quiet",
        "--system-site-packages",
        "--python",
        sys.executable,
        str(tmp_path / "venv"),
    ]
    subprocess.run(made, check=True, timeout=600)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--python",
        python,
        f"skypilot=={newer.group(1)}",
    ]
    subprocess.run(install, check=True, timeout=600)
    own = next(path for path in sys.path if path.endswith("site-packages"))
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "parent.pth").write_text(f"{own}\n")
    tests = [f"tests/training/launch/test_sky_{each}.py" for each in ("skypilot", "plugin", "versions")]
    command = [python, "-m", "pytest", "-q", "-m", "not deep", "-p", "no:cacheprovider", *tests]
    tested = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1500)
    assert tested.returncode == 0, f"SkyPilot {newer.group(1)}:\n{tested.stdout[-4000:]}"
