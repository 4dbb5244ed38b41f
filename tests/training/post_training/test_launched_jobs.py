"""`evaluate --on` and `predict --on`: the ranks of a run of any launcher compute what one process computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from typer.testing import CliRunner

from tests.training.launch import kuberay_launches
from tests.training.launch.saved_platforms import platforms
from tests.training.launch.test_options import TABLE
from tests.training.launch.test_ray_up_cluster_yaml import run_spec as ray_up_run
from tests.training.user_code import clean_imports, write_workload
from trainfleet.errors import InputError
from trainfleet.training.cli import evaluate as evaluate_cli
from trainfleet.training.cli import predict as predict_cli
from trainfleet.training.evaluate import evaluate
from trainfleet.training.inference import loaded, predict_ranks
from trainfleet.training.inference.job import Job, recipe_document
from trainfleet.training.inference.loaded import stored_recipe
from trainfleet.training.inference.predict import Request as Prediction
from trainfleet.training.inference.predict import predict
from trainfleet.training.launch import supervise
from trainfleet.training.launch.base import LAUNCHERS, find
from trainfleet.training.launch.kuberay import manifest
from trainfleet.training.launch.kuberay.launcher import KubeRay
from trainfleet.training.launch.kuberay.run_spec import resolve
from trainfleet.training.launch.platform_outputs import NamedPlatform
from trainfleet.training.launch.ray_up.cluster_yaml import submitted_job
from trainfleet.training.launch.remote.ray_job import DOCUMENT, RECIPE_FILE
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky.launcher import Sky
from trainfleet.training.launch.sky.options import SkyOptions
from trainfleet.training.launch.sky.run_spec import resolve as resolve_sky
from trainfleet.training.launch.sky.run_spec import run_patches
from trainfleet.training.launch.sky.task import OF_A_LAUNCH
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime import events
from trainfleet.training.runtime.process_group import World
from trainfleet.training.stores import Store, open_store

__all__ = ["clean_imports"]
Command = Callable[..., subprocess.CompletedProcess[str]]
ROWS = 50
ONE = World(rank=0, world_size=1, local_rank=0, local_world_size=1, device="cpu")


@pytest.fixture
def command(tmp_path: Path, own_cache: Path) -> Command:
    """The command line, in an empty folder."""

    def call(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"TRAINFLEET_CACHE": str(own_cache), "NO_COLOR": "1", "COLUMNS": "200"}
        found = subprocess.run(
            [sys.executable, "-m", "trainfleet", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert found.returncode == code, found.stdout + found.stderr
        return found

    return call


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """JSON lines with handwritten digits: about 1 KiB for four rows."""
    from sklearn.datasets import load_digits

    images = (load_digits().images[:ROWS] * 15.9).astype(np.uint8).tolist()
    lines = (json.dumps({"image": image, "id": number}) for number, image in enumerate(images))
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "rows.jsonl"


def lines(output: Path) -> list[dict[str, Any]]:
    paths = sorted(output.glob("part-*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.mark.launch
@pytest.mark.deep  # the driver of the Ray job below evaluates on two ranks too
@pytest.mark.parametrize("on", ["torchrun", "local"])
def test_two_ranks_of_a_launcher_evaluate_as_one_process(
    command: Command, pictures_copy: Path, on: str
) -> None:
    alone = evaluate(str(pictures_copy), "validation", "newest")
    (pictures_copy / "evaluations" / "validation-20.json").unlink()
    options = ("--split", "validation", "--which", "newest", "--workers", "2", "--on", on, "--json")
    found = json.loads(command("evaluate", str(pictures_copy), *options).stdout)
    assert found["metrics"] == pytest.approx(alone.metrics, rel=1e-6)
    assert (found["workers"], found["samples"], found["step"]) == (2, alone.samples, 20)
    stored = json.loads((pictures_copy / "evaluations" / "validation-20.json").read_text())
    assert stored == {key: value for key, value in found.items() if key != "file"}
    run = next(pictures_copy.parent.glob("*-evaluate-*"))
    launch = json.loads((run / "run.json").read_text())["launches"][-1]
    assert (launch["on"], launch["workers"], launch["status"]) == (on, 2, "finished")


@pytest.mark.launch
def test_two_ranks_predict_each_row_once_and_in_order(
    command: Command, pictures: Path, rows: Path, tmp_path: Path
) -> None:
    predict(Prediction(str(pictures), str(rows), str(tmp_path / "alone"), workers=0, block_kib=2, batch=4))
    options = ("--workers", "2", "--on", "torchrun", "--block-kib", "2", "--batch", "4", "--json")
    found = command("predict", str(pictures), "rows.jsonl", "--output", "out", *options)
    manifest_found = json.loads(found.stdout)
    assert (manifest_found["rows"], len(manifest_found["files"]) > 4) == (ROWS, True)
    assert [each["input"]["id"] for each in lines(tmp_path / "out")] == list(range(ROWS))
    for path in sorted((tmp_path / "alone").glob("part-*")):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.launch
def test_a_job_that_fails_ends_with_its_error_and_exit_code(
    command: Command, pictures: Path, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"image": "no image"}\n')
    options = ("--workers", "2", "--on", "torchrun", "--output", "out")
    failed = command("predict", str(pictures), "rows.jsonl", *options, code=2)
    assert "rows.jsonl" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "out").exists()


def job_recipe(run: Path, workers: int, storage: str) -> tuple[Recipe, str]:
    recipe, checkpoint = stored_recipe(str(run), "newest")
    document = recipe_document(recipe, "digits-evaluate-1", workers, storage)
    return Recipe.model_validate(document), checkpoint


def evaluate_job(source: str) -> str:
    arguments = {"source": source, "split": "validation", "which": "newest", "samples": None}
    return Job(task="evaluate", arguments={**arguments, "precision": None}).model_dump_json()


@pytest.mark.deep
@pytest.mark.launch
def test_the_driver_of_the_rendered_ray_job_evaluates(
    pictures_copy: Path, own_cache: Path, tmp_path: Path
) -> None:
    """The entry point, recipe and variables of the RayJob, on a Ray cluster of this machine."""
    alone = evaluate(str(pictures_copy), "validation", "newest")
    (pictures_copy / "evaluations" / "validation-20.json").unlink()
    recipe, checkpoint = job_recipe(pictures_copy, 2, "s3://prod-runs/runs")
    found = (NamedPlatform(kuberay_launches.outputs(), Path("outputs.json")),)
    request = Request("digits", on="kuberay", job=evaluate_job(checkpoint))
    run = resolve(recipe, Target(request, found, tmp_path / "run"), KubeRay().options_model(), {})
    objects = {each["kind"]: each for each in manifest.run_objects(run)}
    asked = json.loads(objects["ConfigMap"]["data"]["job.json"])
    document = yaml.safe_load(objects["ConfigMap"]["data"][RECIPE_FILE])
    assert document["scaling"]["workers"] == 2
    of_cluster = ("TRAINFLEET_AUTOSCALED", events.RANK_CPUS, manifest.WORKERS_START)
    variables = {name: value for name, value in asked["env"].items() if name not in of_cluster}
    variables |= {events.RUN_DIR: str(tmp_path / "run"), "TRAINFLEET_CACHE": str(own_cache)}
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"exec {objects['RayJob']['spec']['entrypoint'].replace('python', sys.executable, 1)}",
        ],
        cwd=tmp_path,
        env=os.environ | variables | {DOCUMENT: objects["ConfigMap"]["data"][RECIPE_FILE]},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"kind"')]
    (result,) = [each for each in seen if each["kind"] == "result"]
    assert result["evaluation"]["metrics"] == pytest.approx(alone.metrics, rel=1e-6)
    assert result["evaluation"]["workers"] == 2
    assert (pictures_copy / "evaluations" / "validation-20.json").is_file()


def test_every_remote_launcher_passes_the_job_on(tmp_path: Path) -> None:
    job = evaluate_job("s3://runs/lm/checkpoints/step-1")
    recipe = load_recipe("lm-tiny", ["storage=s3://prod-runs/runs"])
    found = (NamedPlatform(kuberay_launches.outputs(), Path("outputs.json")),)
    target = Target(Request("lm-tiny", on="kuberay", job=job), found, tmp_path)
    run = resolve(recipe, target, KubeRay().options_model(), {})
    assert manifest.submitted_job(run).env[events.JOB] == job
    plain = resolve(recipe, Target(Request("lm-tiny"), found, tmp_path), KubeRay().options_model(), {})
    assert events.JOB not in manifest.submitted_job(plain).env
    on_hosts = ray_up_run("local")
    assert events.JOB not in submitted_job(on_hosts).env
    assert submitted_job(replace(on_hosts, instead=job)).env[events.JOB] == job
    large = load_recipe("lm-1b", ["storage=s3://runs"])
    places = tuple(NamedPlatform(each, tmp_path / f"{name}.json") for name, each in platforms("aws-prod"))
    task = resolve_sky(
        large, Target(Request("lm-1b", on="sky", job=job), places, tmp_path), Sky().options_model(), {}
    ).task
    assert task["envs"][events.JOB] == job
    # A kept cluster's Ray outlives the launch, so its ranks must get the job from their driver alone.
    assert events.JOB in OF_A_LAUNCH


def test_ray_up_takes_the_job_of_the_request(tmp_path: Path) -> None:
    from trainfleet.training.launch.ray_up.launcher import RayUp
    from trainfleet.training.launch.ray_up.options import RayUpOptions
    from trainfleet.training.launch.ray_up.run_spec import resolve as resolve_ray_up

    recipe = load_recipe("lm-tiny", ["storage=s3://my-runs/runs"])
    request = Request("lm-tiny", on="ray-up", options=RayUpOptions(hosts=("10.0.0.5", "10.0.0.6")), job="{}")
    target = Target(request, (), tmp_path)
    assert resolve_ray_up(recipe, target, RayUp().options(target), {}).instead == "{}"


@pytest.mark.parametrize("on", sorted(set(LAUNCHERS) - {"local", "torchrun"}))
def test_what_is_on_this_machine_is_rejected_for_ranks_on_others(
    command: Command, pictures: Path, rows: Path, on: str
) -> None:
    failed = command("predict", str(pictures), str(rows), "--output", "out", "--on", on, code=2)
    for option in ("MODEL", "INPUT", "--output"):
        assert option in failed.stderr
    assert f"--on {on} runs on others" in failed.stderr


def test_options_of_launchers_are_rejected_without_one_and_by_those_that_lack_them(
    command: Command, pictures: Path
) -> None:
    failed = command("evaluate", str(pictures), "--pool", "l4", "--stack", "x.json", code=2)
    assert "--pool" in failed.stderr
    assert "--stack" in failed.stderr
    assert "is an option of `--on`" in failed.stderr
    failed = command("evaluate", str(pictures), "--on", "torchrun", "--managed", code=2)
    assert "`--managed` does nothing with --on torchrun" in failed.stderr
    failed = command("evaluate", str(pictures), "--on", "torchrun", "--rows", "x.jsonl", code=2)
    assert "--rows" in failed.stderr


@pytest.mark.parametrize("app", [evaluate_cli.evaluate, predict_cli.predict])
def test_the_commands_have_the_options_of_a_launch(app: typer.Typer) -> None:
    own = {each.name for each in typer.main.get_command(app).params}
    assert set(TABLE) - own == {"write"}


@pytest.mark.parametrize("workers", [1, 3, 7])
def test_any_number_of_workers_makes_a_valid_recipe(run_dir: Path, workers: int) -> None:
    """Also of a model whose recipe has another batch, elastic workers and a strategy for more ranks."""
    recipe, _ = stored_recipe(str(run_dir), "newest")
    changed = recipe.model_copy(update={"strategy": "fsdp"})
    document = recipe_document(changed, "x-evaluate-1", workers, None)
    found = Recipe.model_validate(document)
    assert found.scaling.workers == workers
    assert (found.strategy, found.steps) == ("ddp", 1)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store below `OUT`, a URL whose objects are files of a folder."""
    place = str(tmp_path / "bucket")
    monkeypatch.setattr(
        predict_ranks, "open_store", lambda url: open_store(url.replace("s3://bucket", place))
    )
    return open_store(f"{place}/out")


