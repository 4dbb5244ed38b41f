"""Replacements that go wrong half way, resources that fail twice in a row, and whole clusters replaced: on
the
real engine.

Whatever happens, a run that continues has to end where an undisturbed one ends, with nothing made twice and
nothing left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.rehearsal.conftest import PROGRAMS
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session
from trainfleet.rehearsal.report import Step
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.fault_injection import FaultInjector, InjectedFaultError
from trainfleet.rehearsal.steps import selection
from trainfleet.rehearsal.steps.session import APPLY, Rehearsal

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class FailTimes(FaultInjector):
    """One kind of operation on one resource fails a number of times in a row."""

    def __init__(self, verb: str, name: str, times: int) -> None:
        self.verb, self.name, self.left, self.injected = verb, name, times, 0

    def before(self, verb: str, record: CloudObject, timeout: float) -> None:
        if verb == self.verb and record.urn.endswith(f"::{self.name}") and self.left:
            self.left -= 1
            self.injected += 1
            raise InjectedFaultError(f"rehearsed fault: {verb} of {self.name}")


Begin = Callable[[str], Rehearsal]


@pytest.fixture
def begin(engine: Engine, tmp_path: Path) -> Iterator[Begin]:
    """Set the stage for a program of a few lines."""
    with ExitStack() as ending:

        def start(code: str) -> Rehearsal:
            (tmp_path / "Pulumi.yaml").write_text("name: tiny\nruntime: python\n")
            (tmp_path / "__main__.py").write_text(f"import pulumi\nimport pulumi_aws as aws\n{code}\n")
            return ending.enter_context(rehearsal_session(read_project(tmp_path), engine, RehearsalOptions()))

        yield start


def applied(r: Rehearsal) -> dict[str, str]:
    """Apply, which must go through; returns what was done, by name."""
    outcome = r.run(Step("apply", "apply"), *APPLY)
    assert outcome.ok, outcome.errors
    return {urn.rsplit("::", 1)[-1]: op for urn, op in r.only(outcome).items()}


def broken(r: Rehearsal, injector: FailTimes) -> None:
    """Apply, which must fail by the fault; cloud and state have to agree then."""
    r.cloud.injector = injector
    before, step = injector.injected, Step("apply", "apply")
    outcome = r.run(step, *APPLY)
    assert not outcome.ok
    assert injector.injected == before + 1, outcome.errors
    assert r.state_matches_cloud(step), step.problems


def names(r: Rehearsal) -> list[str]:
    return sorted(record.urn.rsplit("::", 1)[-1] for record in r.cloud.records.values())


def of_name(r: Rehearsal, name: str) -> CloudObject:
    return next(record for record in r.cloud.everything() if record.urn.endswith(f"::{name}"))


NETWORK = """
vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16")
aws.ec2.Subnet("subnet", vpc_id=vpc.id, cidr_block="10.0.0.0/24")
"""
CIDR = {"type": "aws:ec2/vpc:Vpc", "name": "vpc", "path": ["cidrBlock"], "value": "10.0.0.0/20"}
ROLE = """
import json
trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}
role = aws.iam.Role("role", name="fixed", path="/", assume_role_policy=json.dumps(trust))
allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/*"}]}
aws.iam.RolePolicy("rights", role=role.name, policy=json.dumps(allow))
"""
PATH = {"type": "aws:iam/role:Role", "name": "role", "path": ["path"], "value": "/nodes/"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice in a row"])
def test_the_old_one_that_could_not_be_deleted_goes_with_the_next_apply(begin: Begin, times: int) -> None:
    r = begin(NETWORK)
    assert applied(r) == {"vpc": "create", "subnet": "create"}
    old = of_name(r, "vpc").id
    r.programs.changes = [CIDR]
    injector = FailTimes("delete", "vpc", times)
    for _ in range(times):
        broken(r, injector)
        assert names(r) == ["subnet", "vpc", "vpc"]
    new = next(
        record.id for record in r.cloud.everything() if record.id != old and record.urn.endswith("::vpc")
    )
    applied(r)
    assert (names(r), of_name(r, "vpc").id) == (["subnet", "vpc"], new)
    assert applied(r) == {}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice in a row"])
def test_the_new_one_that_could_not_be_made_after_the_old_one_went_is_made_by_the_next_apply(
    begin: Begin, times: int
) -> None:
    """Both have one fixed name, so the old one has to go first; in between there is none."""
    r = begin(ROLE)
    assert applied(r) == {"role": "create", "rights": "create"}
    r.programs.changes = [PATH]
    injector = FailTimes("create", "role", times)
    for _ in range(times):
        broken(r, injector)
        assert "role" not in names(r)
    applied(r)
    assert names(r) == ["rights", "role"]
    assert of_name(r, "role").inputs["path"] == "/nodes/"
    assert applied(r) == {}


@pytest.mark.deep
@pytest.mark.parametrize("verb", ["create", "update", "delete"])
def test_what_fails_twice_in_a_row_is_done_by_the_third_run(begin: Begin, verb: str) -> None:
    r = begin(NETWORK)
    if verb != "create":
        applied(r)
    tag = {"type": "aws:ec2/vpc:Vpc", "name": "vpc", "path": ["tags"], "value": {"team": "ml"}}
    r.programs.changes = [tag] if verb == "update" else [CIDR] if verb == "delete" else []
    injector = FailTimes(verb, "subnet" if verb == "delete" else "vpc", 2)
    broken(r, injector)
    broken(r, injector)
    applied(r)
    assert names(r) == ["subnet", "vpc"]
    made = [op.urn for op in r.cloud.operations if op.verb == "create"]
    assert len(made) == (2 if verb != "delete" else 4)
    assert applied(r) == {}


def change_name(r: Rehearsal, token: str) -> None:
    """Another name for the cluster, which is another cluster."""
    cluster = next(resource for resource in r.resources() if resource["type"] == token)
    (name,) = selection.physical_name_path(cluster)
    r.programs.changes = [
        selection.Choice(cluster["urn"], token, (name,), f"{cluster['inputs'][name]}-2").as_change()
    ]


def inside(r: Rehearsal) -> dict[str, str]:
    """What is in a cluster, and in which, by URN."""
    return {record.urn: record.place for record in r.cloud.everything() if record.place}


def moved(before: dict[str, str], after: dict[str, str]) -> bool:
    """Whether every resource exists again, in one other cluster."""
    return (
        before.keys() == after.keys()
        and len({*before.values()}) == len({*after.values()}) == 1
        and not {*before.values()} & {*after.values()}
    )


def test_what_is_in_a_cluster_is_recreated_in_the_new_one(engine: Engine) -> None:
    with rehearsal_session(read_project(PROGRAMS / "small"), engine, RehearsalOptions()) as r:
        applied(r)
        before = inside(r)
        assert {urn.rsplit("::", 1)[-1] for urn in before} == {"training", "trainer"}
        change_name(r, "aws:eks/cluster:Cluster")
        assert applied(r)["cluster"] == "replace"
        assert moved(before, inside(r))
        assert r.state_matches_cloud(Step("replace", "replace"))
        assert applied(r) == {}
        gone = r.run(Step("destroy", "destroy"), "destroy", "--yes", "--skip-preview")
        assert (gone.ok, r.cloud.records) == (True, {})


LAYER = ("--target", "urn:pulumi:**$kubernetes:**", "--target-dependents")
"""Everything in the cluster. It has to go first where the old cluster goes before the new one: the engine
(3.200) closes the Kubernetes provider as soon as it sees that it will be replaced, and can then delete
nothing that is in the cluster.
"""


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("stack", "token"),
    [
        ("aws-dev", "aws:eks/cluster:Cluster"),
        ("gcp-dev", "gcp:container/cluster:Cluster"),
        ("azure-dev", "azure-native:containerservice:ManagedCluster"),
    ],
)
def test_a_platform_gets_another_cluster_in_two_commands(
    root: Path, engine: Engine, stack: str, token: str
) -> None:
    with rehearsal_session(read_project(root, stack), engine, RehearsalOptions()) as r:
        applied(r)
        before = inside(r)
        assert len(before) > 50
        emptied = r.run(Step("destroy", "destroy"), "destroy", "--yes", "--skip-preview", *LAYER)
        assert (emptied.ok, inside(r)) == (True, {}), emptied.errors
        change_name(r, token)
        applied(r)
        assert moved(before, inside(r))
        assert r.state_matches_cloud(Step("replace", "replace"))
        assert applied(r) == {}


FILES = f"""{NETWORK}
subnet = aws.ec2.Subnet("files-subnet", vpc_id=vpc.id, cidr_block="10.0.1.0/24")
aws.fsx.LustreFileSystem("files", subnet_ids=subnet.id, storage_capacity=4800, deployment_type="PERSISTENT_2", per_unit_storage_throughput=125)
def rule(port):
    return {{"protocol": "tcp", "from_port": port, "to_port": port, "cidr_blocks": ["10.0.0.0/24", "10.0.1.0/24"]}}
aws.ec2.SecurityGroup("group", vpc_id=vpc.id, ingress=[rule(988), rule(1021)])
"""


def capacity(gib: int) -> dict[str, object]:
    token = "aws:fsx/lustreFileSystem:LustreFileSystem"
    return {"type": token, "name": "files", "path": ["storageCapacity"], "value": gib}


def ingress(*ports: int, ranges: tuple[str, ...]) -> dict[str, object]:
    rules = [
        {"protocol": "tcp", "fromPort": port, "toPort": port, "cidrBlocks": list(ranges)} for port in ports
    ]
    token = "aws:ec2/securityGroup:SecurityGroup"
    return {"type": token, "name": "group", "path": ["ingress"], "value": rules}


def test_the_engine_replaces_what_shrinks_and_leaves_alone_what_is_only_in_another_order(
    begin: Begin,
) -> None:
    r = begin(FILES)
    applied(r)
    one, two = "10.0.0.0/24", "10.0.1.0/24"
    r.programs.changes = [capacity(9600)]
    assert applied(r) == {"files": "update"}
    r.programs.changes = [capacity(9600), ingress(1021, 988, ranges=(one, two))]
    assert applied(r) == {}
    r.programs.changes = [capacity(1200), ingress(1021, 988, ranges=(two,))]
    assert applied(r) == {"files": "replace", "group": "update"}
