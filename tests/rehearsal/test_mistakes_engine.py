"""A few mistakes of the table through the real engine: what is refused there is what the table says, in every
package.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import rehearse

MISTAKES = [
    (
        'aws.s3.Bucket("b", bucket="Training_Data")',
        "aws:s3/bucket:Bucket b bucket: 'Training_Data' is not valid here",
    ),
    (
        'import pulumi_gcp as gcp\ngcp.storage.Bucket("b", location="EU", storage_class="STANDARD_IA")',
        "gcp:storage/bucket:Bucket b storageClass: 'STANDARD_IA' is not one of",
    ),
    (
        (
            'import pulumi_azure_native as az\naz.storage.StorageAccount("s", resource_group_name="g",'
            ' kind="StorageV2", sku={"name": "Standart_LRS"})'
        ),
        "azure-native:storage:StorageAccount s sku.name: 'Standart_LRS' is not one of the values",
    ),
    (
        (
            'k8s.core.v1.Pod("p", spec={"containers": [{"name": "x", "image": "y", "resources": {"limits":'
            ' {"memory": "8Gb"}}}]})'
        ),
        "kubernetes:core/v1:Pod p spec.containers[0].resources.limits[\"memory\"]: '8Gb' is not a quantity",
    ),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("code", "output"), MISTAKES, ids=[output.split(" ")[0] for _, output in MISTAKES])
def test_a_mistake_stops_the_preview_by_name_and_value(
    engine: Engine, program: Callable[[str], Path], code: str, output: str
) -> None:
    report = rehearse(read_project(program(code)), engine)
    assert not report.ok
    assert any(output in str(problem) for problem in report.problems), report.problems
