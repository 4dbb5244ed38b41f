"""The shared modules: suggestions, atomic writes, errors and exit codes."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from trainfleet.console import run
from trainfleet.errors import InputError, Interrupted, MissingToolError, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.suggestions import did_you_mean, nearest


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("acelerator", "accelerator"),
        ("minNodes", "min_nodes"),
        ("max-nodes", "max_nodes"),
        ("Accelerator", "accelerator"),
        ("zzz", None),
    ],
)
def test_only_a_close_name_is_suggested(wrong: str, right: str | None) -> None:
    assert nearest(wrong, ["accelerator", "min_nodes", "max_nodes", "name"]) == right


def test_swapped_letters_are_closer_than_other_differences() -> None:
    assert nearest("us-esat-2", ["us-east-1", "us-east-2", "us-west-2"]) == "us-east-2"


def test_all_names_are_listed_if_none_is_close() -> None:
    assert did_you_mean("zzz", ["b", "a"]) == "known: a, b"


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.html"
    write_whole(target, "first")
    write_whole(target, "second")
    assert target.read_text() == "second"
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    write_whole(target, "old")
    child = os.fork()
    if child == 0:  # a file size limit of 100 bytes in place of a full disk
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            write_whole(target, "x" * 1000)
        except InputError as error:
            os._exit(7 if "too large" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_path_below_a_file_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write a file"):
        write_whole(tmp_path / "file" / "x.json", "{}")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TrainfleetError("failed"), 1),
        (InputError("wrong"), 2),
        (MissingToolError("missing"), 3),
        (Interrupted("stopped"), 130),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_error_has_its_exit_code_and_no_traceback(
    error: BaseException, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise error

    assert run(main) == code
    assert "Traceback" not in capfd.readouterr().err


def test_a_missing_extra_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")

    assert run(main) == 3
    assert "pip install 'trainfleet[train] @ git+" in capfd.readouterr().err


def test_a_missing_module_of_trainfleet_is_a_bug_and_keeps_its_traceback() -> None:
    def main() -> None:
        raise ModuleNotFoundError("No module named 'trainfleet.nothing'", name="trainfleet.nothing")

    with pytest.raises(ModuleNotFoundError):
        run(main)


def test_a_problem_names_where_what_and_fix() -> None:
    assert (
        str(Problem("gpu_pools[0].name", "is empty", "give it a name"))
        == "gpu_pools[0].name: is empty (give it a name)"
    )
    assert "a: b\n  c: d" in str(InputError("two mistakes", [Problem("a", "b"), Problem("c", "d")]))
