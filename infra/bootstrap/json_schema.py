"""The JSON Schema of a bootstrap's stack file, for editors:
`# yaml-language-server: $schema=./bootstrap.schema.json`.
"""

from __future__ import annotations

import json

from trainfleet.infra.bootstrap.schema import BOOTSTRAP_KEY, BootstrapSpec, describe
from trainfleet.infra.spec.json_schema import file_schema


def schema_text() -> str:
    """The schema as it is written to a file."""
    describe()
    purpose = "Pulumi.bootstrap-<cloud>.yaml: what CI needs in one account."
    schema = file_schema(BOOTSTRAP_KEY, BootstrapSpec, "Trainfleet bootstrap stack file", purpose)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
