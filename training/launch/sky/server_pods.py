"""What SkyPilot's server knows of a run's pods, for machines that cannot reach the clusters themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainfleet.training.launch.sky.messages import SkySpec
from trainfleet.training.launch.sky.pods import QUEUED, STOP_FILE, Place
from trainfleet.training.launch.sky.skypilot import is_refusal, lines_of

ADMISSION = "waiting for queue admission"
"""Part of SkyPilot's reason while Kueue holds pods back (`sky/provision/kubernetes/instance.py`, 0.14)."""
STOP_TASK = "tf-stop"


@dataclass
class ServerPods:
    """The pods of one run, as the server reports them."""

    sky: Any
    spec: SkySpec
    note: Callable[[str], Any]
    parse: Callable[[dict[str, Any]], Any]
    last: str = ""

    def setup_failures(self) -> list[str]:
        """None: the server does not show the pods' logs."""
        return []

    def idle(self, nodes: int) -> bool:  # noqa: ARG002 - as for pods that this machine sees
        """Not known here: SkyPilot says it."""
        return False

    def lost(self, nodes: int) -> bool:  # noqa: ARG002 - as for pods that this machine sees
        """Not known here."""
        return False

    def report(self) -> Place:
        """Report what the pods wait for when it changes; where they are, as far as the server says it."""
        reason = self._reason()
        held = ADMISSION in reason
        text = QUEUED if held else reason
        if text and text != self.last:
            self.note(text)
        self.last = text
        if not reason:
            return Place.NOWHERE
        return Place.QUEUED if held else Place.ADMITTED

    def ask_to_stop(self) -> int:
        """Ask the run to save and end, by a small task on its pods; how many pods were asked.

        None of a managed job: SkyPilot accepts no other task on its pods.
        """
        if self.spec.managed:
            return 0
        document = {"name": STOP_TASK, "num_nodes": self.spec.task["num_nodes"], "run": f"touch {STOP_FILE}"}
        task = self.parse(document)
        try:
            self.sky.get(self.sky.exec(task, cluster_name=self.spec.cluster))
        except Exception as error:
            if not is_refusal(error):
                raise
            self.note(f"SkyPilot did not ask the run to save: {lines_of(error)[0]}")
            return 0
        return int(self.spec.task["num_nodes"])

    def _reason(self) -> str:
        """Why the cluster is not up, in SkyPilot's words; empty if it is, or if the server does not say."""
        if self.spec.managed:
            return ""
        with contextlib.suppress(Exception):
            for record in self.sky.get(self.sky.status(cluster_names=[self.spec.cluster])):
                # Not in every 0.14: without it, the wait is not explained.
                return str(record.get("init_status_reason") or "")
        return ""
