"""Recipes: valid keys, precedence of sources, and every mistake reported at once with its origin."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from trainfleet.errors import InputError
from trainfleet.training.recipe.changes import differences
from trainfleet.training.recipe.load import dump, known_recipes, load_recipe

GOOD = "name: a\nworkload: {name: lm}\nsteps: 10\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", sorted(known_recipes()))
def test_every_built_in_recipe_is_valid(name: str) -> None:
    assert load_recipe(name).name == name


def test_later_sources_take_precedence(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "optimizer: {lr: 0.1, warmup: 3}\nseed: 5\n")
    env = {"TRAINFLEET_OPTIMIZER__LR": "3e-4", "TRAINFLEET_SEED": "6", "TRAINFLEET_CACHE": "/nowhere"}
    recipe = load_recipe(path, ["seed=7"], env)
    assert (recipe.optimizer.lr, recipe.optimizer.warmup, recipe.seed) == (3e-4, 3, 7)


def test_a_dumped_recipe_loads_unchanged(tmp_path: Path) -> None:
    recipe = load_recipe("lm-small")
    assert load_recipe(write(tmp_path, dump(recipe))) == recipe


MISTAKES = [
    ("optimizer: {lrr: 1}", "optimizer.lrr: unknown key `lrr` (did you mean `lr`?)"),
    (
        "workload: {name: ml}",
        "workload.name: `ml` is not a built-in workload, a workload of an installed package, or a module:Class (known: ",
    ),
    ("workload: 3", "workload: must be a group of keys, not `3`"),
    ("workload: {model: {width: 8}}", "workload.name: is missing"),
    ("optimizer: {lr: fast}", "optimizer.lr: must be a number, not `fast`"),
    ("optimizer: {lr: -1}", "optimizer.lr: `-1` is out of range (more than 0)"),
    ("optimizer: {lr: .inf}", "optimizer.lr: must be a number, not `inf`"),
    ("optimizer: {betas: [0.9, 1.5]}", "optimizer.betas: [0.9, 1.5] must be within [0, 1)"),
    (
        "{optimizer: {name: muon}, strategy: fsdp, sharding: {cpu_offload: true}}",
        "optimizer.name: `muon` gathers each matrix on the devices, and shards in host memory are not there (shard",
    ),
    (
        "optimizer: {momentum: 0.9}",
        "optimizer.momentum: `adamw` has no momentum of this kind (optimizer.name=muon, or leave it out)",
    ),
    ("optimizer: {warmup: 11}", "optimizer.warmup: 11 is more than all 10 steps"),
    ("strategy: dpp", "strategy: `dpp` is not a choice here (did you mean `ddp`? one of ddp, fsdp, hsdp)"),
    ("epochs: 2", "steps: both `steps` and `epochs` are given"),
    ("steps: null", "steps: the length of the training is missing"),
    (
        "batch: {global_batch: 10, micro_batch: 4}",
        "batch.global_batch: 10 cannot be divided among 1 workers in micro batches of 4 (a multiple of 4, such as 8)",
    ),
    (
        "workload: {name: lm, model: {width: 30, heads: 4}}",
        "workload.model.width: 30 cannot be split into 4 heads",
    ),
    ("storage: ftp://bucket", "storage: `ftp://bucket`"),
    (
        "checkpoint: {metric: validation/los}",
        "checkpoint.metric: `validation/los` is not measured (did you mean `validation/loss`?)",
    ),
    (
        "controllers: {rate: {kind: plateau, metric: validation/acuracy}}",
        "controllers.rate.metric: `validation/acuracy` is not measured (did you mean `validation/accuracy`?)",
    ),
    (
        "publish: {gates: {test/los: {max: 2.0}}}",
        "publish.gates.test/los: `test/los` is not measured (did you mean `test/loss`?)",
    ),
    (
        "tune: {metric: validation/los, space: {seed: {choice: [1, 2]}}}",
        "tune.metric: `validation/los` is not measured (did you mean `validation/loss`?)",
    ),
    ("name: Not_So", "name: `Not_So` is not written as it must be"),
    ("scaling: {workers: 0}", "scaling.workers: `0` is out of range (at least 1)"),
    ("precision: fp16", "precision: `fp16` is not a choice here (did you mean `bf16`? one of fp32, bf16)"),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_a_mistake_is_reported(tmp_path: Path, line: str, message: str) -> None:
    document = yaml.safe_load(GOOD) | yaml.safe_load(line)
    path = write(tmp_path, yaml.safe_dump(document))
    with pytest.raises(InputError) as caught:
        load_recipe(path)
    assert [
        str(problem) for problem in caught.value.problems if str(problem).startswith(f"{path}: {message}")
    ], str(caught.value)
    assert len(caught.value.problems) == 1


def test_all_mistakes_are_reported_at_once_with_their_origin(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nworkload: {name: lm}\nstrategy: hdsp\nbatch: {micro: 2}\n")
    with pytest.raises(InputError) as caught:
        load_recipe(path, ["optimizer.lr=x", "nothing"], {"TRAINFLEET_LOG__EVERY": "0"})
    wheres = {problem.where for problem in caught.value.problems}
    assert wheres == {
        "nothing",
        f"{path}: batch.micro",
        "optimizer.lr=x: optimizer.lr",
        "TRAINFLEET_LOG__EVERY: log.every",
        f"{path}: strategy",
        f"{path}: steps",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "the recipe is not valid YAML"),
        ("name: a\nname: b\n", "duplicate key `name`"),
        ("", "empty or not a mapping"),
        ("- a", "empty or not a mapping"),
    ],
)
def test_an_invalid_file_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_recipe(write(tmp_path, text))


def test_binary_files_folders_and_unknown_names_are_one_message(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for path, message in (
        (tmp_path / "binary.yaml", "is not UTF-8 text"),
        (tmp_path, "is a folder"),
        ("lm-smal", "did you mean `lm-small`"),
    ):
        with pytest.raises(InputError, match=message):
            load_recipe(path)


def test_only_keys_that_can_change_a_loss_count_as_a_difference() -> None:
    old = load_recipe("lm-small").model_dump(mode="json")
    free = load_recipe(
        "lm-small", ["scaling.workers=1", "log.every=3", "checkpoint.keep_last=9", "storage=elsewhere"]
    ).model_dump(mode="json")
    closed = load_recipe("lm-small", ["optimizer.lr=0.1", "workload.model.layers=3"]).model_dump(mode="json")
    assert differences(old, free) == []
    assert differences(old, closed) == [("optimizer.lr", 5e-3, 0.1), ("workload.model.layers", 2, 3)]
    assert differences(old, closed, ["optimizer"]) == [("workload.model.layers", 2, 3)]


def test_epochs_become_steps_that_cover_them() -> None:
    recipe = load_recipe("lm-small", ["steps=null", "epochs=2", "batch.global_batch=32"])
    assert [recipe.total_steps(samples) for samples in (160, 161, 1)] == [10, 11, 1]


def test_a_mistake_is_reported_with_its_origin(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    with pytest.raises(InputError) as caught:
        load_recipe(path, ["optimizr.lr=3"], {"TRAINFLEET_BATCH__MICRO": "4"})
    assert {problem.where for problem in caught.value.problems} == {
        "optimizr.lr=3: optimizr",
        "TRAINFLEET_BATCH__MICRO: batch.micro",
    }


@pytest.mark.parametrize(
    "key", ["guards.spike", "log.prometheus", "controllers.rate.kind", "controllers.batch.kind"]
)
def test_an_unquoted_off_is_off(key: str) -> None:
    recipe = load_recipe("lm-tiny", [f"{key}=off"])
    value: object = recipe
    for part in key.split("."):
        value = getattr(value, part)
    assert value == "off"
