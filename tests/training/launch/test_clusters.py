"""`--clusters`: what a list names, what is rejected before anything starts, and the figures of all runs."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainfleet import process
from trainfleet.errors import InputError, Interrupted, Problem, TrainfleetError
from trainfleet.training.launch.base import LAUNCHERS, find
from trainfleet.training.launch.clusters import member as clusters_member
from trainfleet.training.launch.clusters.display import GroupLines, QuietGroup, sum_up
from trainfleet.training.launch.clusters.entries import ClusterEntry, read_entries, requests
from trainfleet.training.launch.clusters.group import GroupOutcome
from trainfleet.training.launch.clusters.member import MemberSpec
from trainfleet.training.launch.clusters.processes import Processes
from trainfleet.training.launch.clusters.state import STATE, folder_of, runs_of
from trainfleet.training.launch.clusters.stop import require_unambiguous, stop_all
from trainfleet.training.launch.clusters.summary import Member
from trainfleet.training.launch.kuberay.options import KubeRayOptions
from trainfleet.training.launch.request import Request

MIXED = """
- {stack: stacks/aws-prod.json, launcher: kuberay, options: {pool: l4, within: 5}}
- {stack: [gcp-prod.json, azure-prod.json], launcher: sky, overrides: [seed=2, strategy=fsdp]}
- {name: here, launcher: torchrun, storage: elsewhere}
"""


def written(folder: Path, text: str) -> str:
    file = folder / "clusters.yaml"
    file.write_text(text)
    return str(file)


def problems(error: InputError) -> list[str]:
    return [str(each) for each in error.problems]


def test_platforms_with_commas_between_them_use_the_launcher_of_the_command() -> None:
    found = read_entries("a.json, stacks/b.json,prod", "sky")
    assert [(each.name, each.launcher, each.stack) for each in found] == [
        ("a", "sky", ("a.json",)),
        ("b", "sky", ("stacks/b.json",)),
        ("prod", "sky", ("prod",)),
    ]


def test_each_cluster_has_its_own_launcher_changes_options_and_run(tmp_path: Path) -> None:
    entries = read_entries(written(tmp_path, MIXED), "local")
    base = Request("lm-small", overrides=("steps=9",), storage="s3://runs", fresh=True)
    found = requests(base, "night", entries, {})
    assert [(each.on, each.run, each.stacks, each.storage) for each in found] == [
        ("kuberay", "night-aws-prod", ("stacks/aws-prod.json",), "s3://runs"),
        ("sky", "night-gcp-prod", ("gcp-prod.json", "azure-prod.json"), "s3://runs"),
        ("torchrun", "night-here", (), "elsewhere"),
    ]
    assert [each.overrides for each in found] == [
        ("steps=9",),
        ("steps=9", "seed=2", "strategy=fsdp"),
        ("steps=9",),
    ]
    options = found[0].options
    assert isinstance(options, KubeRayOptions)
    assert (options.pool, options.within_s) == ("l4", 300.0)
    assert all(each.fresh and each.json for each in found)


def test_an_option_of_the_command_is_of_every_cluster_and_gives_way_to_its_own() -> None:
    entries = [
        ClusterEntry(name="a", launcher="kuberay", options={"pool": "l4"}),
        ClusterEntry(name="b", launcher="sky"),
    ]
    found = requests(Request("lm-small"), "night", entries, {"pool": "h100", "image": "my/image:1"})
    assert [(each.options.pool, each.options.image) for each in found] == [  # type: ignore[union-attr]
        ("l4", "my/image:1"),
        ("h100", "my/image:1"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.json", "names only one cluster"),
        ("a.json,stacks/a.json", "2 clusters are named a"),
        ("[{stack: a.json}, {stack: b.json, pool: l4}]", "[1]"),
        ("[{stack: a.json}, {stack: b.json, on: sky}]", "[1]"),
        ("stack: a.json", "is not a list"),
        ("[{stack: a.json", "is not YAML"),
        ("[{name: A B, stack: a.json}, {stack: b.json}]", "[0] name"),
    ],
)
def test_a_list_that_cannot_be_read_is_rejected_with_the_place(
    text: str, expected: str, tmp_path: Path
) -> None:
    given = written(tmp_path, text) if ":" in text else text
    with pytest.raises(InputError) as raised:
        read_entries(given, "kuberay")
    assert expected in str(raised.value)


def test_options_that_a_launcher_does_not_have_are_rejected_on_all_clusters_at_once() -> None:
    entries = [
        ClusterEntry(name="a", launcher="torchrun"),
        ClusterEntry(name="b", launcher="sky", options={"hots": ["x"]}),
        ClusterEntry(name="c", launcher="kuberay", options={"within": "long"}),
        ClusterEntry(name="d", launcher="slurm"),
    ]
    with pytest.raises(InputError) as raised:
        requests(Request("lm-small"), "night", entries, {"pool": "l4"})
    text = problems(raised.value)
    assert [each.split()[0].rstrip(":") for each in text] == ["a", "b", "c", "d"]
    assert "`--pool` does nothing with --on torchrun" in text[0]
    assert "is not an option of --on sky" in text[1]


@pytest.mark.parametrize("on", LAUNCHERS)
def test_the_process_of_a_cluster_gets_the_request_unchanged(on: str, tmp_path: Path) -> None:
    """Every field is written to the file and read back, whatever is added to a request later."""
    options = find(on).options_model()
    plain: dict[str, Any] = {}
    for each in fields(Request):
        value = getattr(Request("lm-small"), each.name)
        plain[each.name] = {str: "text", bool: True, tuple: ("one", "two")}.get(type(value), "text")
    request = Request(**{**plain, "on": on, "options": options})
    MemberSpec.of(request, cluster="a", address="", parent=1).write(tmp_path / "a.json")
    read = MemberSpec.read(tmp_path / "a.json").launch()
    assert read == request
    assert read.options is not None
    assert not read.options.model_fields_set, "a given default may be rejected, as --idle without --cluster"


@pytest.mark.parametrize(("state", "released"), [("finished", True), ("failed", True), ("running", False)])
def test_a_run_that_is_followed_again_leaves_nothing_once_it_has_ended(
    state: str, released: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[str] = []

    def stop(**_: Any) -> str:
        stops.append(state)
        raise TrainfleetError("the cluster does not answer", [Problem("here", "is away")])

    def followed(*_: Any, **__: Any) -> None:
        raise TrainfleetError("the run failed")

    monkeypatch.setattr(clusters_member, "attach", followed)
    found = SimpleNamespace(
        attach_request=lambda *_, **__: None, info=lambda: SimpleNamespace(state=state), stop=stop
    )
    seen: list[Mapping[str, Any]] = []
    with pytest.raises(TrainfleetError, match="the run failed"):
        clusters_member._follow(found, SimpleNamespace(handle=seen.append), tmp_path / "run")  # type: ignore[arg-type]
    assert bool(stops) == released
    assert ("is not deleted: the cluster does not answer" in str(seen[-1])) == released


def test_a_store_that_does_not_answer_hides_no_error_of_a_followed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(text: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            raise TrainfleetError(text)

        return call

    monkeypatch.setattr(clusters_member, "attach", raises("the run failed"))
    found = SimpleNamespace(attach_request=lambda *_, **__: None, info=raises("no answer"))
    with pytest.raises(TrainfleetError, match="the run failed"):
        clusters_member._follow(found, SimpleNamespace(handle=lambda _: None), tmp_path / "run")  # type: ignore[arg-type]


def member(name: str, status: str, **row: Any) -> Member:
    return Member(name, "kuberay", Path("runs") / name, status, row)


def test_a_line_for_all_runs_appears_once_each_has_reported(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"step": step, "loss": loss, "tokens_per_second": 1000.0} for step, loss in ((10, 2.5), (40, 2.0))
    ]
    members = [member("a", "running", **rows[0]), member("long", "running", **rows[1]), member("c", "failed")]
    view = GroupLines(members)
    for each in (members[0], members[0], members[1], members[0]):
        view.handle(
            each,
            {"kind": "interval", "row": each.row | {"steps": 50, "lr": 1, "data_wait": 0, "eta_seconds": 1}},
        )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["[a]", "[a]", "[long]", "all", "[a]"]
    assert lines[3].split(None, 1)[1] == sum_up(members)
    assert sum_up(members) == "steps 10 to 40  loss 2.0000 to 2.5000  2000 tok/s  2 running, 1 failed"


def test_the_line_for_all_runs_has_their_cost_and_faults(tmp_path: Path) -> None:
    members = [member(name, "running", step=4, loss=1.0, usd=1.25) for name in "ab"]
    followed = Processes(tmp_path, tmp_path, QuietGroup())
    followed.by_name = {each.name: each for each in members}
    rows = [
        {"cluster": "a", "kind": "attempt_failed", "restarting": True, "text": ""},
        {"cluster": "a", "kind": "event", "what": "resumed", "text": "at step 4"},
        {"cluster": "b", "kind": "event", "what": "hung", "text": "rank 1"},
        {"cluster": "b", "kind": "moved", "text": "to another cluster"},
    ]
    followed._listener = SimpleNamespace(drain=lambda: rows)  # type: ignore[assignment]
    followed._handle()
    assert sum_up(members) == "steps 4  loss 1.0000  $2.50  3 faults  2 running"


def test_an_output_that_cannot_be_written_detaches_from_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(QuietGroup):
        def handle(self, member: Member, event: Mapping[str, Any]) -> None:
            raise BrokenPipeError

    left: list[bool] = []
    monkeypatch.setattr(process, "leave_output", lambda: left.append(True))
    followed = Processes(tmp_path, tmp_path, Closed())
    followed.by_name = {"a": member("a", "running")}
    note = {"cluster": "a", "kind": "note", "text": "it trains"}
    followed._listener = SimpleNamespace(drain=lambda: [dict(note), dict(note)])  # type: ignore[assignment]
    followed._handle()
    assert (left, followed.signals) == ([True], [signal.SIGHUP])


def test_the_error_names_every_run_that_failed_and_stopped_runs_are_an_interruption() -> None:
    failed = member("b", "failed")
    failed.summary, failed.problems = "no capacity", [["pool", "is full", "another"]]
    error = GroupOutcome([member("a", "finished"), failed, member("c", "detached")], {}).error
    assert error is not None
    assert error.exit_code == 1
    assert [(each.where, each.what) for each in error.problems] == [
        ("b", "no capacity"),
        ("b pool", "is full"),
    ]
    stopped = GroupOutcome([member("a", "interrupted"), member("b", "finished")], {}).error
    assert isinstance(stopped, Interrupted)
    assert GroupOutcome([member("a", "finished"), member("b", "detached")], {}).error is None


def test_a_run_that_cannot_be_stopped_keeps_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert runs_of("night") == []
    folder_of("night").mkdir(parents=True)
    clusters = [
        {"run": "runs/night-a", "on": "kuberay", "status": "starting"},
        {"run": "runs/night-b", "on": "kuberay", "status": "failed"},
        {"run": "runs/night-c", "on": "sky", "status": "detached"},
        {"run": "runs/night-d", "on": "kuberay", "status": "finished"},
        {"run": "runs/night-e", "on": "kuberay", "status": "detached"},
    ]
    (folder_of("night") / STATE).write_text(json.dumps({"clusters": clusters}))
    asked = []

    def stop(run: Path) -> dict[str, Any]:
        asked.append(run.name)
        if run.name == "night-b":
            raise TrainfleetError("there is no such run", [Problem("", "gone", "nothing to do")])
        return {"run": run.name}

    done, problems = stop_all(runs_of("night"), stop)
    assert asked == ["night-a", "night-b", "night-c", "night-e"]
    assert [each["run"] for each in done] == ["night-a", "night-c", "night-e"]
    assert [(each.where, each.fix) for each in problems] == [("night-b", "nothing to do")]


def test_a_run_and_a_group_of_one_name_are_not_confused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    members = ["night-a", "night-b"]
    require_unambiguous("night", members)
    file = tmp_path / "runs" / "night" / "run.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"launches": [{"on": "kuberay"}]}))
    with pytest.raises(InputError, match=r"night: is both a run and .*stop night-a, night-b"):
        require_unambiguous("night", members)
    file.write_text(json.dumps({"launches": [{"on": "kuberay"}], "status": "finished"}))
    require_unambiguous("night", members)


class Process(SimpleNamespace):
    """A launch's process that records its signals."""

    def __init__(self, code: int | None = None) -> None:
        super().__init__(code=code, signals=[])

    def poll(self) -> int | None:
        code: int | None = self.code
        return code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


