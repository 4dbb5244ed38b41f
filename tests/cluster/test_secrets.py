"""No secret value is told: not by logs, objects, events, metrics, reports, arguments, Ray's jobs, nor by an
engine's state.

Every value of every Secret in a run's namespace counts as planted, the token that KubeRay makes included.
Easy to get wrong: a test that finds
nothing proves nothing unless the places were looked at, so each must hold what it should.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cluster.launches import PROGRAM
from tests.cluster.watching import RUN, Watched

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]


def told(texts: dict[str, str], planted: dict[str, str]) -> list[str]:
    """Which place tells which secret, as it is or in base64."""
    found = []
    for name, value in planted.items():
        forms = (value, base64.b64encode(value.encode()).decode().rstrip("="))
        found += [
            f"{name} in {place}" for place, text in texts.items() if any(form in text for form in forms)
        ]
    return found


def test_nothing_that_a_run_says_or_is_made_of_tells_a_secret(watched: Watched) -> None:
    assert {"AWS_SECRET_ACCESS_KEY", "HF_TOKEN"} <= watched.planted.keys()
    assert any("token" in name for name in watched.planted if "/" in name and not name.startswith("keys/")), (
        "KubeRay's token is among them"
    )
    assert told(watched.texts, watched.planted) == []


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
def test_the_places_were_really_looked_at(place: str, word: str, watched: Watched) -> None:
    assert word in watched.texts[place]


def test_logs_and_arguments_of_every_pod_were_looked_at(watched: Watched) -> None:
    for kind in ("log", "arguments", "ray's logs", "described"):
        texts = [text for place, text in watched.texts.items() if place.startswith(f"{kind} pod/")]
        assert len(texts) >= 3
        assert sum(len(text) > 100 for text in texts) >= 3, kind


def test_an_engines_state_outputs_and_reports_keep_keys_of_the_one_who_deploys_out(tmp_path: Path) -> None:
    planted = {
        name: f"planted-{secrets.token_hex(12)}"
        for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PULUMI_CONFIG_PASSPHRASE", "token", "password")
    }
    user = {
        "name": "me",
        "user": {"token": planted["token"], "username": "me", "password": planted["password"]},
    }
    cluster = {"name": "mine", "cluster": {"server": "https://192.0.2.1:6443"}}
    context = {"name": "mine", "context": {"cluster": "mine", "user": "me"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [user],
        "contexts": [context],
        "current-context": "mine",
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    options = [
        "--keep",
        str(tmp_path / "kept"),
        "--outputs",
        str(tmp_path / "outputs.json"),
        "--resources",
        str(tmp_path / "resources.jsonl"),
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
    done = subprocess.run(
        [PROGRAM, "rehearse", "local", *settings, *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
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
    assert told(texts, planted) == []
