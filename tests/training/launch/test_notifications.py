"""What each launcher gives a run so that it can report, and what the submitter and the launcher report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.training.launch.kuberay_launches import outputs, run_spec
from tests.training.launch.saved_platforms import outputs as saved
from tests.training.launch.sky_tasks import recipe as sky_recipe
from tests.training.launch.sky_tasks import resolved
from tests.training.notifications.receiver import receiving
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.launch import base
from trainfleet.training.launch.base import Launcher
from trainfleet.training.launch.kuberay.manifest import ray_job, submitted_job
from trainfleet.training.launch.kuberay.run_spec import RunSpec
from trainfleet.training.launch.options import LaunchOptions
from trainfleet.training.launch.platform_outputs import NamedPlatform
from trainfleet.training.launch.ray_up.options import RayUpOptions
from trainfleet.training.launch.ray_up.run_spec import resolve as resolve_ray_up
from trainfleet.training.launch.remote import submit
from trainfleet.training.launch.remote.ray_job import JOB_FILE, RECIPE_FILE
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky.options import SkyOptions
from trainfleet.training.launch.supervise import start
from trainfleet.training.recipe.load import dump, load_recipe
from trainfleet.training.recipe.schema import Recipe

SLACK = "notifications.slack=SLACK_WEBHOOK_URL"
WITH_SLACK = outputs(secrets=["hf-token", "slack-webhook-url"])
LACKS = "notifications.slack: the run's processes do not have the variable SLACK_WEBHOOK_URL"


def submitter(run: RunSpec) -> dict[str, Any]:
    (container,) = ray_job(run)["spec"]["submitterPodTemplate"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def variables(container: dict[str, Any]) -> set[str]:
    return {each["name"] for each in container["env"]}


def test_kuberay_rejects_a_variable_that_no_pod_has() -> None:
    with pytest.raises(InputError, match=LACKS):
        run_spec(SLACK)
    run_spec(SLACK, platform=WITH_SLACK)
    run_spec(SLACK, from_secrets=("mine",))


def test_the_submitter_of_kuberay_has_the_addresses_and_the_stores_keys_if_it_reports() -> None:
    store = {"storage_secret": "s3-keys", "secrets": ["slack-webhook-url"]}
    reporting = submitter(run_spec(SLACK, platform=outputs(**store)))
    assert "SLACK_WEBHOOK_URL" in variables(reporting)
    assert reporting["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
    silent = submitter(run_spec(platform=outputs(**store)))
    assert "SLACK_WEBHOOK_URL" not in variables(silent)
    assert "envFrom" not in silent


def test_the_driver_leaves_its_failure_to_the_submitter_of_the_same_launch() -> None:
    run = run_spec(SLACK, platform=WITH_SLACK)
    env = submitted_job(run).env
    assert (env["TRAINFLEET_LAUNCH"], env["TRAINFLEET_SUBMITTED"]) == (run.launch, "1")


def sky(*overrides: str, env: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
    platform = NamedPlatform(saved("aws-prod"), Path("aws-prod.json"))
    request = Request("lm-1b", on="sky", options=SkyOptions(**options))
    return resolved(sky_recipe(*overrides), Target(request, (platform,), Path("runs/lm-1b")), env).task


def test_sky_rejects_a_variable_that_no_pod_has_and_names_the_launch() -> None:
    with pytest.raises(InputError, match=LACKS):
        sky(SLACK)
    task = sky(SLACK, env={"SLACK_WEBHOOK_URL": "https://a"}, secrets=("SLACK_WEBHOOK_URL",))
    assert len(task["envs"]["TRAINFLEET_NOTIFIED_LAUNCH"]) == 16
    assert "SLACK_WEBHOOK_URL" in task["secrets"]
    assert "TRAINFLEET_NOTIFIED_LAUNCH" not in sky()["envs"]


def test_ray_up_rejects_a_variable_that_is_not_passed_on() -> None:
    found = load_recipe("lm-tiny", ["storage=s3://my-runs/runs", SLACK])
    env = {"SLACK_WEBHOOK_URL": "https://a"}

    def resolve(*secrets: str) -> object:
        options = RayUpOptions(hosts=("10.0.0.5", "10.0.0.6"), secrets=secrets)
        target = Target(Request("lm-tiny", on="ray-up", options=options), (), Path("runs/lm-tiny"))
        return resolve_ray_up(found, target, options, env)

    with pytest.raises(InputError, match=LACKS):
        resolve()
    resolve("SLACK_WEBHOOK_URL")


def failed_job(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> submit.Submitter:
    found = load_recipe("lm-tiny", [f"storage={folder}", SLACK, "name=a-run"])
    env = {"TRAINFLEET_LAUNCH": "1234", "TRAINFLEET_RUN_DIR": str(folder / "a-run")}
    (folder / JOB_FILE).write_text(json.dumps({"entrypoint": "true", "env": env, "metadata": {}}))
    (folder / RECIPE_FILE).write_text(dump(found))
    monkeypatch.setenv("SLACK_WEBHOOK_URL", url)
    return submit.Submitter("127.0.0.1:8265", "run", folder)


def test_the_submitter_reports_a_driver_that_died_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with receiving() as slack:
        for _ in range(2):
            failed_job(tmp_path, slack.url, monkeypatch)._notify("the driver's pod ran out of memory")
        (got,) = slack.received
        assert got.document["text"] == "a-run: failure: a-run failed: the driver's pod ran out of memory"
    printed = capsys.readouterr().out
    assert slack.url not in printed


def test_the_submitter_reports_a_lost_head_and_the_failure_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = SimpleNamespace(value="FAILED", is_terminal=lambda: True)
    info = SimpleNamespace(message="CUDA error")
    client = SimpleNamespace(get_job_status=lambda _: failed, get_job_info=lambda _: info)

    async def print_nothing(*_: Any) -> None:
        """As a head whose job has ended."""

    with receiving() as slack:
        answers = iter([ConnectionError("no head"), client, ConnectionError("no head"), client])

        def connect(_: submit.Submitter) -> Any:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        address = (urlsplit(slack.url).hostname, urlsplit(slack.url).port)
        monkeypatch.setattr(submit, "HEAD_LOST_S", 1e-9)
        monkeypatch.setattr(submit, "RETRY_S", 0.0)
        monkeypatch.setattr(submit.Submitter, "_endpoint", lambda _: address)
        monkeypatch.setattr(submit.Submitter, "_client", connect)
        monkeypatch.setattr(submit.Submitter, "_submit", lambda *_: None)
        monkeypatch.setattr(submit.Submitter, "_print_lines_of", print_nothing)
        for _ in range(2):  # the second is a submitter that was started again
            assert failed_job(tmp_path, slack.url, monkeypatch).run() == 0
        texts = [str(each.document["text"]).partition(" failed: ")[2] for each in slack.received]
        assert texts == ["Ray's head has not answered for 0 minutes", "CUDA error"]


class Never(Launcher[LaunchOptions]):
    """A launcher elsewhere, whose run never starts."""

    remote = True
    options_model = LaunchOptions

    def check(self, recipe: Recipe, target: Target) -> None:
        """Everything can run there."""

    def command(self, recipe: Recipe, file: Path, target: Target) -> list[str]:
        return [sys.executable, "-c", "import sys; sys.exit('ImagePullBackOff: no such image')"]


@pytest.mark.parametrize("known", [True, False])
def test_the_launcher_reports_a_run_that_never_started_if_it_has_the_address(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(base.LAUNCHERS, "never", f"{__name__}:Never")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    with receiving() as slack:
        env = {"SLACK_WEBHOOK_URL": slack.url} if known else {}
        with pytest.raises(TrainfleetError, match="ImagePullBackOff"):
            start(Request("lm-tiny", (SLACK,), on="never", storage=str(tmp_path)), env)
        texts = [each.document["text"] for each in slack.received]
    printed = capsys.readouterr().out
    if known:
        assert [text.partition(" failed: ")[0] for text in texts] == ["lm-tiny: failure: lm-tiny"]
        assert "ImagePullBackOff: no such image" in texts[0]
        (record,) = (tmp_path / "lm-tiny" / "notifications").iterdir()
        assert record.name.endswith("-failure.slack")
    else:
        assert texts == []
        assert "no notifications to notifications.slack: the variable SLACK_WEBHOOK_URL is not set" in printed
    document = yaml.safe_load((tmp_path / "lm-tiny" / "run.json").read_text())
    assert document["launches"][-1]["status"] == "failed"
