"""Facts of the APIs' models: the files hold what they say, the gatherers read a model as it is meant, and a
right value is never refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import api_facts
from tools.api_facts.botocore_models import Model
from tools.api_facts.gather import anchored, relaxed, usable
from tools.api_facts.gather_aws import Gatherer
from tools.api_facts.gather_crds import definitions, shared
from tools.api_facts.places import OPTIONAL, folder_of, used_modules
from tools.api_facts.prose import promised, text
from trainfleet.rehearsal.simulation import facts
from trainfleet.rehearsal.simulation.check import Mistake, check_inputs
from trainfleet.rehearsal.simulation.facts import FACTS, Fact, facts_file, facts_of, faults
from trainfleet.rehearsal.simulation.facts.custom import custom_kinds
from trainfleet.rehearsal.simulation.json_documents.documents import document_mistakes
from trainfleet.rehearsal.simulation.kubernetes.model import KubernetesModel
from trainfleet.rehearsal.simulation.schema import packages

FILES = sorted(file for folder in (FACTS, OPTIONAL) for file in (folder / "aws").glob("*.json"))
MODEL = {
    "metadata": {"apiVersion": "2015-03-31"},
    "operations": {"CreateFunction": {"input": {"shape": "CreateFunctionRequest"}}},
    "shapes": {
        "CreateFunctionRequest": {
            "type": "structure",
            "members": {
                "FunctionName": {"shape": "Name"},
                "MemorySize": {"shape": "Size"},
                "Timeout": {
                    "shape": "Free",
                    "documentation": "<p>Valid range: Must be a value from 1 to 900.</p>",
                },
                "PackageType": {"shape": "Package"},
                "Layers": {"shape": "Layers"},
                "EphemeralStorage": {"shape": "Storage"},
            },
        },
        "Name": {"type": "string", "min": 1, "max": 64, "pattern": "[a-z]+"},
        "Size": {"type": "integer", "min": 128, "max": 10240},
        "Free": {"type": "integer"},
        "Package": {"type": "string", "enum": ["Zip", "Image"]},
        "Layers": {"type": "list", "member": {"shape": "Name"}, "max": 5},
        "Storage": {"type": "structure", "members": {"Size": {"shape": "Size"}}},
    },
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_of_facts_is_whole(file: Path) -> None:
    assert faults(file) == []


@pytest.mark.deep
@pytest.mark.parametrize("package", ["aws", "gcp"])
def test_the_wheel_has_the_facts_of_the_modules_that_the_components_use(package: str) -> None:
    assert used_modules(package) >= {file.stem for file in (FACTS / package).glob("*.json")}
    for file in (OPTIONAL / package).glob("*.json"):
        assert folder_of(package, file.stem) == file.parent


def test_an_optional_package_of_another_format_is_named_and_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not [line for line in facts.behind(lambda _: "") if "format" in line]
    assert facts_file("aws", "kinesis") == OPTIONAL / "aws" / "kinesis.json"
    old = tmp_path / "trainfleet_api_facts"
    (old / "aws").mkdir(parents=True)
    (old / "aws" / "kinesis.json").write_text('{"shapes": {"N": {"max": 3}}, "types": {}}')
    monkeypatch.setattr(facts, "_optional", lambda: [old])
    facts._folders.cache_clear()
    try:
        assert facts_file("aws", "kinesis") is None
        (line,) = [line for line in facts.behind(lambda _: "") if "format" in line]
    finally:
        monkeypatch.undo()
        facts._folders.cache_clear()
    assert "have format 1, not 2" in line


def test_without_the_optional_package_a_property_is_checked_against_the_sdk_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = {"shardLevelMetrics": ["AllMetrics"]}
    assert refused("aws:kinesis/stream:Stream", wrong)
    monkeypatch.setattr(facts, "_folders", lambda: (FACTS,))
    assert facts_file("aws", "kinesis") is None
    assert facts_file("aws", "eks") == FACTS / "aws" / "eks.json"


def test_a_broken_file_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(
        '{"shapes": {"A": {"vaules": []}, "B": {"pattern": "("}}, "types": {"XArgs": {"a": "C"}}}'
    )
    assert len(faults(file)) == 5


def test_the_facts_of_aws_are_of_the_models_that_make_facts_reads() -> None:
    pinned = (Path(api_facts.__file__).with_name("inputs.txt")).read_text().splitlines()
    (version,) = [line.removeprefix("botocore==") for line in pinned if line.startswith("botocore==")]
    sources = {json.loads(file.read_text())["source"].split(",")[0] for file in FILES}
    assert sources == {f"botocore {version}"}


def test_a_resource_is_laid_next_to_the_operation_that_makes_it() -> None:
    resource = packages()["aws"].resource("aws:lambda/function:Function")
    assert resource is not None
    assert resource.args is not None
    gatherer = Gatherer([Model("lambda", MODEL)], "lambda_")
    gatherer.resource(resource.args, "Function")
    found = {name: entry for (_, name), (_, entry) in gatherer.found.items()}
    assert found["name"] == {"minLength": 1, "maxLength": 64, "pattern": "[a-z]+"}
    assert found["memorySize"] == {}, "the provider's documentation goes further than this model"
    assert found["timeout"] == {"minimum": 1, "maximum": 900}
    assert found["packageType"] == {"enum": ["Image", "Zip"]}
    assert found["layers"]["maxItems"] == 5
    assert gatherer.found["FunctionEphemeralStorageArgs", "size"][1] in (
        {},
        {"minimum": 128, "maximum": 10240},
    )


def refused(token: str, inputs: dict[str, object]) -> list[Mistake]:
    resource = packages()["aws"].resource(token)
    assert resource is not None
    return [mistake for mistake in check_inputs(resource, inputs) if "missing" not in mistake.what]


@pytest.mark.parametrize(
    ("token", "name", "wrong", "right"),
    [
        ("aws:eks/nodeGroup:NodeGroup", "amiType", "AL2023_x86_64_GPU", "AL2023_x86_64_NVIDIA"),
        ("aws:kinesis/stream:Stream", "shardLevelMetrics", ["AllMetrics"], ["ALL"]),
        ("aws:lambda/function:Function", "memorySize", 64, 128),
        ("aws:ecr/repository:Repository", "name", "UPPER", "lower/name"),
        ("aws:sfn/stateMachine:StateMachine", "type", "FAST", "EXPRESS"),
    ],
)
def test_a_value_that_the_api_does_not_take_is_refused(
    token: str, name: str, wrong: object, right: object
) -> None:
    assert [mistake.property for mistake in refused(token, {name: wrong})] == [name]
    assert refused(token, {name: right}) == []


def test_only_classes_of_an_sdk_have_facts() -> None:
    assert facts_of(Fact) == {}


@pytest.mark.parametrize(
    ("pattern", "whole"), [("^a+", "^a+.*"), ("a+$", ".*a+$"), ("^a$", "^a$"), ("a+", "a+"), ("^a|b", "^a|b")]
)
def test_an_expression_that_is_anchored_at_one_end_is_open_at_the_other(pattern: str, whole: str) -> None:
    assert anchored(pattern) == whole


@pytest.mark.parametrize(
    ("pattern", "good"),
    [("[a-z]+", True), (r"\p{L}+", False), (".*", False), ("(", False), ("x", False), (r"\\+[1-9]*", False)],
)
def test_only_an_expression_that_python_reads_alike_is_used(pattern: str, good: bool) -> None:
    assert usable(pattern) is good


def test_an_id_may_be_shortened_but_not_an_account() -> None:
    entry = {"minLength": 20, "maxLength": 40, "pattern": r"subnet-[0-9a-f]{17}"}
    assert relaxed("subnetId", entry) == {"maxLength": 40, "pattern": "subnet-[0-9a-f]+"}
    assert relaxed("name", entry) == entry
    assert relaxed("roleArn", {"pattern": r"arn:aws:iam::\d{12}:.{0,9}x+"})["pattern"].count(r"\d{12}") == 1


def test_prose_of_a_model_is_read() -> None:
    assert text("<p>Valid: <code>a | b</code></p><ul><li>one</li></ul>") == "Valid: `a` | `b`\n\n\n* one"
    assert promised("<p>Constraints:</p><ul><li>Must be a value from 0 to 35</li></ul>", "number") == {
        "minimum": 0,
        "maximum": 35,
    }
    assert promised("<p>Valid values: <code>standard | gp2 | io1</code></p>", "text")["enum"] == [
        "gp2",
        "io1",
        "standard",
    ]
    assert promised("", "text") == {}


DEFINITION = """
kind: CustomResourceDefinition
spec:
  group: example.com
  names: {kind: Thing}
  versions:
  - name: v1
    served: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          status: {type: object}
          spec:
            type: object
            required: [mode, size]
            properties:
              mode: {type: string, enum: [A, "="], description: words}
              size: {type: integer, default: 1}
