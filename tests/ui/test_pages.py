"""What the pages show of runs, and what a run must not be able to do: read other files, or run scripts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.ui.conftest import MakeRun
from trainfleet.ui.run_store import RunStore

SCRIPT = "<script>alert(1)</script>"


def test_the_list_shows_each_run_and_its_cost(client: TestClient, a_run: MakeRun) -> None:
    a_run("night-1", 2000)
    a_run("night-2", status="failed", error="Traceback\nout of memory")
    text = client.get("/").text
    for expected in (
        "night-1",
        "night-2",
        "2,000",
        "ada",
        "$0.10",
        "$0.20",
        "out of memory",
        "finished",
        "failed",
    ):
        assert expected in text, expected
    assert '<path d="M' in text, "the small curve"
    assert "night-1" not in client.get("/?state=problems").text
    assert "night-2" not in client.get("/?text=Night-1").text
    assert client.get("/?state=none").status_code == 404


def test_a_run_shows_its_curves_faults_and_spend(client: TestClient, a_run: MakeRun) -> None:
    folder = a_run("night", 3000)
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write(
            json.dumps({"kind": "event", "step": 3000, "what": "roll_back", "text": "the loss diverged"})
            + "\n"
        )
    text = client.get("/runs/0/night").text
    for expected in (
        "Learning rate",
        "Where the time went",
        "computing",
        "roll back",
        "the loss diverged",
        "$0.10",
        "torchrun",
    ):
        assert expected in text, expected
    assert 'data-values="1,3 ' in text, "the first point"


def test_a_page_is_computed_again_after_its_run_was_written(client: TestClient, a_run: MakeRun) -> None:
    folder = a_run("night", status="running")
    before = client.get("/runs/0/night").text
    assert client.get("/runs/0/night").text.count("<svg") == before.count("<svg")
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"kind": "train", "step": 777, "loss": 0.1}) + "\n")
    assert "777" not in before
    assert "777" in client.get("/runs/0/night").text


def test_runs_are_compared(client: TestClient, a_run: MakeRun) -> None:
    for name in ("one", "two", "three"):
        a_run(name)
    text = client.get("/compare?run=0/one&run=0/two").text
    assert re.findall(r'data-name="(\w+)"', text)[:2] == ["one", "two"]
    assert "three" not in text
    assert client.get("/compare?run=0/one").headers["location"] == "/runs/0/one"
    assert client.get("/compare").status_code == 400
    assert client.get("/compare?" + "&".join(f"run=0/{each}" for each in "abcdefghi")).status_code == 400
    assert client.get("/compare?run=0/one&run=0/none").status_code == 404
    assert client.get("/compare?run=0/one&run=x/two").status_code == 404


def test_cost_is_added_up(client: TestClient, a_run: MakeRun) -> None:
    a_run("one")
    a_run("two")
    assert "$0.20" in client.get("/cost?by=owner").text
    assert client.get("/cost?by=colour").status_code == 404


def test_an_empty_folder_says_where_runs_are_looked_for(client: TestClient, runs: Path) -> None:
    assert str(runs) in client.get("/").text


@pytest.mark.parametrize("address", ["/", "/runs/0/x", "/compare?run=0/x&run=0/y"])
def test_names_and_texts_of_a_run_are_escaped(client: TestClient, a_run: MakeRun, address: str) -> None:
    hostile = f'"><img src=x onerror=alert(1)>{SCRIPT}'
    for folder in ("x", "y"):
        path = a_run(
            folder,
            metric=hostile,
            name=f"{folder}{hostile}",
            status="failed",
            error=hostile,
            workload=hostile,
            launches=[
                {"at": hostile, "on": hostile, "owner": hostile, "status": hostile, "machine": hostile}
            ],
        )
        (path / "recipe.yaml").write_text(
            f"name: x\ncheckpoint: {{metric: 'validation/{hostile}'}}\nz{folder}: '{hostile}'\n"
        )
        with (path / "metrics.jsonl").open("a") as metrics:
            metrics.write(json.dumps({"kind": "event", "step": 5, "what": hostile, "text": hostile}) + "\n")
            metrics.write(
                json.dumps(
                    {
                        "kind": "decision",
                        "step": 5,
                        "what": "rate" + hostile,
                        "old": hostile,
                        "new": 1,
                        "why": hostile,
                    }
                )
                + "\n"
            )
    answer = client.get(address)
    assert answer.status_code == 200
    assert "&lt;script&gt;" in answer.text, "the text must be shown"
    assert "<script>" not in answer.text
    assert "<img" not in answer.text
    assert ' style="' not in answer.text, "the policy forbids inline styles"


def test_a_folder_name_is_escaped(client: TestClient, a_run: MakeRun) -> None:
    a_run("<b>'\"&")
    text = client.get("/").text
    assert "<b>'" not in text
    link = re.search(r'href="(/runs/0/[^"]+)"', text)
    assert link
    assert client.get(link[1]).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/runs/0/..%2Fsecret", "/runs/0/%2e%2e", "/runs/0/..", "/runs/0/%2e%2e%2fsecret", "/runs/0/..%5Csecret", "/runs/0/%2Fetc",
        "/runs/0//etc/passwd", "/runs/0/night/../../secret", "/runs/0/night%00", "/runs/0/night%2F..%2F..%2Fsecret", "/runs/0/%252e%252e",
        "/runs/1/night", "/runs/-1/night", "/runs/99999999999999999999/night", "/runs/0/.", "/runs/0/", "/runs/night",
    ],
)  # fmt: skip
def test_only_runs_of_the_list_are_read(client: TestClient, a_run: MakeRun, runs: Path, path: str) -> None:
    a_run("night")
    secret = runs.parent / "secret"
    secret.mkdir()
    (secret / "run.json").write_text('{"name": "secret-name"}')
    answer = client.get(path)
    assert answer.status_code in (400, 404)
    assert "secret-name" not in answer.text
    place, _, rest = path.removeprefix("/runs/").partition("/")
    assert client.get(f"/compare?run=0/night&run={place}/{rest}").status_code in (400, 404)


def _link_file(run: Path, secret: Path) -> None:
    (run / "recipe.yaml").unlink()
    (run / "recipe.yaml").symlink_to(secret)


def _link_metrics(run: Path, secret: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(os.path.relpath(secret, run))


def _link_lock(run: Path, secret: Path) -> None:
    (run / ".lock").symlink_to(secret)


def _link_checkpoints(run: Path, secret: Path) -> None:
    (run / "checkpoints").symlink_to(secret.parent)


def _link_folder(run: Path, secret: Path) -> None:
    run.rename(secret.parent / "elsewhere")
    run.symlink_to(secret.parent / "elsewhere")


@pytest.mark.parametrize("attack", [_link_file, _link_metrics, _link_lock, _link_checkpoints, _link_folder])
def test_a_link_out_of_a_run_is_not_followed(
    client: TestClient, a_run: MakeRun, tmp_path: Path, attack: Callable[[Path, Path], None]
) -> None:
    run = a_run("night")
    secret = tmp_path / "outside" / "secret.yaml"
    secret.parent.mkdir()
    secret.write_text('{"kind": "train", "step": 1, "loss": 1.0, "name": "secret-value"}')
    attack(run, secret)
    assert "is a link out of" in client.get("/").text
    answer = client.get("/runs/0/night")
    assert answer.status_code == 503
    assert "is a link out of" in answer.text
    assert "secret-value" not in answer.text
    assert secret.read_text(), "a lock file must not be truncated through a link"


def test_a_link_that_appears_later_is_not_followed(
    client: TestClient, a_run: MakeRun, tmp_path: Path
) -> None:
    run = a_run("night")
    assert client.get("/runs/0/night").status_code == 200
    secret = tmp_path / "secret.yaml"
    secret.write_text("name: secret-value")
    _link_file(run, secret)
    answer = client.get("/runs/0/night")
    assert answer.status_code == 503
    assert "secret-value" not in answer.text


def test_a_home_that_names_another_folder_is_not_read(
    client: TestClient, a_run: MakeRun, tmp_path: Path
) -> None:
    run = a_run("night")
    marker = tmp_path / "outside" / "checkpoints" / "step-00000001" / "COMMITTED"
    marker.parent.mkdir(parents=True)
    marker.write_text(json.dumps({"note": {"metrics": {"validation/loss": 0.123456}}}))
    (run / "home.json").write_text(json.dumps({"url": str(tmp_path / "outside"), "uploads": 1}))
    text = client.get("/runs/0/night").text
    assert "step-00000001" not in text


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", "null", '{"launches": 3, "starts": {"a": 1}}', '{"step": "x", "steps": "y"}', "\x00\xff"],
)
def test_a_damaged_run_is_shown_or_refused_with_a_reason(
    client: TestClient, a_run: MakeRun, damage: str
) -> None:
    (a_run("night") / "run.json").write_text(damage)
    (a_run("other") / "metrics.jsonl").write_text(
        damage + '\n{"kind": "train", "step": 3, "loss": NaN}\n{"step"'
    )
    assert client.get("/").status_code == 200
    assert client.get("/runs/0/night").status_code in (200, 503)
    assert client.get("/runs/0/other").status_code == 200
    assert client.get("/compare?run=0/night&run=0/other").status_code in (200, 503)


def test_the_list_reads_only_parts_of_long_files(
    runs: Path, a_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (a_run("long", 20_000) / "metrics.jsonl").stat().st_size
    assert size > 1_500_000
    store = RunStore([str(runs)])
    before = _bytes_read()
    (listed,) = store.listed(20)
    assert listed.info.step == 20_000
    assert len(listed.curve) > 20
    assert _bytes_read() - before < size / 4


def _bytes_read() -> int:
    text = Path("/proc/self/io").read_text()
    found = re.search(r"rchar: (\d+)", text)
    assert found
    return int(found[1])


def test_the_page_of_a_run_that_has_just_started_is_found(runs: Path, a_run: MakeRun) -> None:
    store = RunStore([str(runs)])
    assert store.listed(20) == []
    a_run("new")
    found = store.find(0, "new", 20)
    assert found is not None
    assert found.info.name == "new"
