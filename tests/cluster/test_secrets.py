"""No secret appears in logs, objects, events, metrics, reports, arguments, Ray's jobs or an engine's state.

Every value of every Secret in the run's namespace counts, including the token that KubeRay creates.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.launches import PROGRAM
from tests.cluster.observed_run import RUN, ObservedRun

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]


def leaks(texts: dict[str, str], planted: dict[str, str]) -> list[str]:
    """The secrets that a text contains, plain or in base64."""
    found = []
    for name, value in planted.items():
        forms = (value, base64.b64encode(value.encode()).decode().rstrip("="))
        found += [
            f"{name} in {place}" for place, text in texts.items() if any(form in text for form in forms)
        ]
    return found


def test_a_run_leaks_no_secret(observed_run: ObservedRun) -> None:
    assert {"AWS_SECRET_ACCESS_KEY", "HF_TOKEN"} <= observed_run.planted.keys()
    assert any(
        "token" in name for name in observed_run.planted if "/" in name and not name.startswith("keys/")
    ), "KubeRay's token is not among them"
    assert leaks(observed_run.texts, observed_run.planted) == []


# An empty text hides a leak, so each must contain what it normally contains.
@pytest.mark.parametrize(
    ("place", "word"),
    [
        ("objects rayjob", f"tf-{RUN}"),
        ("objects configmap", "recipe.yaml"),
        ("objects pod", "secretRef"),
        ("objects event", "Scheduled"),
        ("metrics", "ray_trainfleet_loss"),
        ("Ray's jobs", "trainfleet.training.launch.remote.entry"),
        ("launch", "55/20000  loss"),
        ("run watched/report.html", "<html"),
        ("run watched/run.json", "launches"),
    ],
)
def test_each_text_was_collected(place: str, word: str, observed_run: ObservedRun) -> None:
    assert word in observed_run.texts[place]


def test_logs_and_arguments_of_every_pod_were_collected(observed_run: ObservedRun) -> None:
    for kind in ("log", "arguments", "ray's logs", "described"):
        texts = [text for place, text in observed_run.texts.items() if place.startswith(f"{kind} pod/")]
        assert len(texts) >= 3
        assert sum(len(text) > 100 for text in texts) >= 3, kind


def kubeconfig(planted: dict[str, str]) -> dict[str, Any]:
    """A kubeconfig with the keys of a user."""
    user = {
        "name": "me",
        "user": {"token": planted["token"], "username": "me", "password": planted["password"]},
    }
    cluster = {"name": "mine", "cluster": {"server": "https://192.0.2.1:6443"}}
    context = {"name": "mine", "context": {"cluster": "mine", "user": "me"}}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [user],
        "contexts": [context],
        "current-context": "mine",
    }


def rehearse(file: Path, folder: Path, planted: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Rehearse the local stack with a kubeconfig, and keep everything that it writes in a folder."""
    options = [
        "--keep",
        str(folder / "kept"),
        "--outputs",
        str(folder / "outputs.json"),
        "--resources",
        str(folder / "resources.jsonl"),
    ]
    settings = [
        "--set",
        f"kubernetes.kubeconfig={file}",
        "--set",
        "kubernetes.context=mine",
        "--until",
        "apply",
    ]
    environment = (
        os.environ | {"NO_COLOR": "1"} | {name: value for name, value in planted.items() if name.isupper()}
    )
    return subprocess.run(
        [PROGRAM, "rehearse", "local", *settings, *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_engine_state_outputs_and_reports_contain_no_keys_of_the_user(tmp_path: Path) -> None:
    planted = {
        name: f"planted-{secrets.token_hex(12)}"
        for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PULUMI_CONFIG_PASSPHRASE", "token", "password")
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(kubeconfig(planted)))
    done = rehearse(file, tmp_path, planted)
    assert done.returncode == 0, done.stdout + done.stderr
    texts = {
        str(path.relative_to(tmp_path)): path.read_text(errors="replace")
        for path in tmp_path.rglob("*")
        if path.is_file() and path != file
    }
    texts |= {"stdout": done.stdout, "stderr": done.stderr}
    state = [
        text
        for name, text in texts.items()
        if "stacks/" in name and name.endswith(".json") and "history" not in name
    ]
    assert state, sorted(texts)
    assert json.loads(state[0])
    assert "kuberay" in "".join(state)
    assert leaks(texts, planted) == []
