"""What earlier commits wrote, read by today's code: specs, outputs, recipes, a run, its checkpoint and states.

`python -m tools.release.earlier COMMIT` writes the files of a commit, by running that commit.
"""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainfleet.infra.outputs.contract import CONTRACT_VERSION, load_outputs
from trainfleet.infra.spec.load import load_stack
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.report.page import write_report
from trainfleet.training.runs.listing import list_storage
from trainfleet.training.runs.reader import read_rows, read_run

EARLIER = sorted((Path(__file__).parent / "earlier").iterdir())
COMMITS = pytest.mark.parametrize("earlier", EARLIER, ids=lambda path: path.name)
CLOUDS = ("aws", "gcp", "azure")
WRITTEN_AGAIN = ("$trainfleet:kubernetes:Certificates$",)
"""Components whose resources a later version has replaced: CHANGELOG.md says so."""
Trainfleet = Callable[..., "subprocess.CompletedProcess[str]"]


def made(earlier: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((earlier / "made.json").read_text())
    return record


@COMMITS
def test_every_spec_is_valid(earlier: Path) -> None:
    stacks = [each.name.removeprefix("Pulumi.").removesuffix(".yaml") for each in earlier.glob("stacks/*")]
    assert len(stacks) == 7
    for stack in stacks:
        assert load_stack(stack, earlier).cloud == stack.partition("-")[0]


@COMMITS
@pytest.mark.parametrize("cloud", CLOUDS)
def test_outputs_are_migrated_and_keep_their_values(earlier: Path, cloud: str) -> None:
    file = earlier / "contracts" / f"{cloud}-dev.json"
    written, read = json.loads(file.read_text()), load_outputs(file).model_dump()
    assert written["contract_version"] < CONTRACT_VERSION == read["contract_version"]
    for key in written.keys() - {"contract_version", "pools", "ray_certificates"}:
        assert read[key] == written[key], key
    for old, new in zip(written["pools"], read["pools"], strict=True):
        assert {key: new[key] for key in old} == old


@COMMITS
@pytest.mark.parametrize("cloud", ["gcp", pytest.param("aws", marks=pytest.mark.deep)])
def test_a_launch_on_its_platform_uses_what_that_platform_has(
    earlier: Path, cloud: str, trainfleet: Trainfleet, tmp_path: Path
) -> None:
    """The platform has no signer yet: pods sign their certificates with its key, as they did then."""
    file = earlier / "contracts" / f"{cloud}-dev.json"
    platform = json.loads(file.read_text())
    words = ("launch", "lm-tiny", "--on", "kuberay", "--stack", str(file), "--print")
    done = trainfleet(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    job = next(each for each in yaml.safe_load_all(done.stdout) if each["kind"] == "RayJob")
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    secrets = {each["secret"]["secretName"] for each in head["volumes"] if "secret" in each}
    assert platform["ray_certificates"]["ca_secret"] in secrets
    assert "sign" not in platform["ray_certificates"]
    assert job["metadata"]["namespace"] == platform["namespace"]
    assert head["serviceAccountName"] == platform["service_account"]
    storage = job["metadata"]["annotations"]["trainfleet.io/storage"]
    assert storage.startswith(platform["bucket_url"])


@COMMITS
def test_every_recipe_is_valid(earlier: Path) -> None:
    for file in sorted((earlier / "recipes").iterdir()):
        assert load_recipe(str(file)).name == file.stem


@COMMITS
def test_an_interrupted_run_is_listed_and_reported(earlier: Path, tmp_path: Path) -> None:
    shutil.copytree(earlier / "earlier", tmp_path / "runs" / "earlier")
    (run,) = list_storage(str(tmp_path / "runs"), wait=lambda _: None)
    last = made(earlier)["killed_at"] - 1
    assert (run.name, run.state, run.step, run.launcher) == ("earlier", "lost", last, "torchrun")
    summary = write_report(tmp_path / "runs" / "earlier", tmp_path / "report.html")
    assert summary.figures()["status"] == "killed"
    assert "lm-tiny" in (tmp_path / "report.html").read_text()


@COMMITS
@pytest.mark.deep
@pytest.mark.launch
def test_its_checkpoint_resumes_with_the_same_losses(
    earlier: Path, trainfleet: Trainfleet, tmp_path: Path
) -> None:
    """Also takes over its lease, which another machine left."""
    shutil.copytree(earlier / "corpus", tmp_path / "corpus")
    shutil.copytree(earlier / "earlier", tmp_path / "runs" / "earlier")
    words = ("launch", "runs/earlier/recipe.yaml", "--on", "torchrun", "--run", "earlier")
    done = trainfleet(*words, "--storage", "runs", cwd=tmp_path, TRAINFLEET_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    record, run = made(earlier), read_run(tmp_path / "runs" / "earlier")
    assert (run["status"], run["starts"][-1]["from_step"]) == ("finished", record["checkpoint"])
    rows = read_rows(tmp_path / "runs" / "earlier").of("train")
    losses = {str(row["step"]): row["loss"] for row in rows if row["step"] > record["checkpoint"]}
    assert losses == pytest.approx(record["losses"], rel=1e-5)


@COMMITS
@pytest.mark.deep
@pytest.mark.parametrize("cloud", CLOUDS)
def test_its_rehearsed_state_is_previewed_and_keeps_every_other_resource(
    earlier: Path, cloud: str, trainfleet: Trainfleet, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    state.write_bytes(lzma.decompress((earlier / "states" / f"{cloud}-dev.json.xz").read_bytes()))
    done = trainfleet("diff", f"{cloud}-dev", "--worktree", "--state", str(state), "--json")
    assert done.returncode in {0, 2, 3}, done.stderr
    document = json.loads(done.stdout)
    assert document["incomplete"] == []
    before = json.loads(state.read_text())["checkpoint"]["latest"]["resources"]
    gone = [each for each in document["changes"] if each["verb"] not in {"create", "update"}]
    assert len(gone) < len(before) / 20
    assert [each["urn"] for each in gone if not any(part in each["urn"] for part in WRITTEN_AGAIN)] == []
