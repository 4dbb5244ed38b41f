"""The cluster file of `--on ray-up` for each cloud and for hosts, checked against Ray's schema, and one
message per invalid input.
"""

from __future__ import annotations

import copy
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainfleet.errors import InputError, MissingToolError
from trainfleet.infra.outputs.contract import load_outputs
from trainfleet.training.launch.platform_outputs import NamedPlatform
from trainfleet.training.launch.ray_up.checks import MODULES, ready_for, validated_by_ray
from trainfleet.training.launch.ray_up.cluster_yaml import (
    cluster_document,
    cluster_files,
    next_steps,
    rendered,
    submitted_job,
    write,
)
from trainfleet.training.launch.ray_up.launcher import RayUp
from trainfleet.training.launch.ray_up.machines import cleanup_command
from trainfleet.training.launch.ray_up.options import RayUpOptions
from trainfleet.training.launch.ray_up.run_spec import MAX_NAME_LENGTH, RunSpec, cluster_name, resolve
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.recipe.load import load_recipe

CONTRACTS = Path(__file__).with_name("contracts")
STORAGE = {
    "aws": "s3://prod-runs/runs",
    "gcp": "gs://prod-runs/runs",
    "azure": "az://runs@proddata.blob.core.windows.net/runs",
    "local": "s3://my-runs/runs",
}
MANAGED = (
    "/subscriptions/1111/resourceGroups/ml/providers/Microsoft.ManagedIdentity/userAssignedIdentities/trainer"
)
IDENTITY = {
    "aws": "arn:aws:iam::111122223333:instance-profile/trainer",
    "gcp": "trainer@my-project.iam.gserviceaccount.com",
    "azure": MANAGED,
}
HOSTS = ("10.0.0.5", "10.0.0.6", "10.0.0.7")
STACKS = ["aws-dev", "aws-prod", "gcp-dev", "gcp-prod", "azure-dev", "azure-prod"]


def run_spec(
    cloud: str,
    *overrides: str,
    env: dict[str, str] | None = None,
    stack: str = "",
    storage: str = "",
    **options: Any,
) -> RunSpec:
    """A resolved launch of `lm-tiny` on a saved platform or on hosts."""
    if cloud in IDENTITY:
        options = {"identity": IDENTITY[cloud], **options}
    elif cloud == "local":
        options = {"hosts": HOSTS, **options}
    recipe = load_recipe(
        "lm-tiny", [f'storage="{storage or STORAGE.get(cloud, "s3://my-runs/runs")}"', *overrides]
    )
    file = CONTRACTS / f"{stack or f'{cloud}-prod'}.json"
    saved = cloud in IDENTITY and "spec" not in options
    platforms = (NamedPlatform(load_outputs(file), file),) if saved else ()
    request = Request("lm-tiny", on="ray-up", options=RayUpOptions(**options))
    target = Target(request, platforms, Path("runs/lm-tiny"))
    return resolve(recipe, target, RayUp().options(target), env or {})


def document(found: RunSpec) -> dict[str, Any]:
    return cluster_document(found, cluster_files(Path("cluster.yaml")))


def workers(cluster: dict[str, Any]) -> dict[str, Any]:
    (found,) = (kind for name, kind in cluster["available_node_types"].items() if name != "head")
    return dict(found)


def refused(*arguments: Any, **keywords: Any) -> str:
    with pytest.raises(InputError) as caught:
        run_spec(*arguments, **keywords)
    return "\n".join(f"{each.where}: {each.what} -> {each.fix}" for each in caught.value.problems)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("gpu", [True, False])
def test_the_file_of_every_cloud_is_valid_for_ray(stack: str, gpu: bool) -> None:
    cloud = stack.partition("-")[0]
    cluster = document(
        run_spec(cloud, f"scaling.use_gpu={str(gpu).lower()}", stack=stack, image="my/trainfleet:1")
    )
    checked = validated_by_ray(cluster)
    assert checked["provider"]["type"] == cloud
    assert checked["head_node_type"] in checked["available_node_types"]


