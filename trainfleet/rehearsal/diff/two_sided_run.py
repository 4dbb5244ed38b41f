"""Runs both sides with the real engine on one simulated cloud: applies the base, then previews the head.

Each program runs from its own checkout with this interpreter. A small entry script puts the checkout first on
sys.path.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from trainfleet.dates import VARIABLE
from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.rehearsal import accepted
from trainfleet.rehearsal.diff import planned_cost
from trainfleet.rehearsal.diff.sdk_changes import SdkReader, reader
from trainfleet.rehearsal.diff.worktrees import Revision
from trainfleet.rehearsal.engine import language
from trainfleet.rehearsal.engine.engine_cli import Outcome, Runner, Violation
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.other_stacks import given_outputs, write_stack
from trainfleet.rehearsal.engine.sandbox import Project, Sandbox, sandbox
from trainfleet.rehearsal.simulation import provider
from trainfleet.rehearsal.simulation.state import Cloud
from trainfleet.rehearsal.steps import diagnostics
from trainfleet.rehearsal.steps.session import APPLY, sigterm_as_interrupt

_ENTRY = """import os, runpy, sys
program, root = {program!r}, {root!r}
sys.path[0] = program if os.path.isdir(program) else os.path.dirname(program)
sys.path.insert(1, root)
os.chdir(sys.path[0])
runpy.run_path(program, run_name="__main__")
"""
Events = list[dict[str, Any]]


@dataclass(frozen=True)
class Side:
    """One side of a diff: the project in its checkout and the stack settings."""

    label: str
    revision: Revision
    project: Project
    settings: dict[str, Any]
    day: date | None = None
    """The day on which it is built, where its Kubernetes version has left support since; None = today."""

    overlay: Path | None = None
    """The folder with this side's locked packages; None = the installed ones."""
    policies_of: Path | None = None
    """The checkout whose policy pack checks this side; None = its own."""

    @property
    def shown(self) -> str:
        """The display name."""
        return f"{self.label} ({self.revision.short})"

    @property
    def pack_root(self) -> Path:
        """The checkout from which the policy pack imports its modules."""
        return self.policies_of or self.project.checkout

    @property
    def pack(self) -> Path | None:
        """The policy pack that checks this side, if there is one."""
        pack = self.pack_root / "policies"
        return pack if (pack / "PulumiPolicy.yaml").is_file() else None


