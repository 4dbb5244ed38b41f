"""The submitter leaves a head that is gone, even if its machine disappears without closing the connection."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from trainfleet.training.launch.remote import submit
from trainfleet.training.launch.remote.ray_job import FILES_FOLDER, JOB_FILE, RECIPE_FILE


class Silent(submit.Submitter):
    """Receives nothing from its head, forever or for a moment."""

    seconds = 60.0

    async def _print_lines(self, client: object) -> None:
        await asyncio.sleep(self.seconds)


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Silent:
    monkeypatch.setattr(submit, "POLL_S", 0.02)
    (tmp_path / JOB_FILE).write_text(json.dumps({"entrypoint": "true", "env": {}, "metadata": {}}))
    (tmp_path / RECIPE_FILE).write_text("")
    return Silent("127.0.0.1:8265", "run", tmp_path)


def test_a_dns_name_of_another_head_ends_the_wait(silent: Silent) -> None:
    with pytest.raises(ConnectionError, match="was replaced"):
        asyncio.run(silent._print_lines_of(None, "192.0.2.1"))


def test_the_log_of_a_running_head_is_read_to_its_end(silent: Silent) -> None:
    silent.seconds = 0.1
    asyncio.run(silent._print_lines_of(None, "127.0.0.1"))


def test_the_submitter_watches_the_pods_of_its_cluster(
    tmp_path: Path, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[tuple[str, str]] = []
    monkeypatch.setattr(
        submit.lost_pod_watcher, "start", lambda cluster, head, note: watched.append((cluster, head))
    )
    monkeypatch.setattr(submit.Submitter, "run", lambda self: 0)
    monkeypatch.setattr(submit.logging, "disable", lambda _: None)  # for the tests that follow
    monkeypatch.setenv(FILES_FOLDER, str(tmp_path))
    monkeypatch.setenv("RAY_JOB_SUBMISSION_ID", "run")
    address = "tf-run-abcde-head-svc.training.svc.cluster.local:8265"
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", address)
    assert submit.main() == 0
    assert watched == [("tf-run-abcde", f"http://{address}")]
