"""The example programs in the SDKs' own documentation are correct, so the checks have to pass them: a sample
here, all of them in `deep`.

An example that is wrong itself (a placeholder for a name, a range that begins inside its network) is named
in WRONG by type and property, with how many there are and why.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice

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
WRONG: dict[tuple[str, str], tuple[int, str]] = {
    (
        "aws:cloudwatch/eventConnection:EventConnection",
        "authParameters.connectivityParameters.resourceParameters.resourceConfigurationArn",
    ): (1, "an account with eleven digits"),
    ("aws:cloudwatch/eventRule:EventRule", "scheduleExpression"): (2, "an example without either"),
    ("aws:ec2/route:Route", "destinationCidrBlock"): (
        1,
        "ranges with host bits (`10.0.0.1/16`), which the API refuses",
    ),
    ("aws:eks/identityProviderConfig:IdentityProviderConfig", "oidc.issuerUrl"): (
        1,
        "words for what the reader should fill in",
    ),
    ("aws:iam/policy:Policy", "policy"): (2, "a document written with single quotes"),
    ("aws:lb/listener:Listener", "mutualAuthentication.trustStoreArn"): (
        1,
        "dots for what the reader should fill in",
    ),
    ("gcp:agentregistry/binding:Binding", "source.identifier"): (
        1,
        "an example that leaves out an identifier, which the class requires",
    ),
    ("gcp:agentregistry/binding:Binding", "target.identifier"): (
        2,
        "an example that leaves out an identifier, which the class requires",
    ),
    ("gcp:backupdisasterrecovery/restoreWorkload:RestoreWorkload", "diskRestoreProperties.labels"): (
        2,
        "a map where the class has a list",
    ),
    ("gcp:bigquery/dataset:Dataset", "datasetId"): (
        2,
        "a name with a hyphen, which its own documentation excludes",
    ),
    ("gcp:bigquery/table:Table", "encryptionConfiguration.kmsKeyName"): (
        1,
        "a placeholder for a key's whole path",
    ),
    ("gcp:bigtable/instance:Instance", "clusters.clusterId"): (
        1,
        "three characters where the documentation wants six",
    ),
    ("gcp:bigtable/instance:Instance", "name"): (
        1,
        "a name with an underscore, which its own documentation excludes",
    ),
    ("gcp:cloudfunctionsv2/function:Function", "kmsKeyName"): (1, "a placeholder for a key's whole path"),
    ("gcp:compute/address:Address", "name"): (1, "a name that ends with a hyphen"),
    ("gcp:compute/forwardingRule:ForwardingRule", "name"): (
        1,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:compute/instance:Instance", "name"): (
        1,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:compute/network:Network", "name"): (
        6,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:compute/networkEdgeSecurityService:NetworkEdgeSecurityService", "name"): (
        1,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:compute/organizationSecurityPolicy:OrganizationSecurityPolicy", "shortName"): (
        6,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:compute/regionBackendService:RegionBackendService", "name"): (
        1,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:compute/regionHealthCheck:RegionHealthCheck", "name"): (
        1,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:compute/regionSecurityPolicy:RegionSecurityPolicy", "name"): (
        1,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:compute/regionTargetHttpProxy:RegionTargetHttpProxy", "name"): (
        1,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:compute/regionUrlMap:RegionUrlMap", "name"): (
        1,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:compute/rolloutPlan:RolloutPlan", "name"): (
        1,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:compute/securityPolicy:SecurityPolicy", "name"): (1, "a placeholder for a name"),
    ("gcp:compute/snapshot:Snapshot", "name"): (1, "a name with a capital"),
    ("gcp:compute/subnetwork:Subnetwork", "ipCidrRange"): (
        2,
        "ranges with host bits (`10.0.0.1/16`), which the API refuses",
    ),
    ("gcp:compute/subnetwork:Subnetwork", "name"): (
        6,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:containeranalysis/occurence:Occurence", "attestation.signatures.serialized_payload"): (
        1,
        "a property of another type",
    ),
    ("gcp:dataplex/dataProduct:DataProduct", "dataProductId"): (
        4,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:dataplex/entryLink:EntryLink", "entryLinkId"): (
        1,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:dataplex/lake:Lake", "name"): (
        3,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:dataproc/clusterIAMPolicy:ClusterIAMPolicy", "region"): (3, "a placeholder for a region"),
    ("gcp:dataproc/jobIAMPolicy:JobIAMPolicy", "region"): (3, "a placeholder for a region"),
    ("gcp:datastream/connectionProfile:ConnectionProfile", "mysqlProfile.database"): (
        1,
        "a property of another type",
    ),
    ("gcp:datastream/stream:Stream", "sourceConfig.mongodbSourceConfig.excludee_objects"): (1, "misspelt"),
    ("gcp:datastream/stream:Stream", "sourceConfig.mysqlSourceConfig.includeObjects.mysqlDatabases"): (
        1,
        "a list of schemas where the class has databases",
    ),
    ("gcp:datastream/stream:Stream", "sourceConfig.mysqlSourceConfig.includeObjects.schemas"): (
        1,
        "a list of schemas where the class has databases",
    ),
    ("gcp:dns/managedZone:ManagedZone", "name"): (
        1,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:gkehub/feature:Feature", "fleetDefaultMemberConfig.configmanagement.configSync.git.secretType"): (
        1,
        "an example that leaves out what the class requires",
    ),
    ("gcp:gkehub/membership:Membership", "membershipId"): (
        2,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:gkehub/namespace:Namespace", "scopeNamespaceId"): (
        1,
        "names that end in an underscore and a number, which the API and the provider refuse",
    ),
    ("gcp:organizations/project:Project", "projectId"): (3, "two characters where the provider wants six"),
    ("gcp:serviceaccount/account:Account", "accountId"): (
        5,
        "names that end in an underscore and a number, which the API and the provider refuse; five characters where the API wants six; three characters where the API wants six",
    ),
    ("gcp:storage/bucket:Bucket", "name"): (1, "a name that ends with a hyphen"),
    (
        "gcp:vertex/aiEndpointWithModelGardenDeployment:AiEndpointWithModelGardenDeployment",
        "deployConfig.dedicatedResources.machineSpec.acceleratorType",
    ): (1, "a region in the place of an accelerator"),
}
"""Type and property to how many examples are rejected for it, and what is wrong with them. Never a text of a
message, which would also excuse a new false alarm of the same kind elsewhere."""
SAMPLE = 12


def chosen(package: str) -> list[str]:
    services = SERVICES[package]  # all of them where none is named
    return sorted(
        token
        for token in packages()[package].classes
        if not services or token.split(":")[1].split("/")[0] in services
    )


def rejected(package: str, tokens: list[str]) -> tuple[int, dict[tuple[str, str], list[str]]]:
    """Return how many resources the examples of these types register, and the rejections by type and property."""
    count, output = 0, defaultdict[tuple[str, str], list[str]](list)
    for token in tokens:
        for item in (
            item for code in documented_examples(packages()[package], token) for item in programs(code)
        ):
            count += 1
            if item.token.split(":", 1)[0] == package:
                for mistake in CLOUD_MODELS[package].check(packages()[package], item.token, item.inputs):
                    output[item.token, mistake.property].append(f"{token}: {mistake}")
    return count, output


def unexplained(
    output: Mapping[tuple[str, str], list[str]], wrong: Mapping[tuple[str, str], tuple[int, str]] = WRONG
) -> list[str]:
    """Return the rejections of a type and property that are not known, or more than are known."""
    return [
        message
        for key, messages in output.items()
        if len(messages) > wrong.get(key, (0, ""))[0]
        for message in messages
    ]


def programs(code: str) -> Iterator[Sent]:
    try:
        yield from run_text(code)
    except Exception:  # noqa: BLE001 - an excerpt that cannot run alone says nothing about the checks
        return


@pytest.mark.parametrize("package", SERVICES)
def test_a_sample_of_documented_examples_passes(package: str) -> None:
    tokens = chosen(package)
    random.Random(5).shuffle(tokens)
    documented = (token for token in tokens if documented_examples(packages()[package], token))
    count, output = rejected(package, list(islice(documented, SAMPLE)))
    assert unexplained(output) == []
    assert count >= SAMPLE, "types with examples register hardly any resource"


@pytest.mark.deep
@pytest.mark.parametrize(("package", "least"), [("aws", 800), ("gcp", 1200), ("kubernetes", 30)])
def test_every_documented_example_passes(package: str, least: int) -> None:
    count, output = rejected(package, chosen(package))
    assert unexplained(output) == []
    known = {key: count for key, (count, _) in WRONG.items() if key[0].startswith(f"{package}:")}
    assert {key: len(messages) for key, messages in output.items()} == known, (
        "an exclusion that nothing needs"
    )
    assert count >= least, "fewer resources than were captured when this was written"


@pytest.mark.parametrize(
    ("key", "messages", "excused"),
    [
        (("gcp:a/b:C", "name"), ["x: name: 'b_' is not a valid name"], True),
        (
            ("gcp:a/b:C", "name"),
            ["x: name: 'b_' is not a valid name", "y: name: 'c' is not a valid name"],
            False,
        ),
        (("gcp:a/b:C", "title"), ["x: title: 'b_' is not a valid name"], False),
        (("gcp:a/b:D", "name"), ["x: name: 'b_' is not a valid name"], False),
    ],
    ids=["known", "one more", "another property", "another type"],
)
def test_only_the_known_property_of_the_known_type_is_excused(
    key: tuple[str, str], messages: list[str], excused: bool
) -> None:
    wrong = {("gcp:a/b:C", "name"): (1, "a name that ends in an underscore")}
    assert (unexplained({key: messages}, wrong) == []) is excused
