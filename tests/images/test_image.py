"""`trainfleet image` without a registry: tags, targets of platforms, commands of each tool, logins, and mistakes.

Programs that are not installed here are replaced by stand-ins that record how they are called.
tests/cluster/test_image_push.py runs the whole path with buildah, a registry and a kubelet.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.saved_platforms import saved
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.images.build import Content, content_of
from trainfleet.images.destinations import target_for
from trainfleet.images.dockerfile import TARGETS, Source, closure, read_stages
from trainfleet.images.login import Access, helper_for, session
from trainfleet.images.requirements import check_requirements
from trainfleet.images.tools import TOOLS
from trainfleet.infra.outputs.contract import read_outputs

HASH = "--hash=sha256:" + "0" * 64
STAND_IN = """\
#!{python}
import json, os, sys, time
row = {{"argv": sys.argv[1:], "stdin": "" if sys.stdin.isatty() else sys.stdin.read()}}
row["environment"] = {{name: value for name, value in os.environ.items() if name in ("DOCKER_CONFIG", "DOCKER_HOST")}}
with open({log!r}, "a") as log:
    log.write(json.dumps(["{name}", row]) + "\\n")
{body}
"""
SLOW = """
import signal
if sys.argv[1] != "build":
    sys.exit(1)
def clean(*_):
    open({cleaned!r}, "w").close()
    sys.exit(1)
signal.signal(signal.SIGTERM, clean)
with open({ready!r}, "w") as file:
    file.write(str(os.getpid()))
time.sleep(60)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Create programs that record their calls, first on PATH; returns the list of calls at the end."""
    folder, log = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def create(name: str = "", body: str = "") -> list[Any]:
        if name:
            text = STAND_IN.format(python=sys.executable, log=str(log), name=name, body=body)
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    return create


@pytest.fixture
def outputs_of(tmp_path: Path) -> Callable[[str], str]:
    """The file with the outputs of a saved stack."""

    def write(stack: str) -> str:
        file = tmp_path / f"{stack}.json"
        file.write_text(json.dumps({"platform": saved(stack)["platform"]}))
        return str(file)

    return write


def image(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("trainfleet")), "image", *arguments]
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "200"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.fixture
def copied(tmp_path: Path, root: Path) -> Source:
    """A copy of what images are built from."""
    folder = tmp_path / "copy"
    for name in ("images", "recipes", "policies"):
        shutil.copytree(root / name, folder / name)
    for name in ("infra", "stacks", "training", "trainfleet"):
        (folder / name).mkdir()
    (folder / "trainfleet" / "local_cluster").mkdir()
    for name in ("trainfleet/local_cluster/cuda_stubs.py", "trainfleet/__init__.py", "trainfleet/errors.py"):
        shutil.copy(root / name, folder / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, folder / name)
    return Source(folder)


def tags(source: Source, **build_args: str) -> dict[str, str]:
    return {target: Content(source, None, build_args).image(target).tag for target in TARGETS}


def test_a_tag_changes_with_all_that_its_target_is_built_from(copied: Source) -> None:
    before = tags(copied)
    assert [tag.rpartition("-")[0] for tag in before.values()] == [*TARGETS]
    (copied.folder / "training" / "added.py").write_text("x = 1\n")
    after = tags(copied)
    assert not set(before.values()) & set(after.values())
    (copied.folder / "training" / "added.py").chmod(0o755)
    assert not set(after.values()) & set(tags(copied).values())
    (copied.folder / "training" / "added.py").unlink()
    assert tags(copied) == before
    # Ignored files, and those that no stage copies, do not change it.
    (copied.folder / "training" / "__pycache__").mkdir()
    (copied.folder / "training" / "__pycache__" / "a.pyc").write_text("")
    (copied.folder / "tests").mkdir()
    (copied.folder / "tests" / "a.py").write_text("")
    assert tags(copied) == before


def test_a_change_of_one_target_leaves_the_tags_of_others(copied: Source) -> None:
    before = tags(copied)
    text = copied.dockerfile.read_text()
    copied.dockerfile.write_text(text.replace("ARG EFA_INSTALLER=1.51.0", "ARG EFA_INSTALLER=1.52.0"))
    after = tags(copied)
    assert {target for target in TARGETS if before[target] != after[target]} == {"efa"}
    copied.dockerfile.write_text(text.replace("# The training image.", "# This is the training image."))
    assert tags(copied) == before


def test_build_arguments_and_requirements_are_part_of_the_tag(copied: Source, tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"einops==0.8.1 {HASH}\n")
    plain = Content(copied).image("cpu").tag
    with_lock = Content(copied, lock).image("cpu").tag
    lock.write_text(f"einops==0.8.2 {HASH}\n")
    with_other_lock = Content(copied, lock).image("cpu").tag
    with_argument = Content(copied, None, {"EFA_INSTALLER": "1.52.0"}).image("cpu").tag
    assert len({plain, with_lock, with_other_lock, with_argument}) == 4


def test_a_link_to_requirements_is_followed(copied: Source, tmp_path: Path) -> None:
    """Its folder may have another file with the name of the link, or none."""
    lock, link = tmp_path / "locks" / "pinned.txt", tmp_path / "requirements.lock"
    lock.parent.mkdir()
    lock.write_text(f"einops==0.8.1 {HASH}\n")
    link.symlink_to(lock)
    content = Content(copied, link)
    build = content.build(content.image("cpu"), [])
    assert build.contexts["requirements"] / build.build_args["REQUIREMENTS"] == lock


def test_the_projects_dockerfile_is_understood(root: Path) -> None:
    """Every COPY of the closure exists, and a target does not depend on another fabric's stage."""
    _, stages = read_stages((root / "images" / "Dockerfile").read_text(), "cpu")
    names = closure(stages, "efa")
    assert {"system", "installer", "cuda-packages", "project", "runtime", "cuda", "efa"} == {*names}
    assert closure(stages, "with-requirements")[-2:] == ["cpu", "with-requirements"]
    for stage in stages.values():
        assert all((root / path).exists() for path in stage.copied() if path != "${REQUIREMENTS}")


