"""Runs generated GitHub workflows on this machine: the `run` steps of each job in a clean folder, in order.

`needs`, `if`, `env`, outputs, permissions, environments and called workflows are honoured as far as the
generated workflows use them, and an unknown key is an error. Actions (`uses`) are replaced by functions with
the same effect, see actions.py. A called action of the repository is run as it is written.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.ci import actions
from tests.ci.clouds import Clouds
from tests.ci.expressions import Context, condition, interpolate
from tests.ci.forge import REPOSITORY, Forge
from tests.ci.token_services import TokenServices
from trainfleet.process import every_process

ROOT = Path(__file__).resolve().parents[2]
JOB_KEYS = {
    "runs-on", "timeout-minutes", "permissions", "outputs", "steps", "needs", "if", "environment", "env",
    "uses", "with", "concurrency",
}  # fmt: skip
STEP_KEYS = {"run", "uses", "with", "id", "if", "env", "shell", "continue-on-error"}
KEPT = ("PATH", "LANG", "LC_ALL", "XDG_CACHE_HOME", "TRAINFLEET_DATE")
"""All that a job gets of this process's environment: no credential."""
LARGEST_SUMMARY = 1 << 20
"""GitHub's limit of a step's summary, in bytes."""


@dataclass
class Job:
    """A job that ran: `result` is success, failure or skipped."""

    name: str
    result: str = "success"
    outputs: dict[str, str] = field(default_factory=dict)
    log: str = ""
    summary: str = ""


@dataclass
class Host:
    """What all runs share: the code host, the clouds, the variables, and who approves environments."""

    forge: Forge
    clouds: Clouds
    folder: Path
    variables: dict[str, dict[str, str]]
    """By environment; those of the repository have an empty name."""
    approve: Callable[[str, str], bool] = lambda _environment, _summary: True
    """Decides on a job of an environment by the summaries of the jobs before it."""
    before: Callable[[str, str], None] = lambda _job, _run: None
    """Called before each `run` step with the job and its text, for faults."""
    python: str = sys.executable
    """The interpreter of the environment that `make setup` would install."""
    environment: dict[str, str] = field(default_factory=dict)
    """What the runner sets for each step."""
    tokens: TokenServices | None = None
    """Those of a repository of Google Cloud or Azure."""
    runs: int = 0


@dataclass
class Run:
    """One run of a workflow, for an event."""

    host: Host
    event: str
    payload: dict[str, Any]
    commit: str
    ref: str
    number: int = 0
    jobs: dict[str, Job] = field(default_factory=dict)
    """By `job`, or `caller / job` in a called workflow."""
    artifacts: dict[str, Path] = field(default_factory=dict)

    @property
    def from_fork(self) -> bool:
        """Whether the event is a pull request from a fork, which gets no token that writes."""
        head = self.payload.get("pull_request", {}).get("head", {})
        return bool(head) and head["repo"]["full_name"] != REPOSITORY

    def subject(self, environment: str) -> str:
        """The subject of a job's OIDC token."""
        if environment:
            return f"repo:{REPOSITORY}:environment:{environment}"
        return f"repo:{REPOSITORY}:{'pull_request' if self.event == 'pull_request' else f'ref:{self.ref}'}"


def run_workflow(
    host: Host,
    name: str,
    event: str,
    payload: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str] | None = None,
) -> Run:
    """Run a workflow of the repository as an event starts it, and return what its jobs did.

    Args:
        name: the name of the workflow's file without `.yml`.
        event: `push`, `pull_request`, `schedule` or `workflow_dispatch`; the workflow has to have it.
        payload: the event, for a pull request that of `Forge.pull_request_event`.
        inputs: of `workflow_dispatch`.
    """
    host.runs += 1
    number = (payload or {}).get("number")
    ref = f"refs/pull/{number}/merge" if number else "refs/heads/main"
    commit = actions.resolve(host.forge, ref)
    run = Run(host, event, dict(payload or {}), commit, ref, host.runs)
    document = _workflow(run, name)
    assert event in document[True], f"{name} does not start at {event}"  # YAML 1.1 reads `on` as true
    _run_jobs(run, document, inputs or {}, "", _granted(run, document.get("permissions")))
    return run


def _workflow(run: Run, name: str) -> dict[Any, Any]:
    text = actions.git_file(run.host.forge, run.commit, f".github/workflows/{name}.yml")
    found: dict[Any, Any] = yaml.safe_load(text)
    return found


