"""What a store's client says, in words a user can act on, and whether trying again can help.

Used by `trainfleet.training.stores.store`. Clients answer in long sentences of their own; each row below is
what to look for in them.
Easy to get wrong: a wrong clock shows as a wrong signature, and is the likelier cause where the keys worked
before.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from trainfleet.training.stores.retry import StalledError


@dataclass(frozen=True)
class Words:
    """An error explained: `what` happened, what to do (`fix`), and whether a later try may succeed."""

    what: str
    fix: str
    again: bool


_ROWS: tuple[tuple[str, Words], ...] = (
    (
        r"RequestTimeTooSkewed|REQUEST_TIME_TOO_SKEWED|difference between the request time|Server failed to authenticate the request.*(Date|time)|not yet valid|"
        r"Request date header too old|token used too (early|late)",
        Words(
            "the store refuses this machine's clock",
            "set the clock (ntp, chrony): signatures are valid for minutes only",
            again=False,
        ),
    ),
    (
        r"SignatureDoesNotMatch|SIGNATURE_DOES_NOT_MATCH|AuthenticationFailed|InvalidAccessKeyId|XAdmin|INVALID_ACCESS_KEY|UNRECOGNIZED_CLIENT|ExpiredToken|EXPIRED_TOKEN|"
        r"INVALID_CLIENT_TOKEN|UNAUTHENTICATED|\b401\b|invalid_grant|MISSING_AUTHENTICATION|signature we calculated",
        Words(
            "the store does not accept the credentials",
            "check the key or token, that it has not expired, and this machine's clock (a wrong one spoils every signature)",
            again=False,
        ),
    ),
    (
        r"no credentials|Unable to (locate|load) credentials|Could not (create|find|load).*credential|DefaultAzureCredential|failed to retrieve credentials|"
        r"Could not automatically determine credentials",
        Words(
            "there are no credentials for the store here",
            "log in with the cloud's own tool, or give the machine or pod a role",
            again=False,
        ),
    ),
    (
        r"NoSuchBucket|NO_SUCH_BUCKET|ContainerNotFound|[Bb]ucket.{0,80}(does not exist|not found)|[Cc]ontainer.{0,80}(does not exist|not found)|"
        r"The specified container does not exist|during HeadBucket(?!.*([Rr]esol|curl|onnect))|NOT_FOUND: .*CreateResumableUpload",
        Words("there is no such bucket or container", "make it, or correct its name", again=False),
    ),
    (
        r"InsufficientStorage|QuotaExceeded|EntityTooLarge|\b507\b|[Nn]o space left|[Dd]isk quota|StorageFull|XMinioStorageFull|out of space",
        Words("the store is full", "make room or raise its quota", again=False),
    ),
    (
        r"AccessDenied|ACCESS_DENIED|PERMISSION_DENIED|AuthorizationPermissionMismatch|AuthorizationFailure|PublicAccessNotPermitted|Forbidden|\b403\b",
        Words("no permission", "let this identity read, list, write and delete below this URL", again=False),
    ),
    (
        r"[Cc]ould not resolve|Couldn't resolve|Unable to resolve|Name or service not known|Temporary failure in name resolution|CURLE_COULDNT_RESOLVE|No address associated",
        Words(
            "the store's name cannot be resolved",
            "check the URL, the region, the endpoint and DNS",
            again=True,
        ),
    ),
    (
        r"certificate|SSL|TLS handshake",
        Words(
            "the store's certificate is not trusted here",
            "name its CA in SSL_CERT_FILE or AWS_CA_BUNDLE",
            again=False,
        ),
    ),
    (
        r"SlowDown|SLOW_DOWN|TooManyRequests|ServerBusy|THROTTL|RESOURCE_EXHAUSTED|\b429\b",
        Words(
            "the store asks for fewer requests", "wait, or spread saves out with checkpoint.every", again=True
        ),
    ),
    (
        r"InternalError|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|ServiceUnavailable|UNAVAILABLE|InternalServerError|\b50[0234]\b|INTERNAL\b",
        Words("the store answers with an error of its own", "look at its status page", again=True),
    ),
    (
        r"[Cc]onnection (refused|reset|closed|timed out)|NETWORK_CONNECTION|couldn't connect|Couldn't connect|Failed to connect|Timeout|[Tt]imed out|DEADLINE_EXCEEDED|"
        r"curlCode|CURLE? code|network socket|[Ee]mpty reply|broken pipe|recv failure",
        Words("the store cannot be reached", "check the network, the endpoint and the firewall", again=True),
    ),
)
_LOCAL = {
    errno.EACCES: Words("no permission", "let this user write there", again=False),
    errno.EPERM: Words("no permission", "let this user write there", again=False),
    errno.EROFS: Words("Read-only file system", "choose another folder", again=False),
    errno.ENOSPC: Words("No space left on device", "make room", again=False),
    errno.EFBIG: Words(
        "File too large", "raise the limit (ulimit -f), or use another file system", again=False
    ),
    errno.EDQUOT: Words("Disk quota exceeded", "make room or raise the quota", again=False),
    errno.ENOTDIR: Words("Not a directory", "choose another folder", again=False),
    errno.EISDIR: Words("Is a directory", "choose another folder", again=False),
    errno.ENOENT: Words("No such file or directory", "", again=False),
    errno.EEXIST: Words("File exists", "choose another folder", again=False),
    errno.ENAMETOOLONG: Words("File name too long", "choose a shorter name", again=False),
}


def unsigned(text: str) -> str:
    """A text without what stands behind the question mark of an address: Azure's errors give whole addresses,
    and there the signature that opens the store.
    """
    return re.sub(r"(https?://[^\s'\"?]+)\?[^\s'\")]+", r"\1", text)


def explain(error: BaseException, local: bool) -> Words:
    """The words for an error; an unknown one of a store is worth another try, one of a disk is too (a network
    mount may come back).
    """
    if isinstance(error, StalledError):
        return Words(str(error), "check the network and the store's load", again=True)
    code = getattr(error, "errno", None)
    if local and code in _LOCAL:
        return _LOCAL[code]
    said = unsigned(" ".join(str(error).split()))
    for pattern, words in _ROWS if not local else ():
        if re.search(pattern, said):
            return Words(f"{words.what} ({_short(said)})", words.fix, words.again)
    strerror = getattr(error, "strerror", None)
    return Words(_short(unsigned(strerror or "") or said or type(error).__name__), "", again=True)


def _short(text: str, most: int = 220) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
