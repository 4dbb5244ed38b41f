"""Preparation by ray.data gives the bytes that this process gives, and where Ray has no CPU free it is not asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.data.test_preparation import contents, prepared
from tests.training.data.transforms import Bytes, Measured
from training.data.pool import choose
from training.ray_cluster import connect
from training.sections import Scaling


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with connect(Scaling(workers=2), {}):
        yield


@pytest.mark.launch
def test_ray_makes_the_same_bytes(cluster: None, texts: Path, tmp_path: Path) -> None:
    for name, more in (("rows", {"transform": Measured()}), ("packed", {"transform": Bytes(), "pack": 8})):
        here = prepared(texts, tmp_path / f"{name}-here", via="here", **more)
        there = prepared(texts, tmp_path / f"{name}-there", via="ray", **more)
        assert contents(Path(here.where)) == contents(Path(there.where))


@pytest.mark.launch
def test_ray_is_used_where_it_has_a_cpu_free(cluster: None) -> None:
    import ray

    assert choose("auto", 10, 5, worth=1) == "ray"

    @ray.remote(num_cpus=2)
    class Worker:
        def here(self) -> bool:
            return True

    worker = Worker.remote()
    assert ray.get(worker.here.remote())
    assert choose("auto", 10, 5, worth=1) == "processes"
    ray.kill(worker)


def test_little_data_is_prepared_in_this_process() -> None:
    assert choose("auto", 10, 5, worth=11) == "here"
    assert choose("auto", 100, 1, worth=11) == "here"
    assert choose("ray", 10, 5, worth=11) == "ray"