class Terminal(QuietGroup):
    """A terminal at which one answer is given."""

    def __init__(self, answer: str) -> None:
        self.answer, self.answers = answer, dict[str, str]()

    def ask(self, answers: Mapping[str, str], interrupted: Callable[[], bool]) -> str:
        self.answers = dict(answers)
        return self.answer


def interrupted(
    tmp_path: Path, answer: str, number: int, *launchers: str
) -> tuple[dict[str, str], list[list[int]]]:
    """What is asked at a signal, and the signals that each launch gets. The first launch has ended."""
    members = [Member(name, name, Path(name)) for name in launchers]
    view = Terminal(answer)
    group = Processes(tmp_path, tmp_path, view)
    group.by_name = {each.name: each for each in members}
    processes = [Process(0 if number == 0 else None) for number in range(len(launchers))]
    group.processes = dict(zip(launchers, processes, strict=True))  # type: ignore[arg-type]
    group.signals = [number]
    group._on_signals()
    return view.answers, [each.signals for each in processes]


@pytest.mark.parametrize(("answer", "passed_on"), [("s", [signal.SIGINT]), ("d", [signal.SIGTERM]), ("", [])])
def test_ctrl_c_asks_for_all_runs_that_have_not_ended(
    answer: str, passed_on: list[int], tmp_path: Path
) -> None:
    answers, signals = interrupted(tmp_path, answer, signal.SIGINT, "ray-up", "kuberay", "sky", "local")
    assert answers == {
        "s": "save and stop all runs",
        "d": "detach from kuberay, sky and stop the others",
        "": "continue",
    }
    assert signals == [[], passed_on, passed_on, passed_on]


def test_ctrl_c_asks_nothing_if_no_run_continues_alone(tmp_path: Path) -> None:
    assert interrupted(tmp_path, "d", signal.SIGINT, "kuberay", "local", "torchrun") == (
        {},
        [[], [signal.SIGINT], [signal.SIGINT]],
    )
    assert interrupted(tmp_path, "d", signal.SIGINT, "local", "kuberay")[0]["d"] == "detach from kuberay"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_is_passed_on_without_a_question(number: int, tmp_path: Path) -> None:
    assert interrupted(tmp_path, "s", number, "local", "kuberay", "local-2") == ({}, [[], [number], [number]])