@pytest.mark.parametrize("image", [None, "my/trainfleet:1"])
def test_the_file_of_hosts_is_valid_for_ray(image: str | None) -> None:
    checked = validated_by_ray(document(run_spec("local", image=image)))
    assert checked["provider"] == {"type": "local", "head_ip": HOSTS[0], "worker_ips": list(HOSTS[1:])}
    assert checked["available_node_types"]["local.cluster.node"]["min_workers"] == 2
    assert bool(checked["docker"]) is (image is not None)


@pytest.mark.parametrize("stack", STACKS)
def test_a_spec_that_was_never_applied_is_enough(stack: str) -> None:
    cloud = stack.partition("-")[0]
    found = run_spec(cloud, "scaling.use_gpu=true", image="my/trainfleet:1", spec=stack)
    assert validated_by_ray(document(found))
    saved = load_outputs(CONTRACTS / f"{stack}.json")
    assert [pool.instance_type for pool in found.outputs.pools] == [
        pool.instance_type for pool in saved.pools if pool.kind == "nodes"
    ]
    assert (found.outputs.region, found.outputs.cloud) == (saved.region, saved.cloud)


def test_ray_rejects_unknown_keys() -> None:
    cluster = {**document(run_spec("local")), "cluster_nmae": "x"}
    with pytest.raises(InputError, match="Ray rejects the cluster file"):
        validated_by_ray(cluster)


def test_a_machine_has_one_worker_per_gpu_and_the_head_has_none() -> None:
    cluster = document(
        run_spec("aws", "scaling.use_gpu=true", "scaling.workers=16", "batch.global_batch=64", pool="h100")
    )
    assert cluster["max_workers"] == 2
    head, worker = cluster["available_node_types"]["head"], workers(cluster)
    assert (head["resources"], head["max_workers"]) == ({"CPU": 0}, 0)
    assert (worker["resources"]["GPU"], worker["min_workers"], worker["max_workers"]) == (8, 2, 2)
    assert "--num-cpus=0" in cluster["head_start_ray_commands"][1]


def test_an_elastic_run_has_a_minimum_and_maximum_of_machines() -> None:
    worker = workers(document(run_spec("gcp", "scaling.workers=4", "scaling.min_workers=2")))
    assert (worker["min_workers"], worker["max_workers"]) == (2, 4)


def test_a_long_lived_cluster_shrinks_to_the_minimum_of_the_pool() -> None:
    worker = workers(
        document(
            run_spec(
                "gcp", "scaling.use_gpu=true", "scaling.workers=1", stack="gcp-dev", cluster="shared-ray"
            )
        )
    )
    assert (worker["min_workers"], worker["max_workers"]) == (0, 2)


def test_spot_pools_use_spot_machines() -> None:
    aws = workers(document(run_spec("aws", "scaling.use_gpu=true", stack="aws-dev", pool="l4")))[
        "node_config"
    ]
    gcp = workers(document(run_spec("gcp", "scaling.use_gpu=true", stack="gcp-dev", pool="l4")))[
        "node_config"
    ]
    azure = workers(
        document(run_spec("azure", "scaling.use_gpu=true", stack="azure-prod", pool="a100-spot"))
    )["node_config"]
    assert aws["InstanceMarketOptions"]["MarketType"] == "spot"
    assert gcp["scheduling"] == {
        "onHostMaintenance": "TERMINATE",
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "automaticRestart": False,
    }
    assert azure["azure_arm_parameters"]["priority"] == "Spot"


def test_workers_have_the_identity_and_the_head_has_not() -> None:
    aws, gcp, azure = (document(run_spec(cloud, "scaling.use_gpu=true")) for cloud in IDENTITY)
    assert workers(aws)["node_config"]["IamInstanceProfile"] == {"Arn": IDENTITY["aws"]}
    assert "IamInstanceProfile" not in aws["available_node_types"]["head"]["node_config"]
    assert workers(gcp)["node_config"]["serviceAccounts"][0]["email"] == IDENTITY["gcp"]
    assert "serviceAccounts" not in gcp["available_node_types"]["head"]["node_config"]
    assert (azure["provider"]["msi_name"], azure["provider"]["msi_resource_group"]) == ("trainer", "ml")