def test_no_step_mounts_a_stage(root: Path) -> None:
    """buildah and podman would repeat such a step's cached result when only the stage's content has changed."""
    _, stages = read_stages((root / "images" / "Dockerfile").read_text(), "cpu")
    steps = [each for stage in stages.values() for each in stage.instructions if each.startswith("RUN ")]
    assert steps
    assert not [each for each in steps if "--mount" in each]
    for target in ("cpu", "cuda"):
        assert "COPY --from=project /build/wheel /tmp/wheel" in stages[target].instructions


@pytest.mark.parametrize(
    ("stack", "target"),
    [("aws-prod", "efa"), ("azure-prod", "infiniband"), ("gcp-prod", "cuda"), ("aws-dev", "cuda")],
)
def test_the_target_follows_from_the_platforms_pools(stack: str, target: str) -> None:
    assert target_for(read_outputs(saved(stack)["platform"])) == target


def test_a_platform_without_gpus_gets_cpu_and_two_fabrics_are_an_error() -> None:
    outputs = read_outputs(saved("aws-prod")["platform"])
    assert target_for(outputs.model_copy(update={"pools": []})) == "cpu"
    mixed = [outputs.pools[0], *read_outputs(saved("azure-prod")["platform"]).pools[:1]]
    with pytest.raises(InputError, match="no target serves all pools"):
        target_for(outputs.model_copy(update={"pools": mixed}))


@pytest.mark.parametrize("tool", TOOLS)
def test_print_shows_the_builds_and_pushes_of_several_platforms(
    tool: str, stand_in: Callable[..., list[Any]], outputs_of: Callable[[str], str]
) -> None:
    stand_in(tool)
    stacks = [f"--stack={outputs_of(stack)}" for stack in ("aws-prod", "gcp-prod", "azure-prod")]
    built = json.loads(image("build", *stacks, "--with", tool, "--print", "--json").stdout)["commands"]
    assert [line.partition("--target ")[2].split()[0] for line in built] == ["efa", "cuda", "infiniband"]
    assert all(line.startswith(tool) for line in built)
    pushed = json.loads(image("push", *stacks, "--with", tool, "--print", "--json").stdout)["commands"]
    logins = [line for line in pushed if " | " in line]
    assert [line.split()[0] for line in logins] == ["aws", "gcloud", "az"]
    assert all("--password-stdin" in line for line in logins)
    pushes = [line for line in pushed if f"{tool} push" in line]
    assert len(pushes) == 3
    for line, registry in zip(pushes, ("dkr.ecr.us-east-2", "docker.pkg.dev", "azurecr.io"), strict=True):
        assert registry in line
    assert not stand_in()  # nothing was called


def test_a_login_is_read_from_stdin_and_removed(stand_in: Callable[..., list[Any]]) -> None:
    stand_in("aws", "print('hunter2')")
    stand_in("docker", "if 'inspect' in sys.argv: print('unix:///run/elsewhere.sock')")
    host = "111122223333.dkr.ecr.us-east-2.amazonaws.com"
    with session(TOOLS["docker"], host, Access()) as (here, credentials):
        assert credentials is not None
        assert credentials.basic == "Basic QVdTOmh1bnRlcjI="
        assert here.folder is not None
        assert here.folder.stat().st_mode & 0o077 == 0
    assert not here.folder.exists()
    calls = stand_in()
    (login,) = [row for name, row in calls if name == "docker" and row["argv"][0] == "login"]
    assert login["argv"] == ["login", "--username", "AWS", "--password-stdin", host]
    assert login["stdin"] == "hunter2"
    # The folder of the login has no contexts: the daemon of the user's context is named.
    assert login["environment"] == {
        "DOCKER_CONFIG": str(here.folder),
        "DOCKER_HOST": "unix:///run/elsewhere.sock",
    }
    assert not [row for _, row in calls if "hunter2" in " ".join(row["argv"])]
    (helper,) = [row for name, row in calls if name == "aws"]
    assert helper["argv"] == ["ecr", "get-login-password", "--region", "us-east-2"]