def _granted(run: Run, required: Any, limit: Mapping[str, str] | None = None) -> dict[str, str]:
    """The permissions of a token: a fork's pull request reads, and a called workflow gets what its caller has."""
    assert isinstance(required, dict), "each workflow states its permissions"
    granted = {key: str(value) for key, value in required.items()}
    if run.from_fork:
        granted = {key: "read" for key in granted if key != "id-token"}
    if limit is not None:
        for key, value in granted.items():
            assert limit.get(key) in (value, "write"), f"the caller does not grant {key}: {value}"
    return granted


def _run_jobs(
    run: Run, document: dict[Any, Any], inputs: Mapping[str, str], prefix: str, limit: Mapping[str, str]
) -> dict[str, Job]:
    done: dict[str, Job] = {}
    waiting = dict(document["jobs"])
    while waiting:
        name = next(name for name, job in waiting.items() if set(_needs(job)) <= done.keys())
        job = waiting.pop(name)
        assert set(job) <= JOB_KEYS, f"{name}: {set(job) - JOB_KEYS}"
        needed = {each: done[each] for each in _needs(job)}
        failed = any(each.result != "success" for each in needed.values())
        values = _values(run, inputs) | {
            "needs": {key: {"outputs": each.outputs, "result": each.result} for key, each in needed.items()}
        }
        title = f"{prefix}{name}"
        if not condition(job.get("if", "success()"), Context(values, failed=failed)):
            done[name] = Job(title, "skipped")
        elif "uses" in job:
            granted = _granted(run, job.get("permissions", document.get("permissions")))
            called = _workflow(run, Path(job["uses"]).stem)
            given = interpolate(job.get("with", {}), Context(values))
            results = _run_jobs(run, called, given, f"{title} / ", granted)
            worst = {each.result for each in results.values()}
            done[name] = Job(title, "failure" if worst - {"success", "skipped"} else "success")
        else:
            required = job.get("permissions", document.get("permissions"))
            within = limit if prefix else None
            done[name] = _Steps(run, title, job, document, values, _granted(run, required, within)).run()
        run.jobs[title] = done[name]
    return done


def _needs(job: Mapping[str, Any]) -> list[str]:
    found = job.get("needs", [])
    return [found] if isinstance(found, str) else list(found)


def _values(run: Run, inputs: Mapping[str, str]) -> dict[str, Any]:
    return {
        "github": {
            "event": run.payload,
            "event_name": run.event,
            "repository": REPOSITORY,
            "sha": run.commit,
            "ref": run.ref,
        },
        "inputs": dict(inputs),
        "vars": run.host.variables.get("", {}),
    }


