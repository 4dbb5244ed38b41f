"""A process without a GPU says why: the loader does not find the node's driver, the driver is too old, or there
are too few GPUs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainfleet.errors import MissingToolError
from trainfleet.training.runtime import process_group

OLD_DRIVER = """
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuInit(unsigned int flags) { return 0; }
int cuGetProcAddress(const char *n, void **f, int v, unsigned long flags) { *f = 0; return 500; }
int cuGetProcAddress_v2(const char *n, void **f, int v, unsigned long flags, int *s) { *f = 0; return 500; }
"""
"""A library that answers like a driver of CUDA 12.8. torch and its CUDA runtime are the real ones."""
JOIN = "from trainfleet.training.runtime.process_group import init_from_env; init_from_env(use_gpu=True)"


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


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_driver_that_is_too_old_for_the_image_is_named_with_both_versions(tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(OLD_DRIVER)
    library = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(tmp_path / "driver.c")]
    subprocess.run(library, check=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-c", JOIN],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    expected = f"the node's GPU driver supports CUDA 12.8, and the image has {torch.version.cuda}"
    assert expected in done.stderr
