"""The generated jobs of Google Cloud and Azure: they log in with the token of the job, which each cloud exchanges where
the bootstrap of the same repository trusts it. The state is in the S3 gateway, which gives keys for that login only.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from tests.ci.clouds import Clouds
from tests.ci.cluster import cluster
from tests.ci.conftest import STACKS, repository
from tests.ci.forge import REPOSITORY, Forge
from tests.ci.gitlab import GitLab, Variable, run_pipeline
from tests.ci.gitlab_services import Services
from tests.ci.gitlab_services import serve as serve_gitlab
from tests.ci.runner import Host, Run, run_workflow
from tests.ci.test_cycle import Stopped, logs, results
from tests.ci.test_gitlab_cycle import PLAN_AND_APPLY
from tests.ci.test_gitlab_cycle import logs as logs_of
from tests.ci.test_gitlab_cycle import results as results_of
from tests.ci.token_services import IDENTITIES, TokenServices, serve
from trainfleet.infra.azure.cluster import kubeconfig
from trainfleet.infra.bootstrap.schema import BOOTSTRAP_KEY, BootstrapSpec, parse_bootstrap
from trainfleet.infra.outputs.contract import partly_known

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]
CLOUDS = ("gcp", "azure")
OPTIONS = {
    "gcp": ("--account", "acme-ml-123456"),
    "azure": ("--account", "11111111-2222-3333-4444-555555555555", "--public-range", "198.51.100.16/28"),
}
RESOURCE = {
    "gcp": """gcp.pubsub.Topic(
    "acme-audit",
    name=f"{STACK}-audit",
    labels={"trainfleet-platform": "acme", "trainfleet-environment": STACK, "trainfleet-owner": "ml"},
)""",
    "azure": """azure.resources.ResourceGroup(
    "acme-audit",
    resource_group_name=f"{STACK}-audit",
    location="eastus",
    tags={"trainfleet:platform": "acme", "trainfleet:environment": STACK, "trainfleet:owner": "ml"},
)""",
}
PROGRAM = '''"""A small program in place of the platform."""

import json

import pulumi
import pulumi_azure_native as azure
import pulumi_gcp as gcp

STACK = pulumi.get_stack()
RESOURCE
pulumi.export("platform", json.loads(r"""CONTRACT"""))
'''
Untrust = Callable[[TokenServices], None]


def small_repository(found: Clouds, folder: Path, cloud: str, ci: str) -> tuple[Path, BootstrapSpec]:
    """A repository with one resource a stack; and its bootstrap, which trusts the project of the code host."""
    clone = repository(found, folder, "--cloud", cloud, "--ci", ci, *OPTIONS[cloud])
    contract = partly_known("acme", cloud, bucket_url="s3://runs/platform", namespace="training")
    program = PROGRAM.replace("RESOURCE", RESOURCE[cloud]).replace("CONTRACT", contract.model_dump_json())
    (clone / "stacks" / "__main__.py").write_text(program)
    return clone, own_bootstrap(clone)


def own_bootstrap(clone: Path) -> BootstrapSpec:
    """Let the repository's bootstrap trust the project of the code host; return it."""
    settings = clone / "bootstrap" / "Pulumi.bootstrap.yaml"
    text = settings.read_text()
    for written in ("your-organization/acme", "your-group/acme"):
        text = text.replace(written, REPOSITORY)
    settings.write_text(text)
    return parse_bootstrap(yaml.safe_load(text)["config"][BOOTSTRAP_KEY])


@contextmanager
def on_github(found: Clouds, folder: Path, clone: Path, spec: BootstrapSpec) -> Iterator[Host]:
    """Push the repository to the code host, and serve the token services of its cloud until the end of the block."""
    identities, tokens = IDENTITIES[spec.cloud], TokenServices(spec, folder / "tokens")
    variables = {stack: {"APPLY_IDENTITY": identities["apply"]} for stack in STACKS}
    variables[""] = {
        "STATE_URL": found.state_url_of_bootstrap, "PLAN_IDENTITY": identities["plan"], "SMOKE_TRAINING": "no",
        **tokens.variables("github"),
    }  # fmt: skip
    with serve(tokens):
        yield Host(Forge(folder, clone), found, folder, variables, tokens=tokens)


