"""Every store behaves the same: complete files or none, listing, partial reads, retries, error messages."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.stores.running import Running
from trainfleet.training.stores import NotFoundError, RetryPolicy, Store, StoreError, open_store, urls
from trainfleet.training.stores.clouds import S3_ATTEMPTS
from trainfleet.training.stores.conditional_clouds import GcsFiles
from trainfleet.training.stores.store import HashingOutput

QUICK = RetryPolicy(attempts=4, first_s=0.05, longest_s=0.2, stall_s=20.0)
every = pytest.mark.parametrize("store_server", ["s3", "gs", "az"], indirect=True)
mostly_one = pytest.mark.parametrize(
    "store_server",
    ["s3", *(pytest.param(kind, marks=pytest.mark.deep) for kind in ("gs", "az"))],
    indirect=True,
)
"""For faults that the clients of gs and az notice only after ten seconds, whatever their settings."""
BIG = os.urandom(1 << 20) * 12


class Events(list[str]):
    def __call__(self, what: str, text: str) -> None:
        self.append(f"{what}: {text}")


def opened(running: Running, prefix: str, retry: RetryPolicy = QUICK) -> tuple[Store, Events]:
    events = Events()
    return open_store(running.url(prefix), retry, events), events


@every
def test_what_is_written_is_listed_read_and_removed(store_server: Running, prefix: str) -> None:
    store, events = opened(store_server, prefix)
    store.probe()
    assert store.sizes() == {}
    written = store.write(
        "one/big",
        lambda output: [output.write(BIG[start : start + 1000003]) for start in range(0, len(BIG), 1000003)],
    )
    small = store.put("one/small", b"x")
    assert store.sizes() == {"one/big": len(BIG), "one/small": 1}
    assert store.sizes("one") == store.sizes()
    assert store.sizes("on") == {}
    assert store.read("one/big", 5_000_000, 100) == BIG[5_000_000:5_000_100]
    assert store.hash("one/big") == written.sha256
    assert (small.bytes, store.read("one/small")) == (1, b"x")
    store.put("one/small", b"other")
    assert store.read("one/small") == b"other"
    store.remove(["one/big", "one/small", "one/never"])
    assert store.sizes() == {}
    with pytest.raises(NotFoundError, match="does not exist"):
        store.read("one/big")
    # Azure's client takes 7 to 15 s for some deletes here, and more than its time-out on a busy machine.
    assert not events or store_server.server.kind == "az"


@every
def test_a_removed_folder_leaves_nothing_behind(store_server: Running, prefix: str) -> None:
    store, _ = opened(store_server, prefix)
    for number in range(12):
        store.put(f"step-1/{number % 2}/{number}", b"x")
    store.put("step-10/kept", b"x")
    store.remove_folder("step-1")
    store.remove_folder("never")
    assert store.sizes() == {"step-10/kept": 1}
    assert "step-1" not in store.entries()  # no object in place of an empty folder
    with pytest.raises(ValueError, match="the store itself"):
        store.remove_folder("/")


@every
def test_the_files_and_folders_of_a_folder_are_listed(store_server: Running, prefix: str) -> None:
    store, _ = opened(store_server, prefix)
    for name in ("file", "one/file", "one/two/file", "one-more/file"):
        store.put(name, b"x")
    assert {name: each.folder for name, each in store.entries().items()} == {
        "file": False,
        "one": True,
        "one-more": True,
    }
    assert {name: each.folder for name, each in store.entries("one").items()} == {"file": False, "two": True}
    assert store.entries("never") == {}


def test_folders_are_listed_over_several_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of the other tests answers everything at once; Google Cloud Storage, 1,000 names."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    files = GcsFiles(urls.parse("gs://bucket/runs"), QUICK)
    asked: list[dict[str, str]] = []

    def answer(_method: str, _path: str, _data: bytes | None, **query: str) -> SimpleNamespace:
        asked.append(query)
        last = "pageToken" in query
        page = {"prefixes": ["runs/b/"]} if last else {"prefixes": ["runs/a/"], "nextPageToken": "next"}
        return SimpleNamespace(status_code=200, text="", json=lambda: page)

    monkeypatch.setattr(files, "_request", answer)
    assert files.folders("") == ["a", "b"]
    assert [(each["prefix"], each.get("pageToken")) for each in asked] == [("runs/", None), ("runs/", "next")]


@every
def test_a_file_named_as_compressed_is_stored_unchanged(store_server: Running, prefix: str) -> None:
    store, _ = opened(store_server, prefix)
    for name in ("one.gz", "one.tar.gz", "one.bz2", "one.zst"):
        store.put(name, b"not compressed")
        assert store.sizes()[name] == len(b"not compressed")
        assert store.read(name) == b"not compressed"
        assert store.read(name, 4, 10) == b"compressed"


@every
def test_a_file_whose_writer_fails_does_not_exist(store_server: Running, prefix: str) -> None:
    store, _ = opened(store_server, prefix, RetryPolicy(1))

    def broken(output: object) -> None:
        output.write(BIG)  # type: ignore[attr-defined]  # a Counted
        raise ValueError("the writer failed")

    with pytest.raises(StoreError, match="the writer failed"):
        store.write("broken", broken)
    assert store.sizes().get("broken", 0) == 0  # Azure lists an empty file once its upload starts


FAULTS = {
    "reset at once": {"fault": "reset", "after": 0},
    "reset in the body": {"fault": "reset", "after": 300_000},
    "status 500": {"fault": "status", "status": 500},
    "status 503": {"fault": "status", "status": 503},
    "status 429": {"fault": "status", "status": 429},
    "answer cut short": {"fault": "cut", "after": 100},
}


SAMPLED = (("reset in the body", "gs"), ("status 503", "s3"))
"""The faults that run at every change. The others run in test-deep."""


@pytest.mark.parametrize(
    ("name", "store_server"),
    [
        pytest.param(name, kind, marks=() if (name, kind) in SAMPLED else pytest.mark.deep)
        for name in FAULTS
        for kind in ("s3", "gs", "az")
    ],
    indirect=["store_server"],
)
def test_a_temporary_fault_is_retried(store_server: Running, prefix: str, name: str) -> None:
    store, _ = opened(store_server, prefix, RetryPolicy(8, 0.05, 0.3, 20.0))
    store.put("before", BIG)
    # The values of the table have several types.
    store_server.proxy.fail(times=3, **FAULTS[name])  # type: ignore[arg-type]
    store.put("during", BIG)
    store_server.proxy.fail(times=2, **FAULTS[name])  # type: ignore[arg-type]
    assert store.read("before", 0, len(BIG)) == BIG
    assert store_server.proxy.injected > 0
    assert store.read("during", 0, len(BIG)) == BIG
    assert set(store.sizes()) == {"before", "during"}


@pytest.mark.parametrize("store_server", ["s3"], indirect=True)
def test_a_part_that_s3_rejects_three_times_is_sent_again_without_the_rest_of_the_file(
    store_server: Running, prefix: str
) -> None:
    store, events = opened(store_server, prefix)
    pieces: list[int] = []

    def produce(output: HashingOutput) -> None:
        pieces.append(0)
        output.write(BIG)
        # The upload has begun. Its last part meets a store that is overloaded.
        store_server.proxy.fail("status", times=S3_ATTEMPTS - 1, status=503)
        output.write(BIG)

    store.write("file", produce)
    assert store_server.proxy.injected == S3_ATTEMPTS - 1
    assert (len(pieces), events) == (1, [])
    assert store.sizes() == {"file": 2 * len(BIG)}
    assert store.read("file", len(BIG), len(BIG)) == BIG


@every
def test_a_store_that_hangs_times_out_and_is_named(store_server: Running, prefix: str) -> None:
    store, events = opened(store_server, prefix, RetryPolicy(2, 0.05, 0.1, 0.6))
    store_server.proxy.fail("hang", times=100)
    with pytest.raises(StoreError, match="after 2 attempts") as caught:
        store.put("file", b"x")
    assert store.at("file") in str(caught.value)
    assert len(events) == 1
    assert "attempt 2 of 2" in events[0]


@mostly_one
def test_an_unreachable_store_is_reported(
    store_server: Running, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, events = opened(store_server, prefix, RetryPolicy(2, 0.05, 0.1, 20.0))
    store_server.proxy.fail("reset", times=10_000)
    with pytest.raises(StoreError) as caught:
        store.put("file", b"x")
    assert caught.value.problems[0].fix
    assert events


@mostly_one
def test_a_bucket_that_does_not_exist_is_named(store_server: Running) -> None:
    store = open_store(f"{store_server.server.kind}://nobody-made-this/x", QUICK)
    with pytest.raises(StoreError, match="the bucket or container does not exist"):
        store.probe()


@pytest.mark.parametrize(
    ("store_server", "variable", "value", "words"),
    [
        ("s3", "AWS_SECRET_ACCESS_KEY", "wrong", "rejects the credentials"),
        ("s3", "AWS_ACCESS_KEY_ID", "nobody", "rejects the credentials"),
        ("az", "AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=", "rejects the credentials|no permission"),
    ],
    indirect=["store_server"],
)
def test_wrong_credentials_are_not_retried(
    store_server: Running, prefix: str, variable: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    store, events = opened(store_server, prefix)
    with pytest.raises(StoreError, match=words) as caught:
        store.probe()
    assert "clock" in caught.value.problems[0].fix or "identity" in caught.value.problems[0].fix
    assert not events


ANSWERS = {
    "clock": (403, "RequestTimeTooSkewed", "rejects this machine's clock"),
    "full": (507, "InsufficientStorage", "the store is full"),
    "quota": (403, "QuotaExceeded", "the store is full"),
    "rights": (403, "AccessDenied", "no permission"),
    "token": (400, "ExpiredToken", "rejects the credentials"),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("store_server", ["s3"], indirect=True)
def test_a_permanent_error_is_explained_and_not_retried(
    store_server: Running, prefix: str, name: str
) -> None:
    status, code, words = ANSWERS[name]
    store, events = opened(store_server, prefix)
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>from the test</Message></Error>'
    store_server.proxy.fail("status", times=100, status=status, body=body)
    with pytest.raises(StoreError, match=words) as caught:
        store.put("file", b"x")
    assert caught.value.problems[0].fix
    assert not events


def test_an_error_of_a_local_folder_is_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("a file where a folder should be")
    events = Events()
    with pytest.raises(StoreError, match=r"Not a directory|File exists"):
        open_store(str(tmp_path / "file" / "below"), QUICK, events).put("x", b"x")
    assert not events
