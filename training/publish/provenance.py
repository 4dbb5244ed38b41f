"""Where a published model comes from: recipe, data, code, environment, checkpoint, figures; and the card that
tells it to people.

Used by `trainfleet.training.publish.export`. Easy to get wrong: code that was changed and not committed has
no revision, so that is said too.
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

if TYPE_CHECKING:
    from trainfleet.training.inference.loaded import Trained
    from trainfleet.training.publish.gates import Judged

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
"""A row that each of Trainfleet's own workloads reads."""


def provenance(
    trained: Trained,
    gates: Sequence[Mapping[str, Any]],
    found: Sequence[Mapping[str, Any]],
    check: Mapping[str, Any],
) -> dict[str, Any]:
    """The document; `data.manifest_text` is the data's manifest, to be written beside it."""
    checkpoint = open_store(trained.path)
    run = open_store(run_of(trained.path))
    record = _json(run, "run.json")
    return {
        "format": 1,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "name": trained.recipe.name,
        "recipe": trained.recipe.model_dump(mode="json"),
        "parameters": sum(each.numel() for each in trained.model.parameters()),
        "data": _data(trained),
        "checkpoint": {
            "path": trained.path,
            "step": trained.step,
            "identity": identity_of(trained.path),
            "files": _json(checkpoint, MARKER).get("files", {}),
        },
        "validation": trained.metrics,
        "baseline": record.get("baseline", {}),
        "evaluations": list(found),
        "gates": list(gates),
        "export": dict(check),
        "run": {key: record[key] for key in ("starts", "launches", "world_size", "device") if key in record},
        "code": {
            "trainfleet": _revision(PACKAGE) | {"version": __version__},
            "working folder": _revision(Path.cwd()),
        },
        "environment": environment(),
    }


def environment() -> dict[str, Any]:
    """What is installed here, and on what machine."""
    from trainfleet.training.runtime import local_resources

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "machine": local_resources.describe(), "packages": versions}


def card(trained: Trained, document: Mapping[str, Any], gates: Sequence[Judged], files: Sequence[str]) -> str:
    """The model card, in Markdown."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    shapes = Environment(
        loader=PackageLoader("trainfleet.training"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    doc = (sys.modules[type(trained.workload).__module__].__doc__ or "").strip().partition("\n")[0]
    figures = {name: value for each in document["evaluations"] for name, value in each["metrics"].items()}
    judged = {each.metric: each for each in gates}
    return shapes.get_template("card.md.j2").render(
        document=document,
        recipe=trained.recipe,
        workload=trained.recipe.workload,
        doc=doc,
        figures=figures,
        judged=judged,
        files=files,
        sizes={split: trained.workload.size(split) for split in ("train", "validation", "test")},
        example=json.dumps(EXAMPLES.get(trained.recipe.workload.name, {"...": "..."})),
    )


def _data(trained: Trained) -> dict[str, Any]:
    """What identifies the data; with the manifest's text where the workload has one."""
    said: dict[str, Any] = getattr(trained.workload, "facts", dict)()
    facts: dict[str, Any] = dict(said.get("data") or {})
    document: dict[str, Any] = {"fingerprint": trained.workload.fingerprint(), **facts}
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
    """Git's revision of a folder's checkout, and whether it was changed since; empty where there is none."""
    revision = git(folder, "rev-parse", "HEAD")
    if revision is None:
        return {}
    return {
        "revision": revision,
        "changed": bool(git(folder, "status", "--porcelain", "--untracked-files=no")),
    }