def test_a_failed_login_gives_the_programs_reason(stand_in: Callable[..., list[Any]]) -> None:
    stand_in("gcloud", "sys.exit('ERROR: You do not currently have an active account selected.')")
    helper = helper_for("us-central1-docker.pkg.dev")
    assert helper is not None
    with pytest.raises(TrainfleetError, match="active account"):
        helper.credentials()


@pytest.mark.parametrize(
    "host", ["registry.example", "evil-azurecr.io.example", "x.dkr.ecr.us-east-1.amazonaws.com"]
)
def test_only_a_clouds_own_registry_gets_its_password(host: str) -> None:
    assert helper_for(host) is None


def test_requirements_must_be_locked(tmp_path: Path) -> None:
    lock, other, mine = (tmp_path / f"{name}.lock" for name in ("image", "other", "mine"))
    other.write_text(f"boto3==1.44.8 \\\n    {HASH}\n")
    lock.write_text(f"torch==2.9.0 \\\n    {HASH}\n")
    mine.write_text(
        f"einops==0.8.1 \\\n    {HASH}\nnumpy>=2\nrich==14.0\nTorch==2.8.0 {HASH}\n-e .\nboto3==1.0 {HASH}\n"
    )
    with pytest.raises(InputError) as caught:
        check_requirements(mine, [lock, other])
    text = str(caught.value)
    assert "mine.lock:3" in text
    assert "mine.lock:4" in text
    assert "`rich==14.0` has no hash" in text
    assert "the image has torch==2.9.0" in text
    assert "the image has boto3==1.44.8" in text
    assert "--constraints images/other.lock" in text
    assert "mine.lock:6" in text
    assert "mine.lock:1" not in text


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("build", "--target", "gpu"), "--target gpu"),
        (("build",), "no target is named"),
        (("build", "--target", "cpu", "--with", "kaniko"), "--with kaniko"),
        (("build", "--target", "cpu", "--build-arg", "PROXY=x"), "images/Dockerfile does not declare it"),
        (("build", "--target", "cpu", "--", "--tag=mine"), "is set by this command"),
        (("build", "--target", "cpu", "--", "--env=A=b"), "changes the image, but not its tag"),
        (("build", "--target", "cpu", "--", "--build-arg-file", "x"), "changes the image, but not its tag"),
        (("build", "--target", "cpu", "--", "--build-arg", "A=B"), "before --"),
        (("build", "--target", "cpu", "--requirements", "/nonexistent"), "cannot read the requirements"),
        (("build", "--target", "cpu", "--checkout", "/"), "run this in a checkout"),
        (("push", "--target", "cpu"), "no registry is named"),
        (("push", "--target", "cpu", "--registry", "https://registry.example/a"), "without https://"),
        (("list",), "no registry is named"),
        (("list", "--registry", "registry.example/a", "--ca", "/nonexistent"), "--ca /nonexistent"),
        (("list", "--registry", "registry.example/a", "--ca", "/etc/passwd"), "no certificate in PEM format"),
    ],
)
def test_a_mistake_is_named(
    arguments: tuple[str, ...], expected: str, stand_in: Callable[..., list[Any]]
) -> None:
    stand_in("buildah")
    done = image(*arguments)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert not stand_in()


def test_without_a_tool_the_three_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = image("build", "--target", "cpu")
    assert done.returncode == 3
    assert all(tool in done.stderr for tool in TOOLS)
    # What would be called can be printed all the same.
    assert "buildah build" in image("build", "--target", "cpu", "--print").stdout


def test_a_failed_build_shows_the_tools_messages(stand_in: Callable[..., list[Any]]) -> None:
    stand_in("buildah", "sys.exit('no space left on device' if sys.argv[1] == 'build' else 1)")
    done = image("build", "--target", "cpu", "--with", "buildah")
    assert done.returncode == 1
    assert "no space left on device" in done.stderr
    assert "buildah failed" in done.stderr
    assert not done.stdout


def test_ctrl_c_ends_the_tool(stand_in: Callable[..., list[Any]], tmp_path: Path) -> None:
    ready, cleaned = tmp_path / "ready", tmp_path / "cleaned"
    stand_in("buildah", SLOW.format(ready=str(ready), cleaned=str(cleaned)))
    command = [str(Path(sys.executable).with_name("trainfleet")), "image", "build", "--target", "cpu"]
    child = subprocess.Popen([*command, "--with", "buildah"], stderr=subprocess.PIPE, text=True)
    while not (ready.exists() and ready.read_text()):
        assert child.poll() is None
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "interrupted" in err
    assert not Path(f"/proc/{ready.read_text()}").exists()
    assert cleaned.exists()  # it had time to remove its working container


def test_a_checkout_is_found_from_below(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root / "training")
    assert content_of(None, None, []).source.folder == root
