"""Exports of a stack that the simulated cloud applied, as `pulumi stack export` writes them."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from tests.rehearsal.diff.repos import Repo
from trainfleet.rehearsal.diff.settings import for_build
from trainfleet.rehearsal.diff.two_sided_run import Side, session
from trainfleet.rehearsal.diff.worktrees import Revision
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project

Document = dict[str, Any]


def exported(repo: Repo, folder: Path, *flags: str, stack: str = "one") -> list[Document]:
    """Apply the stack as it is in the checkout, and export it once with each flag of `pulumi stack export`."""
    folder.mkdir(parents=True, exist_ok=True)
    project = read_project(repo.root, stack)
    assert project.settings is not None
    settings, _ = for_build(yaml.safe_load(project.settings.read_text()), date.min)
    side = Side("base", Revision("checkout", "", ""), project, settings)
    file = folder / "export.json"
    with session(find_engine(lambda _: None), folder, lambda *_: None) as on:
        applied = on.apply(side)
        runner = on._runner(side)
        on._restore(runner.sandbox, applied)
        documents: list[Document] = []
        for flag in flags:
            command = ("stack", "export", "--stack", stack, "--file", str(file), *filter(None, [flag]))
            done = runner.run(*command, events=False)
            assert done.ok, done.output
            documents.append(json.loads(file.read_text()))
    return documents


def resource(document: Document, name: str) -> Document:
    """Return the resource with this logical name."""
    found = [each for each in document["deployment"]["resources"] if each["urn"].endswith(f"::{name}")]
    assert len(found) == 1, name
    return found[0]


def real(document: Document) -> Document:
    """Return an export as a real account has it: other IDs and another account than the simulated ones."""
    text = json.dumps(document).replace("111122223333", "482910573614")
    for each in document["deployment"]["resources"]:
        if str(each.get("id", "")).startswith(("vpc-", "subnet-")):
            prefix = each["id"].split("-")[0]
            text = text.replace(each["id"], f"{prefix}-0real{each['id'][-8:]}0")
    found: Document = json.loads(text)
    return found
