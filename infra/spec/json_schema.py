"""The JSON Schema of a stack file, for editors: `# yaml-language-server: $schema=./platform.schema.json`.

The root is the whole file (Pulumi.<env>.yaml) and not the platform alone, because an editor validates files.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from trainfleet.infra.cloud_support import all_supports
from trainfleet.infra.spec.field_docs import describe_fields
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.spec.stack_file import PLATFORM_KEY

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEXT = {"type": "string"}


def stack_schema() -> dict[str, Any]:
    """The schema of a stack file, as a JSON-like document."""
    describe_fields()
    purpose = "Pulumi.<env>.yaml: the configuration of one stack, with one platform."
    return file_schema(PLATFORM_KEY, PlatformSpec, "Trainfleet stack file", purpose)


def file_schema(key: str, model: type[BaseModel], title: str, purpose: str) -> dict[str, Any]:
    """The schema of a stack file whose setting `key` is a `model`."""
    spec = model.model_json_schema(ref_template="#/$defs/{model}")
    definitions = spec.pop("$defs")
    return {
        "$schema": DIALECT,
        "title": title,
        "description": purpose,
        "type": "object",
        "properties": {
            "config": {
                "title": "Config",
                "description": "The stack's configuration: the platform, and settings of Pulumi providers.",
                "type": "object",
                "properties": {key: {"$ref": f"#/$defs/{model.__name__}"}, **_provider_settings()},
                "patternProperties": {f"^({_packages()}):": {"description": "A setting of a provider."}},
                "required": [key],
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
        "$defs": {**definitions, model.__name__: spec},
    }


def _provider_settings() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for cloud in all_supports():
        for key, name in cloud.provider_settings:
            found[key] = {**_TEXT, "description": f"Must equal the platform's `{name}`."}
    for cloud in all_supports():
        found |= {key: dict(schema) for key, schema in cloud.settings_schema.items()}
    return found


def _packages() -> str:
    """The Pulumi packages whose settings a stack file may have, as a regular expression."""
    clouds = [cloud.packages[0] for cloud in all_supports() if cloud.packages]
    return "|".join([*clouds, "kubernetes", "pulumi"])


def schema_text() -> str:
    """The schema as it is written to a file."""
    return json.dumps(stack_schema(), indent=2, ensure_ascii=False) + "\n"
