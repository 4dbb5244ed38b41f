"""Values of Fluent Bit: what it reads, and the one output that the cloud's log store asks for."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi

from trainfleet.infra.kubernetes.manifest_model import document
from trainfleet.infra.kubernetes.values.common import (
    EVERYWHERE,
    Account,
    Amounts,
    Resources,
    Switch,
    Toleration,
)
from trainfleet.infra.platform import LogStore, ServiceIdentity

INPUTS = """[INPUT]
    Name tail
    Path /var/log/containers/*.log
    Exclude_Path /var/log/containers/fluent-bit-*.log
    multiline.parser cri
    Tag kube.*
    DB /var/log/fluent-bit-containers.db
    Mem_Buf_Limit 32MB
    Skip_Long_Lines On
"""
FILTERS = """[FILTER]
    Name kubernetes
    Match kube.*
    Merge_Log On
    Keep_Log Off
    K8S-Logging.Parser On
    K8S-Logging.Exclude Off
"""


@document
class Config:
    inputs: str
    filters: str
    outputs: pulumi.Input[str]


@document
class FluentBit:
    service_account: Account
    test_framework: Switch
    tolerations: tuple[Toleration, ...]
    resources: Resources
    config: Config
    priority_class_name: str = "system-node-critical"


def fluent_bit(store: LogStore, identity: ServiceIdentity) -> FluentBit:
    return FluentBit(
        service_account=Account(False, identity.service_account),
        test_framework=Switch(False),
        tolerations=EVERYWHERE,
        resources=Resources(Amounts("100m", "128Mi"), Amounts(memory="512Mi")),
        # The place in each file is kept on the node, so that a restart neither loses lines nor sends them
        # twice.
        config=Config(INPUTS, FILTERS, outputs(store.output, store.settings)),
    )


def outputs(plugin: str, settings: Mapping[str, pulumi.Input[str]]) -> pulumi.Output[str]:
    """The output's section, its settings in the order of their names."""
    names = sorted(settings)
    return pulumi.Output.all(*(settings[name] for name in names)).apply(
        lambda values: "\n".join(
            [
                "[OUTPUT]",
                f"    Name {plugin}",
                "    Match kube.*",
                *(f"    {name} {value}" for name, value in zip(names, values, strict=True)),
                "",
            ]
        )
    )
