"""The example programs in the SDKs' own documentation are correct, so the checks have to pass them: a sample here, all of them in `deep`.

An example that is wrong itself (a placeholder for a name, a range that begins inside its network) is named in WRONG, with why.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from rehearsal.clouds.capture import Sent, documented_examples, run_text
from rehearsal.clouds.provider import HABITS
from rehearsal.clouds.schema import packages

SERVICES = {
    "aws": ("ec2", "vpc", "eks", "iam", "s3", "kms", "ecr", "fsx", "cloudwatch", "secretsmanager", "budgets", "sns", "sqs", "lb", "lambda", "efs"),
    "gcp": (
        "container",
        "compute",
        "storage",
        "secretmanager",
        "kms",
        "serviceaccount",
        "artifactregistry",
        "filestore",
        "lustre",
        "pubsub",
        "projects",
        "dns",
    ),
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
    "is no valid name": "names with a placeholder (`tf-test-network-_75092`, `%s`), which the API refuses",
    "beginning with a letter and not ending with -": "as above",
    "begins inside its network": "ranges with host bits (`10.0.0.1/16`), which the API refuses",
    "is not JSON": "a document written with single quotes",
    "'...' is not valid here": "dots for what the reader should fill in",
    "'your issuer_url' is not valid here": "words for what the reader should fill in",
    "accountId: 'app' has 3 characters": "three characters where the API wants six",
    "ipAddress: missing required property": "an example that leaves out what the class requires",
    "one of `scheduleExpression`, `eventPattern` is needed": "an example without either",
}
SAMPLE = 12


def chosen(package: str) -> list[str]:
    return sorted(token for token in packages()[package].classes if token.split(":")[1].split("/")[0] in SERVICES[package])


def refused(package: str, tokens: list[str]) -> tuple[int, list[str]]:
    """Return how many resources the examples of these types register, and what is refused of them."""
    count, said = 0, []
    for token in tokens:
        for item in (item for code in documented_examples(packages()[package], token) for item in programs(code)):
            count += 1
            if item.token.split(":", 1)[0] == package:
                found = HABITS[package].check(packages()[package], item.token, item.inputs)
                said += [f"{token}: {item.token} {mistake}" for mistake in found]
    return count, [text for text in said if not any(part in text for part in WRONG)]


def programs(code: str) -> Iterator[Sent]:
    try:
        yield from run_text(code)
    except Exception:  # noqa: BLE001 - an excerpt that cannot run alone says nothing about the checks
        return


@pytest.mark.parametrize("package", SERVICES)
def test_a_sample_of_documented_examples_passes(package: str) -> None:
    tokens = random.Random(5).sample(chosen(package), SAMPLE)
    _, said = refused(package, tokens)
    assert said == []


@pytest.mark.deep
@pytest.mark.parametrize(("package", "least"), [("aws", 800), ("gcp", 1200), ("kubernetes", 30)])
def test_every_documented_example_passes(package: str, least: int) -> None:
    count, said = refused(package, chosen(package))
    assert said == []
    assert count >= least, "fewer resources than were captured when this was written"
