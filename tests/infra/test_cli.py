"""`trainfleet spec check|schema` and `trainfleet machines`, as people and scripts call them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from trainfleet.errors import InputError
from trainfleet.infra.catalog.machines import catalogue
from trainfleet.infra.cli.machines import WIDTH, price_source, select
from trainfleet.infra.spec.json_schema import schema_text, stack_schema
from trainfleet.infra.spec.load import load_stack

Trainfleet = Callable[..., subprocess.CompletedProcess[str]]
STACKS = ("aws-dev", "aws-prod", "azure-dev", "azure-prod", "gcp-dev", "gcp-prod", "local")


def adopter(folder: Path, text: str) -> Path:
    """A checkout of someone else, with one stack called demo."""
    (folder / "Pulumi.yaml").write_text("name: theirs\nruntime: python\n")
    (folder / "stacks").mkdir()
    (folder / "stacks" / "Pulumi.demo.yaml").write_text(text)
    return folder


BAD = """config:
  aws:region: us-east-2
  trainfleet:platform:
    name: demo
    cloud: aws
    region: us-east-2
    owner: ml-platform@example.com
    kubernetes: {access: {public_ranges: [203.0.113.0/24]}}
    gpu_pools:
      - {name: l4, acelerator: L4, per_node: 4}
      - {name: h100, accelerator: H100, per_node: 8, capacity: reserved}
