"""The CA of the signer: created once, replaced, published; and the key of earlier releases."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.infra.kubernetes.signer_place import (
    FORMER,
    PODS,
    PUBLIC,
    SECRET,
    Place,
    place,
    post,
    serving,
)
from trainfleet.infra.kubernetes.scripts import certificate
from trainfleet.infra.kubernetes.scripts.ray_signer.api import RefusedError
from trainfleet.infra.kubernetes.scripts.ray_signer.authority import make

__all__ = ["place"]


def test_two_signers_that_start_at_once_have_one_ca(place: Place, tmp_path: Path) -> None:
    request = certificate.create_key(tmp_path)
    with serving(place) as (one, first), serving(place) as (other, second):
        token = place.add_pod("worker", "127.0.0.7")
        for port in (one, other):  # both prove themselves by the published certificate
            assert post(place, port, token, request, "127.0.0.7")[0] == 200
    messages = first + second
    assert sum("secret ray-certificates/ray-ca: created" in line for line in messages) == 1


def test_a_signer_that_lost_the_race_uses_the_others_ca(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both saw no Secret; one created it first."""
    first, second = place.signer(), place.signer()
    module = "trainfleet.infra.kubernetes.scripts.ray_signer.signer.make"

    def slower(folder: Path) -> tuple[bytes, bytes]:
        monkeypatch.setattr(module, make)
        first.refresh()
        return make(folder)

    monkeypatch.setattr(module, slower)
    second.refresh()
    stored = base64.b64decode(place.api.objects[SECRET]["data"]["tls.crt"])
    assert place.authority == stored
    for signer in (first, second):
        assert signer.certificate == stored


def test_cert_managers_secret_is_waited_for(place: Place) -> None:
    signer = place.signer(CREATE_CA="no")
    with pytest.raises(RefusedError, match="cert-manager has not written secret ray-ca yet"):
        signer.refresh()
    assert place.api.objects == {}
    certificate_, key = make(place.folder)
    add_secret(place, certificate_, key)
    signer.refresh()
    assert place.authority == certificate_


def add_secret(place: Place, crt: bytes, key: bytes) -> None:
    data = {"tls.crt": base64.b64encode(crt).decode(), "tls.key": base64.b64encode(key).decode()}
    place.api.objects[SECRET] = {"kind": "Secret", "metadata": {"name": "ray-ca"}, "data": data}


def test_a_new_ca_is_used_and_a_changed_public_certificate_is_written_back(place: Place) -> None:
    signer = place.signer()
    signer.refresh()
    first, context = place.authority, signer.context
    place.api.objects[PUBLIC]["data"] = {"ca.crt": "another's"}
    signer.refresh()
    assert place.authority == first
    assert signer.context is context, "nothing changed for the signer"
    del place.api.objects[SECRET]
    signer.refresh()
    assert place.authority != first
    assert signer.context is not context
    assert place.authority == signer.certificate


MOUNT = {"volumes": [{"name": "ray-ca", "secret": {"secretName": "ray-ca"}}]}
RAY_JOBS = "/apis/ray.io/v1/namespaces/training/rayjobs"


def test_the_key_of_an_earlier_release_is_deleted_once_nothing_mounts_it(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    signer = place.signer()
    place.api.objects[FORMER] = {"kind": "Secret", "metadata": {"name": "ray-ca"}, "data": {}}
    queued = {"spec": {"rayClusterSpec": {"headGroupSpec": {"template": {"spec": MOUNT}}}}}
    users: dict[str, dict[str, Any]] = {
        f"{PODS}/running": {"spec": MOUNT, "status": {"phase": "Running"}},
        f"{RAY_JOBS}/queued": {**queued, "status": {"jobDeploymentStatus": "Suspended"}},
        f"{RAY_JOBS}/done": {**queued, "status": {"jobDeploymentStatus": "Complete"}},
        f"{PODS}/done": {"spec": MOUNT, "status": {"phase": "Succeeded"}},
        f"{PODS}/new": {"spec": {"volumes": [{"name": "ray-tls", "emptyDir": {}}]}},
    }
    for path, document in users.items():
        place.api.objects[path] = {**document, "metadata": {"name": path.rpartition("/")[2]}}
    for user in ("pods/running", "rayjobs/queued"):
        signer.refresh()
        signer.refresh()
        assert FORMER in place.api.objects
        messages = capsys.readouterr().out.splitlines()
        assert [line for line in messages if "earlier release" in line] == [
            f"secret training/ray-ca of an earlier release is kept: {user} mounts it"
        ]
        del place.api.objects[f"{PODS if user.startswith('pods') else RAY_JOBS}/{user.rpartition('/')[2]}"]
    signer.refresh()
    assert FORMER not in place.api.objects
    assert SECRET in place.api.objects


def test_an_api_server_that_does_not_answer_is_named(place: Place, tmp_path: Path) -> None:
    signer = place.signer()
    signer.refresh()
    dead = place.signer(KUBERNETES_SERVICE_PORT="1")
    with pytest.raises(RefusedError, match="the signer cannot reach the API server") as caught:
        dead.refresh()
    assert caught.value.status == 503
    place.api.token = "another"
    with pytest.raises(RefusedError, match="was answered with 401: not allowed") as caught:
        signer.answer("token", certificate.create_key(tmp_path), "127.0.0.7")
    assert caught.value.status == 503
