"""Logs: the encrypted log group of all pods, to which the cluster layer's log shipper writes. Retained in
production.
"""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import layout
from trainfleet.infra.aws.keys import Keys
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.platform import LogStore
from trainfleet.infra.spec.schema import PlatformSpec


class Logs(PlatformComponent):
    """The log group of a platform's pods: its `arn`, and `store` as the layer needs it."""

    TYPE = "trainfleet:aws:Logs"

    def __init__(self, spec: PlatformSpec, keys: Keys, *, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, "logs", opts)
        self.group = aws.cloudwatch.LogGroup(
            self.name("pod-logs"),
            retention_in_days=layout.log_retention(spec.kubernetes.log_retention_days),
            kms_key_id=keys.logs.arn,
            tags=self.tags("pod-logs"),
            opts=self.options(retain=True),
        )
        self.arn = self.group.arn
        self.store = LogStore(
            output="cloudwatch_logs",
            settings={
                "region": spec.region,
                "log_group_name": self.group.name,
                "log_stream_prefix": "pods-",
                "auto_create_group": "false",
            },
            identity="logs",
        )
        self.register_outputs({"group": self.group.name})
