"""The configuration of Alertmanager from `monitoring.receivers`. Pure.

It holds no address and no key: it names files of Secrets that Alertmanager's pod mounts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from trainfleet.infra.spec.receivers import NOBODY, Receiver

CONFIG_SECRET = "alertmanager-receivers"
CONFIG_KEY = "alertmanager.yaml"
SECRET_KEY = "value"
SECRETS_FOLDER = "/etc/alertmanager/secrets"
"""Where the Prometheus operator mounts the Secrets of an Alertmanager (`spec.secrets`)."""
ALWAYS_FIRING = "Watchdog"
"""kube-prometheus-stack's alert that shows that alerts are sent at all."""


def configuration(receivers: Iterable[Receiver]) -> str:
    """The file `alertmanager.yaml`."""
    named = list(receivers)
    routes = [
        {
            "receiver": each.name,
            "matchers": [f'severity =~ "{"|".join(each.severities)}"'],
            "continue": True,
        }
        for each in named
    ]
    document = {
        "route": {
            "receiver": NOBODY,
            "group_by": ["alertname", "namespace"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "12h",
            "routes": [{"receiver": NOBODY, "matchers": [f'alertname = "{ALWAYS_FIRING}"']}, *routes],
        },
        # A critical alert silences the warning about the same thing.
        "inhibit_rules": [
            {
                "source_matchers": ['severity = "critical"'],
                "target_matchers": ['severity = "warning"'],
                "equal": ["alertname", "namespace"],
            }
        ],
        "receivers": [{"name": NOBODY}, *(_receiver(each) for each in named)],
    }
    return yaml.safe_dump(document, sort_keys=False, width=100)


def mounted_secrets(receivers: Iterable[Receiver]) -> tuple[str, ...]:
    """The Secrets that the configuration refers to."""
    return tuple(dict.fromkeys(each.secret for each in receivers if each.secret))


def mail_ports(receivers: Iterable[Receiver]) -> tuple[int, ...]:
    """The ports of mail servers, which network policies must open."""
    ports = (int(each.smarthost.rpartition(":")[2]) for each in receivers if each.smarthost)
    return tuple(sorted(set(ports)))


def _receiver(receiver: Receiver) -> dict[str, Any]:
    """One receiver. The keys are those of Alertmanager 0.31 (docs: configuration, receivers)."""
    file = f"{SECRETS_FOLDER}/{receiver.secret}/{SECRET_KEY}"
    settings: dict[str, Any]
    match receiver.kind:
        case "slack":
            channel = {"channel": receiver.channel} if receiver.channel else {}
            settings = {"api_url_file": file, **channel}
        case "webhook":
            settings = {"url_file": file}
        case "pagerduty":
            settings = {"routing_key_file": file}
        case "email":
            login = {"auth_username": receiver.username, "auth_password_file": file}
            settings = {
                "to": ", ".join(receiver.to),
                "from": receiver.sender,
                "smarthost": receiver.smarthost,
                **(login if receiver.username else {}),
            }
    return {"name": receiver.name, f"{receiver.kind}_configs": [{"send_resolved": True, **settings}]}
