"""Stack files: the line of a mistake, keys outside the platform, and settings from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainfleet.errors import InputError
from trainfleet.infra.spec.load import load_stack
from trainfleet.infra.spec.stack_file import stack_names


def stack(root: Path, text: str, name: str = "demo") -> Path:
    (root / "stacks").mkdir(exist_ok=True)
    (root / "stacks" / f"Pulumi.{name}.yaml").write_text(text)
    return root


def stack_mistakes(root: Path, text: str, overrides: list[str] | None = None) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        load_stack("demo", stack(root, text), overrides or [])
    return {
        problem.where.replace(f"{root}/", ""): f"{problem.what} -> {problem.fix}"
        for problem in caught.value.problems
    }


PLATFORM = """config:
  aws:region: us-east-2
  trainfleet:platform:
    name: demo
    cloud: aws
    region: us-east-2
    owner: ml-platform@example.com
    kubernetes: {access: {public_ranges: [203.0.113.0/24]}}
    gpu_pools:
      - name: l4
        accelerator: L4
        per_node: 4
"""


SUBSCRIPTION = "00000000-1111-2222-3333-444444444444"
GCP = """config:
  gcp:project: my-project-123
  gcp:region: us-central1
  trainfleet:platform: {name: demo, cloud: gcp, account: my-project-123, region: us-central1, owner: ml-platform@example.com}
"""
AZURE = f"""config:
  azure-native:location: eastus
  azure-native:subscriptionId: {SUBSCRIPTION}
  trainfleet:platform: {{name: demo, cloud: azure, account: {SUBSCRIPTION}, region: eastus, owner: ml-platform@example.com,
                        kubernetes: {{admins: ["{SUBSCRIPTION}"], access: {{public_ranges: [203.0.113.0/24]}}}}}}
