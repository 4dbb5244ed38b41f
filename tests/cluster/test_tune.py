"""A search whose trials are RayJobs of a real cluster: two at once, killed and followed again, pruned."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.cluster.conftest import until
from tests.cluster.launches import LOCAL, Place, document, place

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(2400)]
__all__ = ["place"]
TUNE = {
    "trials": 3,
    "concurrent": 2,
    "sampler": "random",
    "reduction": 2,
    "space": {"optimizer.lr": {"log_uniform": [1e-5, 1e-2]}},
}
SMALL = ("scaling.workers=1", "scaling.cpus_per_worker=0.05")
"""Two runs must fit two CPUs: a head requests half of one."""
STEPS = ("steps=3000", "log.every=100", "checkpoint.every=500", "validation.every=500")
"""Long enough to kill the search while its trials train."""


def arguments(place: Place) -> list[str]:
    return [
        *["tune", "lm-tiny", "--on", "kuberay", "--context", place.cluster.state.context],
        *["--namespace", place.namespace, "--image", LOCAL, "--from-secret", "s3-keys"],
        *["--storage", f"{place.store.url}/runs", "--run", "night", f"tune={json.dumps(TUNE)}"],
        *[*SMALL, *STEPS, place.data],
    ]


def trials(place: Place) -> list[dict[str, Any]]:
    """The search's state, as another machine reads it."""
    file = place.store.folder / "runs" / "runs" / "night-tune" / "trials.json"
    return list(json.loads(file.read_text())["trials"]) if file.is_file() else []


def test_a_killed_search_follows_its_jobs_and_prunes_poor_ones(place: Place) -> None:
    first = place.begin("night", *arguments(place))
    try:
        until(lambda: first.ended or any(each["rows"] for each in trials(place)), "a validation", 900)
        assert not first.ended, first.output
        jobs = set(place.names("rayjob"))
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    finally:
        first.kill()
    assert jobs
    uids = json.loads(place.kubectl("get", "rayjob", "-o", "json"))["items"]
    before = {each["metadata"]["name"]: each["metadata"]["uid"] for each in uids}
    second = place.begin("night", *arguments(place), "--json")
    try:
        logs = place.folder / "runs" / "night-tune" / "logs"

        def followed() -> bool:
            return any("following the run" in each.read_text() for each in logs.glob("*.log"))

        until(lambda: second.ended or followed(), "a job that is followed again", 300)
        left = json.loads(place.kubectl("get", "rayjob", "-o", "json"))["items"]
        for each in left:
            name = each["metadata"]["name"]
            assert before.get(name, each["metadata"]["uid"]) == each["metadata"]["uid"], "created twice"
        assert second.process.wait(1500) == 0, second.output
    finally:
        second.kill()
    found = document(second.output[second.output.index("{") :])
    states = [each["status"] for each in found["trials"]]
    assert len(states) == 3
    assert set(states) <= {"finished", "pruned"}
    assert states.count("finished") >= 1
    for each in found["trials"]:
        assert len(each["rows"]) == 6 or each["status"] == "pruned"
    place.clean()
    assert (place.store.folder / "runs" / "runs" / "night-tune" / "best.yaml").is_file()