"""


def test_a_check_says_what_a_stack_builds_and_costs(trainfleet: Trainfleet) -> None:
    done = trainfleet("spec", "check", "aws-prod")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "ok aws-prod: platform prod on aws us-east-2, prod"
    assert [line.split()[:3] for line in lines[2:7]] == [
        ["system", "2-4", "m7i.2xlarge"],
        ["h100", "0-4", "p5.48xlarge"],
        ["h200", "0-2", "p5en.48xlarge"],
        ["l4", "0-16", "g6.12xlarge"],
        ["a10g", "0-8", "g5.xlarge"],
    ]
    assert lines[7] == "  nodes: 0.81 to 388.40 USD an hour, 589 to 283,532 USD a month"


def test_all_stacks_are_checked_for_a_script(trainfleet: Trainfleet) -> None:
    done = trainfleet("spec", "check", "--all", "--json")
    assert done.returncode == 0
    stacks = json.loads(done.stdout)["stacks"]
    assert [(stack["stack"], stack["ok"]) for stack in stacks] == [(name, True) for name in STACKS]
    assert stacks[0]["usd_per_hour"] == {"min": 0.1008, "max": round(2 * 0.1008 + 2 * 1.9992, 4)}
    assert stacks[-1]["pools"] == []


def test_every_mistake_is_reported_with_its_place_and_the_code_is_2(
    trainfleet: Trainfleet, tmp_path: Path
) -> None:
    done = trainfleet("spec", "check", "demo", cwd=adopter(tmp_path, BAD))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "error: stacks/Pulumi.demo.yaml: 2 mistakes",
        (
            "  stacks/Pulumi.demo.yaml:10 gpu_pools[0].acelerator: unknown key `acelerator` -> did you mean"
            " `accelerator`?"
        ),
        (
            "  stacks/Pulumi.demo.yaml:11 gpu_pools[1].reservation: is missing: capacity `reserved` requires"
            " a capacity reservation -> its id: cr- and 17 digits or letters a to f, for example"
            " cr-0123456789abcdef0"
        ),
    ]


def test_a_script_gets_the_mistakes_and_the_code_2(trainfleet: Trainfleet, tmp_path: Path) -> None:
    done = trainfleet("spec", "check", "demo", "--json", cwd=adopter(tmp_path, BAD))
    (stack,) = json.loads(done.stdout)["stacks"]
    assert (done.returncode, stack["ok"]) == (2, False)
    assert [problem["where"] for problem in stack["problems"]] == [
        "stacks/Pulumi.demo.yaml:10 gpu_pools[0].acelerator",
        "stacks/Pulumi.demo.yaml:11 gpu_pools[1].reservation",
    ]


def test_one_bad_stack_does_not_hide_the_good_ones(trainfleet: Trainfleet) -> None:
    done = trainfleet("spec", "check", "aws-dev", "aws-prd")
    assert done.returncode == 2
    assert done.stdout.startswith("ok aws-dev")
    assert "did you mean `aws-prod`?" in done.stderr


def test_settings_change_what_is_checked(trainfleet: Trainfleet) -> None:
    done = trainfleet("spec", "check", "aws-dev", "--set", "gpu_pools[0].max_nodes=4", "--json")
    (stack,) = json.loads(done.stdout)["stacks"]
    assert stack["pools"][1]["max_nodes"] == 4


def test_no_stack_at_all_is_answered_with_those_there_are(trainfleet: Trainfleet) -> None:
    done = trainfleet("spec", "check")
    assert done.returncode == 2
    assert f"available: {', '.join(STACKS)}" in done.stderr


def test_a_check_imports_neither_pulumi_nor_rich() -> None:
    code = (
        "import sys; sys.argv = ['trainfleet', 'spec', 'check', 'aws-prod']\nfrom trainfleet.cli import"
        " main\ntry: main()\nfinally: print(sorted({name.partition('.')[0] for name in sys.modules} &"
        " {'pulumi', 'pulumi_aws', 'rich', 'torch', 'ray'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# The schema


def test_the_schema_in_stacks_is_current(root: Path) -> None:
    assert (root / "stacks" / "platform.schema.json").read_text() == schema_text(), (
        "run: trainfleet spec schema -o stacks/platform.schema.json"
    )


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(stack_schema())


@pytest.mark.parametrize("name", STACKS)
def test_every_stack_file_keeps_the_schema_and_names_it(name: str, root: Path) -> None:
    text = (root / "stacks" / f"Pulumi.{name}.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=./platform.schema.json\n")
    assert list(Draft202012Validator(stack_schema()).iter_errors(yaml.safe_load(text))) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (("gpu_pools:", "gpu_pool:"), ["config", "trainfleet:platform"]),
        (("per_node: 4", "per_node: four"), ["config", "trainfleet:platform", "gpu_pools", 0, "per_node"]),
        (
            ("capacity: spot", "capacity: cheap"),
            ["config", "trainfleet:platform", "gpu_pools", 0, "capacity"],
        ),
        (("cloud: aws", "cloud: awss"), ["config", "trainfleet:platform", "cloud"]),
        (("config:", "confg:"), []),
        (("trainfleet:platform", "trainfleet:platfrom"), ["config"]),
    ],
)
def test_an_editor_sees_a_mistake(change: tuple[str, str], path: list[Any], root: Path) -> None:
    text = (root / "stacks" / "Pulumi.aws-dev.yaml").read_text()
    errors = list(Draft202012Validator(stack_schema()).iter_errors(yaml.safe_load(text.replace(*change))))
    assert [list(error.absolute_path) for error in errors if list(error.absolute_path) == path] != []


def properties(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for owner, part in {"": schema, **schema.get("$defs", {})}.items():
        for name, field in part.get("properties", {}).items():
            yield f"{owner}.{name}", field


def test_an_editor_shows_a_description_of_every_key() -> None:
    schema = stack_schema()

    def described(field: dict[str, Any]) -> bool:
        target = field.get("$ref", "").removeprefix("#/$defs/")
        return bool(field.get("description")) or bool(target and schema["$defs"][target].get("description"))

    assert [name for name, field in properties(schema) if not described(field)] == []


def test_no_part_of_the_platform_takes_unknown_keys() -> None:
    parts = [part for part in stack_schema()["$defs"].values() if part["type"] == "object"]
    assert len(parts) > 10
    assert all(part["additionalProperties"] is False for part in parts)


def test_the_schema_is_written_to_the_given_file(trainfleet: Trainfleet, tmp_path: Path) -> None:
    assert trainfleet("spec", "schema", "--output", str(tmp_path / "a.json")).returncode == 0
    assert (tmp_path / "a.json").read_text() == trainfleet("spec", "schema").stdout == schema_text()


def test_a_folder_that_cannot_be_written_is_reported(trainfleet: Trainfleet) -> None:
    done = trainfleet("spec", "schema", "--output", "/proc/nowhere/a.json")
    assert done.returncode == 2
    assert "choose a folder that can be written" in done.stderr


# Machines


def test_machines_are_shown_with_price_date_and_source(trainfleet: Trainfleet) -> None:
    done = trainfleet("machines", "--cloud", "aws", "--accelerator", "H100", COLUMNS="")
    assert done.returncode == 0
    assert [line.split()[1] for line in done.stdout.splitlines()[2:4]] == ["p5.4xlarge", "p5.48xlarge"]
    assert "55.04 23.45 2026-07-20" in done.stdout
    assert "pricing_aws.go 6fc13b5 generated 2026-07-20" in done.stdout


def test_the_whole_table_fits(trainfleet: Trainfleet) -> None:
    lines = trainfleet("machines", COLUMNS="").stdout.splitlines()
    table = lines[: 2 + len(catalogue())]
    assert max(map(len, table)) <= WIDTH
    assert "…" not in "".join(table)


def test_machines_are_listed_for_a_script(trainfleet: Trainfleet) -> None:
    rows = json.loads(trainfleet("machines", "--json").stdout)["machines"]
    assert len(rows) == len(catalogue())
    assert (rows[0]["price_date"], rows[0]["skypilot_label"]) == ("2026-07-20", "t4")


def test_an_unknown_accelerator_is_answered_with_the_nearest(trainfleet: Trainfleet) -> None:
    done = trainfleet("machines", "--accelerator", "A100-80G")
    assert done.returncode == 2
    assert "did you mean `A100-80GB`?" in done.stderr


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (("aws", "h100", None, False), ["p5.4xlarge", "p5.48xlarge", "ml.p5.4xlarge", "ml.p5.48xlarge"]),
        (("aws", "A10G", 4, False), ["g5.12xlarge", "g5.24xlarge", "ml.g5.12xlarge", "ml.g5.24xlarge"]),
        (("azure", "H100", None, True), ["Standard_ND96isr_H100_v5"]),
        (("gcp", "A100", 2, False), ["a2-highgpu-2g"]),
    ],
)
def test_filters_narrow_the_catalogue(
    filters: tuple[str | None, str | None, int | None, bool], found: list[str]
) -> None:
    assert [machine.instance_type for machine in select(*filters)] == found


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        (("asw", None, None, False), "did you mean `aws`?"),
        (("aws", "H100-MEGA", None, False), "this catalogue of aws has no `H100-MEGA`"),
        (("aws", "H100", 3, False), "counts: 1, 8"),
        (("azure", "T4", None, True), "leave out --rdma"),
    ],
)
def test_filters_that_leave_nothing_say_what_would(
    filters: tuple[str | None, str | None, int | None, bool], says: str
) -> None:
    with pytest.raises(InputError) as caught:
        select(*filters)
    assert says in str(caught.value)


def test_every_machine_has_a_short_source() -> None:
    assert (
        max(
            len(price_source(machine))
            for machine in catalogue()
            if machine.usd_per_hour_on_demand or machine.usd_per_hour_spot
        )
        <= 90
    )


@pytest.mark.parametrize("command", [("spec",), ("spec", "check"), ("spec", "schema"), ("machines",)])
def test_every_command_has_help_with_examples(trainfleet: Trainfleet, command: tuple[str, ...]) -> None:
    done = trainfleet(*command, "--help")
    assert done.returncode == 0
    assert "Examples" in done.stdout or command == ("spec",)


def test_the_stacks_named_here_are_those_there_are(root: Path) -> None:
    assert [load_stack(name, root).name for name in STACKS] == [
        "dev",
        "prod",
        "dev",
        "prod",
        "dev",
        "prod",
        "local",
    ]
