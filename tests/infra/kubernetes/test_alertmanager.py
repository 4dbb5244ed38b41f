"""`monitoring.receivers`: the configuration that Alertmanager loads, its Secrets, and the network's openings."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.kubernetes.planned import plan
from tests.infra.rule_cases import HOOK, MAIL, PAGER, SLACK
from trainfleet.infra.kubernetes.alertmanager import configuration
from trainfleet.infra.spec.receivers import Receiver

ALL = [{**SLACK, "channel": "#ml"}, PAGER, HOOK, MAIL]
LOADER = Path(__file__).parent / "alertmanager_loader"
"""A program that loads a configuration with Alertmanager's own package."""


def config(*receivers: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(configuration(Receiver.model_validate(each) for each in receivers))
    return found


def test_each_receiver_reads_its_address_or_key_from_a_file() -> None:
    nobody, slack, pager, hook, mail = config(*ALL)["receivers"]
    assert nobody == {"name": "nobody"}
    folder = "/etc/alertmanager/secrets"
    assert slack["slack_configs"] == [
        {"send_resolved": True, "api_url_file": f"{folder}/alerts-slack/value", "channel": "#ml"}
    ]
    assert pager["pagerduty_configs"][0]["routing_key_file"] == f"{folder}/alerts-pager/value"
    assert hook["webhook_configs"][0]["url_file"] == f"{folder}/alerts-hook/value"
    assert mail["email_configs"] == [
        {
            "send_resolved": True,
            "to": "a@example.com, b@example.com",
            "from": "alerts@example.com",
            "smarthost": "smtp.example.com:587",
            "auth_username": "alerts",
            "auth_password_file": f"{folder}/alerts-mail/value",
        }
    ]


def test_alerts_are_routed_by_severity_to_every_receiver_that_wants_them() -> None:
    route = config(*ALL)["route"]
    watchdog, slack, pager, *_ = route["routes"]
    assert route["receiver"] == watchdog["receiver"] == "nobody"
    assert "continue" not in watchdog
    assert slack == {"receiver": "chat", "matchers": ['severity =~ "critical|warning"'], "continue": True}
    assert pager["matchers"] == ['severity =~ "critical"']


def test_the_stack_mounts_the_secrets_and_opens_the_mail_servers_port() -> None:
    planned = plan({"monitoring": {"receivers": ALL}})
    assert planned.values("lab-prometheus")["alertmanager"]["alertmanagerSpec"] == {
        "configSecret": "alertmanager-receivers",
        "useExistingSecret": True,
        "secrets": ["alerts-slack", "alerts-pager", "alerts-hook", "alerts-mail"],
        "priorityClassName": "trainfleet-high",
    }
    secret = planned.inputs["lab-alertmanager-receivers"]
    assert secret["metadata"] == {"name": "alertmanager-receivers", "namespace": "monitoring"}
    text = secret["stringData"]["value"]["alertmanager.yaml"]  # the provider marks it as a secret
    assert yaml.safe_load(text) == config(*ALL)
    policy = planned.inputs["lab-network-monitoring-mail"]["spec"]
    assert [each["port"] for each in policy["egress"][0]["ports"]] == [587]
    assert policy["egress"][0]["to"][0]["ipBlock"]["except"] == ["169.254.0.0/16"]
    without = plan({"monitoring": {"receivers": [SLACK]}})
    assert "lab-network-monitoring-mail" not in without.inputs
    assert "lab-alertmanager-receivers" not in plan().inputs


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("loader") / "loader"
    subprocess.run(["go", "build", "-p", "1", "-o", str(program), "."], cwd=LOADER, check=True, timeout=1500)
    return program


def load(loader: Path, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(loader)], input=text, capture_output=True, text=True, check=False)


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_alertmanager_itself_loads_the_configuration(loader: Path) -> None:
    for receivers in ([], ALL, *([each] for each in ALL), [{**MAIL, "secret": "", "username": ""}]):
        done = load(loader, configuration(Receiver.model_validate(each) for each in receivers))
        assert done.returncode == 0, done.stderr
    wrong = load(loader, configuration([Receiver.model_validate(SLACK)]).replace("api_url_file", "url_of"))
    assert "field url_of not found" in wrong.stderr