def test_on_gcp_the_machines_have_the_identity_of_the_contract() -> None:
    found = run_spec("gcp", identity="")
    assert found.identity == found.outputs.training_identity


@pytest.mark.parametrize(
    ("cloud", "image", "words"),
    [
        (
            "aws",
            "111122223333.dkr.ecr.us-east-2.amazonaws.com/t:1",
            "aws ecr get-login-password --region us-east-2",
        ),
        ("gcp", "us-docker.pkg.dev/p/t:1", "gcloud auth configure-docker us-docker.pkg.dev"),
        ("azure", "prodimgs.azurecr.io/t:1", "az acr login --name prodimgs"),
    ],
)
def test_machines_log_in_to_the_registry_of_the_cloud(cloud: str, image: str, words: str) -> None:
    assert words in " ".join(document(run_spec(cloud, image=image))["initialization_commands"])
    commands = document(run_spec(cloud, image="ghcr.io/my/t:1"))["initialization_commands"]
    assert len(commands) == 1


def test_the_file_holds_no_secret_and_secret_files_are_private(tmp_path: Path) -> None:
    env = {"AWS_SECRET_ACCESS_KEY": "planted-key'$x", "AWS_REGION": "us-east-1"}
    found = run_spec("local", env=env, secrets=("AWS_SECRET_ACCESS_KEY",))
    cluster = tmp_path / "c" / "cluster.yaml"
    adjacent = write(found, cluster, env)
    token = adjacent.token.read_text()
    public = (
        cluster.read_text()
        + adjacent.recipe.read_text()
        + next_steps(found, cluster)
        + str(submitted_job(found))
        + rendered(found, adjacent)
    )
    assert token not in public
    assert "planted-key" not in public
    assert [stat.S_IMODE(path.stat().st_mode) for path in (adjacent.token, adjacent.keys)] == [0o600, 0o600]
    assert (
        os.popen(f'. {adjacent.keys}; printf %s "$AWS_SECRET_ACCESS_KEY"').read()
        == env["AWS_SECRET_ACCESS_KEY"]
    )
    mounts = yaml.safe_load(cluster.read_text())["file_mounts"]
    assert all(Path(path).is_file() for path in mounts.values())
    assert write(found, cluster, env).token.read_text() == token


