"""Random combinations of a launcher's options: each option changes what the launcher hands over, or a message
names it. An option that another one silences fails here.
"""

from __future__ import annotations

import json
import random
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.saved_platforms import FOLDER, outputs
from trainfleet.errors import InputError
from trainfleet.training.launch.base import find
from trainfleet.training.launch.platform_outputs import NamedPlatform
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky import launcher as sky
from trainfleet.training.recipe.load import load_recipe

COMBINATIONS = 100
PROFILE = "arn:aws:iam::111122223333:instance-profile/trainer"
REMOTE: dict[str, Any] = {"image": "me/it:7", "pool": "h100", "detach": True, "within_s": 77.0}
KUBERNETES: dict[str, Any] = {
    "context": "kind",
    "namespace": "mine",
    "from_secrets": ("keys",),
    "pod_template": "PODS_FILE",
    "workload_check": ["always", "never"],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "kuberay": REMOTE
    | KUBERNETES
    | {
        "cluster": "shared",
        "gcs_fault_tolerance": ["always", "never"],
        "redis": "redis://10.0.0.7:6379",
        "redis_secret": "redis-password",
    },
    "sky": REMOTE
    | KUBERNETES
    | {
        "managed": True,
        "nodes": 2,
        "spot": False,
        "prices": {"aws-prod/l4": 500.0},
        "secrets": ("PLANTED_KEY",),
        "cluster": "shared",
        "idle_s": 600.0,
    },
    "ray-up": REMOTE
    | {
        "cluster": "shared",
        "secrets": ("PLANTED_KEY",),
        "spec": "gcp-dev",
        "hosts": ("10.0.0.5", "10.0.0.6"),
        "identity": PROFILE,
        "zone": "us-east-2a",
        "machine_image": "ami-0123456789abcdef0",
        "ssh_user": "me",
        "ssh_key": "KEY_FILE",
        "idle_s": 300.0,
    },
}
"""By launcher: a value of each option that differs from its default."""


GPUS = ("scaling.use_gpu=true", "scaling.workers=4", "scaling.cpus_per_worker=1")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cluster is asked, nothing random is handed over, and files are written to the test's folder."""
    monkeypatch.setattr(sky, "context_problem", lambda *_: "is not asked here")
    monkeypatch.setattr(secrets, "token_hex", lambda count=32: "0" * count)
    monkeypatch.setenv("PLANTED_KEY", "planted-value")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def handed_over(on: str, options: dict[str, Any], stack: str, *, gpus: bool, folder: Path) -> str:
    """What the launcher writes for the follower, and for Ray's launcher."""
    launcher = find(on)
    recipe = load_recipe("lm-tiny", ["storage=s3://prod-runs/runs", *(GPUS if gpus else ())])
    platforms = (NamedPlatform(outputs(stack), FOLDER / f"{stack}.json"),) if stack else ()
    parsed = launcher.options_model(**options)
    request = Request("lm-tiny", on=on, options=parsed, storage="s3://prod-runs/runs")
    target = Target(request, platforms, folder / "runs" / "lm-tiny")
    *_, message = launcher.command(recipe, folder / "recipe.yaml", target)
    text = Path(message).read_text()
    if on == "ray-up":
        files = sorted(Path(json.loads(text)["file"]).parent.iterdir())
        text += "".join(each.read_text() for each in files if each.is_file())
    return text


def drawn(on: str, number: int, files: dict[str, Path]) -> tuple[dict[str, Any], str, bool]:
    """Options, a stack or none, and whether the recipe uses GPUs."""
    draw = random.Random(f"{on} {number}")
    names = draw.sample(sorted(OPTIONS[on]), draw.randint(1, 6))
    values = {name: OPTIONS[on][name] for name in names}
    found = {
        name: draw.choice(value)
        if isinstance(value, list)
        else str(files[str(value)])
        if str(value) in files
        else value
        for name, value in values.items()
    }
    stack = draw.choice(["aws-prod", ""])
    # Most draws should be launches that can run.
    if stack and draw.random() < 0.8:
        without = {"ray-up": ("hosts", "spec"), "sky": ("context", "namespace"), "kuberay": ()}
        found = {name: value for name, value in found.items() if name not in without[on]}
        found |= {"identity": PROFILE} if on == "ray-up" else {}
    elif not stack and draw.random() < 0.8:
        needed = {
            "kuberay": ("context", "namespace", "image"),
            "sky": ("context", "image"),
            "ray-up": ("hosts",),
        }
        found |= {name: OPTIONS[on][name] for name in needed[on]}
    return found, stack, draw.random() < 0.5


def is_redundant(name: str, options: dict[str, Any], *, gpus: bool) -> bool:
    """Whether an option requests what happens without it."""
    spot_pools = "pool" not in options and options.get("spot", True)
    match name:
        case "prices":  # of a spot pool
            return not spot_pools
        case "spot":
            return "pool" in options
        case "gcs_fault_tolerance":  # --redis implies it, and without a Redis there is none
            return options[name] == "never" or "redis" in options
        case "workload_check":
            return options[name] == "never" and (not gpus or "cluster" in options)
    return False


@pytest.mark.parametrize("on", sorted(OPTIONS))
def test_each_option_of_a_combination_has_an_effect_or_is_rejected_by_name(on: str, tmp_path: Path) -> None:
    files = {"KEY_FILE": tmp_path / "key", "PODS_FILE": tmp_path / "pods.yaml"}
    files["KEY_FILE"].write_text("not a key")
    files["KEY_FILE"].chmod(0o600)
    files["PODS_FILE"].write_text("workers: {metadata: {annotations: {example.com/a: b}}}")
    flag, accepted, rejected = find(on).options_model.flag, 0, []
    for number in range(COMBINATIONS):
        options, stack, gpus = drawn(on, number, files)
        case = f"{number}: --on {on} {options} on {stack or 'no stack'}, GPUs: {gpus}"
        try:
            whole = handed_over(on, options, stack, gpus=gpus, folder=tmp_path)
        except InputError as error:
            rejected.append((case, str(error)))
            continue
        accepted += 1
        for name in options:
            rest = {other: options[other] for other in options if other != name}
            try:
                without = handed_over(on, rest, stack, gpus=gpus, folder=tmp_path)
            except InputError:
                continue  # it is needed
            assert without != whole or is_redundant(name, options, gpus=gpus), f"{case}: {flag(name)}"
    assert not [case for case, text in rejected if "--" not in text and "has no GPU pool" not in text]
    assert accepted >= COMBINATIONS // 5, "too few launches that can run to show anything"
