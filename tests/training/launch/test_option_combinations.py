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
from trainfleet.training.launch.base import LAUNCHERS, find, parse_options
from trainfleet.training.launch.clusters.entries import ClusterEntry, requests
from trainfleet.training.launch.clusters.member import MemberSpec
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
    "priority": "high",
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


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "kuberay": ("kuberay", {}),
    "sky": ("sky", {"managed": False}),
    "sky, managed": ("sky", {"managed": True}),
    "ray-up": ("ray-up", {}),
}
"""Launchers, and the options that all combinations of a case have."""


@pytest.mark.parametrize("on", sorted(LAUNCHERS))
def test_every_option_of_a_launcher_is_drawn(on: str) -> None:
    """A run is attached by `runs attach`, and `--write` starts none."""
    fields = set(find(on).options_model.model_fields) - {"attach", "launch", "write"}
    assert set(OPTIONS.get(on, {})) == fields


@pytest.mark.parametrize("case", sorted(CASES))
def test_each_option_of_a_combination_has_an_effect_or_is_rejected_by_name(case: str, tmp_path: Path) -> None:
    on, always = CASES[case]
    files = {"KEY_FILE": tmp_path / "key", "PODS_FILE": tmp_path / "pods.yaml"}
    files["KEY_FILE"].write_text("not a key")
    files["KEY_FILE"].chmod(0o600)
    files["PODS_FILE"].write_text("workers: {metadata: {annotations: {example.com/a: b}}}")
    flag, accepted, rejected = find(on).options_model.flag, 0, []
    for number in range(COMBINATIONS):
        options, stack, gpus = drawn(on, number, files)
        options = {
            name: value
            for name, value in {**options, **always}.items()
            if value is not False or name == "spot"
        }
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


EVERY = {name: value for options in OPTIONS.values() for name, value in options.items()}
"""A value of each option of any launcher."""


def draw_any(draw: random.Random) -> dict[str, Any]:
    """Options of any launchers, by field."""
    found = {name: EVERY[name] for name in draw.sample(sorted(EVERY), draw.randint(1, 6))}
    return {name: draw.choice(value) if isinstance(value, list) else value for name, value in found.items()}


@pytest.mark.parametrize("on", sorted(LAUNCHERS))
def test_of_options_of_any_launcher_those_of_others_are_rejected_and_the_rest_is_kept(on: str) -> None:
    model, draw = find(on).options_model, random.Random(on)
    for number in range(COMBINATIONS):
        options = draw_any(draw)
        own = {name: value for name, value in options.items() if name in model.model_fields}
        others = options.keys() - own.keys()
        if others:
            with pytest.raises(InputError) as caught:
                parse_options(on, options)
            named = sorted(each.what.split("`")[1] for each in caught.value.problems)
            assert named == sorted(flag_of(name) for name in others), f"{number}: {options}"
        parsed = parse_options(on, own)
        assert {name: getattr(parsed, name) for name in own} == own, f"{number}: {options}"


def flag_of(name: str) -> str:
    """The flag of an option, as messages show it."""
    owner = next(each for each in LAUNCHERS if name in find(each).options_model.model_fields)
    return find(owner).options_model.flag(name)


def in_a_list(on: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options as a list of clusters writes them: by flags without dashes, times in minutes."""
    minutes = {
        name: value / 60 if name in ("within_s", "idle_s") else value for name, value in options.items()
    }
    flags = {name: flag_of(name).lstrip("-").partition("/")[0] for name in minutes}
    return {
        flags[name]: list(value) if isinstance(value, tuple) else value for name, value in minutes.items()
    }


def test_options_of_the_command_and_of_a_list_reach_each_cluster_or_are_rejected_with_its_name() -> None:
    """As a group hands them to the process of a cluster, which launches like `trainfleet launch`."""
    draw = random.Random("clusters")
    accepted = 0
    for number in range(3 * COMBINATIONS):
        ons = draw.choices(sorted(LAUNCHERS), k=2)
        given = draw_any(draw) if draw.random() < 0.3 else {}
        own = [
            {name: value for name, value in draw_any(draw).items() if name in OPTIONS.get(on, {})}
            for on in ons
        ]
        entries = [
            ClusterEntry(name=f"c{at}", launcher=on, options=in_a_list(on, options))
            for at, (on, options) in enumerate(zip(ons, own, strict=True))
        ]
        case = f"{number}: {given} and {entries}"
        foreign = {
            (f"c{at}", flag_of(name))
            for at, on in enumerate(ons)
            for name in given
            if name not in find(on).options_model.model_fields
        }
        if foreign:
            with pytest.raises(InputError) as caught:
                requests(Request("lm-tiny"), "night", entries, given)
            named = {(each.where.split()[0], each.what.split("`")[1]) for each in caught.value.problems}
            assert named == foreign, case
            continue
        accepted += 1
        for on, options, request in zip(
            ons, own, requests(Request("lm-tiny"), "night", entries, given), strict=True
        ):
            assert (request.on, request.options) == (on, parse_options(on, {**given, **options})), case
            spec = MemberSpec.of(request, cluster="c", address="", parent=1)
            again = MemberSpec.model_validate_json(spec.model_dump_json()).launch().options
            assert again == request.options, case
            assert again is not None, case
            assert again.model_fields_set == request.options.model_fields_set, case
    assert accepted >= COMBINATIONS


@pytest.mark.parametrize("name", ["write", "attach", "launch", "stack", "print", "group", "owner"])
def test_a_list_rejects_by_name_what_no_launch_on_a_cluster_has(name: str) -> None:
    for on in LAUNCHERS:
        entries = [
            ClusterEntry(name="a", launcher=on, options={name: "x"}),
            ClusterEntry(name="b", launcher=on),
        ]
        with pytest.raises(InputError, match=f"a {name}: is not an option of --on {on}"):
            requests(Request("lm-tiny"), "night", entries, {})
