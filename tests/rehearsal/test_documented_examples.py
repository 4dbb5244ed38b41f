"""The example programs in the SDKs' own documentation are correct, so the checks have to pass them: a sample
here, all of them in `deep`.

An example that is wrong itself (a placeholder for a name, a range that begins inside its network) is named
in WRONG, with why.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from trainfleet.rehearsal.simulation.check_harness import Sent, documented_examples, run_text
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
from trainfleet.rehearsal.simulation.schema import packages

SERVICES = {
    "aws": (
        "ec2",
        "vpc",
        "eks",
        "iam",
        "s3",
        "kms",
        "ecr",
        "fsx",
        "cloudwatch",
        "secretsmanager",
        "budgets",
        "sns",
        "sqs",
        "lb",
        "lambda",
        "efs",
    ),
    "gcp": (),
    "kubernetes": (
        "helm.sh",
        "kustomize",
        "yaml",
        "apps",
        "core",
        "batch",
        "networking.k8s.io",
        "rbac.authorization.k8s.io",
        "storage.k8s.io",
        "apiextensions.k8s.io",
    ),
}
WRONG = {
    "'tf-test-": "names that end in an underscore and a number, which the API and the provider refuse",
    "'tf-test_": "as above",
    "'psc-network-_": "as above",
    "'my-internal-address-'": "a name that ends with a hyphen",
    "'snapDisk' is": "a name with a capital",
    "'fb-webapp-' is": "a name that ends with a hyphen",
    "'%s' is": "a placeholder for a name",
    "'instance_name' is": "a name with an underscore, which its own documentation excludes",
    "'cid' ": "three characters where the documentation wants six",
    "projectId: 'id' is": "two characters where the provider wants six",
    "projectId: 'app' is": "three characters where the provider wants six",
    "projectId: 'm-id' is": "four characters where the provider wants six",
    "projectId: 'quota' is": "five characters where the provider wants six",
    "projectId: 'project_id' is": "a placeholder with an underscore",
    "projectId: 'your_project_id' is": "a placeholder with an underscore",
    "accountId: 'sa-id' has": "five characters where the API wants six",
    "accountId: 'my-sa' has": "five characters where the API wants six",
    "datasetId: 'my-dataset' is": "a name with a hyphen, which its own documentation excludes",
    "region: 'your-region' is": "a placeholder for a region",
    "kmsKeyName: 'example-key' is": "a placeholder for a key's whole path",
    "kmsKeyName: 'cmek-key' is": "a placeholder for a key's whole path",
    "imageVersion: 'example-image-version' is": "a placeholder for a version",
    "acceleratorType: 'us-central1' is": "a region in the place of an accelerator",
    "agentregistry/binding:Binding": "an example that leaves out an identifier, which the class requires",
    "diskRestoreProperties.labels: must be a list": "a map where the class has a list",
    "signatures[0].serialized_payload: unknown": "a property of another type",
    "mysqlProfile.database: unknown": "a property of another type",
    "mysqlSourceConfig.includeObjects": "a list of schemas where the class has databases",
    "excludee_objects: unknown": "misspelt",
    "conflicts with `embeddingManagement`": "an old block next to the new one, which the provider rejects",
    "git.secretType: missing": "an example that leaves out what the class requires",
    "is not a valid name": "names with a placeholder (`tf-test-network-_75092`, `%s`), which the API refuses",
    "beginning with a letter and not ending with -": "as above",
    "begins inside its network": "ranges with host bits (`10.0.0.1/16`), which the API refuses",
    "is not JSON": "a document written with single quotes",
    "'...' is not valid here": "dots for what the reader should fill in",
    "'your issuer_url' is not valid here": "words for what the reader should fill in",
    "accountId: 'app' has 3 characters": "three characters where the API wants six",
    "ipAddress: missing required property": "an example that leaves out what the class requires",
    "one of `scheduleExpression`, `eventPattern` is needed": "an example without either",
    "'lt-0aaa1bcde2ff3456' is not valid": "an id with a digit too few",
    "Listener mutualAuthentication.trustStoreArn: '...'": "dots for what the reader should fill in",
    "subnetMappings[0].subnetId: '12345'": "a placeholder for an id",
    "resourceConfigurationArn: 'arn:aws:vpc-lattice:us-east-1:12345678910": "an account with eleven digits",
}
SAMPLE = 12


def chosen(package: str) -> list[str]:
    services = SERVICES[package]  # all of them where none is named
    return sorted(
        token
        for token in packages()[package].classes
        if not services or token.split(":")[1].split("/")[0] in services
    )


def refused(package: str, tokens: list[str]) -> tuple[int, list[str]]:
    """Return how many resources the examples of these types register, and what is refused of them."""
    count, output = 0, []
    for token in tokens:
        for item in (
            item for code in documented_examples(packages()[package], token) for item in programs(code)
        ):
            count += 1
            if item.token.split(":", 1)[0] == package:
                found = CLOUD_MODELS[package].check(packages()[package], item.token, item.inputs)
                output += [f"{token}: {item.token} {mistake}" for mistake in found]
    return count, [text for text in output if not any(part in text for part in WRONG)]


def programs(code: str) -> Iterator[Sent]:
    try:
        yield from run_text(code)
    except Exception:  # noqa: BLE001 - an excerpt that cannot run alone says nothing about the checks
        return


@pytest.mark.parametrize("package", SERVICES)
def test_a_sample_of_documented_examples_passes(package: str) -> None:
    tokens = random.Random(5).sample(chosen(package), SAMPLE)
    _, output = refused(package, tokens)
    assert output == []


@pytest.mark.deep
@pytest.mark.parametrize(("package", "least"), [("aws", 800), ("gcp", 1200), ("kubernetes", 30)])
def test_every_documented_example_passes(package: str, least: int) -> None:
    count, output = refused(package, chosen(package))
    assert output == []
    assert count >= least, "fewer resources than were captured when this was written"
