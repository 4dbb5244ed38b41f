"""Packages that are not clouds: docker and azuread, which have models of their own, and one that has none.

Each program uses the SDK as it is published, and is rehearsed by the command itself, on the real engine.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.rehearsal.test_any_program import Done, rehearse
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.simulation.azure.ids import TENANT

GUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"

DOCKER = """import pulumi
import pulumi_docker as docker

pulled = docker.RemoteImage("pulled", name="nginx:1.27")
built = docker.Image("built", image_name="example.com/team/app:1", build={"context": "./app"})
web = docker.Container("web", name="web", image=pulled.image_id, ports=[{"internal": 80, "external": 8080}])
pulumi.export("pulled", pulled.repo_digest)
pulumi.export("built", built.repo_digest)
pulumi.export("id", pulled.image_id)
pulumi.export("image", web.image)
"""

AZUREAD = """import pulumi
import pulumi_azuread as azuread

caller = azuread.get_client_config()
app = azuread.Application("app", display_name="app", owners=[caller.object_id])
principal = azuread.ServicePrincipal("app", client_id=app.client_id)
password = azuread.ApplicationPassword("app", application_id=app.id)
group = azuread.Group("team", display_name="team", security_enabled=True, owners=[caller.object_id])
azuread.GroupMember("app", group_object_id=group.object_id, member_object_id=principal.object_id)
for name, value in {
    "caller": caller.object_id, "tenant": caller.tenant_id, "app": app.id, "client": app.client_id,
    "object": app.object_id, "principal": principal.object_id, "principal_client": principal.client_id,
    "key": password.key_id, "group": group.object_id,
}.items():
    pulumi.export(name, value)
"""

GITHUB = """import pulumi
import pulumi_github as github

repository = github.Repository("code", name="code", visibility="private", topics=["training"])
github.RepositoryFile("readme", repository=repository.name, file="README.md", content="# Code")
main = github.BranchDefault("main", repository=repository.name, branch="main")
pulumi.export("name", main.repository)
pulumi.export("number", repository.repo_id)
pulumi.export("url", repository.html_url)
pulumi.export("topics", repository.topics)
"""


def rehearsed(folder: Path, program: str, *flags: str) -> Done:
    project = folder / "project"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: project\nruntime: python\n")
    (project / "__main__.py").write_text(program)
    return rehearse(project, folder, *flags, foreign_sdks=True)


@pytest.mark.deep
def test_docker_images_have_digests_and_are_neither_built_nor_pulled(engine: Engine, tmp_path: Path) -> None:
    done = rehearsed(tmp_path, DOCKER)
    assert done.report["ok"], done.problems
    out = done.outputs
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", out["id"])
    assert out["pulled"] == f"nginx@{out['id']}"
    assert re.fullmatch(r"example\.com/team/app@sha256:[0-9a-f]{64}", out["built"])
    assert out["image"] == out["id"]  # of the container
    assert sorted(done.report["warnings"]) == [  # the engine registers them at the same time
        f"docker:index/{name}: the image is neither built nor pulled"
        for name in ("image:Image built", "remoteImage:RemoteImage pulled")
    ]
    assert done.step("no-op")["changes"] == {}


@pytest.mark.deep
def test_directory_objects_have_guids_and_refer_to_each_other(engine: Engine, tmp_path: Path) -> None:
    done = rehearsed(tmp_path, AZUREAD)
    assert done.report["ok"], done.problems
    out = done.outputs
    assert out.pop("tenant") == TENANT
    assert out.pop("app") == f"/applications/{out['object']}"
    assert out.pop("principal_client") == out["client"]
    assert all(re.fullmatch(GUID, each) for each in out.values()), out
    assert len(set(out.values())) == len(out) == 6
    assert done.step("no-op")["changes"] == {}


def test_a_package_without_a_model_is_simulated_from_its_sdk(engine: Engine, tmp_path: Path) -> None:
    done = rehearsed(tmp_path, GITHUB)
    assert done.report["ok"], done.problems
    out = done.outputs
    assert (out["name"], out["topics"]) == ("code", ["training"])  # what the program sent
    assert isinstance(out["number"], int)
    assert out["url"].startswith("https://")
    assert done.step("apply")["resources"] == 3
    assert done.step("no-op")["changes"] == {}


def test_the_sdk_of_a_package_without_a_model_rejects_inputs_by_name(engine: Engine, tmp_path: Path) -> None:
    wrong = GITHUB.replace('topics=["training"]', 'pages={"build_typ": "workflow"}, topics="training"')
    done = rehearsed(tmp_path, wrong, "--until", "preview")
    assert {problem["where"].rsplit(" ", 1)[-1] for problem in done.problems} == {"pages.build_typ", "topics"}
    assert any("did you mean `buildType`?" in problem["fix"] for problem in done.problems)
