"""Every option of `launch` is used by the chosen launcher, or rejected by name."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import typer

from trainfleet.errors import InputError
from trainfleet.training.cli import launch as cli
from trainfleet.training.cli import tune
from trainfleet.training.cli.options import minutes
from trainfleet.training.launch.base import LAUNCHERS, find, parse_options
from trainfleet.training.launch.kuberay.options import KubeRayOptions

REMOTE = {"kuberay", "sky", "ray-up"}
KUBERNETES = {"kuberay", "sky"}
SKY, RAY_UP = {"sky"}, {"ray-up"}
TABLE: dict[str, tuple[list[str], set[str], str, Any]] = {
    "image": (["--image", "me/it:1"], REMOTE, "image", "me/it:1"),
    "pool": (["--pool", "l4"], REMOTE, "pool", "l4"),
    "within": (["--within", "5"], REMOTE, "within_s", 300.0),
    "detach": (["--detach"], REMOTE, "detach", True),
    "secret": (["--secret", "KEY"], SKY | RAY_UP, "secrets", ("KEY",)),
    "cluster": (["--cluster", "shared"], REMOTE, "cluster", "shared"),
    "idle": (["--idle", "2h"], SKY | RAY_UP, "idle_s", 7200.0),
    "context": (["--context", "kind"], KUBERNETES, "context", "kind"),
    "namespace": (["--namespace", "mine"], KUBERNETES, "namespace", "mine"),
    "from_secret": (["--from-secret", "keys"], KUBERNETES, "from_secrets", ("keys",)),
    "pod_template": (["--pod-template", "pods.yaml"], KUBERNETES, "pod_template", "pods.yaml"),
    "priority": (["--priority", "low"], KUBERNETES, "priority", "low"),
    "workload_check": (["--workload-check", "always"], KUBERNETES, "workload_check", "always"),
    "gcs_fault_tolerance": (
        ["--gcs-fault-tolerance", "always"],
        {"kuberay"},
        "gcs_fault_tolerance",
        "always",
    ),
    "redis": (["--redis", "redis://r:6379"], {"kuberay"}, "redis", "redis://r:6379"),
    "redis_secret": (["--redis-secret", "login"], {"kuberay"}, "redis_secret", "login"),
    "managed": (["--managed"], SKY, "managed", True),
    "nodes": (["--nodes", "2"], SKY, "nodes", 2),
    "spot": (["--no-spot"], SKY, "spot", False),
    "price": (["--price", "a/b=0.5"], SKY, "prices", {"a/b": 0.5}),
    "write": (["--write", "cluster.yaml"], RAY_UP, "write", "cluster.yaml"),
    "spec": (["--spec", "gcp-dev"], RAY_UP, "spec", "gcp-dev"),
    "host": (["--host", "a", "--host", "b"], RAY_UP, "hosts", ("a", "b")),
    "identity": (["--identity", "trainer"], RAY_UP, "identity", "trainer"),
    "zone": (["--zone", "a"], RAY_UP, "zone", "a"),
    "machine_image": (["--machine-image", "ami-1"], RAY_UP, "machine_image", "ami-1"),
    "ssh_user": (["--ssh-user", "me"], RAY_UP, "ssh_user", "me"),
    "ssh_key": (["--ssh-key", "id"], RAY_UP, "ssh_key", "id"),
}
"""By parameter: how it is given, the launchers that have it, and the field and value of their options."""


def given(*arguments: str) -> dict[str, Any]:
    """The options of these arguments."""
    command = typer.main.get_command(cli.launch)
    return cli.given_options(command.make_context("launch", ["lm-tiny", *arguments]))


@pytest.mark.parametrize("on", sorted(LAUNCHERS))
@pytest.mark.parametrize("parameter", sorted(TABLE))
def test_an_option_is_used_or_rejected_by_name(parameter: str, on: str) -> None:
    arguments, supported, field, value = TABLE[parameter]
    if on in supported:
        assert getattr(parse_options(on, given(*arguments)), field) == value
        return
    with pytest.raises(InputError) as caught:
        parse_options(on, given(*arguments))
    (problem,) = caught.value.problems
    flag = find(next(each for each in LAUNCHERS if each in supported)).options_model.flag(field)
    owners = ", ".join(each for each in LAUNCHERS if each in supported)
    assert arguments[0] in flag
    assert problem.what == f"`{flag}` does nothing with --on {on}; it is an option of: {owners}"


def test_the_table_lists_every_option_of_the_command_and_the_launchers() -> None:
    command = typer.main.get_command(cli.launch)
    own = {each.name for each in command.params if each.name not in cli.COMMON}
    completion = {"install_completion", "show_completion"}
    assert own - completion == set(TABLE)
    fields = {field for each in LAUNCHERS for field in find(each).options_model.model_fields}
    internal = {"attach", "launch"}
    assert fields - internal == {field for _, _, field, _ in TABLE.values()}


def test_a_search_has_the_options_of_a_launch_and_reads_them_alike() -> None:
    command = typer.main.get_command(tune.tune)
    own = {each.name for each in command.params}
    assert set(TABLE) - own == {"write", "detach"}
    for parameter in set(TABLE) & own:
        arguments, _, field, value = TABLE[parameter]
        context = command.make_context("tune", ["lm-tiny", "--on", "kuberay", *arguments])
        assert cli.given_options(context) == {field: value}


@pytest.mark.parametrize("on", sorted(LAUNCHERS))
def test_defaults_do_not_count_as_given(on: str) -> None:
    assert given() == {}
    assert parse_options(on, given()) == find(on).options_model()


def test_all_unsupported_options_are_rejected_at_once() -> None:
    with pytest.raises(InputError) as caught:
        parse_options("local", given("--managed", "--secret", "KEY", "--pool", "l4"))
    assert [each.what.split("`")[1] for each in caught.value.problems] == ["--managed", "--secret", "--pool"]


def test_an_explicit_default_counts_as_given() -> None:
    with pytest.raises(InputError, match="`--nodes` does nothing with --on local"):
        parse_options("local", given("--nodes", "1"))


def test_a_launcher_rejects_the_options_of_another() -> None:
    from trainfleet.training.launch.request import Request, Target

    target = Target(Request("lm-tiny", on="sky", options=KubeRayOptions()), (), None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Sky got KubeRayOptions"):
        find("sky").options(target)


def test_the_command_reports_the_option_and_starts_nothing(
    trainfleet: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = trainfleet("launch", "lm-tiny", "--on", "local", "--managed", "--detach")
    assert done.returncode == 2
    assert "`--managed` does nothing with --on local; it is an option of: sky" in done.stderr
    assert "`--detach` does nothing with --on local" in done.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 1800.0), ("0.5", 30.0), ("90s", 90.0), ("5m", 300.0), ("2h", 7200.0)]
)
def test_a_time_is_in_minutes_or_has_a_unit(text: str, seconds: float) -> None:
    assert minutes(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "5d", "inf", "nan", "s"])
def test_what_is_not_a_time_is_rejected(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        minutes(text)
