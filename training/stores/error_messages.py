"""Turns errors of store clients into a cause, a fix and whether a retry may help."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from trainfleet.training.stores.retry import StalledError


@dataclass(frozen=True)
class StoreErrorMessage:
    """An explained error: `what` happened, the `fix`, and whether a retry may succeed."""

    what: str
    fix: str
    retryable: bool


# A wrong clock also appears as a wrong signature, so the first pattern has precedence.
_PATTERNS: tuple[tuple[str, StoreErrorMessage], ...] = (
    (
        r"RequestTimeTooSkewed|REQUEST_TIME_TOO_SKEWED|difference between the request time|not yet valid|"
        r"Server failed to authenticate the request.*(Date|time)|"
        r"Request date header too old|token used too (early|late)",
        StoreErrorMessage(
            "the store rejects this machine's clock",
            "set the clock (ntp, chrony): signatures are valid for minutes only",
            retryable=False,
        ),
    ),
    (
        r"SignatureDoesNotMatch|SIGNATURE_DOES_NOT_MATCH|AuthenticationFailed|InvalidAccessKeyId|XAdmin|"
        r"INVALID_ACCESS_KEY|UNRECOGNIZED_CLIENT|ExpiredToken|EXPIRED_TOKEN|INVALID_CLIENT_TOKEN|UNAUTHENTICATED|\b401\b|"
        r"invalid_grant|MISSING_AUTHENTICATION|signature we calculated",
        StoreErrorMessage(
            "the store rejects the credentials",
            "check the key or token and its expiry, and this machine's clock (a wrong clock invalidates "
            "signatures)",
            retryable=False,
        ),
    ),
    (
        r"no credentials|Unable to (locate|load) credentials|Could not (create|find|load).*credential|"
        r"DefaultAzureCredential|failed to retrieve credentials|"
        r"Could not automatically determine credentials",
        StoreErrorMessage(
            "no credentials for the store found",
            "log in with the cloud's CLI, or assign a role to the machine or pod",
            retryable=False,
        ),
    ),
    (
        r"NoSuchBucket|NO_SUCH_BUCKET|ContainerNotFound|[Bb]ucket.{0,80}(does not exist|not found)|"
        r"[Cc]ontainer.{0,80}(does not exist|not found)|The specified container does not exist|"
        r"during HeadBucket(?!.*([Rr]esol|curl|onnect))|NOT_FOUND: .*CreateResumableUpload",
        StoreErrorMessage(
            "the bucket or container does not exist", "create it, or correct its name", retryable=False
        ),
    ),
    (
        r"InsufficientStorage|QuotaExceeded|EntityTooLarge|\b507\b|[Nn]o space left|[Dd]isk quota|"
        r"StorageFull|XMinioStorageFull|out of space",
        StoreErrorMessage("the store is full", "free space or raise its quota", retryable=False),
    ),
    (
        r"AccessDenied|ACCESS_DENIED|PERMISSION_DENIED|AuthorizationPermissionMismatch|AuthorizationFailure|"
        r"PublicAccessNotPermitted|Forbidden|\b403\b",
        StoreErrorMessage(
            "no permission",
            "grant this identity read, list, write and delete below this URL",
            retryable=False,
        ),
    ),
    (
        r"[Cc]ould not resolve|Couldn't resolve|Unable to resolve|Name or service not known|"
        r"Temporary failure in name resolution|CURLE_COULDNT_RESOLVE|No address associated",
        StoreErrorMessage(
            "the store's name cannot be resolved",
            "check the URL, the region, the endpoint and DNS",
            retryable=True,
        ),
    ),
    (
        r"certificate|SSL|TLS handshake",
        StoreErrorMessage(
            "the store's certificate is not trusted here",
            "name its CA in SSL_CERT_FILE or AWS_CA_BUNDLE",
            retryable=False,
        ),
    ),
    (
        r"SlowDown|SLOW_DOWN|TooManyRequests|ServerBusy|THROTTL|RESOURCE_EXHAUSTED|\b429\b",
        StoreErrorMessage(
            "the store limits the request rate",
            "wait, or save less often with checkpoint.every",
            retryable=True,
        ),
    ),
    (
        r"InternalError|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|ServiceUnavailable|UNAVAILABLE|InternalServerError|"
        r"\b50[0234]\b|INTERNAL\b",
        StoreErrorMessage("the store reports an internal error", "check its status page", retryable=True),
    ),
    (
        r"[Cc]onnection (refused|reset|closed|timed out)|NETWORK_CONNECTION|couldn't connect|"
        r"Couldn't connect|Failed to connect|Timeout|[Tt]imed out|DEADLINE_EXCEEDED|"
        r"curlCode|CURLE? code|network socket|[Ee]mpty reply|broken pipe|recv failure",
        StoreErrorMessage(
            "the store cannot be reached", "check the network, the endpoint and the firewall", retryable=True
        ),
    ),
)
_LOCAL = {
    errno.EACCES: StoreErrorMessage("no permission", "allow this user to write there", retryable=False),
    errno.EPERM: StoreErrorMessage("no permission", "allow this user to write there", retryable=False),
    errno.EROFS: StoreErrorMessage("Read-only file system", "choose another folder", retryable=False),
    errno.ENOSPC: StoreErrorMessage("No space left on device", "free disk space", retryable=False),
    errno.EFBIG: StoreErrorMessage(
        "File too large", "raise the limit (ulimit -f), or use another file system", retryable=False
    ),
    errno.EDQUOT: StoreErrorMessage(
        "Disk quota exceeded", "free disk space or raise the quota", retryable=False
    ),
    errno.ENOTDIR: StoreErrorMessage("Not a directory", "choose another folder", retryable=False),
    errno.EISDIR: StoreErrorMessage("Is a directory", "choose another folder", retryable=False),
    errno.ENOENT: StoreErrorMessage("No such file or directory", "", retryable=False),
    errno.EEXIST: StoreErrorMessage("File exists", "choose another folder", retryable=False),
    errno.ENAMETOOLONG: StoreErrorMessage("File name too long", "choose a shorter name", retryable=False),
}


def redact_signature(text: str) -> str:
    """Remove the query of URLs in a text: Azure's errors include it, and it may hold a signature (SAS)."""
    return re.sub(r"(https?://[^\s'\"?]+)\?[^\s'\")]+", r"\1", text)


def explain(error: BaseException, local: bool) -> StoreErrorMessage:
    """Explain an error. Unknown errors are retryable, also of a folder: a network mount may recover."""
    if isinstance(error, StalledError):
        return StoreErrorMessage(str(error), "check the network and the store's load", retryable=True)
    code = getattr(error, "errno", None)
    if local and code in _LOCAL:
        return _LOCAL[code]
    text = redact_signature(" ".join(str(error).split()))
    for pattern, message in _PATTERNS if not local else ():
        if re.search(pattern, text):
            return StoreErrorMessage(f"{message.what} ({_short(text)})", message.fix, message.retryable)
    strerror = getattr(error, "strerror", None)
    return StoreErrorMessage(
        _short(redact_signature(strerror or "") or text or type(error).__name__), "", retryable=True
    )


def _short(text: str, most: int = 220) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
