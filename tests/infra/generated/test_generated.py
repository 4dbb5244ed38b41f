"""Specs drawn at random: every valid one is taken, every broken one answered before the engine starts, and a
sample lives a whole life.

The sample of each cloud goes through the real engine over the simulated clouds: previewed, applied, unchanged
on a second preview, and
destroyed to nothing. Small here; many more in the deep tests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.infra.generated.strategies import Document, gpu_machines, sample, specs
from trainfleet.errors import InputError
from trainfleet.infra.catalog.machines import Machine, machine_for_pool
from trainfleet.infra.cloud_support import support
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.load import parse_spec
from trainfleet.rehearsal.engine.engine_cli import Outcome
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session

# The simulated provider reads every class of the SDK, the old ones too, and those warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FEW = settings(
    max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TWO = settings(
    max_examples=2, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
CLOUDS = list(Cloud)
MANY = 12
"""Lives per cloud in the deep tests."""
MACHINES = [machine for cloud in CLOUDS for machine in gpu_machines(cloud)]
STACKS = {Cloud.AWS: "aws-dev", Cloud.GCP: "gcp-dev", Cloud.AZURE: "azure-dev", Cloud.LOCAL: "local"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_valid_spec_is_taken(cloud: Cloud) -> None:
    @FEW
    @given(specs(cloud))
    def taken(document: Document) -> None:
        assert parse_spec(document).model_dump(mode="json")["name"] == document["name"]

    taken()


@pytest.mark.sampled(46)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: f"{machine.cloud}-{machine.instance_type}")
def test_every_machine_of_the_catalogue_can_be_had(machine: Machine) -> None:
    @TWO
    @given(specs(machine.cloud, machine=machine))
    def had(document: Document) -> None:
        spec = parse_spec(document)
        assert machine_for_pool(spec.cloud, spec.gpu_pools[0]) == machine

    had()


# Mistakes, one at a time


class Mistake(NamedTuple):
    """How a valid spec is broken, where it must be reported, and on which clouds."""

    name: str
    make: Callable[[Document], bool]
    """Changes the document; False where this one cannot be broken so."""
    where: str
    clouds: tuple[Cloud, ...] = (Cloud.AWS, Cloud.GCP, Cloud.AZURE)


def put(path: str, value: Any) -> Callable[[Document], bool]:
    """Put a value at a path; impossible if the path contains a missing pool."""

    def make(document: Document) -> bool:
        place: Any = document
        *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        for step in steps:
            if isinstance(step, int) and step >= len(place):
                return False
            place = place[step] if isinstance(step, int) else place.setdefault(step, {})
        place[last] = value
        return True

    return make


def both(*makes: Callable[[Document], bool]) -> Callable[[Document], bool]:
    return lambda document: all(make(document) for make in makes)


def double_pool(document: Document) -> bool:
    document["gpu_pools"] += document["gpu_pools"][:1]
    return len(document["gpu_pools"]) > 1


def fewer_than_least(document: Document) -> bool:
    document["system_pool"] |= {"min_nodes": 4, "max_nodes": 3}
    return True


def launcher_is_admin(document: Document) -> bool:
    kubernetes = document["kubernetes"]
    kubernetes["launchers"] = kubernetes["admins"][:1]
    document["layer"]["launcher_access"] = True
    return bool(kubernetes["launchers"])


def reserved_without(document: Document) -> bool:
    pool = next((each for each in document["gpu_pools"] if each["capacity"] == "reserved"), None)
    return bool(pool and pool.pop("reservation"))


def spot_with_reservation(document: Document) -> bool:
    pool = next((each for each in document["gpu_pools"] if each["capacity"] == "spot"), None)
    if pool:
        pool["reservation"] = "cr-0123456789abcdef0"
    return pool is not None


ENDED = {"policy": "no-host-path", "resource": "it", "reason": "long enough a reason", "until": "2020-01-31"}
ALL = (*CLOUDS,)
MISTAKES = [
    Mistake("a name in capitals", put("name", "Prod"), "name", ALL),
    Mistake("a name of 25 letters", put("name", "x" * 25), "name", ALL),
    Mistake("no owner", put("owner", ""), "owner", ALL),
    Mistake("an unknown cloud", put("cloud", "oracle"), "cloud", ALL),
    Mistake("an unknown key", put("gpu_pool", []), "gpu_pool", ALL),
    Mistake("an unknown region", put("region", "us-nowhere-9"), "region"),
    Mistake("no region", put("region", ""), "region"),
    Mistake("no account", put("account", ""), "account", (Cloud.GCP, Cloud.AZURE)),
    Mistake("an account of another kind", put("account", "x"), "account"),
    Mistake("a region where there is none", put("region", "us-east-2"), "region", (Cloud.LOCAL,)),
    Mistake("too many zones", put("network.zones", 6), "network.zones"),
    Mistake("a range with an address in it", put("network.cidr", "10.0.0.1/16"), "network.cidr"),
    Mistake("a range too small", put("network.cidr", "10.0.0.0/26"), "network.cidr"),
    Mistake("a public range", put("network.cidr", "52.0.0.0/16"), "network.cidr"),
    Mistake(
        "the whole internet",
        put("kubernetes.access", {"public_ranges": ["0.0.0.0/0"]}),
        "kubernetes.access.public_ranges",
    ),
    Mistake(
        "closed to all",
        put("kubernetes.access", {"endpoint": "public"}),
        "kubernetes.access.public_ranges",
    ),
    Mistake("an old Kubernetes", put("kubernetes.version", "1.20"), "kubernetes.version"),
    Mistake("a version that is a number", put("kubernetes.version", 1.34), "kubernetes.version"),
    Mistake(
        "logs kept too long", put("kubernetes.log_retention_days", 99999), "kubernetes.log_retention_days"
    ),
    Mistake("an invalid administrator", put("kubernetes.admins", ["root"]), "kubernetes.admins[0]"),
    Mistake(
        "an invalid launcher",
        both(put("kubernetes.launchers", ["system:masters"]), put("layer.launcher_access", True)),
        "kubernetes.launchers[0]",
        ALL,
    ),
    Mistake("a launcher who is an admin", launcher_is_admin, "kubernetes.launchers[0]"),
    Mistake(
        "launchers without their role",
        both(put("kubernetes.launchers", ["ml"]), put("layer.launcher_access", False)),
        "layer.launcher_access",
        (Cloud.LOCAL,),
    ),
    Mistake("fewer nodes than the least", fewer_than_least, "system_pool.max_nodes"),
    Mistake("two pools of one name", double_pool, "gpu_pools"),
    Mistake("a GPU that nobody sells", put("gpu_pools.0.accelerator", "H9000"), "gpu_pools[0].accelerator"),
    Mistake("a count that nobody sells", put("gpu_pools.0.per_node", 7), "gpu_pools[0].per_node"),
    Mistake(
        "a machine of nobody", put("gpu_pools.0.instance_type", "z9.metal"), "gpu_pools[0].instance_type"
    ),
    Mistake("a zone elsewhere", put("gpu_pools.0.zone", "mars-1a"), "gpu_pools[0].zone"),
    Mistake(
        "a label of Kubernetes",
        put("gpu_pools.0.labels", {"node.kubernetes.io/x": "y"}),
        "gpu_pools[0].labels",
    ),
    Mistake("a label that is none", put("gpu_pools.0.labels", {"a b": "y"}), "gpu_pools[0].labels", ALL),
    Mistake("reserved without a reservation", reserved_without, "gpu_pools"),
    Mistake("spot with a reservation", spot_with_reservation, "gpu_pools"),
    Mistake(
        "HyperPod elsewhere",
        put("gpu_pools.0.kind", "hyperpod"),
        "gpu_pools[0].",
        (Cloud.GCP, Cloud.AZURE, Cloud.LOCAL),
    ),
    Mistake(
        "TLS that nobody signs",
        both(put("ray.tls", True), put("layer.certificates", "none")),
        "layer.certificates",
        ALL,
    ),
    Mistake(
        "a queue without its operator",
        both(put("queue.enabled", True), put("layer.kuberay", False)),
        "layer.kuberay",
        ALL,
    ),
    Mistake("an operator that is not here", put("ray.operator", "0.1.0"), "ray.operator", ALL),
    Mistake(
        "tokens in an old Ray",
        put("ray", {"version": "2.9.0", "token_auth": True, "tls": False}),
        "ray.version",
        ALL,
    ),
    Mistake("an image that moves", put("ray.image", "example/train:latest"), "ray.image", ALL),
    Mistake("a budget too small", put("budget", {"monthly_usd": 0.01}), "budget.monthly_usd"),
    Mistake(
        "alerts out of order", put("budget", {"monthly_usd": 9e9, "alert_at": [1, 0.5]}), "budget.alert_at"
    ),
    Mistake("a secret twice", put("secrets.names", ["a", "a"]), "secrets.names[1]", ALL),
    Mistake("a tag of the platform", put("tags", {"trainfleet:owner": "me"}), "tags", ALL),
    Mistake("an exception past its date", put("exceptions", [ENDED]), "exceptions[0].until", ALL),
    Mistake(
        "a store where the platform makes one", put("storage.bucket_url", "s3://mine"), "storage.bucket_url"
    ),
    Mistake("no store", put("storage.bucket_url", ""), "storage.bucket_url", (Cloud.LOCAL,)),
    Mistake(
        "a share too small",
        put("storage.shared_filesystem", {"kind": "lustre", "capacity_gib": 101}),
        "storage.shared_filesystem",
    ),
    Mistake(
        "a share where there is no cloud",
        put("storage.shared_filesystem", {}),
        "storage.shared_filesystem",
        (Cloud.LOCAL,),
    ),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_one_mistake_in_any_spec_is_answered_before_the_engine_and_at_its_place(mistake: Mistake) -> None:
    @settings(FEW, max_examples=30)
    @given(st.sampled_from(mistake.clouds).flatmap(specs))
    def answered(valid: Document) -> None:
        document = copy.deepcopy(valid)
        assume(mistake.make(document))
        with pytest.raises(InputError) as caught:
            parse_spec(document)
        assert any(problem.where.startswith(mistake.where) for problem in caught.value.problems), caught.value
        assert all(problem.what for problem in caught.value.problems)

    answered()


# Lives


@cache
def sampled(cloud: Cloud, count: int, environments: tuple[str, ...], start: int) -> list[Document]:
    """Drawn when the first test asks, not when tests are collected."""
    return sample(cloud, count, environments=environments, start=start)


def live(root: Path, cloud: Cloud, document: Document) -> None:
    """Preview, apply, preview again, and outside production destroy."""
    spec = parse_spec(document)
    config: Document = {
        key: getattr(spec, name) for key, name in support(cloud).provider_settings if getattr(spec, name)
    }
    with rehearsal_session(
        read_project(root, STACKS[cloud]),
        find_engine(),
        RehearsalOptions(),
        settings={"config": {**config, "trainfleet:platform": document}},
    ) as rehearsal:

        def run(*arguments: str) -> Outcome:
            outcome = rehearsal.runner.run(*arguments)
            mistakes = [str(mistake) for found in rehearsal.cloud.mistakes.values() for mistake in found]
            assert outcome.ok, (document, mistakes, outcome.output[-3000:])
            assert mistakes == [], document
            return outcome

        first = run("preview")
        run("up", "--yes", "--skip-preview")
        again = [(step.op, step.urn) for step in run("preview").steps if step.op != "same"]
        assert again == [], document
        assert first.steps
        if not spec.production:
            run("destroy", "--yes", "--skip-preview")
            assert [record.urn for record in rehearsal.cloud.records.values()] == [], document


@pytest.mark.deep
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_drawn_platform_is_made_stays_as_it_is_and_goes_without_a_trace(root: Path, cloud: Cloud) -> None:
    live(root, cloud, sampled(cloud, 1, ("dev", "staging"), 7)[0])


@pytest.mark.deep
@pytest.mark.parametrize("index", range(MANY))
@pytest.mark.parametrize("cloud", CLOUDS)
def test_many_drawn_platforms_live_a_whole_life(root: Path, cloud: Cloud, index: int) -> None:
    live(root, cloud, sampled(cloud, MANY, ("dev", "staging", "prod"), 2027)[index])
