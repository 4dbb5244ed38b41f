"""An unsupported setup is refused in one line with the fix, before anything is created."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cluster import install
from trainfleet.errors import InputError, MissingToolError
from trainfleet.local_cluster import checks, images, network, pins, state
from trainfleet.local_cluster.cli.cluster import cluster

Call = Callable[..., subprocess.CompletedProcess[str]]


def test_a_missing_root_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingToolError, match=r"needs root.*--context NAME") as refused:
        checks.require_supported()
    assert "\n" not in str(refused.value)


def test_another_system_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(MissingToolError, match="runs on Linux, this is darwin"):
        checks.require_supported()


@pytest.mark.cluster
@pytest.mark.parametrize("right", ["sys_admin", "net_admin"])
def test_root_without_a_capability_is_reported_in_one_line(right: str) -> None:
    confined = [
        "setpriv",
        "--bounding-set",
        f"-{right}",
        "--inh-caps",
        f"-{right}",
        str(Path(sys.executable).with_name("trainfleet")),
    ]
    done = subprocess.run(
        [*confined, "cluster", "up", "--name", "confined"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert f"a container without CAP_{right.upper()}" in done.stderr


def test_control_groups_that_cannot_be_created_are_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(checks, "_capabilities", lambda: -1)
    monkeypatch.setattr(checks.cgroups, "hierarchies", lambda: [tmp_path / "gone"])
    with pytest.raises(MissingToolError, match=r"control groups cannot be created in .*gone.*--context NAME"):
        checks.require_supported()


def test_missing_packages_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "_is_installed", lambda program: program not in ("etcd", "/usr/lib/cni/ptp"))
    with pytest.raises(MissingToolError) as refused:
        checks.require_resources(tmp_path)
    assert "apt-get install -y --no-install-recommends containernetworking-plugins etcd-server" in str(
        refused.value
    )
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/bin:/x", "/bin:/x:/usr/sbin:/sbin"),
        ("/usr/sbin:/sbin:/bin", "/usr/sbin:/sbin:/bin"),
        ("/sbin:/bin", "/sbin:/bin:/usr/sbin"),
    ],
)
def test_programs_of_the_system_are_found_without_their_folders_in_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, expected: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", path)
    refused = CliRunner().invoke(cluster, ["kubeconfig", "--name", "nosuch"])
    assert isinstance(refused.exception, InputError)
    assert os.environ["PATH"] == expected


def test_without_the_image_no_compiler_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_is_installed", lambda program: False)
    assert set(checks.missing_packages(image=True)) - set(checks.missing_packages(image=False)) == {
        "debootstrap",
        "g++",
    }


def executable(bits: int, order: str, *types: int) -> bytes:
    """The start of an ELF file whose program headers have these types."""
    wide = bits == 64
    start, row = (64, 56) if wide else (52, 32)
    identity = b"\x7fELF" + bytes([2 if wide else 1, 2 if order == ">" else 1, 1]) + bytes(9)
    fields = (2, 62, 1, 0, start, 0, 0, start, row, len(types), 0, 0, 0)
    header = identity + struct.pack(f"{order}HHI{'QQQ' if wide else 'III'}IHHHHHH", *fields)
    return header + b"".join(struct.pack(f"{order}I", kind).ljust(row, b"\0") for kind in types)


@pytest.mark.parametrize(
    ("content", "accepted"),
    [
        *((executable(bits, order, 6, 1, 1), True) for bits in (32, 64) for order in "<>"),
        *((executable(bits, order, 6, 3, 1), False) for bits in (32, 64) for order in "<>"),
        (executable(64, "<", 1, 3)[:-60], False),
        (b"\x7fELF", False),
        (b"#!/bin/sh\n", False),
        (b"", False),
        (None, False),
    ],
)
def test_only_a_static_busybox_is_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, accepted: bool
) -> None:
    file = tmp_path / "busybox"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(images, "BUSYBOX", file)
    monkeypatch.setattr(checks, "PACKAGES", {str(file): "busybox-static"})
    assert checks.missing_packages(image=False) == ([] if accepted else ["busybox-static"])


@pytest.mark.parametrize("image", [True, False])
def test_another_busybox_needs_another_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, image: bool
) -> None:
    monkeypatch.setattr(images, "BUSYBOX", tmp_path / "busybox")
    folders = [images.store_folder(image)]
    for content in ("dynamic", "static"):
        images.BUSYBOX.write_text(content)
        folders.append(images.store_folder(image))
    assert len(set(folders)) == 3
    assert images.store_folder(not image) not in folders


@pytest.mark.parametrize("place", ["/var/lib/work", "/run/user/0"])
def test_a_cache_folder_hidden_from_the_node_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    monkeypatch.setattr(checks, "_is_installed", lambda program: True)
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    with pytest.raises(MissingToolError) as refused:
        checks.require_resources(tmp_path)
    assert "is hidden from the node" in str(refused.value)


@pytest.mark.parametrize(("refused", "installed"), [("needs root", []), ("", [["socat"]])])
def test_missing_packages_are_installed_or_reported_before_the_cluster_tests(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refused: str,
    installed: list[list[str]],
) -> None:
    done: list[list[str]] = []
    monkeypatch.setattr(checks, "unsupported_reason", lambda: refused)
    monkeypatch.setattr(checks, "install", done.append)
    monkeypatch.setattr(install, "absent", lambda: [] if done else ["socat"])
    monkeypatch.setattr("shutil.which", lambda program, **_: f"/usr/bin/{program}")
    install.main()
    assert done == installed
    assert capsys.readouterr().out == (
        f"tests of a real cluster are skipped: {refused}\n" if refused else "installing socat\n"
    )


def test_too_little_memory_and_disk_are_reported_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "_is_installed", lambda program: True)
    monkeypatch.setattr(checks.network_policies, "missing_in_kernel", lambda: "")
    monkeypatch.setattr(checks, "_available_gib", lambda: 0.5)
    monkeypatch.setattr(checks, "_free_gib", lambda folder: 1.0)
    with pytest.raises(MissingToolError) as refused:
        checks.require_resources(tmp_path)
    assert [problem.where for problem in refused.value.problems] == ["memory", str(tmp_path)]


@pytest.mark.parametrize(
    ("unbuilt", "image_there", "image", "expected"),
    [
        (pins.PROGRAMS, False, True, 28.0),
        (pins.PROGRAMS, True, False, 16.0),
        ((pins.KWOK,), True, True, 5.0),
        ((), True, True, 4.0),
        ((), False, True, 16.0),
        ((), False, False, 4.0),
    ],
)
def test_the_required_disk_depends_on_what_must_be_built(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    unbuilt: tuple[pins.Program, ...],
    image_there: bool,
    image: bool,
    expected: float,
) -> None:
    monkeypatch.setattr(checks, "missing", lambda optional: list(unbuilt))
    monkeypatch.setattr(
        checks.images, "store_folder", lambda image: tmp_path if image_there else tmp_path / "none"
    )
    assert checks.disk_gib(image, pins.OPTIONAL) == expected


def test_a_range_that_overlaps_a_route_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        network, "_used_ranges", lambda: [IPv4Network("10.213.5.0/24"), IPv4Network("10.216.0.0/14")]
    )
    assert network.choose() == IPv4Network("10.221.0.0/16")
    assert network.choose([IPv4Network("10.221.0.0/16")]) == IPv4Network("10.229.0.0/16")
    monkeypatch.setattr(network, "_used_ranges", lambda: [IPv4Network("10.0.0.0/8")])
    with pytest.raises(InputError, match="no address range is free"):
        network.choose()


@pytest.mark.parametrize("name", ["", "Local", "a-b", "1a", "../x", "averyverylongname"])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="not a valid name"):
        state.folder_of(name)


@pytest.mark.parametrize("place", ["/var/lib/x", "/run/x"])
def test_a_state_folder_hidden_from_the_node_is_refused(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", place)
    with pytest.raises(InputError, match="XDG_STATE_HOME"):
        state.folder_of("local")


def test_an_unreadable_state_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state.load("local") is None
    folder = state.folder_of("local")
    folder.mkdir(parents=True)
    for text in ("", "[]", "{}", '{"name": "local", "network": "x", "token": "", "made": []}'):
        (folder / "state.json").write_text(text)
        with pytest.raises(InputError, match="cannot be read"):
            state.load("local")


def test_a_resource_is_recorded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    it = state.create("local", IPv4Network("10.213.0.0/16"))
    for _ in range(2):
        it.record("link", it.link)
    again = state.load("local")
    assert again is not None
    assert again.resources == [state.Resource("link", "tf-local")]
    assert (again.network, again.token) == (it.network, it.token)
    again.remove()
    assert not tmp_path.joinpath("trainfleet").exists()


def test_the_ranges_of_a_cluster_are_in_its_network_and_do_not_overlap() -> None:
    it = state.State("local", Path("/x"), IPv4Network("10.213.0.0/16"), "")
    assert it.services.subnet_of(it.network)
    assert it.pods.subnet_of(it.network)
    assert not it.services.overlaps(it.pods)
    assert it.node_address not in it.services
    assert it.node_address not in it.pods
    assert it.dns in it.services


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("status", "--name", "Nope"), 2, "not a valid name"),
        (("kubeconfig", "--name", "nosuch"), 2, "there is no cluster nosuch"),
        (("logs", "--name", "nosuch"), 2, "there is no cluster nosuch"),
    ],
)
def test_commands_report_a_missing_cluster(
    trainfleet: Call, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = trainfleet("cluster", *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert message in done.stderr
