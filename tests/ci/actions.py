"""Replacements of the actions of the generated workflows: the same effect on this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bootstrap.tokens import Job as Claims
from tests.ci.clouds import NO_PROXY, NOWHERE, RefusedTokenError
from tests.ci.forge import REPOSITORY, Forge, git
from trainfleet.infra.bootstrap.aws.identities import APPLY_S, PLAN_S
from trainfleet.toolchain import cache_folder

if TYPE_CHECKING:
    from tests.ci.runner import _Steps

Given = dict[str, Any]


class ActionError(Exception):
    """Raised when an action fails."""


def resolve(forge: Forge, ref: str) -> str:
    """Return the commit of a ref."""
    return git(forge.bare, "rev-parse", ref)


def git_file(forge: Forge, commit: str, path: str) -> str:
    """Return a file of the repository at a commit."""
    return git(forge.bare, "show", f"{commit}:{path}")


def write_gh(folder: Path) -> None:
    """Write the `gh` of the runner's image."""
    script = folder / "gh"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("gh.py")}" "$@"\n')
    script.chmod(0o755)


def check_out(job: _Steps, given: Given) -> None:
    """Clone the repository; then put an environment there, as `make setup` would install one."""
    run = job.host_run
    url = f"file://{run.host.forge.bare}"
    subprocess.run(["git", "clone", "--quiet", url, job.workspace], check=True, capture_output=True)
    git(job.workspace, "fetch", "--quiet", "origin", "+refs/pull/*:refs/remotes/pull/*")
    git(job.workspace, "checkout", "--quiet", given.get("ref") or run.commit)
    if given.get("persist-credentials", True) is False:
        git(job.workspace, "remote", "set-url", "--push", "origin", "https://token-was-not-kept.invalid")
    elif job.granted.get("contents") != "write":
        raise ActionError("a token that cannot push was kept")
    write_environment(job.workspace, run.host.python)


def write_az(folder: Path) -> None:
    """Write the `az` of an image: it installs a kubelogin."""
    script = folder / "az"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("az.py")}" "$@"\n')
    script.chmod(0o755)


