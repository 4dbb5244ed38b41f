"""Mistakes of a user end in one clear error before anything is changed: data, model, split, store, or two
runs in one folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.training_runs import StopAfter
from trainfleet.errors import InputError
from trainfleet.training.launch.request import Request
from trainfleet.training.launch.supervise import start
from trainfleet.training.recipe.load import dump, load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.reader import read_rows
from trainfleet.training.stores import RetryPolicy, Store, StoreError
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.loop import train
from trainfleet.training.workloads.lm.text import TokenFiles

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]


@pytest.fixture
def stopped_run(tmp_path: Path, tiny: Make, run: Run) -> Callable[..., Recipe]:
    """A run that was stopped after a few steps, and its recipe with changes."""
    base = ("workload.data.tokens=bpe", "workload.data.vocabulary=270", "workload.model.context=16")
    assert run(tiny(*base), tmp_path / "run", should_stop=StopAfter(5)).status == "stopped"
    return lambda *changes: tiny(*base, *changes)


@pytest.mark.parametrize(
    ("change", "allowed", "message", "fix"),
    [
        (
            "workload.data.vocabulary=290",
            (),
            "workload.data.vocabulary: was 270, is now 290",
            "--allow-change workload.data.vocabulary",
        ),
        (
            "workload.data.vocabulary=290",
            ("workload.data.vocabulary", "workload.data"),
            "the checkpoint's vocabulary has 270 tokens, this run's has 290",
            "use its tokens",
        ),
        (
            "workload.model.width=64",
            ("workload.model.width",),
            "has shape [270, 32] in the checkpoint and [270, 64] here",
            "use its own recipe",
        ),
        (
            "workload.model.layers=2",
            ("workload.model",),
            "is not in the checkpoint",
            "start a new run with --run NAME",
        ),
        (
            "workload.data.split_seed=5",
            ("workload.data.split_seed",),
            "samples would be repeated or left out",
            "start a new run",
        ),
    ],
)
def test_a_checkpoint_of_another_run_is_rejected_and_kept(
    tmp_path: Path,
    stopped_run: Callable[..., Recipe],
    run: Run,
    change: str,
    allowed: tuple[str, ...],
    message: str,
    fix: str,
) -> None:
    rows = read_rows(tmp_path / "run").rows
    with pytest.raises(InputError) as caught:
        run(stopped_run(change), tmp_path / "run", allow_changes=allowed)
    text = str(caught.value)
    assert message in text
    assert fix in text
    assert read_rows(tmp_path / "run").rows == rows
    assert run(stopped_run(), tmp_path / "run").status == "finished"


def test_too_many_ranks_and_empty_splits_are_reported_at_once(
    tmp_path: Path, tiny: Make, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainfleet.training.workloads.lm.workload import LanguageModel

    monkeypatch.setattr(
        LanguageModel, "size", lambda self, split: {"train": 3, "validation": 0, "test": 7}[split]
    )
    with pytest.raises(InputError, match="there is too little data") as caught:
        train(tiny(), RunContext(tmp_path / "run", rank=0, world_size=4, cache=cache))
    assert [each.where for each in caught.value.problems] == ["scaling.workers", "workload"]
    assert "the train split has 3 samples for 4 ranks" in str(caught.value)
    assert "the validation split is empty" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_text_that_leaves_a_split_empty_is_reported(tmp_path: Path, tiny: Make, cache: Path) -> None:
    (tmp_path / "text").mkdir()
    for name in "abc":
        (tmp_path / "text" / f"{name}.txt").write_text("hello")
    recipe = tiny(f"workload.data.source={tmp_path / 'text'}")
    with pytest.raises(InputError, match=r"too little data|too few") as caught:
        train(recipe, RunContext(tmp_path / "run", cache=cache))
    assert "validation" in str(caught.value)
    assert TokenFiles.__name__ not in str(caught.value)


STORES = [
    (
        "When uploading: AWS Error RequestTimeTooSkewed during PutObject operation: The difference between the request time and the current time is too large.",
        "the store rejects this machine's clock",
        "set the clock",
    ),
    (
        "When creating bucket 'b': AWS Error ACCESS_DENIED during PutObject operation: Access Denied.",
        "no permission",
        "grant this identity read, list, write",
    ),
    (
        "PERMISSION_DENIED: Permanent error, with a last message of robot does not have storage.objects.create access",
        "no permission",
        "grant this identity",
    ),
    (
        "Server failed to authenticate the request. Request date header too old: Fri",
        "the store rejects this machine's clock",
        "set the clock",
    ),
    (
        "AWS Error UNKNOWN (HTTP status 507) during UploadPart operation: Storage backend has reached its minimum free drive",
        "the store is full",
        "free space",
    ),
    (
        "When resolving region for bucket 'b': AWS Error NETWORK_CONNECTION during HeadBucket operation: curlCode: 6, Could not resolve host: s3.eu",
        "the store's name cannot be resolved",
        "check the URL",
    ),
    (
        "When resolving region for bucket 'b': AWS Error UNKNOWN (HTTP status 404) during HeadBucket operation: No response body.",
        "bucket or container does not exist",
        "create it",
    ),
    ("QuotaExceeded: the account's quota", "the store is full", "raise its quota"),
]


@pytest.mark.parametrize(("words", "what", "fix"), STORES)
def test_an_error_of_a_store_names_the_fix_and_is_retried_only_if_temporary(
    words: str, what: str, fix: str
) -> None:
    tries: list[str] = []

    class FailingBackend:
        """A store that raises errors with the messages of a real one."""

        local = False

        def read(self, path: str, offset: int, length: int | None) -> bytes:
            tries.append(path)
            raise OSError(words)

    store = Store("s3://bucket/runs", FailingBackend(), RetryPolicy(5, 0.001, 0.002), lambda *_: None)  # type: ignore[arg-type]  # it is only read
    with pytest.raises(StoreError) as caught:
        store.read("run.json")
    assert what in str(caught.value)
    assert fix in str(caught.value)
    assert "s3://bucket/runs/run.json" in str(caught.value)
    assert len(tries) == (5 if "resolve host" in words else 1)


def test_a_folder_in_use_is_rejected_before_anything_is_written(tmp_path: Path, text_folder: Path) -> None:
    from filelock import FileLock

    folder = tmp_path / "lm-tiny"
    folder.mkdir()
    (folder / "run.json").write_text('{"name": "mine"}')
    request = Request("lm-tiny", ("scaling.workers=1",), "torchrun", storage=str(tmp_path))
    with (
        FileLock(folder / ".lock"),
        pytest.raises(InputError, match="this run is already in progress") as caught,
    ):
        start(request, {})
    assert "wait for it, or use --run NAME" in str(caught.value)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "run.json"]
    assert (folder / "run.json").read_text() == '{"name": "mine"}'


def test_a_finished_run_is_not_reused_for_another_recipe(tmp_path: Path, tiny: Make) -> None:
    folder = tmp_path / "lm-tiny"
    folder.mkdir()
    (folder / "run.json").write_text('{"status": "finished", "result": {"step": 40}}')
    (folder / "recipe.yaml").write_text(dump(load_recipe("lm-tiny")))
    asked = Request("lm-tiny", (), "torchrun", storage=str(tmp_path))
    assert start(asked, {}).already_finished
    assert start(replace(asked, overrides=("steps=20", "strategy=fsdp", "log.every=3")), {}).already_finished
    with pytest.raises(InputError, match="is finished, and was trained with another recipe") as caught:
        start(replace(asked, overrides=("optimizer.lr=0.1", "seed=3")), {})
    assert [each.where for each in caught.value.problems] == ["optimizer.lr", "seed"]
    assert start(replace(asked, overrides=("seed=3",), allow_changes=("seed",)), {}).already_finished


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("checkpoint.metric=validation/acuracy", "did you mean `validation/accuracy`?"),
        ("checkpoint.metric=test/loss", "`test/loss` is not measured"),
        ("publish.gates={validation/f1: {min: 0.5}}", "`validation/f1` is not measured"),
        ("workload.data.glob=*.txt", """quote text: 'workload.data.glob="*.txt"'"""),
    ],
)
def test_an_unknown_metric_is_rejected_with_a_suggestion(tiny: Make, override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        tiny("publish.require_test=false", override)
    assert message in str(caught.value)


def test_only_metrics_of_the_workload_can_be_watched(tiny: Make) -> None:
    with pytest.raises(InputError, match=r"controllers\.rate\.metric"):
        tiny("controllers.rate.kind=restarts", "controllers.rate.metric=validation/wer")
    assert (
        tiny("controllers.rate.metric=validation/wer").controllers.rate.kind == "off"
    )  # it watches no metric
