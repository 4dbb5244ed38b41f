"""Whole runs that report to a real server: what arrives, once, that the run is unaffected, and that no output
contains the address or the key.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.launches import Launched, Launcher, rows, untimed, wait_for
from tests.training.notifications.receiver import TOKEN, Receiver, receiving
from trainfleet.training.notifications.messages import decoded_key, signature

pytestmark = [pytest.mark.launch, pytest.mark.timeout(900)]

KEY = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
WEBHOOK = ("notifications.webhook=HOOK", "notifications.signing_key=HOOK_KEY")
SLACK = "notifications.slack=SLACK_URL"


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, cache: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path_factory.mktemp("runs"), text_folder, cache)
    yield made
    made.end()


def finish(launched: Launched, code: int = 0) -> str:
    """Wait for the end; what it printed. Neither that nor the run folder contains a secret."""
    ended, stdout, stderr = launched.finish()
    assert ended == code, stdout + stderr
    launched.gone()
    for path in launched.run_dir.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert TOKEN.encode() not in data, path
            assert KEY.encode() not in data, path
    assert TOKEN not in stdout + stderr
    assert KEY not in stdout + stderr
    return stdout + stderr


def without_notifications(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if key != "dropped_notifications"}
        for row in found
        if row["kind"] != "event"
    ]


def test_a_run_reports_its_start_its_end_and_its_limit_signed_and_once(launcher: Launcher) -> None:
    with receiving() as hook, receiving() as slack:
        secrets = {"HOOK": hook.url, "HOOK_KEY": KEY, "SLACK_URL": slack.url}
        finish(launcher("whole", *WEBHOOK, SLACK, **secrets))
        assert hook.types() == ["run.start", "run.end"]
        start, end = (each.document["data"] for each in hook.received)
        assert start["launch"] == end["launch"]
        assert (start["step"], start["steps"], end["status"], end["step"]) == (1, 24, "finished", 24)
        assert end["validation/loss"] > 0
        for each in hook.received:
            stamp = int(each.headers["webhook-timestamp"])
            signed = signature(decoded_key(KEY), each.headers["webhook-id"], stamp, each.body)
            assert each.headers["webhook-signature"] == signed
        assert [each.document["text"].split(":")[1].strip() for each in slack.received] == ["start", "end"]
        hook.received.clear()
        limited = launcher("limited", *WEBHOOK, "limits.max_hours=1e-7", **secrets)
        assert "reached its limit" in finish(limited, code=1)
        types = hook.types()
        assert types[-1] == "run.end"
        assert set(types) == {"run.start", "run.budget", "run.end"}
        assert (types.count("run.start"), types.count("run.end")) == (1, 1)
        assert hook.received[-1].document["data"]["status"] == "stopped"


@pytest.mark.parametrize("fault", ["silent", "refusing"])
@pytest.mark.deep
def test_a_server_that_fails_changes_no_loss_and_is_an_event(launcher: Launcher, fault: str) -> None:
    undisturbed = launcher("undisturbed")
    assert undisturbed.finish()[0] == 0
    settings = {"silent": True} if fault == "silent" else {"answers": [404] * 9}
    with receiving(**settings) as hook:
        launched = launcher(fault, *WEBHOOK, HOOK=hook.url, HOOK_KEY=KEY)
        printed = finish(launched)
        assert {each.document["type"] for each in hook.received} <= {"run.start", "run.end"}
        assert hook.received
    assert without_notifications(untimed(launched.run_dir)) == without_notifications(
        untimed(undisturbed.run_dir)
    )
    why = "the run ended before" if fault == "silent" else "the server answers 404"
    assert f"the notification `start` did not reach notifications.webhook: {why}" in printed
    if fault == "refusing":
        counts = [row.get("dropped_notifications", 0) for row in rows(launched.run_dir)]
        assert max(counts) == 1


@pytest.mark.deep
def test_restarted_workers_do_not_report_a_second_start(launcher: Launcher) -> None:
    with receiving() as hook:
        launched = launcher("restarted", *WEBHOOK, "steps=60", HOOK=hook.url, HOOK_KEY=KEY)
        launched.until_step(12)
        wait_for(lambda: hook.received, "no start")
        wait_for(lambda: list((launched.run_dir / "notifications").glob("*")), "the start is not recorded")
        for worker in launched.workers():
            worker.send_signal(signal.SIGKILL)
        finish(launched)
        assert hook.types() == ["run.start", "run.end"]


def test_a_launch_that_fails_says_why_once(launcher: Launcher, tmp_path: Path) -> None:
    with receiving() as hook:
        missing = launcher(
            "missing", *WEBHOOK, f"workload.data.source={tmp_path}/none", HOOK=hook.url, HOOK_KEY=KEY
        )
        ended, stdout, stderr = missing.finish()
        assert ended != 0
        assert TOKEN not in stdout + stderr
        assert hook.types() == ["run.failure"]
        assert f"{tmp_path}/none" in hook.received[0].document["data"]["text"]


def test_a_variable_that_is_not_set_is_rejected_before_anything_starts(launcher: Launcher) -> None:
    launched = launcher("unset", *WEBHOOK, SLACK)
    ended, _, stderr = launched.finish()
    assert ended == 2
    for name in ("HOOK", "HOOK_KEY", "SLACK_URL"):
        assert f"the variable {name} is not set" in stderr
    assert not launched.run_dir.exists()


def test_the_command_tries_each_address(trainfleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def notify(*arguments: str) -> Any:
        return trainfleet("notify", "lm-tiny", *arguments)

    def with_answers(answers: list[int]) -> tuple[Any, Receiver]:
        with receiving(answers=answers) as slack:
            monkeypatch.setenv("SLACK_URL", slack.url)
            return notify(SLACK), slack

    done, slack = with_answers([])
    assert (done.returncode, done.stdout) == (0, "notifications.slack: delivered\n")
    assert "a test message" in slack.received[0].document["text"]
    failed, _ = with_answers([410])
    assert failed.returncode == 1
    assert "notifications.slack: the server answers 410" in failed.stderr
    nobody = notify()
    assert nobody.returncode == 2
    assert "names no variable" in nobody.stderr
    assert TOKEN not in done.stdout + failed.stderr
