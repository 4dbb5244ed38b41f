"""Follow a runbook on a cluster: wait for its alert, run the page's commands, see that the alert is over."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.cluster.conftest import Cluster, until
from tests.cluster.monitoring_stack import Alerts
from tests.cluster.runbook import Shell, commands, filled, placeholders
from trainfleet.infra.kubernetes.dashboards.alerts import CERTIFICATES, GPUS, NODES, QUEUE, RAY

RULES = {rule.alert: rule for rule in (*GPUS, *NODES, *RAY, *CERTIFICATES, *QUEUE)}
FIRES_WITHIN_S = 240
NOTHING: Mapping[str, str] = {}
NOT_RUN = {
    "kubectl -n training get workloads": "needs Kueue",
    "kubectl -n kueue-system rollout": "needs Kueue",
    "kubectl -n kube-system get configmap cluster-autoscaler-status": "needs AWS",
    "kubectl -n training delete raycluster": "needs a Ray cluster that was kept and is idle",
}
"""Commands in the sentences of pages that the local cluster cannot run, and why."""


class Rehearsal:
    """Somebody on call at a cluster, with one alert at a time."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.alerts = Alerts(cluster)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        given = {"KUBECONFIG": str(cluster.state.kubeconfig), "NO_COLOR": "1", "PATH": path}
        environment = os.environ | given
        self.shell = Shell(environment, folder)
        self.name, self.values = "", dict(NOTHING)

    def fires(self, name: str, limit: float = FIRES_WITHIN_S) -> dict[str, Any]:
        """Wait until Alertmanager has the alert. Its labels then replace the pages' names in capitals."""
        (alert, *more) = until(lambda: self.alerts.firing(name), f"{name} fires", limit)
        assert not more, [each["labels"] for each in more]
        rule = RULES[name]
        assert alert["labels"]["severity"] == rule.labels.severity
        assert alert["annotations"]["runbook"] == f"docs/runbooks/{name}.md"
        self.name, self.values = name, {}
        for key, source in placeholders().items():
            labels = [alert["labels"][label] for label in source.labels if label in alert["labels"]]
            if labels:
                self.values[key] = labels[0]
        for key, source in placeholders().items():
            if source.command and not (_names(source.command) - self.values.keys()):
                found = self.shell.run(filled(source.command, self.values), checked=False)
                self.values[key] = found.stdout.strip()
        found_alert: dict[str, Any] = alert
        return found_alert

    def follow(
        self,
        section: str,
        *,
        shows: Mapping[str, str] = NOTHING,
        before: Mapping[str, Callable[[], None]] | None = None,
        without: tuple[str, ...] = (),
    ) -> None:
        """Run the commands of a section.

        Args:
            section: its heading.
            shows: by a part of a command, a pattern that its output must match.
            before: by a part of a command, what happens before it is run.
            without: beginnings of commands of steps that the case does not need.
        """
        unused = {*shows, *(before or {}), *without}
        for command in self._commands(section):
            if skipped := [part for part in without if command.startswith(part)]:
                unused -= {*skipped}
                continue
            for part, happens in (before or {}).items():
                if part in command:
                    happens()
                    unused.discard(part)
            output = self._output(command)
            for part, pattern in shows.items():
                if part in command:
                    assert re.search(pattern, output), f"{command}\ndoes not show {pattern}\n{output}"
                    unused.discard(part)
        assert not unused, f"{self.name}.md: {section}: no command with {unused}"

    def is_over(
        self,
        *,
        shows: Mapping[str, str] = NOTHING,
        without: tuple[str, ...] = (),
        limit: float = FIRES_WITHIN_S,
    ) -> None:
        """Run the commands of the last section until Alertmanager has no such alert any more.

        Those that begin with one of `without` are of other cases.
        """
        *found, query = self._commands("Check that it is over")
        others = [command for command in found if not command.startswith(without)]
        assert len(others) == len(found) - len(without), f"{self.name}.md: no command with {without}"

        def empty() -> bool:
            return "[]" in self.shell.run(filled(query, self.values)).stdout.splitlines()

        until(empty, f"{self.name} is over", limit)
        for command in others:
            output = self._output(command)
            for part, pattern in shows.items():
                assert part not in command or re.search(pattern, output), output
        assert all(any(part in command for command in others) for part in shows)

    def _output(self, command: str) -> str:
        """The output of a command; of one that does not end, the line by which it has done its work."""
        text = filled(command, self.values)
        if command.startswith("kubectl") and " port-forward " in command:
            return self.shell.until_it_says(text, "^Forwarding from")
        if command.endswith(" --follow"):
            return self.shell.until_it_says(text, "^step ")
        return self.shell.run(text).stdout

    def _commands(self, section: str) -> list[str]:
        found = commands(self.name, section)
        return [each for each in found if not each.startswith(tuple(NOT_RUN))]

    def stop_node(self) -> None:
        """Turn the second node off."""
        self._node("stop")

    def start_node(self) -> None:
        """Turn the second node on, and wait until it is ready."""
        self._node("start")
        until(lambda: self.cluster.status()["ready"], "all nodes are ready", 120)

    def _node(self, verb: str) -> None:
        short = self.cluster.state.nodes[1].short
        done = self.cluster.call("cluster", "node", verb, short, "--name", self.cluster.name)
        assert done.returncode == 0, done.stderr


def _names(command: str) -> set[str]:
    return {name for name in placeholders() if re.search(rf"\b{name}\b", command)}
