"""The init container that gets a pod's certificate from the signer."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.infra.kubernetes.signer_place import (
    Place,
    place,
    run_init,
    serving,
    setup_folder,
    shown,
)
from trainfleet.infra.kubernetes.scripts import certificate
from trainfleet.infra.kubernetes.scripts.ray_signer.authority import make

__all__ = ["place"]


def test_the_init_container_says_what_was_refused_and_fails(place: Place) -> None:
    with serving(place) as (port, _):
        token = place.add_pod("head", "127.0.0.1", "::1", spec={"hostNetwork": True})
        setup = setup_folder(place, token)
        done = run_init(setup, port, place.folder / "tls")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith(
        f"the signer of Ray's certificates at https://localhost:{port}/sign gives this pod none: "
        "403, pod head uses the network of its node (hostNetwork)"
    )
    assert not (place.folder / "tls" / "tls.crt").exists()


def waits(monkeypatch: pytest.MonkeyPatch, *actions: Any, clock: Any = time.monotonic) -> list[float]:
    """The waits of the init container, without waiting: each performs the next action."""
    left, waited = list(actions), list[float]()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if left:
            left.pop(0)()

    monkeypatch.setattr(certificate, "time", SimpleNamespace(sleep=sleep, monotonic=clock))
    return waited


def test_the_init_container_waits_for_the_signer_and_for_its_address(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = certificate.create_key(tmp_path)
    with serving(place) as (port, _):
        token = place.add_pod("head")
        setup = setup_folder(place, token)
        right = (setup / "ca.crt").read_bytes()
        (setup / "ca.crt").write_bytes(make(tmp_path)[0])
        actions = [
            lambda: (setup / "ca.crt").write_bytes(right),
            lambda: None,
            lambda: place.add_pod("head", "127.0.0.1", "::1"),
        ]
        waited = waits(monkeypatch, *actions)
        url = f"https://localhost:{port}/sign"
        signed, authority = certificate.obtain(url, setup, request)
    assert authority == right
    assert "IP Address:127.0.0.1" in shown(signed.decode(), "-text")
    assert waited == [0.5, 1.0, 2.0]
    messages = capsys.readouterr().out.splitlines()
    start = f"waiting for the signer of Ray's certificates at {url}: "
    assert [line.removeprefix(start).split(":")[0] for line in messages] == [
        "its certificate is not the platform's",
        "503, the API server does not know the address of pod head yet",
    ]


def test_the_init_container_gives_up_with_the_last_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ca.crt").write_bytes(make(tmp_path)[0])
    (tmp_path / "token").write_text("token")
    clock = iter(range(0, 100_000, 50))
    waits(monkeypatch, clock=lambda: float(next(clock)))
    with pytest.raises(certificate.DeniedError, match=r"no certificate in 300 s; the last answer was: Conn"):
        certificate.obtain("https://localhost:1/sign", tmp_path, b"")
    assert len(capsys.readouterr().out.splitlines()) == 1