def test_the_certificate_authority_of_a_store_is_copied_and_configured(tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text(
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\nBBBB\n-----END PRIVATE KEY-----\n"
    )
    found = run_spec("local", env={"AWS_CA_BUNDLE": str(ca)})
    place = submitted_job(found).env["AWS_CA_BUNDLE"]
    assert place in document(found)["file_mounts"]
    assert "BBBB" not in write(found, tmp_path / "cluster.yaml", {}).ca.read_text()


def test_the_dashboard_listens_only_on_the_head_and_requires_the_token() -> None:
    start = document(run_spec("gcp"))["head_start_ray_commands"][1]
    assert "--dashboard-host=127.0.0.1" in start
    assert "RAY_AUTH_MODE=token" in start


def test_every_host_is_cleaned_up_the_head_first() -> None:
    found = run_spec("local")
    stop = "/tmp/trainfleet-stop-abc"
    command = cleanup_command(found.name, found.hosts[1:], "me", docker=False, stop_files=stop)
    assert command.startswith("ray stop")
    assert "pgrep" in command
    assert "for host in 10.0.0.6 10.0.0.7;" in command
    assert command.count("/tmp/trainfleet-stop-abc") == 2, (
        "the file that asked it to end goes, here and there"
    )


@pytest.mark.parametrize("run", ["a", "x" * 100, "Run_1", "träum", "9"])
def test_a_cluster_name_is_valid_on_every_cloud_and_unique_per_run(run: str) -> None:
    name = cluster_name(f"tf-{run}")
    assert len(name) <= MAX_NAME_LENGTH
    assert name.isascii()
    assert name == name.lower()
    assert name != cluster_name(f"tf-{run}x")


def test_a_launch_without_a_platform_or_hosts_reports_the_options() -> None:
    assert (
        refused("")
        == "--stack: which machines? -> --stack OUTPUTS.json, --spec STACK, or --host HEAD --host WORKER"
    )


def test_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    open_key = tmp_path / "key"
    open_key.write_text("x")
    open_key.chmod(0o644)
    output = refused(
        "local",
        hosts=("a", "a", "b c"),
        secrets=("NOT_SET", "A=b"),
        identity="x",
        ssh_key=str(open_key),
    )
    for words in (
        "`b c` is not a valid host name",
        "is given twice",
        "NOT_SET is not set",
        "`A=b` is not a variable's name",
        "do not get a cloud identity",
        "chmod 600",
    ):
        assert words in output


@pytest.mark.parametrize(
    ("cloud", "changes", "words"),
    [
        ("local", {"hosts": ("a",)}, "only a, which becomes the head and does not train"),
        ("local", {"storage": "runs"}, "`runs` is a folder of this machine, which the machines do not have"),
        ("local", {"ssh_key": "/not/there"}, "/not/there does not exist"),
        ("aws", {"ssh_key": "key"}, "--ssh-key: Ray registers only the key that it creates on aws"),
        ("gcp", {"ssh_key": "key"}, "--ssh-key: Ray registers only the key that it creates on gcp"),
        ("local", {"env": {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}}, "is this machine itself"),
        (
            "aws",
            {"identity": "arn:aws:iam::111122223333:role/trainer"},
            "is not an instance profile",
        ),
        ("aws", {"identity": ""}, "the workers would have no access to the storage"),
        ("gcp", {"identity": "trainer"}, "is not a service account's e-mail"),
        (
            "azure",
            {"identity": "trainer"},
            "is not a user-assigned managed identity's resource id",
        ),
        ("gcp", {"hosts": HOSTS}, "cannot be combined with a platform on gcp"),
        ("gcp", {"pool": "gb300"}, "this platform has no pool `gb300`"),
        ("gcp", {"spec": "gcp-dev"}, "--image: is missing"),
    ],
)
def test_an_impossible_launch_is_rejected(cloud: str, changes: dict[str, Any], words: str) -> None:
    assert words in refused(cloud, **copy.deepcopy(changes))


@pytest.mark.parametrize("cloud", ["azure", "local"])
@pytest.mark.parametrize("key", ["key", "~/key"])
def test_the_cluster_file_has_the_whole_path_of_a_key(
    cloud: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`runs stop` and `ray down` may be run in another folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for each in (tmp_path / "key", tmp_path / "key.pub"):
        each.touch(0o600)
    auth = document(run_spec(cloud, image="my/trainfleet:1", ssh_key=key))["auth"]
    assert auth["ssh_private_key"] == str(tmp_path / "key")
    assert auth.get("ssh_public_key", f"{tmp_path}/key.pub") == f"{tmp_path}/key.pub"


def test_more_workers_than_the_pool_can_have_are_rejected() -> None:
    assert "which grows to 2" in refused(
        "gcp",
        "scaling.use_gpu=true",
        "scaling.workers=8",
        "batch.global_batch=32",
        stack="gcp-dev",
        pool="l4",
    )


def test_a_missing_stack_is_reported() -> None:
    with pytest.raises(InputError) as caught:
        run_spec("gcp", spec="gcp-dve")
    assert "did you mean `gcp-dev`?" in str(caught.value.problems[0].fix)


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "local", ("not_there_at_all", "nor.there"))
    with pytest.raises(MissingToolError) as caught:
        ready_for(run_spec("local"))
    assert caught.value.problems[-1].what == "cannot import not_there_at_all, nor.there"
    assert caught.value.problems[-1].fix == "pip install 'trainfleet[ray-up]'"


@pytest.mark.parametrize("cloud", IDENTITY)
def test_released_machines_are_deleted_not_stopped(cloud: str) -> None:
    assert document(run_spec(cloud))["provider"]["cache_stopped_nodes"] is False


def test_a_missing_program_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingToolError) as caught:
        ready_for(run_spec("local"))
    assert [each.where for each in caught.value.problems] == ["ssh", "rsync"]
