"""Two launches of one name by SkyPilot, with a fake SkyPilot: one runs, and the other one leaves it alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.launch.fake_sky import FakeSky, driven
from trainfleet.errors import InputError
from trainfleet.training.launch.sky import follow


def test_a_second_launch_of_one_name_is_rejected_and_the_first_is_kept(
    reported: list[dict[str, Any]],
) -> None:
    sky = FakeSky(live=[SimpleNamespace(name="tf-night")])
    with pytest.raises(InputError, match="already in progress"):
        driven(reported, sky).run()
    assert sky.calls == [("status", "tf-night")]


def test_a_run_of_another_user_is_not_joined_and_not_deleted(reported: list[dict[str, Any]]) -> None:
    """The users of a team's server share the names of clusters."""
    sky = FakeSky()
    sky.others = [SimpleNamespace(name="tf-night", user_name="ana")]
    with pytest.raises(InputError, match="already in progress") as raised:
        driven(reported, sky, server="https://sky.example").run()
    assert "SkyPilot has a run of this name, of the user ana" in str(raised.value)
    assert sky.calls == [("status", "tf-night")]


def test_a_run_that_began_during_the_workload_check_is_not_joined(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sky = FakeSky()
    monkeypatch.setattr(follow, "connect", lambda *_: None)
    monkeypatch.setattr(follow, "check_workload", lambda *_: sky.live.append(SimpleNamespace()))
    one = driven(reported, sky)
    one.spec = one.spec.model_copy(update={"checks": {"near": "check"}})
    with pytest.raises(InputError, match="already in progress"):
        one.run()
    assert {call[0] for call in sky.calls} == {"status"}


def test_of_two_launches_at_once_the_second_ends_its_own_job_only(reported: list[dict[str, Any]]) -> None:
    """SkyPilot runs the second task as another job of the cluster that the first launch has created."""

    class Both(FakeSky):
        def stream_and_get(self, *_: Any, **__: Any) -> Any:
            return 2, None

    sky = Both()
    with pytest.raises(InputError, match="already in progress"):
        driven(reported, sky).run()
    assert [call for call in sky.calls if call[0] in ("launch", "cancel_job", "down")] == [
        ("launch", "tf-night", True),
        ("cancel_job", "tf-night", 2),
    ]
    assert reported[-1] == {"kind": "note", "text": "canceling the job"}