"""


def test_the_stacks_of_the_checkout_are_good(root: Path) -> None:
    for name in stack_names(root):
        assert load_stack(name, root).name == name.rpartition("-")[2]


def test_the_production_stack_keeps_its_pools(root: Path) -> None:
    pools = {pool.accelerator: pool.capacity for pool in load_stack("aws-prod", root).gpu_pools}
    assert pools == {"H100": "reserved", "H200": "capacity-block", "L4": "spot", "A10G": "on-demand"}


def test_a_stack_may_be_named_as_pulumi_names_it_in_full(root: Path) -> None:
    assert load_stack("organization/trainfleet/aws-dev", root).name == "dev"


def test_a_stack_may_be_the_path_of_a_file(tmp_path: Path) -> None:
    assert load_stack(str(stack(tmp_path, PLATFORM) / "stacks" / "Pulumi.demo.yaml")).name == "demo"


def test_a_mistake_is_shown_with_file_and_line(tmp_path: Path) -> None:
    found = stack_mistakes(
        tmp_path, PLATFORM.replace("per_node: 4", "per_node: 5").replace("name: demo", "name: DEMO")
    )
    assert list(found) == [
        "stacks/Pulumi.demo.yaml:4 name",
        "stacks/Pulumi.demo.yaml:12 gpu_pools[0].per_node",
    ]


def test_a_missing_key_is_shown_at_the_part_that_lacks_it(tmp_path: Path) -> None:
    found = stack_mistakes(tmp_path, PLATFORM.replace("        accelerator: L4\n", ""))
    assert list(found) == ["stacks/Pulumi.demo.yaml:10 gpu_pools[0].accelerator"]


def test_a_file_is_named_from_here_where_it_lies_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stack(tmp_path, PLATFORM.replace("cloud: aws", "cloud: gpc")))
    with pytest.raises(InputError) as caught:
        load_stack("demo", tmp_path)
    assert caught.value.problems[0].where.startswith("stacks/Pulumi.demo.yaml:5 cloud")


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("config:\n  a: [1\n", "stacks/Pulumi.demo.yaml:3", "is not YAML"),
        ("config:\n\tx: 1\n", "stacks/Pulumi.demo.yaml:2", "is not YAML"),
        ("a: &a [*a]\n", "stacks/Pulumi.demo.yaml:1", "`*a` contains itself"),
        ("a: !!python/object:x {}\n", "stacks/Pulumi.demo.yaml:1", "is not YAML"),
        ("", "stacks/Pulumi.demo.yaml", "is empty"),
        ("- 1\n", "stacks/Pulumi.demo.yaml", "is not a group of keys"),
        ("config:\n", "stacks/Pulumi.demo.yaml:1", "has no `config:`"),
        ("config: {}\n", "stacks/Pulumi.demo.yaml:1", "has no `trainfleet:platform`"),
        (
            "config:\n  trainfleet:platfrom: {}\n",
            "stacks/Pulumi.demo.yaml:2 trainfleet:platfrom",
            "did you mean `trainfleet:platform`?",
        ),
        ("config:\n  platform: {}\n", "stacks/Pulumi.demo.yaml:2 platform", "known: trainfleet:platform"),
        (
            "config:\n  trainfleet:platform:\n",
            "stacks/Pulumi.demo.yaml:2",
            "must be a group of keys, not nothing",
        ),
        (
            PLATFORM + "    name: demo2\n",
            "stacks/Pulumi.demo.yaml:13 name",
            "is repeated, first in line 4",
        ),
        (
            PLATFORM.replace("  aws:region: us-east-2\n", ""),
            "stacks/Pulumi.demo.yaml:1 aws:region",
            "write aws:region: us-east-2",
        ),
        (
            PLATFORM.replace("aws:region: us-east-2", "aws:region: us-west-2"),
            "stacks/Pulumi.demo.yaml:2 aws:region",
            "is `us-west-2`, but the platform's region is `us-east-2`",
        ),
        (
            PLATFORM.replace("aws:region: us-east-2", "aws:region: us-east-2\n  gcp:project: my-project"),
            "stacks/Pulumi.demo.yaml:3 gcp:project",
            "is a setting of gcp, but this platform is on aws -> leave it out, or cloud: gcp",
        ),
        (
            PLATFORM + "    account: '111122223333'\n",
            "stacks/Pulumi.demo.yaml:1 aws:allowedAccountIds",
            'write aws:allowedAccountIds: ["111122223333"]',
        ),
        (
            PLATFORM.replace("  aws:region", "  aws:allowedAccountIds: ['1']\n  aws:region")
            + "    account: '111122223333'\n",
            "stacks/Pulumi.demo.yaml:2 aws:allowedAccountIds",
            "lacks the platform's account",
        ),
        (
            GCP.replace("  gcp:project: my-project-123\n", ""),
            "stacks/Pulumi.demo.yaml:1 gcp:project",
            "write gcp:project: my-project-123",
        ),
        (
            GCP.replace("gcp:region: us-central1", "gcp:region: us-east1"),
            "stacks/Pulumi.demo.yaml:3 gcp:region",
            "but the platform's region is",
        ),
        (
            AZURE.replace("azure-native:location: eastus", "azure-native:location: westus3"),
            "stacks/Pulumi.demo.yaml:2 azure-native:location",
            "write",
        ),
        (
            AZURE.replace(f"azure-native:subscriptionId: {SUBSCRIPTION}", "azure-native:tenantId: x"),
            "stacks/Pulumi.demo.yaml:1 azure-native:subscriptionId",
            f"is missing -> write azure-native:subscriptionId: {SUBSCRIPTION}",
        ),
        (
            (
                "config:\n  trainfleet:platform:\n    secure: AAABAOv5kbKt\nencryptionsalt:"
                " v1:bm8=:v1:bm8=:bm8=\n"
            ),
            "stacks/Pulumi.demo.yaml:2",
            "is encrypted, so a review cannot read it",
        ),
        (
            PLATFORM.replace("owner: ml-platform@example.com", "owner: {secure: AAAB}"),
            "stacks/Pulumi.demo.yaml:7 owner",
            "write it as plain text",
        ),
        (
            PLATFORM.replace("aws:region: us-east-2", "aws:region: {secure: AAAB}"),
            "stacks/Pulumi.demo.yaml:2 aws:region",
            "is encrypted",
        ),
        ("config: " + "[" * 200_000 + "\n", "stacks/Pulumi.demo.yaml:1", "is nested more than 100 deep"),
        (
            "config: " + "{a: " * 200_000 + "1" + "}" * 200_000,
            "stacks/Pulumi.demo.yaml:1",
            "unclosed brackets",
        ),
        (PLATFORM + "confg: 1\n", "stacks/Pulumi.demo.yaml:13 confg", "did you mean `config`?"),
    ],
)
def test_a_stack_file_that_cannot_be_used_is_refused_with_one_clear_line(
    tmp_path: Path, text: str, where: str, says: str
) -> None:
    found = stack_mistakes(tmp_path, text)
    assert says in found[where]


@pytest.mark.parametrize("text", [PLATFORM, GCP, AZURE], ids=["aws", "gcp", "azure"])
def test_the_providers_settings_are_those_of_the_platform(tmp_path: Path, text: str) -> None:
    assert load_stack("demo", stack(tmp_path, text)).name == "demo"


def test_an_allowed_account_is_the_platforms(tmp_path: Path) -> None:
    text = (
        PLATFORM.replace("  aws:region", '  aws:allowedAccountIds: ["111122223333"]\n  aws:region')
        + "    account: '111122223333'\n"
    )
    assert load_stack("demo", stack(tmp_path, text)).account == "111122223333"


def test_two_stacks_with_one_physical_name_are_refused(tmp_path: Path) -> None:
    stack(tmp_path, PLATFORM, "twin")
    found = stack_mistakes(tmp_path, PLATFORM)
    assert list(found) == ["stacks/Pulumi.demo.yaml:4 name"]
    assert "Pulumi.twin.yaml" in found["stacks/Pulumi.demo.yaml:4 name"]


@pytest.mark.parametrize(
    "twin",
    [
        PLATFORM.replace("name: demo", "name: demo2"),
        PLATFORM.replace("us-east-2", "us-west-2"),
        PLATFORM + "    account: '111122223333'\n",
        GCP,
        "config: [",
        "",
        "config: {}\n",
    ],
    ids=[
        "another name",
        "another region",
        "another account",
        "another cloud",
        "no YAML",
        "empty",
        "no platform",
    ],
)
def test_another_stack_in_another_place_is_ignored(tmp_path: Path, twin: str) -> None:
    stack(tmp_path, twin, "twin")
    assert load_stack("demo", stack(tmp_path, PLATFORM)).name == "demo"


def test_a_setting_may_move_a_stack_onto_another(tmp_path: Path) -> None:
    stack(tmp_path, PLATFORM.replace("name: demo", "name: twin"), "twin")
    assert list(stack_mistakes(tmp_path, PLATFORM, ["name=twin"])) == ["--set name"]


def test_a_setting_nested_too_deep_is_taken_for_text(tmp_path: Path) -> None:
    found = stack_mistakes(tmp_path, PLATFORM, ["gpu_pools=" + "[" * 200_000])
    assert list(found) == ["--set gpu_pools"]


def test_every_repeated_key_is_reported(tmp_path: Path) -> None:
    found = stack_mistakes(
        tmp_path,
        PLATFORM.replace("    cloud: aws\n", "    cloud: aws\n    cloud: gcp\n") + "        per_node: 8\n",
    )
    assert list(found) == [
        "stacks/Pulumi.demo.yaml:6 cloud",
        "stacks/Pulumi.demo.yaml:14 gpu_pools[0].per_node",
    ]


def test_anchors_and_merges_are_read_as_yaml_reads_them(tmp_path: Path) -> None:
    text = (
        PLATFORM.replace("      - name: l4", "      - &pool\n        name: l4")
        + "      - {<<: *pool, name: l4-spot, capacity: spot}\n"
    )
    assert [pool.name for pool in load_stack("demo", stack(tmp_path, text)).gpu_pools] == ["l4", "l4-spot"]


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (stack(tmp_path, "") / "stacks" / "Pulumi.demo.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        load_stack("demo", tmp_path)


def test_an_unknown_stack_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean `demo`"):
        load_stack("dmeo", stack(tmp_path, PLATFORM))


def test_an_unknown_stack_is_answered_with_the_available_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="available: demo"):
        load_stack("zzz", stack(tmp_path, PLATFORM))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_stack(str(tmp_path / "Pulumi.x.yaml"))


# Settings put in from the command line


def test_settings_are_put_in_before_the_check(tmp_path: Path) -> None:
    settings = [
        "gpu_pools[0].max_nodes=3",
        "kubernetes.version=1.36",
        "storage.shared_filesystem.capacity_gib=2400",
        "network.flow_logs=false",
        "tags.team=12",
    ]
    spec = load_stack("demo", stack(tmp_path, PLATFORM), settings)
    assert spec.storage.shared_filesystem is not None
    assert (
        spec.gpu_pools[0].max_nodes,
        spec.kubernetes.version,
        spec.storage.shared_filesystem.capacity_gib,
    ) == (3, "1.36", 2400)
    assert (spec.network.flow_logs, spec.tags) == (False, {"team": "12"})


def test_a_setting_may_hold_a_list_and_a_quoted_key(tmp_path: Path) -> None:
    spec = load_stack(
        "demo",
        stack(tmp_path, PLATFORM),
        ["secrets.names=[a, b]", 'gpu_pools[0].labels["example.com/team"]=ml', "tags.url=a=b"],
    )
    assert (spec.secrets.names, spec.gpu_pools[0].labels, spec.tags) == (
        ("a", "b"),
        {"example.com/team": "ml"},
        {"url": "a=b"},
    )


@pytest.mark.parametrize(
    ("setting", "where", "says"),
    [
        ("gpu_pools[0].max_nodes=x", "--set gpu_pools[0].max_nodes", "must be a whole number"),
        ("gpu_pools[0].max_node=3", "--set gpu_pools[0].max_node", "did you mean `max_nodes`?"),
        ("kubernetes.version=1.2", "--set kubernetes.version", "for example 1.35"),
        ("gpu_pools[1].max_nodes=3", "--set gpu_pools[1].max_nodes=3", "gpu_pools has 1 entries"),
        ("name[0]=3", "--set name[0]=3", "name is not a list"),
        ("name.x=3", "--set name.x=3", "name is `demo`, not a group of keys"),
        ("region", "--set region", "is not path=value"),
        ("=3", "--set =3", "is not path=value"),
    ],
)
def test_an_invalid_setting_is_reported_as_a_setting(
    tmp_path: Path, setting: str, where: str, says: str
) -> None:
    found = stack_mistakes(tmp_path, PLATFORM, [setting])
    assert list(found) == [where]
    assert says in found[where]


def test_the_stack_file_is_not_changed_by_settings(tmp_path: Path) -> None:
    load_stack("demo", stack(tmp_path, PLATFORM), ["gpu_pools[0].max_nodes=3"])
    assert (tmp_path / "stacks" / "Pulumi.demo.yaml").read_text() == PLATFORM
