"""An existing cluster as the rest of the code sees it. Imports no Pulumi."""

from __future__ import annotations

from trainfleet.infra.cloud_support import CloudSupport
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.local.validation import RULES

SUPPORT = CloudSupport(
    cloud=Cloud.LOCAL,
    creates_cluster=False,
    extra="pulumi",
    modules=("pulumi", "pulumi_kubernetes"),
    rules=RULES,
)