class _Steps:
    """The steps of one job, in a folder of its own."""

    def __init__(
        self,
        run: Run,
        name: str,
        job: dict[str, Any],
        document: dict[Any, Any],
        values: dict[str, Any],
        granted: dict[str, str],
    ) -> None:
        self.host_run, self.name, self.job, self.granted = run, name, job, granted
        self.environment = interpolate(job.get("environment", ""), Context(values))
        self.folder = run.host.folder / f"run-{run.number}" / name.replace(" / ", "-")
        self.workspace, self.temp = self.folder / "workspace", self.folder / "temp"
        for each in (self.workspace, self.temp, self.folder / "tools", self.folder / "home"):
            each.mkdir(parents=True)
        token = "token:" + ",".join(f"{key}={value}" for key, value in granted.items())
        own = run.host.variables.get(self.environment, {}) if self.environment else {}
        self.values = values | {
            "github": {**values["github"], "token": token},
            "runner": {"temp": str(self.temp)},
            "vars": {**values["vars"], **own},
            "steps": {},
            "env": {},
        }
        self.env = interpolate({**document.get("env", {}), **job.get("env", {})}, Context(self.values))
        self.exported: dict[str, str] = {}
        self.paths: list[str] = []
        self.done = Job(name)
        if run.host.tokens is not None and granted.get("id-token") == "write":
            actions.export_token_request(self)

    def run(self) -> Job:
        """Run the steps, end what they left running, and return the job."""
        try:
            return self._run()
        finally:
            self._end_orphans()

    def _end_orphans(self) -> None:
        """End the processes of the job that still run, as the runner does, by a variable that it gives them."""
        for process in every_process():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("RUNNER_TRACKING_ID") == str(self.folder):
                    process.kill()

    def _run(self) -> Job:
        if self.environment:
            before = "\n".join(each.summary for each in self.host_run.jobs.values())
            if not self.host_run.host.approve(str(self.environment), before):
                self.done.result, self.done.log = "failure", f"{self.environment}: not approved"
                return self.done
        self.sequence(self.job["steps"], self.values)
        if self.done.result == "success":
            self.done.outputs = interpolate(self.job.get("outputs", {}), Context(self.values))
        return self.done

    def sequence(self, steps: Iterable[dict[str, Any]], values: dict[str, Any]) -> None:
        """Run steps of the job, or of an action of the repository with its own `inputs`."""
        for step in steps:
            assert set(step) <= STEP_KEYS, f"{self.name}: {set(step) - STEP_KEYS}"
            context = Context(values, self.workspace, failed=self.done.result != "success")
            if not condition(step.get("if", "success()"), context):
                continue
            try:
                outputs = self.shell(step, context) if "run" in step else self.action(step, context)
            except (actions.ActionError, subprocess.CalledProcessError) as error:
                self.done.log += f"\n{error}\n"
                if not step.get("continue-on-error"):
                    self.done.result = "failure"
                continue
            if "id" in step:
                values["steps"] = {**values["steps"], step["id"]: {"outputs": outputs}}

    def action(self, step: dict[str, Any], context: Context) -> dict[str, str]:
        """Run the replacement of an action."""
        given = interpolate(step.get("with", {}), context)
        name = step["uses"].partition("@")[0]
        if name.startswith("./"):
            composite = yaml.safe_load((self.workspace / name / "action.yml").read_text())
            required = {key for key, each in composite["inputs"].items() if each.get("required")}
            missing = [key for key in required if not given.get(key)]
            if missing or given.keys() - composite["inputs"].keys():
                raise actions.ActionError(f"{name}: inputs {missing} are missing in {given}")
            self.sequence(composite["runs"]["steps"], self.values | {"inputs": given, "steps": {}})
            return {}
        return actions.ACTIONS[name](self, given) or {}

    def shell(self, step: dict[str, Any], context: Context) -> dict[str, str]:
        """Run a script and return the outputs that it wrote."""
        script = self.temp / "script.sh"
        script.write_text(interpolate(step["run"], context))
        files = {
            name: self.temp / name
            for name in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")
        }
        for file in files.values():
            file.write_text("")
        run = self.host_run
        run.host.before(self.name, step["run"])
        variables = {
            **{name: os.environ[name] for name in KEPT if name in os.environ},
            "HOME": str(self.folder / "home"),
            "PYTHONPATH": str(ROOT),
            "PATH": ":".join([*self.paths[::-1], str(self.folder / "tools"), "/usr/local/bin:/usr/bin:/bin"]),
            "GITHUB_REPOSITORY": REPOSITORY,
            "GITHUB_SHA": run.commit,
            "GITHUB_RUN_ID": str(run.number),
            "GITHUB_RUN_ATTEMPT": "1",
            "RUNNER_TEMP": str(self.temp),
            "RUNNER_TRACKING_ID": str(self.folder),
            "FORGE": str(run.host.forge.data),
            "NO_COLOR": "1",
            **{name: str(file) for name, file in files.items()},
            **run.host.environment,
            **self.exported,
            **self.env,
            **interpolate(step.get("env", {}), context),
        }
        actions.write_gh(self.folder / "tools")
        actions.write_az(self.folder / "tools")
        flags = ["--noprofile", "--norc", "-eo", "pipefail"] if step.get("shell") == "bash" else ["-e"]
        done = subprocess.run(
            ["bash", *flags, script],
            cwd=self.workspace,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.done.log += f"$ {step['run']}\n{done.stdout}"
        summary = files["GITHUB_STEP_SUMMARY"].read_text()
        assert len(summary.encode()) <= LARGEST_SUMMARY, f"{self.name}: GitHub drops a summary of this size"
        self.done.summary += summary
        self.exported |= _pairs(files["GITHUB_ENV"])
        self.paths += files["GITHUB_PATH"].read_text().split()
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, "a step")
        return _pairs(files["GITHUB_OUTPUT"])


def _pairs(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if line)