def write_environment(workspace: Path, python: str) -> None:
    """Put an environment into a checkout, as `make setup` would install one: that of an interpreter."""
    tools = workspace / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name, start in (("python", ""), ("trainfleet", "-m trainfleet")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{python}" {start} "$@"\n')
        (tools / name).chmod(0o755)
    # Newer than requirements.txt, so that make installs nothing.
    (tools.parent / ".setup-done").write_text("")


def install_pulumi(job: _Steps, given: Given) -> None:
    """Put Pulumi on the path, at the version of the engine."""
    clouds = job.host_run.host.clouds
    if given["pulumi-version"] != clouds.engine.version:
        raise ActionError(
            f"the workflow installs Pulumi {given['pulumi-version']}, the tests run {clouds.engine.version}"
        )
    clouds.write_pulumi(job.folder / "tools")


def log_in(job: _Steps, given: Given) -> None:
    """Exchange the job's OIDC token for credentials of a role."""
    if job.granted.get("id-token") != "write":
        raise ActionError("the job has no OIDC token (permissions: id-token)")
    subject = job.host_run.subject(str(job.environment))
    longest = APPLY_S if given["role-to-assume"] == job.values["vars"].get("APPLY_IDENTITY") else PLAN_S
    if not 900 <= int(given["role-duration-seconds"]) <= longest:
        raise ActionError("The requested DurationSeconds exceeds the MaxSessionDuration set for this role.")
    try:
        job.exported |= job.host_run.host.clouds.assume(given["role-to-assume"], subject)
    except RefusedTokenError as error:
        raise ActionError(str(error)) from error
    # Requests to the cloud's own API get no answer, at once.
    job.exported |= {"HTTPS_PROXY": NOWHERE, "NO_PROXY": NO_PROXY, "AWS_MAX_ATTEMPTS": "1"}
    if not given["aws-region"]:
        raise ActionError("aws-region is missing")


def _claims(job: _Steps) -> dict[str, str]:
    """The claims of the job's token, before somebody asks for an audience."""
    tokens = job.host_run.host.tokens
    assert tokens is not None
    run = job.host_run
    pull_request = run.event == "pull_request"
    ref = run.ref.removeprefix("refs/heads/")
    made = Claims("github", ref=ref, environment=str(job.environment), pull_request=pull_request)
    return made.claims(tokens.spec)


def export_token_request(job: _Steps) -> None:
    """Let the job request its token as GitHub does, and reach the token services of its cloud."""
    host = job.host_run.host
    assert host.tokens is not None
    bearer, url = json.dumps(_claims(job)), f"{host.tokens.address}/job-token?api-version=2.0"
    job.exported |= host.tokens.environment(job.folder / "home", host.clouds.endpoint)
    job.exported |= {"ACTIONS_ID_TOKEN_REQUEST_URL": url, "ACTIONS_ID_TOKEN_REQUEST_TOKEN": bearer}


def log_in_to_google(job: _Steps, given: Given) -> None:
    """Write the credentials that google-github-actions/auth writes; the clients of the job exchange them."""
    if job.granted.get("id-token") != "write":
        raise ActionError("the job has no OIDC token (permissions: id-token)")
    url, provider = job.exported["ACTIONS_ID_TOKEN_REQUEST_URL"], given["workload_identity_provider"]
    account = f"projects/-/serviceAccounts/{given['service_account']}:generateAccessToken"
    bearer = job.exported["ACTIONS_ID_TOKEN_REQUEST_TOKEN"]
    file = job.folder / "google.json"
    document = {
        "type": "external_account",
        "audience": f"//iam.googleapis.com/{provider}",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "https://sts.googleapis.com/v1/token",
        "service_account_impersonation_url": f"https://iamcredentials.googleapis.com/v1/{account}",
        "credential_source": {
            "url": f"{url}&audience=https://iam.googleapis.com/{provider}",
            "headers": {"Authorization": f"Bearer {bearer}"},
            "format": {"type": "json", "subject_token_field_name": "value"},
        },
    }
    file.write_text(json.dumps(document))
    job.exported["GOOGLE_APPLICATION_CREDENTIALS"] = str(file)


def upload(job: _Steps, given: Given) -> None:
    """Keep files of the workspace for later jobs."""
    target = job.host_run.host.folder / f"run-{job.host_run.number}" / "artifacts" / given["name"]
    target.mkdir(parents=True)
    patterns = given["path"].split()
    found = [file for pattern in patterns for file in job.workspace.glob(pattern)]
    if not found:
        raise ActionError(f"no file matches {patterns}")
    for file in found:
        shutil.copy(file, target)
    job.host_run.artifacts[given["name"]] = target


def download(job: _Steps, given: Given) -> None:
    """Fetch an artifact of the same run."""
    if given["name"] not in job.host_run.artifacts:
        raise ActionError(f"no artifact {given['name']}")
    folder = Path(given["path"]) if "path" in given else job.workspace
    shutil.copytree(job.host_run.artifacts[given["name"]], folder, dirs_exist_ok=True)


def upload_sarif(job: _Steps, given: Given) -> None:
    """Check a SARIF file and the permission to upload it."""
    if job.granted.get("security-events") != "write":
        raise ActionError("security-events: write is missing")
    document = json.loads((job.workspace / given["sarif_file"]).read_text())
    if document["version"] != "2.1.0" or REPOSITORY in str(document):
        raise ActionError("not SARIF 2.1.0")


def restore_cache(job: _Steps, given: Given) -> None:
    """Restore the engine: that of this machine."""
    if given["path"] != "~/.cache/trainfleet":
        raise ActionError(f"an unknown cache: {given['path']}")
    job.exported["XDG_CACHE_HOME"] = str(cache_folder().parent)


def nothing(_job: _Steps, _given: Given) -> None:
    """Python is on this machine already."""


ACTIONS: dict[str, Callable[[Any, Given], dict[str, str] | None]] = {
    "actions/checkout": check_out,
    "actions/setup-python": nothing,
    "actions/cache": restore_cache,
    "actions/upload-artifact": upload,
    "actions/download-artifact": download,
    "pulumi/actions": install_pulumi,
    "aws-actions/configure-aws-credentials": log_in,
    "google-github-actions/auth": log_in_to_google,
    "google-github-actions/setup-gcloud": nothing,
    "github/codeql-action/upload-sarif": upload_sarif,
}
