"""The `sky` commands: what they print, write and reject, and their exit codes. One test calls SkyPilot
itself.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.training.launch.saved_platforms import FOLDER, outputs

Trainfleet = Callable[..., subprocess.CompletedProcess[str]]
AWS, GCP = str(FOLDER / "aws-prod.json"), str(FOLDER / "gcp-prod.json")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "token").write_text("header.payload.signature\n")
    return {
        "HOME": str(tmp_path),
        "KUBECONFIG": "",
        "SKYPILOT_GLOBAL_CONFIG": "",
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }


def test_a_setup_from_a_token_file_is_written_and_undone(
    trainfleet: Trainfleet, home: dict[str, str], tmp_path: Path
) -> None:
    expected = ("sky", "setup", "--stack", AWS, "--token-file", f"aws-prod={tmp_path / 'token'}")
    asked = trainfleet(*expected, cwd=tmp_path, **home)
    assert asked.returncode == 2
    assert "+kubernetes:" in asked.stdout, "the difference is shown first"
    assert "payload" not in asked.stdout
    assert not (tmp_path / ".sky" / "config.yaml").exists()
    done = trainfleet(*expected, "--yes", "--json", cwd=tmp_path, **home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["contexts"] == ["trainfleet-prod-us-east-2"]
    assert yaml.safe_load((tmp_path / ".sky" / "config.yaml").read_text())["kubernetes"][
        "allowed_contexts"
    ] == ["trainfleet-prod-us-east-2"]
    again = trainfleet(*expected, cwd=tmp_path, **home)
    assert again.returncode == 0
    assert "are up to date" in again.stdout
    undone = trainfleet("sky", "setup", "--undo", "--yes", cwd=tmp_path, **home)
    assert undone.returncode == 0, undone.stderr
    assert not (tmp_path / ".sky" / "config.yaml").exists()
    assert not (tmp_path / ".kube" / "config").exists()


def test_a_token_for_an_unnamed_platform_is_rejected(
    trainfleet: Trainfleet, home: dict[str, str], tmp_path: Path
) -> None:
    done = trainfleet(
        "sky", "setup", "--stack", AWS, "--token-file", "gcp-prod=token", "--yes", cwd=tmp_path, **home
    )
    assert done.returncode == 2
    assert "STACK: aws-prod" in done.stderr


def test_a_check_before_a_setup_lists_what_is_missing(
    trainfleet: Trainfleet, home: dict[str, str], tmp_path: Path
) -> None:
    done = trainfleet("sky", "check", "--stack", AWS, "--quick", "--json", cwd=tmp_path, **home)
    assert done.returncode == 1, done.stderr
    (report,) = json.loads(done.stdout)
    assert report["ready"] is False
    assert any(
        "SkyPilot is not configured for the platform" in problem["what"] for problem in report["problems"]
    )


def test_a_context_that_cannot_be_reached_is_reported_in_seconds(
    trainfleet: Trainfleet, home: dict[str, str], tmp_path: Path
) -> None:
    access = json.loads(outputs("aws-prod").kubeconfig)
    access["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    del access["clusters"][0]["cluster"]["certificate-authority-data"]
    document = {"platform": outputs("aws-prod", kubeconfig=json.dumps(access)).model_dump()}
    (tmp_path / "far.json").write_text(json.dumps(document))
    tools = tmp_path / "tools"
    tools.mkdir()
    # SkyPilot requires these tools; the test does not use them
    for tool in ("kubectl", "socat", "nc", "rsync", "ssh"):
        (tools / tool).write_text("#!/bin/sh\n")
        (tools / tool).chmod(0o755)
    import os

    path = f"{os.environ['PATH']}:{tools}"
    setup = trainfleet(
        "sky",
        "setup",
        "--stack",
        "far.json",
        "--token-file",
        "far=token",
        "--yes",
        cwd=tmp_path,
        PATH=path,
        **home,
    )
    assert setup.returncode == 0, setup.stderr
    done = trainfleet("sky", "check", "--stack", "far.json", "--quick", cwd=tmp_path, PATH=path, **home)
    assert done.returncode == 1
    assert "the cluster does not answer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    importlib.util.find_spec("sky") is None, reason="needs SkyPilot: pip install 'trainfleet[sky]'"
)
def test_printing_shows_the_task_and_no_secret(
    trainfleet: Trainfleet, home: dict[str, str], tmp_path: Path
) -> None:
    expected = (
        "launch",
        "lm-1b",
        "--on",
        "sky",
        "--stack",
        AWS,
        "--stack",
        GCP,
        "--secret",
        "HF_TOKEN",
        "--managed",
        "--print",
    )
    done = trainfleet(*expected, cwd=tmp_path, timeout=500, HF_TOKEN="planted", **home)
    assert done.returncode == 0, done.stderr
    document = yaml.safe_load(done.stdout)
    assert [each["accelerators"] for each in document["resources"]["ordered"]] == [
        "H100:8",
        "H200:8",
        "H200:8",
        "H100:8",
        "A100-80GB:8",
    ]
    assert set(document["secrets"].values()) == {"<hidden>"}
    assert "planted" not in done.stdout
    assert "aws-prod/l4" in done.stdout, "a pool that is left out must be listed"
    assert "python -m trainfleet.training.run recipe.yaml" in document["run"]
    assert not list(tmp_path.glob("runs*")), "nothing must be started"


def test_a_recipe_that_no_pool_can_run_reports_the_reason_of_every_pool(
    trainfleet: Trainfleet, home: dict[str, str], tmp_path: Path
) -> None:
    done = trainfleet(
        "launch",
        "lm-1b",
        "scaling.workers=128",
        "batch.global_batch=1024",
        "--on",
        "sky",
        "--stack",
        AWS,
        "--print",
        cwd=tmp_path,
        **home,
    )
    assert done.returncode == 2
    assert "aws-prod/h100" in done.stderr
    assert "128 workers need 16 nodes" in done.stderr


@pytest.mark.parametrize("command", [("sky", "setup"), ("sky", "check"), ("plan",)])
def test_help_imports_no_skypilot(trainfleet: Trainfleet, command: tuple[str, ...]) -> None:
    done = trainfleet(*command, "--help", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert "Examples" in done.stdout
    assert not [
        line
        for line in done.stderr.splitlines()
        if line.rpartition("|")[2].strip() in ("sky", "torch", "ray", "kubernetes")
    ]
