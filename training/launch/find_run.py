"""Finds a run by its name: in this folder, in a cluster, or below a storage URL. And lists runs there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.suggestions import did_you_mean, nearest
from trainfleet.training.launch.base import LAUNCHERS, find
from trainfleet.training.launch.control import Dashboard, RunControl, RunRef
from trainfleet.training.launch.remote.kubernetes import Cluster
from trainfleet.training.launch.remote.where import Where, rejections_explained
from trainfleet.training.runs.listing import RETRY, RunInfo, home_of, in_order, read_info
from trainfleet.training.runs.reader import read_run, real_launches
from trainfleet.training.stores import open_store

RUNS = Path("runs")
"""The folder of the runs that were launched from the current folder."""
ELSEWHERE = "if it was launched elsewhere: --storage URL, --stack OUTPUTS.json or --context NAME"


def control_of(ref: RunRef) -> RunControl:
    """The control of the launcher of a run; of an unknown one only through the run's storage."""
    on = str(ref.launch.get("on", ""))
    return find(on).control(ref) if on in LAUNCHERS else RunControl(ref)


def find_run(name: str, where: Where, storage: str | None = None) -> RunControl:
    """The control of a run.

    Args:
        name: the run's name.
        where: the cluster that the user named, or none.
        storage: the folder or URL that the user named: of several runs, or of this one.

    Raises:
        InputError: there is no such run.
        TrainfleetError: the cluster or the storage does not respond.
    """
    if storage is not None:
        return control_of(_stored(name, storage, where))
    if where.named:
        return _in_cluster(name, where)
    if name == Path(name).name and (found := in_folder(RUNS / name, where)):
        return found
    try:
        return _in_cluster(name, where)
    except InputError as error:
        known = [each.name for each in RUNS.glob("*/") if in_folder(each)]
        fix = did_you_mean(name, known) if nearest(name, known) else ELSEWHERE
        here = Problem(f"{RUNS}/", f"has no run `{name}`", fix)
        raise InputError("no such run", [here, *error.problems]) from error


def in_folder(run_dir: Path, where: Where | None = None) -> RunControl | None:
    """The control of the run that was launched into a folder of this machine; None if there was none."""
    launches = real_launches(read_run(run_dir))
    if not launches:
        return None
    return control_of(RunRef(run_dir.name, home_of(launches[-1], run_dir), launches[-1], where or Where()))


@contextlib.contextmanager
def dashboard_of(
    name: str | None, where: Where, port: int, report: Callable[[str], Any]
) -> Iterator[Dashboard]:
    """The dashboard of a run, or of a long-lived Ray cluster in a Kubernetes cluster; without a name, of the
    only one there.

    Raises:
        InputError: there is none, or there are several and none was named.
    """
    from trainfleet.training.launch.kuberay.control import dashboard_in

    try:
        control = find_run(name, where) if name else None
    except InputError:  # not a run: a Ray cluster's name, perhaps
        control = None
    found = control.dashboard(port, report) if control else dashboard_in(where.connect(), name, port, report)
    with found as dashboard:
        yield dashboard


def required_token(found: Dashboard) -> str:
    """The token that a dashboard asks for.

    Raises:
        InputError: it has none.
    """
    if found.token is None:
        what = "has no token; was it created without token authentication?"
        raise InputError("no token", [Problem(found.ray_cluster, what)])
    return found.token


def list_cluster(cluster: Cluster) -> list[RunInfo]:
    """The runs of all launchers in a namespace, oldest first."""
    with rejections_explained(cluster):
        return in_order([each for on in LAUNCHERS for each in find(on).runs_in(cluster)])


def _stored(name: str, storage: str, where: Where) -> RunRef:
    """The run below a URL; the URL may be the run's own."""
    base = storage.rstrip("/").removeprefix("file://")
    for home in (f"{base}/{name}", *([base] if base.rpartition("/")[2] == name else [])):
        info = read_info(open_store(home, RETRY), name)
        if info is not None:
            return RunRef(name, home, info.launch, where, by_storage=not where.named)
    known = [each.name for each in open_store(base, RETRY).entries().values() if each.folder]
    raise _missing(name, base, known)


def _in_cluster(name: str, where: Where) -> RunControl:
    cluster = where.connect()
    runs = list_cluster(cluster)
    found = next((each for each in reversed(runs) if each.name == name), None)
    if found is None:
        raise _missing(name, f"{cluster.name} {cluster.namespace}", [each.name for each in runs])
    # A launcher that needs more than the cluster tells leaves out the place.
    stored = _launch_in(found.home) if "place" not in found.launch else {}
    launch = {**found.launch, **(stored if stored.get("on") == found.launcher else {})}
    named = where if where.named else Where(context=cluster.name, namespace=cluster.namespace)
    return control_of(RunRef(name, found.home, launch, named))


def _launch_in(home: str) -> dict[str, Any]:
    """The last launch as the run's storage tells; empty if it cannot be read from here."""
    try:
        info = read_info(open_store(home, RETRY), "") if home else None
    except TrainfleetError:
        return {}
    return dict(info.launch) if info else {}


def _missing(name: str, where: str, known: Iterable[str]) -> InputError:
    names = sorted(known)
    fix = did_you_mean(name, names) if names else "there are none"
    return InputError("no such run", [Problem(where, f"has no run `{name}`", fix)])
