"""Registry: the repository of training images, with immutable tags and a scan on push. There is no `latest`
tag.
"""

from __future__ import annotations

import json
from typing import Any

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws.keys import Keys
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec

UNTAGGED_DAYS = 7


def cleanup_policy() -> dict[str, Any]:
    """Expire untagged images. Tagged images stay, because a run may be repeated years later."""
    selection = {
        "tagStatus": "untagged",
        "countType": "sinceImagePushed",
        "countUnit": "days",
        "countNumber": UNTAGGED_DAYS,
    }
    rule = {
        "rulePriority": 1,
        "description": "drop untagged images",
        "selection": selection,
        "action": {"type": "expire"},
    }
    return {"rules": [rule]}


class Registry(PlatformComponent):
    """The image repository of a platform, as `url`."""

    TYPE = "trainfleet:aws:Registry"

    def __init__(self, spec: PlatformSpec, keys: Keys, *, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, "registry", opts)
        self.repository = aws.ecr.Repository(
            self.name("training"),
            image_tag_mutability="IMMUTABLE",
            image_scanning_configuration={"scan_on_push": True},
            encryption_configurations=[{"encryption_type": "KMS", "kms_key": keys.data.arn}],
            # Outside production, destroy deletes the content as well.
            force_delete=not spec.production,
            tags=self.tags("training"),
            opts=self.options(retain=True),
        )
        aws.ecr.LifecyclePolicy(
            self.name("training-lifecycle"),
            repository=self.repository.name,
            policy=json.dumps(cleanup_policy()),
            opts=self.options(retain=True),
        )
        self.url = self.repository.repository_url
        self.register_outputs({"url": self.url})