@dataclass
class Applied:
    """An applied base: the engine's state files by path, the encryption salt, and the policy violations.

    `violations` is None until requested: if the head has no violations, those of the base are not needed.
    """

    files: dict[str, str] = field(default_factory=dict)
    salt: str = ""
    violations: list[Violation] | None = None

    def resources(self) -> list[dict[str, Any]]:
        """Return the resources in the state."""
        return [resource for document in self._states().values() for resource in _resources(document)]

    def without_protection(self) -> Applied:
        """Return a copy without protection, so that a preview shows all replacements and deletions."""
        files = dict(self.files)
        for name, document in self._states().items():
            for resource in _resources(document):
                resource.pop("protect", None)
            files[name] = json.dumps(document)
        return Applied(files, self.salt, self.violations)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON document for the cache."""
        violations = None if self.violations is None else [vars(violation) for violation in self.violations]
        return {"files": self.files, "salt": self.salt, "violations": violations}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Applied:
        """Restore from a document of the cache."""
        kept = document["violations"]
        return cls(
            document["files"],
            document["salt"],
            None if kept is None else [Violation(**each) for each in kept],
        )

    def _states(self) -> dict[str, dict[str, Any]]:
        return {name: json.loads(text) for name, text in self.files.items() if "/stacks/" in name}


def _resources(document: dict[str, Any]) -> list[dict[str, Any]]:
    checkpoint = document.get("checkpoint", document)
    # NOTE: `pulumi stack import` writes the key as `Latest`.
    latest = checkpoint.get("latest") or checkpoint.get("Latest") or {}
    return list(latest.get("resources") or [])


@dataclass
class Session:
    """The simulated cloud, the providers and the language host, shared by both sides."""

    engine: Engine
    cloud: Cloud
    programs: language.Programs
    environment: dict[str, str]
    scratch: Path
    boxes: contextlib.ExitStack
    progress: Callable[[str, int], None]
    depends: planned_cost.Dependencies = field(default_factory=dict)
    """What the inputs of the last previewed side depend on."""
    overlay: Path | None = None
    """The overlay of the running programs."""
    readers: dict[Path | None, SdkReader] = field(default_factory=dict)

    def apply(self, side: Side) -> Applied:
        """Apply a side to the empty cloud, without policies.

        Raises:
            TrainfleetError: the program fails, or a simulated cloud rejects a resource; names the side.
        """
        runner = self._runner(side)
        runner.init()
        self._collect_violations(side, runner.run(*APPLY))
        return Applied(*_kept(runner.sandbox), None if side.pack else [])

    def restore(self, side: Side, export: dict[str, Any]) -> tuple[Applied, list[str]]:
        """Import a stack's export instead of applying a base; return it, and the keys of encrypted settings.

        Raises:
            TrainfleetError: the engine rejects the export; contains its message.
        """
        runner = self._runner(side)
        runner.init()
        file = runner.sandbox.file("export.json")
        # The engine encrypts the plain secrets of the import with the key of the sandbox's stack.
        secrets = {"type": "passphrase", "state": {"salt": _kept(runner.sandbox)[1]}}
        deployment = {**export["deployment"], "secrets_providers": secrets}
        file.write_text(json.dumps({**export, "deployment": deployment}))
        outcome = runner.run("stack", "import", "--file", str(file), events=False)
        file.unlink()
        if not outcome.ok:
            raise TrainfleetError(f"the engine cannot restore the export: {outcome.output.strip()[-1000:]}")
        return Applied(*_kept(runner.sandbox), None), runner.sandbox.secret_keys

    def violations(self, side: Side, applied: Applied) -> list[Violation]:
        """Return the violations of an applied side, checked with its own policy pack.

        Raises:
            TrainfleetError: the program fails on the second run; names the side.
        """
        runner = self._runner(side)
        self._restore(runner.sandbox, applied)
        outcome = runner.run("preview", *self._policies(side, advise=True))
        self._collect_violations(side, outcome)
        return outcome.violations

    def preview(self, side: Side, on: Applied | None) -> tuple[Outcome, Events]:
        """Preview a side on an applied one, or on an empty stack; return the outcome and the resource events.

        Raises:
            TrainfleetError: the program fails; names the side.
        """
        runner = self._runner(side)
        if on is None:
            runner.init()
        else:
            self._restore(runner.sandbox, on)
        plan = runner.sandbox.file("plan.json")
        outcome = runner.run("preview", "--save-plan", str(plan), *self._policies(side, advise=False))
        if strict := diagnostics.mandatory(outcome):
            # After a mandatory violation, the engine skips the stack policies. Run again with all policies
            # advisory.
            outcome = runner.run("preview", "--save-plan", str(plan), *self._policies(side, advise=True))
            levels = {violation.policy: violation.level for violation in strict}
            outcome.violations = [
                replace(each, level=levels.get(each.policy, each.level)) for each in outcome.violations
            ]
        self._collect_violations(side, outcome)
        self.depends = planned_cost.dependencies(plan)
        return outcome, _events(runner.sandbox.file(f"events-{runner.count}.jsonl"))

    def _restore(self, box: Sandbox, applied: Applied) -> None:
        _restore(box, applied)
        if not self.cloud.records:  # the base came from the cache
            self.cloud.remember(applied.resources())

    def _runner(self, side: Side) -> Runner:
        entry = self.scratch / f"entry-{side.label}"
        entry.mkdir(exist_ok=True)
        (entry / "__main__.py").write_text(
            _ENTRY.format(program=str(side.project.main), root=str(side.project.checkout))
        )
        box = self.boxes.enter_context(sandbox(side.project, side.settings))
        self.programs.entry = entry
        self._use(side.overlay)
        self.programs.environment = {
            **(self.programs.environment or box.environment),
            VARIABLE: os.environ.get(VARIABLE, ""),
            "PYTHONPATH": os.pathsep.join(
                filter(None, (str(side.overlay or ""), os.environ.get("PYTHONPATH", "")))
            ),
        }
        self.programs.output = self.programs.output or box.file("program.txt")
        self.programs.secret_keys, self.programs.root = box.secret_keys, side.project.root
        self.programs.failure_file = box.file("failure.json")
        self.programs.references = box.file(language.REFERENCES)
        self.cloud.mistakes.clear()
        self.cloud.missing.clear()
        self.cloud.accepted = accepted.read(side.project.root)
        for row in self.cloud.accepted.stacks:
            write_stack(box.folder / "state", row.name, side.project.name, given_outputs(row))
        # The engine starts the policy pack, which has to import the checkout's `policies`, not the installed
        # package.
        path = os.pathsep.join(filter(None, (str(side.pack_root), os.environ.get("PYTHONPATH", ""))))
        return Runner(self.engine.path, box, {**self.environment, "PYTHONPATH": path}, self.progress)

    def sdks(self, overlay: Path | None) -> SdkReader:
        """Return the reader of an environment's SDKs."""
        if overlay not in self.readers:
            self.readers[overlay] = self.boxes.enter_context(reader(overlay))
        return self.readers[overlay]

    def _use(self, overlay: Path | None) -> None:
        """Let the next programs import an overlay's packages. A pooled process keeps those it imported."""
        if overlay != self.overlay:
            self.programs.end()
            self.overlay = overlay
        self.cloud.other_sdk = self.sdks(overlay).accepts if overlay is not None else None

    def _policies(self, side: Side, *, advise: bool) -> list[str]:
        if side.pack is None:
            return []
        if not advise:
            return ["--policy-pack", str(side.pack)]
        config = self.scratch / "advisory.json"
        config.write_text('{"all": "advisory"}')
        return ["--policy-pack", str(side.pack), "--policy-pack-config", str(config)]

    def _collect_violations(self, side: Side, outcome: Outcome) -> None:
        if not outcome.ok or self.cloud.missing:
            problems = diagnostics.problems(outcome, self.cloud, self.programs.failure_file or Path())
            raise TrainfleetError(f"the {side.shown} cannot be built", problems)


