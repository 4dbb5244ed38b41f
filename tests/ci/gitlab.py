"""Runs the generated GitLab pipeline on this machine: the scripts of each job in a clean folder, stage by stage.

`include`, `extends`, `rules`, `needs`, variables with their scopes and protection, `id_tokens`, artifacts with
reports, and environments are honoured as far as the generated pipeline uses them; an unknown key is an error.
Not emulated: images (jobs run in this machine's shell), timeouts, caches (the engine's is restored), and the signature
of tokens.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.bootstrap.tokens import Job as Claims
from tests.ci import gitlab_rules as rules
from tests.ci.actions import git_file, write_az, write_environment
from tests.ci.clouds import NO_PROXY, NOWHERE
from tests.ci.forge import REPOSITORY, Forge, git
from tests.ci.gitlab_services import Services, token
from tests.ci.runner import KEPT, ROOT, Job
from tests.ci.token_services import TokenServices
from trainfleet.toolchain import cache_folder

GLOBAL = {"stages", "include", "default", "variables", "workflow"}
JOB_KEYS = {
    "stage", "image", "id_tokens", "before_script", "script", "rules", "variables", "artifacts", "environment",
    "resource_group", "needs", "timeout", "cache", "allow_failure",
}  # fmt: skip
SERVER = "gitlab.test"


@dataclass(frozen=True)
class Variable:
    """A variable of the project: jobs of an environment get those of its scope, too."""

    value: str
    scope: str = ""
    protected: bool = True


@dataclass
class GitLab:
    """What all pipelines share."""

    forge: Forge
    services: Services
    folder: Path
    variables: dict[str, list[Variable]]
    start: Callable[[str, str], bool] = lambda _job, _log: True
    """Whether somebody starts a manual job that blocks, by the logs of the jobs before it."""
    python: str = sys.executable
    environment: dict[str, str] = field(default_factory=dict)
    """What the runner sets for each job."""
    tokens: TokenServices | None = None
    """Those of a repository of Google Cloud or Azure; None: of AWS, whose STS is one of the services."""
    runs: int = 0
    waiting: threading.Event = field(default_factory=threading.Event)
    """Set once a job waits for another one of its resource group."""
    groups: dict[str, threading.Lock] = field(default_factory=dict)

    @contextlib.contextmanager
    def exclusively(self, group: str) -> Iterator[None]:
        """Run one job of a resource group at a time."""
        lock = self.groups.setdefault(group, threading.Lock()) if group else threading.Lock()
        if not lock.acquire(blocking=False):
            self.waiting.set()
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@dataclass
class Pipeline:
    """One pipeline that ran."""

    number: int
    source: str
    variables: dict[str, str]
    protected: bool
    jobs: dict[str, Job] = field(default_factory=dict)
    artifacts: dict[str, Path] = field(default_factory=dict)
    script: Callable[[str, str], None] = lambda _job, _script: None
    from_fork: bool = False
    """Whether it runs in the project of a fork, which has no variables of this one."""


def run_pipeline(
    host: GitLab,
    source: str,
    *,
    merge_request: int = 0,
    play: str = "",
    before: Callable[[str, str], None] = lambda _job, _script: None,
    **variables: str,
) -> Pipeline:
    """Run the pipeline that an event starts, and return what its jobs did.

    Args:
        host: the project.
        source: `push`, `web`, `schedule` or `merge_request_event`.
        merge_request: its number.
        play: the optional manual job that somebody starts.
        before: called with the name and the script of each job before it runs.
        variables: of the pipeline, as a schedule or a person sets them.
    """
    host.runs += 1
    known = _predefined(host, source, merge_request) | variables
    pipeline = Pipeline(host.runs, source, known, protected="CI_COMMIT_BRANCH" in known, script=before)
    if merge_request:
        pipeline.from_fork = host.forge.pull(merge_request)["head_repository"] != REPOSITORY
    document = _document(host.forge, known["CI_COMMIT_SHA"])
    workflow = document["workflow"]["rules"]
    assert rules.choose(workflow, known, ()), "the workflow's rules create no pipeline"
    base = known.get("CI_MERGE_REQUEST_DIFF_BASE_SHA") or f"{known['CI_COMMIT_SHA']}~1"
    changed = _changed(host.forge, base, known["CI_COMMIT_SHA"]) if source == "push" else [""]
    jobs, chosen = {}, {}
    for name in document.keys() - GLOBAL:
        if name.startswith("."):
            continue
        job = rules.extended(document, name)
        assert set(job) <= JOB_KEYS, f"{name}: {set(job) - JOB_KEYS}"
        part = rules.choose(job["rules"], known, changed)
        if part is not None:
            jobs[name], chosen[name] = document["default"] | job, part
    stages = document["stages"]
    order = [name for stage in stages for name in sorted(jobs) if jobs[name]["stage"] == stage]
    assert len(order) == len(jobs), "a job has no stage"
    for name in order:
        _run(host, pipeline, name, jobs, chosen, order, document.get("variables", {}), play)
    return pipeline


def _run(
    host: GitLab,
    pipeline: Pipeline,
    name: str,
    jobs: dict[str, dict[str, Any]],
    chosen: dict[str, rules.Chosen],
    order: list[str],
    common: dict[str, str],
    play: str,
) -> None:
    """Run a job if those before it, or those that it needs, succeeded."""
    job, done = jobs[name], pipeline.jobs
    earlier = [each for each in order[: order.index(name)] if jobs[each]["stage"] != job["stage"]]
    needed = job.get("needs", earlier)
    for each in needed:
        assert each in order, f"{name} needs {each}, which the pipeline does not have"
    waits = [each for each in needed if done[each].result != "success"]
    # A manual job that may fail holds nothing up.
    waits = [] if chosen[name].always else waits
    if [each for each in waits if not (done[each].result == "manual" and not chosen[each].blocks)]:
        done[name] = Job(name, "skipped")
        return
    if chosen[name].manual:
        before = "\n".join(done[each].log for each in needed)
        started = host.start(name, before) if chosen[name].blocks else name == play
        if not started:
            done[name] = Job(name, "manual")
            return
    with host.exclusively(job.get("resource_group", "")):
        done[name] = _Script(host, pipeline, name, job, common, needed).run()


def _predefined(host: GitLab, source: str, number: int) -> dict[str, str]:
    forge = host.forge
    known = {
        "CI": "true",
        "GITLAB_CI": "true",
        "CI_PIPELINE_SOURCE": source,
        "CI_DEFAULT_BRANCH": "main",
        "CI_PROJECT_PATH": REPOSITORY,
        "CI_PROJECT_ID": "12345678",
        "CI_SERVER_HOST": SERVER,
        "CI_API_V4_URL": f"http://127.0.0.1:{host.services.port}/api/v4",
        "CI_PIPELINE_ID": str(host.runs),
    }
    if source != "merge_request_event":
        return known | {"CI_COMMIT_BRANCH": "main", "CI_COMMIT_SHA": forge.main}
    pull = forge.pull(number)
    approved = [
        review
        for review in pull["reviews"]
        if review["commit"]["oid"] == pull["headRefOid"] and review["author"] != pull["author"]
    ]
    labels = ",".join(label["name"] for label in pull["labels"])
    known |= {"CI_COMMIT_SHA": pull["headRefOid"], "CI_MERGE_REQUEST_IID": str(number)}
    known |= {"CI_MERGE_REQUEST_DIFF_BASE_SHA": git(forge.bare, "merge-base", "main", pull["headRefOid"])}
    known |= {"CI_MERGE_REQUEST_LABELS": labels} if labels else {}
    return known | ({"CI_MERGE_REQUEST_APPROVED": "true"} if approved else {})


def _document(forge: Forge, commit: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(git_file(forge, commit, ".gitlab-ci.yml"))
    for include in document.get("include", []):
        other = yaml.safe_load(git_file(forge, commit, include["local"]))
        assert not other.keys() & document.keys(), "a job is defined twice"
        document |= other
    return document


def _changed(forge: Forge, before: str, after: str) -> list[str]:
    if not git(forge.bare, "rev-list", "--max-count=1", "--skip=1", after):  # the first commit
        return git(forge.bare, "ls-tree", "-r", "--name-only", after).splitlines()
    return git(forge.bare, "diff", "--name-only", before, after).splitlines()


class _Script:
    """One job in a folder of its own."""

    def __init__(
        self,
        host: GitLab,
        pipeline: Pipeline,
        name: str,
        job: dict[str, Any],
        common: dict[str, str],
        needed: list[str],
    ) -> None:
        self.host, self.pipeline, self.name, self.job, self.needed = host, pipeline, name, job, needed
        self.folder = host.folder / f"pipeline-{pipeline.number}" / name
        self.workspace, self.home, self.tools = (self.folder / each for each in ("work", "home", "tools"))
        for each in (self.home, self.tools):
            each.mkdir(parents=True)
        environment = job.get("environment", {})
        self.environment, self.tier = environment.get("name", ""), environment.get("deployment_tier", "")
        self.variables = self._variables(common)

    def _variables(self, common: Mapping[str, str]) -> dict[str, str]:
        """All variables by GitLab's precedence, the strongest last, with references expanded."""
        project = (
            {}
            if self.pipeline.from_fork
            else {
                name: variable.value
                for name, found in self.host.variables.items()
                for variable in sorted(found, key=lambda each: each.scope)
                if variable.scope in ("", self.environment)
                and (self.pipeline.protected or not variable.protected)
            }
        )
        of_job = {str(key): str(value) for key, value in self.job.get("variables", {}).items()}
        known = {**common, **of_job, **project, **self.pipeline.variables}
        known |= {"CI_PROJECT_DIR": str(self.workspace), "CI_JOB_ID": f"{self.pipeline.number}00"}
        for _ in range(3):
            known = {name: rules.expanded(value, known) for name, value in known.items()}
        for name, asked in self.job.get("id_tokens", {}).items():
            known[name] = token(self._claims() | {"aud": rules.expanded(asked["aud"], known)})
        return known

    def _claims(self) -> dict[str, str]:
        claims = Claims(
            "gitlab",
            ref=self.pipeline.variables.get("CI_COMMIT_BRANCH", ""),
            environment=self.environment,
            tier=self.tier,
            protected=self.pipeline.protected,
        )
        return claims.claims(self.host.services.spec)

    def run(self) -> Job:
        """Run `before_script` and `script` in one shell, then keep the artifacts."""
        self._check_out()
        script = self.folder / "script.sh"
        lines = [*self.job.get("before_script", []), *self.job["script"]]
        script.write_text("\n".join(lines) + "\n")
        self.pipeline.script(self.name, "\n".join(lines))
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=self.workspace,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        job = Job(self.name, "failure" if done.returncode else "success", log=done.stdout)
        self._keep(job)
        return job

    def _environment(self) -> dict[str, str]:
        services = self.host.services
        store = services.clouds.store.environment(services.clouds.store.port)
        # The keys of the store come from STS alone. Arrow's client asks the address of AWS, so it gets its
        # keys by the same exchange from a command.
        exchange = f"{sys.executable} {Path(__file__).with_name('exchange_token.py')}"
        (self.home / "aws").write_text(f"[default]\ncredential_process = {exchange}\n")
        credentials = {name for name in store if name.startswith("AWS_") and "METADATA" not in name}
        tokens = self.host.tokens
        other = tokens.environment(self.home, services.clouds.endpoint) if tokens else {}
        return {
            **{name: os.environ[name] for name in KEPT if name in os.environ},
            **{name: value for name, value in store.items() if name not in credentials},
            "HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
            "PATH": f"{self.tools}:/usr/local/bin:/usr/bin:/bin",
            "NO_COLOR": "1",
            "AWS_ENDPOINT_URL_STS": f"http://127.0.0.1:{services.port}",
            "AWS_ENDPOINT_URL_S3": services.clouds.endpoint,
            "TRAINFLEET_S3_ENDPOINT": services.clouds.endpoint,
            "AWS_CONFIG_FILE": str(self.home / "aws"),
            "AWS_MAX_ATTEMPTS": "1",
            "HTTPS_PROXY": NOWHERE,
            "NO_PROXY": NO_PROXY,
            **other,
            **self.host.environment,
            **self.variables,
        }

    def _check_out(self) -> None:
        self.workspace.mkdir()
        if self.variables.get("GIT_STRATEGY") != "none":
            url = f"file://{self.host.forge.bare}"
            subprocess.run(["git", "clone", "--quiet", url, self.workspace], check=True, capture_output=True)
            git(self.workspace, "checkout", "--quiet", "--detach", self.pipeline.variables["CI_COMMIT_SHA"])
            git(self.workspace, "remote", "set-url", "--push", "origin", "https://token-was-not-kept.invalid")
            write_environment(self.workspace, self.host.python)
            if self.job.get("cache") != []:
                (self.workspace / ".cache").mkdir()
                (self.workspace / ".cache" / "trainfleet").symlink_to(cache_folder())
        image, engine = str(self.job["image"]), self.host.services.clouds.engine
        if image.startswith("pulumi/pulumi:"):
            assert image == f"pulumi/pulumi:{engine.version}", f"{self.name}: {image}, not {engine.version}"
            self.host.services.clouds.write_pulumi(self.tools)
            write_az(self.tools)
        # A push with the token of the project reaches the repository; one without it nothing.
        for value in (each.value for each in self.host.variables.get("UPDATE_TOKEN", [])):
            url = f"https://update:{value}@{SERVER}/{REPOSITORY}.git"
            key = f"url.file://{self.host.forge.bare}.insteadOf"
            subprocess.run(["git", "config", "--file", self.home / ".gitconfig", key, url], check=True)
        for each in self.needed:
            if each in self.pipeline.artifacts:
                shutil.copytree(self.pipeline.artifacts[each], self.workspace, dirs_exist_ok=True)

    def _keep(self, job: Job) -> None:
        declared = self.job.get("artifacts", {})
        if job.result != "success" and declared.get("when") != "always":
            return
        target = self.host.folder / f"pipeline-{self.pipeline.number}" / "artifacts" / self.name
        for file in (self.workspace / path for path in declared.get("paths", [])):
            if file.is_file():  # GitLab warns about a file that is missing
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
                self.pipeline.artifacts[self.name] = target
        for kind, path in declared.get("reports", {}).items():
            file = self.workspace / path
            if kind != "junit":  # GitLab prefers variables of a pipeline to those of a dotenv report
                raise rules.UnknownFormError(f"{self.name}: a report of the kind {kind}")
            ElementTree.parse(file)
