"""`--code`: which folder it is, how every launcher passes the archive on, and what a launch records."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.kuberay_launches import launch as kuberay_launch
from tests.training.launch.sky_tasks import recipe as sky_recipe
from tests.training.launch.test_ray_up_cluster_yaml import run_spec as ray_up_run
from tests.training.user_code import clean_imports, tree, write_workload
from trainfleet.errors import InputError
from trainfleet.training.launch import code, supervise
from trainfleet.training.launch.base import Launcher
from trainfleet.training.launch.code import changes, folder_of, packed
from trainfleet.training.launch.kuberay.launcher import KubeRay
from trainfleet.training.launch.kuberay.manifest import run_objects
from trainfleet.training.launch.kuberay.run_spec import resolve as kuberay_run
from trainfleet.training.launch.options import LaunchOptions
from trainfleet.training.launch.ray_up import cluster_yaml
from trainfleet.training.launch.ray_up.launcher import RayUp
from trainfleet.training.launch.ray_up.run_spec import resolve as ray_up_resolve
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky.options import SkyOptions
from trainfleet.training.launch.sky.run_spec import resolve as sky_run
from trainfleet.training.recipe.load import dump, load_recipe
from trainfleet.training.runs.reader import read_run
from trainfleet.training.runs.storage import RunStorage
from trainfleet.training.runtime import code_archive
from trainfleet.training.runtime.code_archive import CODE, CODE_FOLDER
from trainfleet.training.stores import open_store

__all__ = ["clean_imports"]
pytestmark = pytest.mark.usefixtures("clean_imports")
URL = "s3://prod-runs/runs/lm-tiny/code/0123.tar.gz"


# Which folder it is.


def test_the_default_is_the_recipes_folder_if_its_workload_is_a_file_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = str(write_workload(tmp_path / "exp"))
    assert folder_of(None, recipe, ()) == tmp_path / "exp"
    assert folder_of(None, recipe, ("workload.name=lm",)) is None
    assert folder_of(str(tmp_path), recipe, ()) == tmp_path
    monkeypatch.chdir(tmp_path)
    assert folder_of(None, "exp/spirals.yaml", ()) == tmp_path / "exp"
    (tmp_path / "exp" / "spirals.py").unlink()
    assert folder_of(None, recipe, ()) is None
    tree(tmp_path, "exp/spirals/__init__.py")
    assert folder_of(None, recipe, ()) == tmp_path / "exp"
    assert folder_of(None, "lm-tiny", ()) is None
    for given, what in ((tmp_path / "none", "does not exist"), (Path(recipe), "is not a folder")):
        with pytest.raises(InputError, match=what):
            folder_of(str(given), recipe, ())


# How launchers pass it on.


def test_the_objects_of_kuberay_have_the_driver_fetch_the_code() -> None:
    recipe, target = kuberay_launch()
    target = Target(target.request, target.platforms, target.run_dir, code.stored(URL))
    objects = run_objects(kuberay_run(recipe, target, KubeRay().options(target), {}))
    (files,) = (each for each in objects if each["kind"] == "ConfigMap")
    assert json.loads(files["data"]["job.json"])["env"][CODE] == URL


def test_a_task_of_skypilot_has_the_driver_fetch_the_code() -> None:
    options = SkyOptions(context="kind", namespace="mine", image="my/image:1")
    target = Target(Request("lm-small", options=options), (), Path(), code.stored(URL))
    assert sky_run(sky_recipe(name="lm-small"), target, options, {}).task["envs"][CODE] == URL


def test_ray_up_copies_the_code_to_machines_whose_identity_cannot_read_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ray_up_run("local")
    found = packed(tree(tmp_path / "exp", "mine.py"), "s3://my-runs/runs/lm-tiny")
    options = RayUp.options_model(hosts=plain.hosts)
    target = Target(Request("lm-tiny", on="ray-up", options=options), (), Path("runs/lm-tiny"), found)
    run = ray_up_resolve(plain.recipe, target, options, {})
    env = cluster_yaml.submitted_job(run).env
    assert env[CODE] == found.url
    assert env.items() >= cluster_yaml.variables_of(run).items()
    files = cluster_yaml.write(run, tmp_path / "cluster.yaml", {})
    assert f'"{CODE}": "{found.url}"' in cluster_yaml.next_steps(run, files.cluster)
    mounts = cluster_yaml.cluster_document(run, files)["file_mounts"]
    monkeypatch.setenv("HOME", str(tmp_path / "machine"))
    for there, here in mounts.items():
        copied = Path(there).expanduser()
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(Path(here).read_bytes())
    monkeypatch.setenv(code_archive.CODE_COPIES, env[code_archive.CODE_COPIES])
    assert code_archive.fetch(env[CODE]) == code_archive.read(found.data, found.digest)
    assert CODE not in cluster_yaml.submitted_job(plain).env
    assert not any("code" in there for there in cluster_yaml.cluster_document(plain, files)["file_mounts"])


def test_printed_objects_name_the_archive_and_a_warning_says_who_stores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_workload(tmp_path / "exp", module="printed")
    monkeypatch.chdir(tmp_path)
    options = KubeRay.options_model(context="kind", namespace="mine", image="my/image:1")
    asked = Request(str(recipe), on="kuberay", storage="s3://bucket/runs", options=options)
    digest = packed(tmp_path / "exp", "").digest
    url = f"s3://bucket/runs/printed/code/{digest}.tar.gz"
    assert url in supervise.show(asked, {})
    assert f"only a launch stores {url}" in capsys.readouterr().err


# A launch, with a launcher that starts one process and no training.


class Printing(Launcher[LaunchOptions]):
    """Starts a process that reports what it would import."""

    options_model = LaunchOptions
    program = (
        "import os, json; from trainfleet.training.runtime import code_archive as c, events as e;"
        "c.use(os.environ[c.CODE], os.environ.get(c.CODE_FOLDER)); import arcs;"
        "f = os.path.dirname(arcs.__file__); e.EventSink(os.environ[e.EVENTS]).send("
        "'result', status=STATUS, step=300, metrics={}, baseline={}, checkpoint=f, resumed_from=0, run_dir=arcs.Spirals.loss_unit)"
    )

    def __init__(self, *, remote: bool = False, status: str = "finished") -> None:
        self.remote = remote  # type: ignore[misc]
        self.status = status
        self.targets: list[Target] = []

    def check(self, recipe: Any, target: Target) -> None:
        self.targets.append(target)

    def command(self, recipe: Any, file: Path, target: Target) -> list[str]:
        import sys

        return [sys.executable, "-c", self.program.replace("STATUS", repr(self.status))]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Launch the recipe in `exp` from another folder; returns the events that were shown and the outcome."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")

    class Shown:
        def __init__(self) -> None:
            self.events: list[Any] = []

        def handle(self, event: Any) -> None:
            self.events.append(dict(event))

        def close(self) -> None: ...

    def started(launcher: Printing, *overrides: str, **request: Any) -> tuple[list[str], Any]:
        monkeypatch.setattr(supervise, "find", lambda _: launcher)
        shown = Shown()
        recipe = str(tmp_path / "exp" / "arcs.yaml")
        asked = Request(recipe, overrides, storage=str(tmp_path / "runs"), **request)
        outcome = supervise.start(asked, dict(os.environ), shown)
        warnings = [event["text"] for event in shown.events if event["kind"] == "warning"]
        results = [event for event in shown.events if event["kind"] == "result"]
        return warnings, (outcome, *results)

    return started


def archives(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "runs" / "arcs" / "code").glob("*"))


def test_a_launch_stores_records_unpacks_and_removes_the_code(tmp_path: Path, launch: Any) -> None:
    write_workload(tmp_path / "exp", unit="edited", module="arcs")
    launcher = Printing()
    warnings, (_, result) = launch(launcher)
    (target,) = launcher.targets
    assert target.code is not None
    assert warnings == []
    assert archives(tmp_path) == [f"{target.code.digest}.tar.gz"]
    assert result["run_dir"] == "edited"
    assert target.code.digest in result["checkpoint"], "it was not imported from the archive"
    assert not Path(result["checkpoint"]).exists(), "the unpacked code was left behind"
    (record,) = read_run(tmp_path / "runs" / "arcs")["launches"]
    assert record["code"] == {"folder": str(tmp_path / "exp"), "digest": target.code.digest, "files": 2}


def test_changed_code_is_named_when_the_run_resumes_and_refused_when_it_is_finished(
    tmp_path: Path, launch: Any
) -> None:
    write_workload(tmp_path / "exp", unit="first", module="arcs")
    with pytest.raises(Exception, match="which is saved"):
        launch(Printing(status="stopped"))
    write_workload(tmp_path / "exp", unit="second", module="arcs")
    (tmp_path / "exp" / "arcs.yaml").write_text((tmp_path / "exp" / "arcs.yaml").read_text() + "\n# a note\n")
    tree(tmp_path / "exp", "new.py")
    warnings, (_, result) = launch(Printing())
    assert warnings == ["the code has changed since the run's last launch: arcs.py: changed, new.py: added"]
    assert result["run_dir"] == "second"
    assert len(archives(tmp_path)) == 2
    run_json = tmp_path / "runs" / "arcs" / "run.json"
    recipe = load_recipe(tmp_path / "exp" / "arcs.yaml", [f"storage={tmp_path / 'runs'}"])
    run_json.with_name("recipe.yaml").write_text(dump(recipe))  # as rank 0 writes it
    run_json.write_text(json.dumps(json.loads(run_json.read_text()) | {"status": "finished"}))
    assert launch(Printing())[1][0].already_finished
    (tmp_path / "exp" / "new.py").unlink()
    with pytest.raises(
        InputError, match=r"trained with other code(.|\n)*new.py: removed(.|\n)*--allow-change code"
    ):
        launch(Printing())
    assert launch(Printing(), allow_changes=("code",))[1][0].already_finished
    assert len(archives(tmp_path)) == 2


def test_a_folder_that_cannot_be_archived_is_used_as_it_is_on_this_machine_only(
    tmp_path: Path, launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_workload(tmp_path / "exp", unit="in place", module="arcs")
    monkeypatch.setattr(code, "MAX_BYTES", 100)
    (warning,), (_, result) = launch(Printing())
    assert "the run's code is not recorded" in warning
    assert (result["run_dir"], result["checkpoint"]) == ("in place", str(tmp_path / "exp"))
    for request in ({"code": str(tmp_path / "exp")}, {}):
        with pytest.raises(InputError, match="cannot be launched"):
            launch(Printing(remote=not request), run="again", **request)


def test_a_workload_that_other_machines_would_lack_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_workload(tmp_path, module="lone")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    load_recipe(recipe)
    text = code.not_shipped("lone:Spirals", None)
    assert "lone.py is not part of what is launched" in text
    assert f"--code {tmp_path}" in text
    assert not code.not_shipped("lone:Spirals", tmp_path)
    assert not code.not_shipped("lm", None)


def test_an_earlier_archive_that_is_gone_is_named_by_its_digest(tmp_path: Path) -> None:
    found = packed(tree(tmp_path / "exp", "mine.py"), str(tmp_path / "run"))
    before = {"launches": [{"code": {"digest": "f" * 64}}, {}]}
    (text,) = changes(before, found, "lm-tiny")
    assert text.startswith("ffffffffffff, now ")
    (text,) = changes({**before, "starts": [{"code": "e" * 64}, {}]}, found, "lm-tiny")
    assert text.startswith("eeeeeeeeeeee, now "), "a start knows what was imported"
    assert changes({"launches": [{}]}, found, "lm-tiny") == []
    assert changes(before, None, "lm-tiny") == []


def test_a_store_that_holds_nothing_but_code_is_empty_for_a_fresh_start(tmp_path: Path) -> None:
    recipe = load_recipe("lm-tiny", [f"storage={tmp_path}"])
    storage = RunStorage(recipe, tmp_path / "run", lambda *_: None)
    storage.store = open_store(str(tree(tmp_path / "store", "code/01.tar.gz")))
    storage.require_empty()
    tree(tmp_path / "store", "run.json")
    with pytest.raises(InputError, match="would overwrite a run"):
        storage.require_empty()


def test_only_local_launchers_pass_the_code_in_the_environment(tmp_path: Path, launch: Any) -> None:
    write_workload(tmp_path / "exp", module="arcs")
    launcher = Printing(remote=True)
    launcher.program = "import os; open('env', 'w').write(os.environ.get('TRAINFLEET_CODE', 'none'))"
    with pytest.raises(Exception, match="the run failed"):
        launch(launcher)
    assert Path("env").read_text() == "none"
    assert CODE_FOLDER not in os.environ