"""


def test_a_definition_is_pruned_to_what_refuses(tmp_path: Path) -> None:
    (tmp_path / "thing.yaml").write_text(DEFINITION)
    [(group, kind, schema)] = definitions(tmp_path)
    assert (group, kind) == ("example.com", "v1:Thing")
    spec = schema["properties"]["spec"]
    assert spec["required"] == ["mode"]
    assert spec["properties"]["mode"] == {"type": "string", "enum": ["A", "="]}
    assert list(schema["properties"]) == ["spec"]
    large = {"type": "object", "properties": {f"name{index}": {"type": "string"} for index in range(20)}}
    assert (
        shared({"a": {"properties": {"x": large}}, "b": {"properties": {"y": large}}})["parts"]["0"] == large
    )


@pytest.mark.parametrize(
    ("token", "spec", "wrong"),
    [
        (
            "kubernetes:kueue.x-k8s.io/v1beta1:ClusterQueue",
            {"queueingStrategy": "FIFO"},
            "spec.queueingStrategy",
        ),
        ("kubernetes:kueue.x-k8s.io/v1beta1:ClusterQueue", {"queueingStrategy": "StrictFIFO"}, ""),
        (
            "kubernetes:cloud.google.com/v1:ComputeClass",
            {"priorities": [{"nodepools": ["a"]}], "whenUnsatisfiable": "Pending"},
            "spec.whenUnsatisfiable",
        ),
        ("kubernetes:cloud.google.com/v1:ComputeClass", {"priorities": [{"machineFamily": "n4"}]}, ""),
        (
            "kubernetes:cloud.google.com/v1:ComputeClass",
            {"priorities": [{"nodePools": ["a"]}]},
            "spec.priorities[0].nodePools",
        ),
        (
            "kubernetes:cert-manager.io/v1:Certificate",
            {"secretname": "x", "issuerRef": {"name": "a"}},
            "spec.secretname",
        ),
        (
            "kubernetes:monitoring.coreos.com/v1:PodMonitor",
            {"selector": {}, "podMetricsEndpoints": [{"interval": "often"}]},
            "interval",
        ),
    ],
)
def test_a_custom_resource_of_a_known_project_is_checked_by_its_definition(
    token: str, spec: dict[str, object], wrong: str
) -> None:
    api, kind = token.removeprefix("kubernetes:").split(":")
    inputs = {"apiVersion": api, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    output = [str(mistake) for mistake in KubernetesModel().check(packages()["kubernetes"], token, inputs)]
    assert (wrong in " ".join(output)) if wrong else output == []


def test_a_group_that_nobody_gathered_has_no_kinds() -> None:
    assert custom_kinds("example.com") == {}


MACHINE = '{"StartAt": "A", "States": {"A": {"Type": "Pass", "Next": "B"}, "B": {"Type": "Succeed"}}}'


@pytest.mark.parametrize(
    ("kind", "right", "old", "new", "where"),
    [
        ("states", MACHINE, '"Succeed"', '"Done"', "States.B.Type"),
        ("states", MACHINE, '"StartAt": "A"', '"StartAt": "C"', "StartAt"),
        ("states", MACHINE, '"Next": "B"', '"Next": "C"', "States.A.Next"),
        ("states", MACHINE, ', "Next": "B"', "", "States.A.Next"),
        (
            "dashboard",
            '{"widgets": [{"type": "text", "width": 6, "properties": {}}]}',
            "6",
            "36",
            "widgets[0].width",
        ),
        (
            "dashboard",
            '{"widgets": [{"type": "text", "width": 6, "properties": {}}]}',
            '"text"',
            '"chart"',
            "widgets[0].type",
        ),
        (
            "ecs-containers",
            '[{"name": "a", "portMappings": [{"ContainerPort": 80}]}]',
            "80",
            '"http"',
            "[0].portMappings[0].containerPort",
        ),
        ("batch-container", '{"image": "a", "command": ["b"]}', "command", "comand", "comand"),
        ("redrive-allow", '{"redrivePermission": "allowAll"}', "allowAll", "all", "redrivePermission"),
        (
            "topic-redrive",
            '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:111122223333:q"}',
            "deadLetterTargetArn",
            "queue",
            "queue",
        ),
        ("filter", '{"kind": ["a"]}', '["a"]', '"a"', "kind"),
        (
            "policy",
            '{"Statement": [{"Effect": "Allow", "Action": "s3:*"}]}',
            "Allow",
            "allow",
            "Statement[0].Effect",
        ),
    ],
)
def test_a_document_is_checked_inside(kind: str, right: str, old: str, new: str, where: str) -> None:
    assert document_mistakes(right, kind) == []
    assert where in [found[0] for found in document_mistakes(right.replace(old, new), kind)]
