"""Decodes manifests for `ConfigFile` and `ConfigGroup`, as the provider does (pulumi-kubernetes, yaml.go)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml


def decoded(args: dict[str, Any], _: str) -> dict[str, Any]:
    """Return the objects of a manifest.

    Raises:
        LookupError: it is not YAML, or a document is not an object.
    """
    try:
        documents = list(yaml.safe_load_all(str(args["text"])))
    except yaml.YAMLError as error:
        raise LookupError(f"the manifest is not YAML: {error}") from error
    return {"result": [each for document in documents if document is not None for each in _objects(document)]}


def _objects(document: Any) -> Iterator[dict[str, Any]]:
    """Yield an object, or those of a list of objects."""
    if not isinstance(document, dict):
        raise LookupError(f"the manifest has {document!r}, which is not an object")
    if str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _objects(item)
    else:
        yield document
