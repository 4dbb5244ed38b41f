"""A process without a GPU says why: the loader does not find the node's driver, or there are too few GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainfleet.errors import MissingToolError
from trainfleet.training.runtime import process_group


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's driver as GKE mounts it, and a torch that sees no GPU."""
    monkeypatch.setattr(process_group, "DRIVER_MOUNT", tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    (tmp_path / "libcuda.so.1").touch()
    return tmp_path


def refusal() -> str:
    with pytest.raises(MissingToolError) as caught:
        process_group.init_from_env(use_gpu=True)
    return str(caught.value)


@pytest.mark.parametrize("path", [None, "", "/opt/lib"])
def test_a_driver_that_the_loader_does_not_find_is_named(
    mounted: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if path is not None:
        monkeypatch.setenv("LD_LIBRARY_PATH", path)
    assert f"the GPU driver is in {mounted}, which the image's LD_LIBRARY_PATH does not contain" in refusal()


def test_a_machine_without_gpus_is_not_blamed_on_the_image(
    mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/opt/lib:{mounted}")
    assert "this machine has 0 GPUs, but process 0 needs its own" in refusal()
    monkeypatch.delenv("LD_LIBRARY_PATH")
    (mounted / "libcuda.so.1").unlink()
    assert "this machine has 0 GPUs" in refusal()
