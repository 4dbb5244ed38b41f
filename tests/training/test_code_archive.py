"""The archive of a user's code: equal digests for equal files, verified, unpacked once, imported first."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from tests.training.user_code import clean_imports, write_workload
from trainfleet.errors import TrainfleetError
from trainfleet.training import run as training_run
from trainfleet.training import worker
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime import code_archive
from trainfleet.training.runtime.code_archive import (
    CODE,
    CODE_FOLDER,
    CodeFile,
    archive_path,
    digest_of,
    pack,
    read,
    use,
)

__all__ = ["clean_imports"]
FILES = {"mine.py": CodeFile(b"WORD = 'first'\n"), "bin/go": CodeFile(b"#!/bin/sh\n", executable=True)}
pytestmark = pytest.mark.usefixtures("clean_imports")


def stored(folder: Path, files: dict[str, CodeFile]) -> str:
    """The URL of an archive in a run's folder."""
    digest, data = pack(files)
    path = folder / archive_path(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def tar_with(**fields: object) -> tuple[str, bytes]:
    """An archive with one member that `pack` would not write."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        member = tarfile.TarInfo("x")
        for name, value in fields.items():
            setattr(member, name, value)
        archive.addfile(member, io.BytesIO(b""))
    compress = zlib.compressobj(wbits=31)
    return sha256(plain.getvalue()).hexdigest(), compress.compress(plain.getvalue()) + compress.flush()


def test_equal_files_have_equal_digests_in_any_order_and_what_differs_shows() -> None:
    digest, data = pack(FILES)
    assert pack(dict(reversed(FILES.items()))) == (digest, data)
    assert read(data, digest) == FILES
    assert digest == "4b5b3b536b43085b8be7005bb4493bbe51059778ad8c684848ecdd7daee19475", (
        "another machine would name the same files otherwise"
    )
    for changed in (
        FILES | {"mine.py": CodeFile(b"WORD = 'other'\n")},
        FILES | {"bin/go": CodeFile(b"#!/bin/sh\n")},
        {"mine2.py" if name == "mine.py" else name: file for name, file in FILES.items()},
    ):
        assert pack(changed)[0] != digest


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"name": "../x.py"}, "not a file below"),
        ({"name": "/etc/x.py"}, "not a file below"),
        ({"name": "a/../../x.py"}, "not a file below"),
        ({"type": tarfile.SYMTYPE, "linkname": "/etc"}, "not a file below"),
        ({"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}, "not a file below"),
        ({"type": tarfile.FIFOTYPE}, "not a file below"),
        ({"type": tarfile.CHRTYPE}, "not a file below"),
    ],
)
def test_only_regular_files_below_the_folder_are_accepted(fields: dict[str, object], what: str) -> None:
    digest, data = tar_with(**fields)
    with pytest.raises(TrainfleetError, match=what):
        read(data, digest)


def test_a_partial_or_changed_archive_is_not_unpacked(tmp_path: Path) -> None:
    url = stored(tmp_path, FILES)
    whole = Path(url).read_bytes()
    other = pack({"mine.py": CodeFile(b"WORD = 'planted'\n")})[1]
    for data, what in (
        (whole[:-9], "incomplete"),
        (b"", "incomplete"),
        (b"plain text", "decompress"),
        (other, "has the digest"),
    ):
        Path(url).write_bytes(data)
        with pytest.raises(TrainfleetError, match=what):
            use(url, str(tmp_path / "unpacked"))
    assert not [path for path in (tmp_path / "unpacked").iterdir() if path.is_dir()]
    Path(url).unlink()
    with pytest.raises(TrainfleetError, match="does not exist"):
        use(url, str(tmp_path / "unpacked"))


def test_an_archive_that_grows_without_end_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_archive, "_MAX_TAR_BYTES", 50_000)
    digest, data = pack({"zeros": CodeFile(bytes(100_000))})
    with pytest.raises(TrainfleetError, match="too large"):
        read(data, digest)


def test_the_code_is_imported_first_and_once_for_all_processes(tmp_path: Path) -> None:
    root, url = tmp_path / "unpacked", stored(tmp_path, FILES)
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "mine.py").write_text("WORD = 'of the current folder'")
    program = (
        "import sys; from trainfleet.training.runtime.code_archive import use; "
        "sys.path.insert(0, sys.argv[3]); print(use(*sys.argv[1:3])); import mine; print(mine.WORD)"
    )

    def started(_: int) -> list[str]:
        command = [sys.executable, "-c", program, url, str(root), str(tmp_path / "cwd")]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.split()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(started, range(3))) == [[str(root / digest_of(url)), "first"]] * 3
    assert os.access(root / digest_of(url) / "bin" / "go", os.X_OK)
    assert not list(root.glob(".part-*"))


def test_two_codes_on_one_machine_are_kept_apart_and_unused_ones_removed(tmp_path: Path) -> None:
    root = tmp_path / "unpacked"
    one, two, three = (
        stored(tmp_path, {"mine.py": CodeFile(text)}) for text in (b"N = 1", b"N = 2", b"N = 3")
    )
    use(one, str(root))
    use(two, str(root))
    assert {path.name for path in root.iterdir() if path.is_dir()} == {digest_of(one), digest_of(two)}
    assert [each for each in sys.path if str(root) in each] == [str(root / digest_of(two))]
    for lock in code_archive._locks:  # as when their processes end
        lock.close()
    (root / ".part-killed").mkdir()
    use(three, str(root))
    assert {path.name for path in root.iterdir() if path.is_dir()} == {digest_of(three)}


def test_a_folder_that_another_user_could_write_is_not_used(tmp_path: Path) -> None:
    root = tmp_path / "unpacked"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(TrainfleetError, match="another user"):
        use(stored(tmp_path, FILES), str(root))


def as_archive(folder: Path, home: Path) -> str:
    return stored(home, {path.name: CodeFile(path.read_bytes()) for path in folder.iterdir()})


def test_a_worker_of_torchrun_finds_the_workload_in_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_workload(tmp_path / "mine", unit="of the archive", module="curves")
    url = as_archive(tmp_path / "mine", tmp_path / "run")
    (tmp_path / "mine" / "curves.py").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    seen = []
    monkeypatch.setattr(training_run, "work", lambda recipe, *_: seen.append(recipe))
    for name, value in {"RANK": "0", CODE: url, CODE_FOLDER: str(tmp_path / "unpacked")}.items():
        monkeypatch.setenv(name, value)
    assert training_run.main([str(recipe)]) == 0
    assert type(seen[0].workload).__module__ == "curves"
    assert sys.modules["curves"].__file__ == str(tmp_path / "unpacked" / digest_of(url) / "curves.py")


def test_a_worker_of_ray_uses_the_archive_before_it_reads_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_workload(tmp_path / "mine", module="arcs")
    env = {CODE: as_archive(tmp_path / "mine", tmp_path / "run"), CODE_FOLDER: str(tmp_path / "unpacked")}
    workload = {"name": "arcs:Spirals", "width": 48}
    recipe = {"name": "arcs", "workload": workload, "steps": 3}
    seen: list[Recipe] = []
    monkeypatch.setattr(worker, "work", lambda recipe, *_: seen.append(recipe))
    worker.work_under_ray({"recipe": recipe, "run_dir": str(tmp_path), "env": env, "watch": False})
    assert type(seen[0].workload).__module__ == "arcs"
    assert {CODE, CODE_FOLDER} <= set(training_run.PASSED_ON)
    env[CODE] = env[CODE].replace("code/", "code/0")
    with pytest.raises(TrainfleetError, match="does not exist"):
        worker.work_under_ray({"recipe": recipe, "run_dir": str(tmp_path), "env": env, "watch": False})
