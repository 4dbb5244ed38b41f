"""Registry: the repository of training images, with immutable tags and vulnerability scans. There is no
`latest` tag.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.gcp.keys import Keys
from trainfleet.infra.spec.schema import PlatformSpec

UNTAGGED_DAYS = 7
IMAGE = "training"


def cleanup_policy() -> list[gcp.artifactregistry.RepositoryCleanupPolicyArgsDict]:
    """Delete untagged images. Tagged images stay, because a run may be repeated years later."""
    condition: gcp.artifactregistry.RepositoryCleanupPolicyConditionArgsDict = {
        "tag_state": "UNTAGGED",
        "older_than": f"{UNTAGGED_DAYS * 24 * 3600}s",
    }
    return [{"id": "drop-untagged-images", "action": "DELETE", "condition": condition}]


class Registry(PlatformComponent):
    """The image repository of a platform, as `url`."""

    TYPE = "trainfleet:gcp:Registry"

    def __init__(self, spec: PlatformSpec, keys: Keys, *, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, "registry", opts)
        self.repository = gcp.artifactregistry.Repository(
            self.name("training"),
            # A fixed name, because people and pipelines push to it.
            repository_id=f"trainfleet-{spec.name}",
            location=spec.region,
            format="DOCKER",
            description=f"Trainfleet {spec.name}: training images",
            docker_config={"immutable_tags": True},
            kms_key_name=keys.data.id,
            cleanup_policies=cleanup_policy(),
            cleanup_policy_dry_run=False,
            # Follows the Container Scanning API, which `Apis` enables (Artifact Analysis guide, automatic
            # scanning). There is no setting for one repository.
            vulnerability_scanning_config={"enablement_config": "INHERITED"},
            labels=self.labels("training"),
            opts=self.options(retain=True, depends_on=keys.ready, delete_before_replace=True),
        )
        self.url = pulumi.Output.concat(
            spec.region, "-docker.pkg.dev/", spec.account, "/", self.repository.repository_id, "/", IMAGE
        )
        self.register_outputs({"url": self.url})
