"""The JSON Schema of a stack file, for editors: `# yaml-language-server: $schema=./platform.schema.json`.

Written by `trainfleet spec schema`; the copy beside the stack files is checked by a test. The root is the
whole file
(Pulumi.<env>.yaml), not the platform alone, because that is what an editor holds.
"""

from __future__ import annotations

import json
from typing import Any

from trainfleet.infra.spec.field_docs import describe_fields
from trainfleet.infra.spec.load import PROVIDER_SETTINGS
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.spec.stack_file import PLATFORM_KEY

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEXT = {"type": "string"}
_SETTINGS = [setting for settings in PROVIDER_SETTINGS.values() for setting in settings]


def stack_schema() -> dict[str, Any]:
    """The schema of a stack file, as a JSON-like document."""
    describe_fields()
    platform = PlatformSpec.model_json_schema(ref_template="#/$defs/{model}")
    definitions = platform.pop("$defs")
    return {
        "$schema": DIALECT,
        "title": "Trainfleet stack file",
        "description": "Pulumi.<env>.yaml: the config of one stack, with one platform.",
        "type": "object",
        "properties": {
            "config": {
                "title": "Config",
                "description": "The stack's config: the platform, and the settings of Pulumi's providers.",
                "type": "object",
                "properties": {
                    PLATFORM_KEY: {"$ref": "#/$defs/PlatformSpec"},
                    **{
                        key: {**_TEXT, "description": f"The same as the platform's {name}."}
                        for key, name in _SETTINGS
                    },
                    "aws:allowedAccountIds": {
                        "description": "Accounts that the AWS provider may touch; holds the platform's account where it names one."
                    },
                },
                "patternProperties": {
                    "^(aws|gcp|azure-native|kubernetes|pulumi):": {"description": "A setting of a provider."}
                },
                "required": [PLATFORM_KEY],
                "additionalProperties": False,
            },
            "environment": {"description": "Pulumi ESC environments that this stack imports."},
            "secretsprovider": {
                **_TEXT,
                "description": "What encrypts the stack's secrets (written by Pulumi).",
            },
            "encryptedkey": {**_TEXT, "description": "The stack's encrypted key (written by Pulumi)."},
            "encryptionsalt": {
                **_TEXT,
                "description": "The salt of the stack's passphrase (written by Pulumi).",
            },
        },
        "required": ["config"],
        "additionalProperties": False,
        "$defs": {**definitions, "PlatformSpec": platform},
    }


def schema_text() -> str:
    """The schema as it is written to a file."""
    return json.dumps(stack_schema(), indent=2, ensure_ascii=False) + "\n"