OUT = "s3://bucket/out"


def test_an_output_below_a_url_is_complete_when_it_has_its_manifest(
    pictures: Path, rows: Path, bucket: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that fails after some blocks leaves no manifest, and the next one makes only the others."""
    job = Prediction(str(pictures), str(rows), OUT, block_kib=2, batch=4).__dict__
    made: list[int] = []
    original = predict_ranks.make_block

    def fails_at_the_third(predictor: Any, number: int, unit: Any, request: Any) -> Any:
        made.append(number)
        if len(made) == 3:
            raise InputError("the node was lost", [])
        return original(predictor, number, unit, request)

    monkeypatch.setattr(predict_ranks, "make_block", fails_at_the_third)
    with pytest.raises(InputError, match="the node was lost"):
        predict_ranks.on_ranks(job, ONE, lambda *_, **__: None)
    assert "_manifest.json" not in bucket.sizes()
    found = predict_ranks.on_ranks(job, ONE, lambda *_, **__: None)
    assert made[3:] == list(range(2, len(found["files"])))
    names = set(bucket.sizes())
    assert names == {each["file"] for each in found["files"]} | {"_manifest.json"}
    assert found["rows"] == ROWS
    again = predict_ranks.on_ranks(job, ONE, lambda *_, **__: None)
    assert again == found | {"already": True}
    with pytest.raises(InputError, match="other predictions"):
        predict_ranks.on_ranks({**job, "settings": {"top": 3}}, ONE, lambda *_, **__: None)


def test_a_url_that_holds_something_else_is_not_written_to(pictures: Path, rows: Path, bucket: Store) -> None:
    bucket.put("mine.txt", b"mine")
    job = Prediction(str(pictures), str(rows), OUT).__dict__
    with pytest.raises(InputError, match="already exists"):
        predict_ranks.on_ranks(job, ONE, lambda *_, **__: None)
    assert set(bucket.sizes()) == {"mine.txt"}


def test_a_run_of_a_job_is_not_a_run_of_the_model(pictures_copy: Path) -> None:
    """Its recipe has a name of its own, so no launch of it resumes or changes the model's run."""
    recipe, checkpoint = stored_recipe(str(pictures_copy), "newest")
    document = recipe_document(recipe, "digits-evaluate-1", 1, str(pictures_copy.parent))
    assert Recipe.model_validate(document).run_dir() != pictures_copy
    assert checkpoint.startswith(str(pictures_copy))


@pytest.mark.usefixtures("clean_imports")
def test_the_workload_is_found_in_the_folder_of_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is called elsewhere, so only `--code` says where the workload of the model's recipe is."""
    document = yaml.safe_load(write_workload(tmp_path / "exp").read_text())
    started = launched_jobs(document, tmp_path, monkeypatch)
    evaluated("--on", "torchrun", "--code", str(tmp_path / "exp"))
    assert [each.code for each, _ in started] == [str(tmp_path / "exp")]


@pytest.mark.parametrize("on", LAUNCHERS)
def test_a_job_has_the_changes_of_the_pods_that_its_launcher_has(
    on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch rejects a recipe with others, and a job has no overrides to leave them out."""
    changed = {"head": {"spec": {"priority": 1}}, "workers": {"spec": {"priority": 2}}}
    document = load_recipe("lm-tiny", [f"pod_template={json.dumps(changed)}"]).model_dump(mode="json")
    started = launched_jobs(document, tmp_path, monkeypatch)
    evaluated("--on", on)
    kept = {"kuberay": ("head", "workers"), "sky": ("workers",)}.get(on, ())
    ((_, found),) = started
    assert found["pod_template"] == {role: changed[role] for role in kept}
    if on == "sky":
        assert run_patches(Recipe.model_validate(found), SkyOptions()) == (changed["workers"],)
    else:
        supervise._require_pods(find(on), Recipe.model_validate(found), on)


def launched_jobs(
    document: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Request, dict[str, Any]]]:
    """The requests of `evaluate --on` with their recipes, for a model of this recipe; nothing is started."""
    started: list[tuple[Request, dict[str, Any]]] = []

    def start(request: Request) -> supervise.Outcome:
        started.append((request, yaml.safe_load(Path(request.recipe).read_text())))
        return supervise.Outcome(folder, {"status": "detached", "how": []})

    checkpoint = str(folder / "runs" / "model" / "checkpoints" / "step-1")
    monkeypatch.setattr(loaded, "stored_recipe", lambda *_: (Recipe.model_validate(document), checkpoint))
    monkeypatch.setattr(supervise, "start", start)
    return started


def evaluated(*options: str) -> None:
    CliRunner().invoke(evaluate_cli.evaluate, ["s3://runs/model", *options], catch_exceptions=False)