@contextlib.contextmanager
def session(engine: Engine, scratch: Path, progress: Callable[[str, int], None]) -> Iterator[Session]:
    """Start the simulated cloud, providers and language host; clean up on exit, Ctrl-C and SIGTERM."""
    cloud, programs = Cloud(), language.Programs(python=sys.executable)
    with (
        sigterm_as_interrupt(),
        contextlib.ExitStack() as boxes,
        provider.serve(cloud) as providers,
        language.serve(programs) as languages,
    ):
        environment = {"PULUMI_DEBUG_PROVIDERS": providers, "PULUMI_DEBUG_LANGUAGES": languages}
        yield Session(engine, cloud, programs, environment, scratch, boxes, progress)


def _kept(box: Sandbox) -> tuple[dict[str, str], str]:
    """Return the engine's state files and the encryption salt of the settings, which later commands need."""
    import yaml

    state = box.folder / "state"
    files = [*state.rglob("meta.yaml"), *([box.state] if box.state.is_file() else [])]
    settings = yaml.safe_load((box.project / f"Pulumi.{box.stack}.yaml").read_text()) or {}
    return {str(file.relative_to(state)): file.read_text() for file in files}, str(
        settings.get("encryptionsalt", "")
    )


def _restore(box: Sandbox, applied: Applied) -> None:
    for name, text in applied.files.items():
        target = box.folder / "state" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    if applied.salt:
        with (box.project / f"Pulumi.{box.stack}.yaml").open("a") as file:
            file.write(f"encryptionsalt: {applied.salt}\n")


def _events(log: Path) -> Events:
    found = []
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            if event := json.loads(line).get("resourcePreEvent"):
                found.append(event["metadata"])
    return found


def same_project(base: Project, head: Project) -> None:
    """Reject a renamed project.

    Raises:
        InputError: the names differ.
    """
    if base.name != head.name:
        raise InputError(
            "the project was renamed",
            [
                Problem(
                    "Pulumi.yaml: name",
                    f"was `{base.name}` and is `{head.name}`: Pulumi keeps a state for each name",
                    f"name: {base.name}",
                )
            ],
        )
