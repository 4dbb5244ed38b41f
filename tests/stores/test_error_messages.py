"""Explanations of the errors of the clouds' clients, and retries. The messages are real, shortened."""

from __future__ import annotations

import errno

import pytest

from trainfleet.training.stores.error_messages import explain
from trainfleet.training.stores.retry import RetryPolicy, StalledError

CLIENT_ERRORS = [
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
        "AWS Error NO_SUCH_BUCKET during CreateMultipartUpload operation: "
        "The specified bucket does not exist.",
        "bucket or container does not exist",
        False,
    ),
    (
        "AWS Error REQUEST_TIME_TOO_SKEWED during PutObject: "
        "The difference between the request time and the current time",
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
        "limits the request rate",
        True,
    ),
    (
        "AWS Error INTERNAL_FAILURE during UploadPart operation: We encountered an internal error.",
        "internal error",
        True,
    ),
    (
        "google::cloud::Status(PERMISSION_DENIED: Permanent error: "
        "does not have storage.objects.create access)",
        "no permission",
        False,
    ),
    (
        "google::cloud::Status(UNAVAILABLE: Retry policy exhausted, "
        "with a last message of PerformWork() - CURL error [7]=Couldn't connect",
        "",
        True,
    ),
    ("google::cloud::Status(UNAUTHENTICATED: Permanent error: Invalid Credentials)", "credentials", False),
    ("google::cloud::Status(RESOURCE_EXHAUSTED: rateLimitExceeded)", "limits the request rate", True),
    (
        "403 This request is not authorized to perform this operation using this permission. "
        "AuthorizationPermissionMismatch",
        "no permission",
        False,
    ),
    (
        "404 The specified container does not exist. ContainerNotFound",
        "bucket or container does not exist",
        False,
    ),
    (
        "Server failed to authenticate the request. "
        "Make sure the value of Authorization header is formed correctly: AuthenticationFailed",
        "credentials",
        False,
    ),
    (
        "Fail to get a new connection for: https://x.blob.core.windows.net. "
        "Could not resolve host: x.blob.core.windows.net",
        "cannot be resolved",
        True,
    ),
    ("an unknown error", "an unknown error", True),
]


@pytest.mark.parametrize(("message", "expected", "retryable"), CLIENT_ERRORS)
def test_a_client_error_is_explained_and_classified(message: str, expected: str, retryable: bool) -> None:
    explained = explain(OSError(message), local=False)
    assert expected in explained.what
    assert explained.retryable is retryable


@pytest.mark.parametrize(
    ("code", "expected", "retryable"),
    [
        (errno.ENOSPC, "No space left", False),
        (errno.EACCES, "no permission", False),
        (errno.EROFS, "Read-only", False),
        (errno.EIO, "output error", True),
    ],
)
def test_a_disk_error_is_explained_by_its_errno(code: int, expected: str, retryable: bool) -> None:
    explained = explain(OSError(code, "Input/output error"), local=True)
    assert expected in explained.what
    assert explained.retryable is retryable


def test_waits_double_up_to_the_longest_and_have_jitter() -> None:
    retry = RetryPolicy(attempts=9, first_s=1.0, longest_s=8.0)
    waits = [retry.wait(attempt) for attempt in range(1, 9)]
    assert all(
        longest / 2 <= wait <= longest for wait, longest in zip(waits, [1, 2, 4, 8, 8, 8, 8, 8], strict=True)
    )
    assert len(set(waits)) == len(waits)


def test_a_stalled_call_is_abandoned_and_a_slow_one_is_not() -> None:
    import threading

    forever = threading.Event()
    retry = RetryPolicy(attempts=1, stall_s=0.3)
    with pytest.raises(StalledError):
        retry.run(lambda _: forever.wait(), lambda _: False, lambda *_: None)

    def slow(moved: object) -> int:
        for _ in range(6):
            forever.wait(0.1)
            moved()  # type: ignore[operator]  # a callback
        return 7

    assert retry.run(slow, lambda _: False, lambda *_: None) == 7
