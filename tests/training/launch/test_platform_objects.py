"""What a run's pods refer to is looked for before they are requested, with kubectl and with the API alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_sky import FakeSky, driven
from tests.training.launch.saved_platforms import outputs
from trainfleet.errors import TrainfleetError
from trainfleet.training.launch.remote import platform_objects as objects
from trainfleet.training.launch.remote.platform_objects import PlatformObject, platform_objects, pod_secrets
from trainfleet.training.launch.sky import follow, pods


@pytest.mark.parametrize(("absent", "looks"), [(3, 4), (10**6, 16)])
def test_what_a_job_of_the_platform_creates_is_waited_for(absent: int, looks: int) -> None:
    """The authority appears seconds after the apply; nothing else does by itself."""
    authority = PlatformObject("secrets", "ray-ca", "see its Job", created_later=True)
    key = PlatformObject("secrets", "keys", "create it")
    asked: list[str] = []

    def exists(each: PlatformObject) -> bool:
        asked.append(each.name)
        return each is authority and len(asked) > absent

    slept: list[float] = []
    found = objects.missing([authority], "training", exists, slept.append)
    assert (len(asked), [each.where for each in found]) == (looks, ["secrets/ray-ca"] if looks == 16 else [])
    assert sum(slept) <= objects.AUTHORITY_WAIT_S
    slept.clear()
    asked.clear()
    found = objects.missing([authority, key], "training", lambda each: False, slept.append)
    assert ([each.where for each in found], slept) == (["secrets/ray-ca", "secrets/keys"], [])


def test_what_a_platform_lacks_is_found_before_skypilot_starts(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """kubectl answers like an API server on which the Job of Ray's authority has not run."""
    program = tmp_path / "kubectl"
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in *"get secrets ray-ca"*) echo "Error from server (NotFound): no" >&2; exit 1;; esac\n'
        'case "$*" in *"get secrets hidden"*) echo "Error from server (Forbidden): no" >&2; exit 1;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(follow, "context_problem", pods.context_problem)
    monkeypatch.setattr(pods.time, "sleep", lambda seconds: None)
    platform = outputs("aws-prod", storage_secret="hidden")
    required = platform_objects(platform, pod_secrets(platform, ()))
    assert [each.name for each in required if each.kind == "secrets"] == ["hidden", "ray-ca"]
    sky = FakeSky()
    rows = [vars(each) for each in required]
    with pytest.raises(TrainfleetError, match=r"secrets/ray-ca is not in namespace training .*Job `ray-ca`"):
        driven(reported, sky, contexts={"near": "training"}, required={"near": rows}).run()
    assert sky.calls == []
    program.write_text("#!/bin/sh\n")
    assert driven(reported, sky, contexts={"near": "training"}, required={"near": rows}).run() == 0
