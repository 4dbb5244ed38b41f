"""What a run's pods refer to is looked for before they are requested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_api import NAMESPACE, FakeApi
from tests.training.launch.fake_sky import FakeSky, driven
from tests.training.launch.saved_platforms import FOLDER, STACKS, outputs
from tests.training.launch.sky_tasks import recipe
from trainfleet.errors import TrainfleetError
from trainfleet.training.launch.platform_outputs import NamedPlatform
from trainfleet.training.launch.remote import platform_objects as objects
from trainfleet.training.launch.remote.kubernetes import connect
from trainfleet.training.launch.remote.platform_objects import PlatformObject, platform_objects, pod_secrets
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky import contexts, launcher, pods
from trainfleet.training.launch.sky.messages import SkySpec
from trainfleet.training.launch.sky.options import SkyOptions

KUEUE = {"versions": [{"groupVersion": "kueue.x-k8s.io/v1beta2", "version": "v1beta2"}]}
QUEUES = "/apis/kueue.x-k8s.io/v1beta2/namespaces/training/localqueues"
MISSING_CA = r"configmaps/ray-ca is not in namespace training .*kubectl -n ray-certificates describe pods"


@pytest.mark.parametrize(("absent", "looks"), [(3, 4), (10**6, 16)])
def test_what_a_job_of_the_platform_creates_is_waited_for(
    absent: int, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CA's certificate appears seconds after the apply; nothing else does by itself."""
    authority = PlatformObject("configmaps", "ray-ca", "see its signer", created_later=True)
    key = PlatformObject("secrets", "keys", "create it")
    asked: list[str] = []

    def exists(each: PlatformObject) -> bool:
        asked.append(each.name)
        return each is authority and len(asked) > absent

    slept: list[float] = []
    monkeypatch.setattr(objects.time, "sleep", slept.append)
    found = objects.missing([authority], "training", exists)
    assert (len(asked), [each.where for each in found]) == (
        looks,
        ["configmaps/ray-ca"] if looks == 16 else [],
    )
    assert sum(slept) <= objects.AUTHORITY_WAIT_S
    slept.clear()
    asked.clear()
    found = objects.missing([authority, key], "training", lambda each: False)
    assert ([each.where for each in found], slept) == (["configmaps/ray-ca", "secrets/keys"], [])


def test_what_a_platform_lacks_is_found_before_skypilot_starts(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, api: FakeApi
) -> None:
    """The signer has not published the CA's certificate. What the user may not read counts as present."""
    api.refusals["GET", f"{NAMESPACE}/secrets/hidden"] = (403, "secrets is forbidden")
    api.objects[f"{NAMESPACE}/secrets/hidden"] = {}
    monkeypatch.setattr(contexts, "context_problem", pods.context_problem)
    monkeypatch.setattr(objects.time, "sleep", lambda seconds: None)
    platform = outputs("aws-prod", storage_secret="hidden")
    required = platform_objects(platform, pod_secrets(platform, ()))
    found = [(each.kind, each.name) for each in required if each.kind in ("secrets", "configmaps")]
    assert found == [("secrets", "hidden"), ("configmaps", "ray-tls"), ("configmaps", "ray-ca")]
    for each in required:
        if each.name not in ("hidden", "ray-ca") and each.kind != "localqueues":
            api.objects[f"{NAMESPACE}/{each.kind}/{each.name}"] = {}
    api.objects["/apis/kueue.x-k8s.io"] = KUEUE
    api.objects[f"{QUEUES}/{platform.queue}"] = {}
    sky = FakeSky()
    rows = [vars(each) for each in required]
    with pytest.raises(TrainfleetError, match=MISSING_CA):
        driven(reported, sky, contexts={"fake": "training"}, required={"fake": rows}).run()
    assert sky.calls == []
    api.objects[f"{NAMESPACE}/configmaps/ray-ca"] = {}
    assert driven(reported, sky, contexts={"fake": "training"}, required={"fake": rows}).run() == 0


@pytest.mark.parametrize("stack", STACKS)
def test_the_follower_of_skypilot_looks_for_what_the_contract_names(
    stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher writes it, the follower's process reads it back."""
    monkeypatch.setattr(launcher, "context_problem", lambda *_: "is not asked here")
    platform = outputs(stack, storage_secret="store-key")
    request = Request("lm-1b", on="sky", options=SkyOptions(from_secrets=("hf-token",)))
    target = Target(request, (NamedPlatform(platform, FOLDER / f"{stack}.json"),), tmp_path)
    *_, spec = launcher.Sky().command(recipe(name="lm-small"), tmp_path / "recipe.yaml", target)
    (required,) = SkySpec.read(Path(spec)).required.values()
    names = {(each.kind, each.name) for each in required}
    expected = {
        ("serviceaccounts", platform.service_account),
        ("persistentvolumeclaims", platform.shared_volume),
        ("localqueues", platform.queue),
    }
    expected |= {("secrets", each) for each in ("store-key", "hf-token")}
    if platform.ray_tls:
        expected |= {("configmaps", "ray-tls"), ("configmaps", "ray-ca")}
    assert names == {(kind, name) for kind, name in expected if name}


@pytest.mark.parametrize(
    ("there", "refused", "missing"),
    [
        ({"/apis/kueue.x-k8s.io": KUEUE, f"{QUEUES}/training": {}}, "", []),
        ({"/apis/kueue.x-k8s.io": KUEUE}, "", ["localqueues/training"]),
        ({}, "", ["localqueues/training"]),
        ({"/apis/kueue.x-k8s.io": KUEUE}, f"{QUEUES}/training", []),
    ],
    ids=["exists", "other-namespace", "no-kueue", "may-not-be-read"],
)
def test_a_queue_that_would_never_admit_the_run_is_found(
    there: dict[str, Any], refused: str, missing: list[str], api: FakeApi
) -> None:
    api.objects |= there
    if refused:
        api.refusals["GET", refused] = (403, "localqueues is forbidden")
    required = [each for each in platform_objects(outputs("aws-prod"), ()) if each.kind == "localqueues"]
    found = objects.missing_objects(connect("fake", "", "", "training"), required)
    assert [each.where for each in found] == missing


@pytest.mark.parametrize("may_create", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_a_secret_is_looked_for_without_reading_it(
    there: bool, may_create: bool, api: FakeApi, tmp_path: Path
) -> None:
    """Launchers may create Secrets and not read them: a dry run tells whether a name is taken."""
    api.refusals["GET", f"{NAMESPACE}/secrets/keys"] = (403, "secrets is forbidden")
    if not may_create:
        api.refusals["POST", f"{NAMESPACE}/secrets"] = (403, "secrets is forbidden")
    if there:
        api.objects[f"{NAMESPACE}/secrets/keys"] = {}
    before = dict(api.objects)
    cluster = connect("fake", "", "", "training")
    found = objects.missing_objects(cluster, [PlatformObject("secrets", "keys", "create it")])
    assert [each.where for each in found] == (["secrets/keys"] if may_create and not there else [])
    assert api.objects == before, "nothing is stored"
