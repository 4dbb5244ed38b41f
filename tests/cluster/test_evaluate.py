"""`evaluate` and `predict` with `--on kuberay` on a real cluster: what one process finds here, and cleanup."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.launches import Place, document, place
from trainfleet.training.stores import open_store

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(2400)]
__all__ = ["place"]
PROMPTS = "".join(json.dumps({"text": f"the gradient {number}"}) + "\n" for number in range(40))


@pytest.fixture(scope="module")
def model(place: Place) -> str:
    """The URL of a run that two workers trained on the cluster."""
    trained = place.launch("model", "--json", "strategy=fsdp")
    assert trained.returncode == 0, trained.stderr
    place.clean()
    return f"{place.store.url}/runs/model"


def job(place: Place, *arguments: str) -> dict[str, Any]:
    there = place.call(
        *arguments, *("--on", "kuberay", *place.reached()), *("--workers", "2", "--which", "newest", "--json")
    )
    assert there.returncode == 0, there.stderr
    return dict(document(there.stdout))


def test_two_ranks_of_a_ray_job_evaluate_as_one_process(place: Place, model: str) -> None:
    found = job(place, "evaluate", model)
    assert found["workers"] == 2
    assert found["file"].startswith(f"{model}/evaluations/")
    here = place.call("evaluate", model, "--which", "newest", "--json")
    assert here.returncode == 0, here.stderr
    assert found["metrics"] == pytest.approx(document(here.stdout)["metrics"], rel=1e-5)
    place.clean()


def test_two_ranks_of_a_ray_job_predict_each_row_once_and_in_order(place: Place, model: str) -> None:
    rows, out = f"{place.store.url}/rows", f"{place.store.url}/answers"
    (place.store.folder / "runs" / "rows").mkdir(exist_ok=True)
    (place.store.folder / "runs" / "rows" / "rows.jsonl").write_text(PROMPTS)
    found = job(place, "predict", model, rows, "temperature=0", "--output", out, "--block-kib", "1")
    assert found["rows"] == 40
    store = open_store(str(place.store.folder / "runs" / "answers"))
    answers = [
        json.loads(line) for each in found["files"] for line in store.read(each["file"]).decode().splitlines()
    ]
    assert [each["input"]["text"] for each in answers] == [f"the gradient {number}" for number in range(40)]
    assert json.loads(store.read("_manifest.json")) == found
    place.clean()


def test_a_job_that_fails_reports_its_error_and_leaves_nothing(place: Place, model: str) -> None:
    missing = f"{place.store.url}/no-rows"
    arguments = ("predict", model, missing, "--output", f"{place.store.url}/none", "--on", "kuberay")
    failed = place.call(*arguments, *place.reached())
    assert failed.returncode == 2, failed.stderr
    assert "no-rows" in failed.stderr
    place.clean()
