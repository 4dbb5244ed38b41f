"""What the clouds' clients really say, and what is made of it. The sentences are theirs, shortened in the
middle.
"""

from __future__ import annotations

import errno

import pytest

from trainfleet.training.stores.error_messages import explain
from trainfleet.training.stores.retry import Patience, StalledError

SAID = [
    (
        "When uploading: AWS Error ACCESS_DENIED during PutObject operation: Access Denied.",
        "no permission",
        False,
    ),
    (
        "AWS Error UNKNOWN (HTTP status 403) during HeadObject operation: No response body.",
        "no permission",
        False,
    ),
    (
        "AWS Error NO_SUCH_BUCKET during CreateMultipartUpload operation: The specified bucket does not exist.",
        "no such bucket",
        False,
    ),
    (
        "AWS Error REQUEST_TIME_TOO_SKEWED during PutObject: The difference between the request time and the current time",
        "clock",
        False,
    ),
    (
        "AWS Error SIGNATURE_DOES_NOT_MATCH during PutObject operation: The request signature we calculated",
        "credentials",
        False,
    ),
    (
        "AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 6, Couldn't resolve host name",
        "cannot be resolved",
        True,
    ),
    (
        "AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 7, Couldn't connect to server",
        "cannot be reached",
        True,
    ),
    (
        "AWS Error SLOW_DOWN during PutObject operation: Please reduce your request rate.",
        "fewer requests",
        True,
    ),
    (
        "AWS Error INTERNAL_FAILURE during UploadPart operation: We encountered an internal error.",
        "error of its own",
        True,
    ),
    (
        "google::cloud::Status(PERMISSION_DENIED: Permanent error: does not have storage.objects.create access)",
        "no permission",
        False,
    ),
    (
        "google::cloud::Status(UNAVAILABLE: Retry policy exhausted, with a last message of PerformWork() - CURL error [7]=Couldn't connect",
        "",
        True,
    ),
    ("google::cloud::Status(UNAUTHENTICATED: Permanent error: Invalid Credentials)", "credentials", False),
    ("google::cloud::Status(RESOURCE_EXHAUSTED: rateLimitExceeded)", "fewer requests", True),
    (
        "403 This request is not authorized to perform this operation using this permission. AuthorizationPermissionMismatch",
        "no permission",
        False,
    ),
    ("404 The specified container does not exist. ContainerNotFound", "no such bucket or container", False),
    (
        "Server failed to authenticate the request. Make sure the value of Authorization header is formed correctly: AuthenticationFailed",
        "credentials",
        False,
    ),
    (
        "Fail to get a new connection for: https://x.blob.core.windows.net. Could not resolve host: x.blob.core.windows.net",
        "cannot be resolved",
        True,
    ),
    ("something that nobody has heard before", "something that nobody has heard before", True),
]


@pytest.mark.parametrize(("sentence", "words", "again"), SAID)
def test_a_clients_sentence_becomes_a_word_and_a_decision(sentence: str, words: str, again: bool) -> None:
    explained = explain(OSError(sentence), local=False)
    assert words in explained.what
    assert explained.again is again


@pytest.mark.parametrize(
    ("code", "words", "again"),
    [
        (errno.ENOSPC, "No space left", False),
        (errno.EACCES, "no permission", False),
        (errno.EROFS, "Read-only", False),
        (errno.EIO, "output error", True),
    ],
)
def test_a_disk_says_it_by_its_number(code: int, words: str, again: bool) -> None:
    explained = explain(OSError(code, "Input/output error"), local=True)
    assert words in explained.what
    assert explained.again is again


def test_waits_double_up_to_the_longest_and_never_meet() -> None:
    patience = Patience(attempts=9, first_s=1.0, longest_s=8.0)
    waits = [patience.wait(attempt) for attempt in range(1, 9)]
    assert all(
        longest / 2 <= wait <= longest for wait, longest in zip(waits, [1, 2, 4, 8, 8, 8, 8, 8], strict=True)
    )
    assert len(set(waits)) == len(waits)


def test_a_call_that_stands_still_is_left_and_one_that_moves_is_not() -> None:
    import threading

    forever = threading.Event()
    patience = Patience(attempts=1, stall_s=0.3)
    with pytest.raises(StalledError):
        patience.run(lambda _: forever.wait(), lambda _: False, lambda *_: None)

    def slow(moved: object) -> int:
        for _ in range(6):
            forever.wait(0.1)
            moved()  # type: ignore[operator]  # it is called so
        return 7

    assert patience.run(slow, lambda _: False, lambda *_: None) == 7
