"""The token of a Ray cluster is read in the head's pod, and not in its Secret."""

from __future__ import annotations

from typing import Any, cast

import pytest

from trainfleet.errors import InputError
from trainfleet.training.launch.kuberay.token import token_of
from trainfleet.training.launch.remote.kubernetes import Cluster


class HeadStandIn:
    """A cluster with one pod, in whose first container a command prints its environment."""

    def __init__(self, **environment: str) -> None:
        self.environment = environment
        self.asked: list[str] = []

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        self.asked.append(f"{kind} {name}")
        containers = [{"name": "ray-head"}, {"name": "autoscaler"}]
        return {"spec": {"containers": containers}} if name == "head-1" else None

    def execute(self, pod: str, container: str, command: list[str]) -> str:
        assert (pod, container, command[0]) == ("head-1", "ray-head", "printenv")
        return f"{self.environment[command[1]]}\n" if command[1] in self.environment else ""


def test_the_token_is_the_variable_of_the_heads_first_container() -> None:
    head = HeadStandIn(RAY_AUTH_TOKEN="planted")
    assert token_of(cast("Cluster", head), "head-1") == "planted"
    assert head.asked == ["Pod head-1"], "no Secret is read"


@pytest.mark.parametrize("pod", ["head-1", "gone"])
def test_a_head_without_a_token_is_reported(pod: str) -> None:
    with pytest.raises(InputError) as caught:
        token_of(cast("Cluster", HeadStandIn()), pod)
    (problem,) = caught.value.problems
    assert problem.where == pod
    assert problem.what.startswith("has no RAY_AUTH_TOKEN")