@pytest.fixture(params=CLOUDS)
def project(simulated: Clouds, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[GitLab]:
    """A project on GitLab."""
    clone, spec = small_repository(simulated, tmp_path, request.param, "gitlab")
    forge, identities = Forge(tmp_path, clone), IDENTITIES[request.param]
    tokens = TokenServices(spec, tmp_path / "tokens")
    variables = {name: [Variable(value)] for name, value in tokens.variables("gitlab").items()} | {
        "STATE_URL": [Variable(simulated.state_url_of_bootstrap)],
        "PLAN_IDENTITY": [Variable(identities["plan"])],
        "APPLY_IDENTITY": [Variable(identities["apply"], stack) for stack in STACKS],
        "SMOKE_TRAINING": [Variable("no")],
    }
    services = Services(simulated, spec, forge.data, "issues-token")
    with ExitStack() as running:
        running.enter_context(serve_gitlab(services))
        running.enter_context(serve(tokens))
        yield GitLab(forge, services, tmp_path, variables, tokens=tokens)


@pytest.fixture(params=CLOUDS)
def host(simulated: Clouds, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    """A repository on GitHub."""
    clone, spec = small_repository(simulated, tmp_path, request.param, "github")
    with on_github(simulated, tmp_path, clone, spec) as made:
        yield made


@pytest.fixture
def azure_host(host: Host) -> Host:
    """A repository of Azure on GitHub, whose tokens are valid for half a minute."""
    assert host.tokens is not None
    host.tokens.lifetime_s = 30.0
    return host


def names(found: Clouds) -> set[str]:
    """The stacks whose resource exists."""
    kinds = ("gcp:pubsub/topic:Topic", "azure-native:resources:ResourceGroup")
    return {
        each.urn.split("::")[0].rpartition(":")[2] for each in found.cloud.everything() if each.token in kinds
    }


def test_gitlab_jobs_plan_and_apply_with_the_identity_of_their_token(project: GitLab) -> None:
    pipeline = run_pipeline(project, "web")
    assert [results_of(pipeline)[name] for name in PLAN_AND_APPLY] == ["success"] * len(PLAN_AND_APPLY), (
        logs_of(pipeline)
    )
    assert names(project.services.clouds) == {"dev", "prod"}
    assert project.tokens is not None
    assert {identity for identity, _ in project.tokens.assumed} == {"plan", "apply"}
    drift = run_pipeline(project, "schedule", TASK="drift")
    assert results_of(drift)["drift-dev"] == "success", logs_of(drift)


def test_a_gitlab_job_that_the_bootstrap_does_not_trust_gets_nothing(project: GitLab) -> None:
    assert project.tokens is not None
    spec = project.tokens.spec
    assert spec.gitlab is not None
    other = spec.gitlab.model_copy(update={"branch": "release"})
    project.tokens.spec = spec.model_copy(update={"gitlab": other})
    # On Google Cloud, any branch may plan; on Azure, the protected one alone.
    pipeline = run_pipeline(project, "web")
    found = results_of(pipeline)
    assert found["plan-dev"] == ("success" if spec.cloud == "gcp" else "failure"), logs_of(pipeline)
    assert found["apply-dev"] == ("failure" if spec.cloud == "gcp" else "skipped"), logs_of(pipeline)
    assert ("serviceAccounts.getAccessToken" if spec.cloud == "gcp" else "AADSTS700213") in logs_of(pipeline)
    assert {identity for identity, _ in project.tokens.assumed} <= {"plan"}
    assert names(project.services.clouds) == set()


def test_github_jobs_plan_and_apply_with_the_identity_of_their_token(host: Host) -> None:
    run = run_workflow(host, "apply", "push")
    assert set(results(run).values()) == {"success"}, logs(run)
    assert names(host.clouds) == {"dev", "prod"}
    assert host.tokens is not None
    assert {identity for identity, _ in host.tokens.assumed} == {"plan", "apply"}


def test_a_github_job_of_another_environment_does_not_apply(host: Host) -> None:
    assert host.tokens is not None
    spec = host.tokens.spec
    assert spec.github is not None
    other = spec.github.model_copy(update={"environments": ["lab"]})
    host.tokens.spec = spec.model_copy(update={"github": other})
    run = run_workflow(host, "apply", "push")
    found = results(run)
    assert (found["dev / plan"], found["dev / apply"]) == ("success", "failure"), logs(run)
    refusal = "rejected by the attribute condition" if spec.cloud == "gcp" else "AADSTS700213"
    assert refusal in run.jobs["dev / apply"].log
    assert {identity for identity, _ in host.tokens.assumed} == {"plan"}
    assert names(host.clouds) == set()


def renew_every(host: Host, seconds: int) -> None:
    """Change how often a job writes a new token into its file."""
    file = host.forge.clone / ".github" / "actions" / "connect" / "action.yml"
    assert "--every 120" in file.read_text()
    file.write_text(file.read_text().replace("--every 120", f"--every {seconds}"))
    host.forge.push_main("Change the login")


@pytest.mark.parametrize("host", ["azure"], indirect=True)
@pytest.mark.parametrize("every_s", [5, 3600])
def test_an_apply_on_azure_outlives_the_token_of_its_job(azure_host: Host, every_s: int) -> None:
    tokens = azure_host.tokens
    assert tokens is not None
    renew_every(azure_host, every_s)
    stopped = Stopped(azure_host.clouds, "acme-audit", lost=False)
    found: list[Run] = []
    thread = threading.Thread(
        target=lambda: found.append(run_workflow(azure_host, "apply", "push")), daemon=True
    )
    thread.start()
    assert stopped.reached.wait(600)
    began, before = time.monotonic(), len(tokens.assumed)
    while time.monotonic() < began + tokens.lifetime_s + 5:  # the state is locked; nobody asks for anything
        stopped.released.wait(1)
    stopped.released.set()
    thread.join(600)
    (run,) = found
    outlived = every_s < tokens.lifetime_s
    assert results(run)["dev / apply"] == ("success" if outlived else "failure"), logs(run)
    assert ("AADSTS700024" in run.jobs["dev / apply"].log) != outlived, logs(run)
    assert (len(tokens.assumed) > before) == outlived  # the state was written with a new login


@pytest.mark.parametrize("host", ["azure"], indirect=True)
def test_the_smoke_training_on_azure_logs_in_to_the_cluster_as_the_environment(host: Host) -> None:
    assert host.tokens is not None
    with cluster("acme-dev") as platform:
        platform.api.tokens = host.tokens.issued
        login = kubeconfig("acme-dev", platform.api.address, "")
        program = host.forge.clone / "stacks" / "__main__.py"
        contract = partly_known(
            "acme",
            "azure",
            bucket_url="s3://runs/platform",
            **platform.contract | {"kubeconfig": json.dumps(login)},
        )
        before = program.read_text()
        program.write_text(re.sub(r'r""".*"""', lambda _: f'r"""{contract.model_dump_json()}"""', before))
        host.forge.push_main("Name the cluster")
        host.variables[""]["SMOKE_TRAINING"] = ""
        host.variables["prod"]["SMOKE_TRAINING"] = "no"
        run = run_workflow(host, "apply", "push")
        assert set(results(run).values()) == {"success"}, logs(run)
        assert len(platform.runs) == 1
