"""The fake API server that the tests of `--on kuberay` share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_api import FakeApi, serving
from trainfleet.training.launch.sky import contexts, follow


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    with serving() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "kubeconfig")))
        for name in (
            "AWS_ENDPOINT_URL",
            "TRAINFLEET_S3_ENDPOINT",
            "STORAGE_EMULATOR_HOST",
            "AWS_CA_BUNDLE",
            "SSL_CERT_FILE",
        ):
            monkeypatch.delenv(name, raising=False)
        yield server


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr(contexts, "context_problem", lambda context, namespace, required: None)
    monkeypatch.setattr(follow, "parse", lambda document: document)
    return []
