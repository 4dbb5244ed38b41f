"""Provenance of a published model (recipe, data, code, environment, checkpoint, metrics) and its model card.

Uncommitted code changes have no revision, so they are recorded as `changed`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainfleet import __version__
from trainfleet.training.inference.loaded import identity_of, run_of
from trainfleet.training.runs.reader import MARKER
from trainfleet.training.runs.revision import PACKAGE, git
from trainfleet.training.stores import StoreError, open_store
from trainfleet.training.workloads import ASSETS

if TYPE_CHECKING:
    from trainfleet.training.inference.loaded import LoadedRun
    from trainfleet.training.publish.gates import GateResult

PACKAGES = (
    "torch",
    "ray",
    "numpy",
    "pyarrow",
    "torchmetrics",
    "tokenizers",
    "transformers",
    "datasets",
    "peft",
    "safetensors",
    "scikit-learn",
)
EXAMPLES: dict[str, dict[str, str]] = {
    "lm": {"text": "def main("},
    "vision": {"image": "picture.png"},
    "speech": {"audio": "speech.wav"},
}
"""An example row for each built-in workload."""


def provenance(
    loaded: LoadedRun,
    gates: Sequence[Mapping[str, Any]],
    found: Sequence[Mapping[str, Any]],
    check: Mapping[str, Any],
) -> dict[str, Any]:
    """The provenance document; `data.manifest_text` is the data's manifest, to be written to a file."""
    checkpoint = open_store(loaded.path)
    run = open_store(run_of(loaded.path))
    record = _json(run, "run.json")
    return {
        "format": 1,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "name": loaded.recipe.name,
        "recipe": loaded.recipe.model_dump(mode="json"),
        "parameters": sum(each.numel() for each in loaded.model.parameters()),
        "data": _data(loaded),
        "checkpoint": {
            "path": loaded.path,
            "step": loaded.step,
            "identity": identity_of(loaded.path),
            "files": _json(checkpoint, MARKER).get("files", {}),
        },
        "validation": loaded.metrics,
        "baseline": record.get("baseline", {}),
        "evaluations": list(found),
        "gates": list(gates),
        "export": dict(check),
        ASSETS: {
            name: hashlib.sha256(content).hexdigest() for name, content in loaded.workload.assets().items()
        },
        "run": {key: record[key] for key in ("starts", "launches", "world_size", "device") if key in record},
        "code": {
            "trainfleet": _revision(PACKAGE) | {"version": __version__},
            "working folder": _revision(Path.cwd()),
        },
        "environment": environment(),
    }


def environment() -> dict[str, Any]:
    """Installed packages and the machine."""
    from trainfleet.training.runtime import local_resources

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "machine": local_resources.describe(), "packages": versions}


def card(
    loaded: LoadedRun, document: Mapping[str, Any], gates: Sequence[GateResult], files: Sequence[str]
) -> str:
    """The model card, in Markdown."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("trainfleet.training"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    doc = (sys.modules[type(loaded.workload).__module__].__doc__ or "").strip().partition("\n")[0]
    figures = {name: value for each in document["evaluations"] for name, value in each["metrics"].items()}
    return templates.get_template("card.md.j2").render(
        document=document,
        recipe=loaded.recipe,
        workload=loaded.recipe.workload,
        doc=doc,
        figures=figures,
        gates={each.metric: each for each in gates},
        files=files,
        sizes={split: loaded.workload.size(split) for split in ("train", "validation", "test")},
        example=json.dumps(EXAMPLES.get(loaded.recipe.workload.name, {"...": "..."})),
    )


def _data(loaded: LoadedRun) -> dict[str, Any]:
    """Identification of the data, with the manifest's text if there is one."""
    facts: dict[str, Any] = dict(loaded.workload.data_info().get("data") or {})
    document: dict[str, Any] = {"fingerprint": loaded.workload.fingerprint(), **facts}
    where = facts.get("manifest")
    if isinstance(where, str):
        folder, _, name = where.rpartition("/")
        try:
            text = open_store(folder or ".").read(name)
        except StoreError:
            return document
        document["manifest_sha256"] = hashlib.sha256(text).hexdigest()
        document["manifest_text"] = text.decode("utf-8")
    return document


def _json(store: Any, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads(store.read(name)))
    except (StoreError, ValueError):
        return {}


def _revision(folder: Path) -> dict[str, Any]:
    """Git revision of a folder's checkout and whether it has changes; empty if there is none."""
    revision = git(folder, "rev-parse", "HEAD")
    if revision is None:
        return {}
    return {
        "revision": revision,
        "changed": bool(git(folder, "status", "--porcelain", "--untracked-files=no")),
    }
