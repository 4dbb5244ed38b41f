"""Azure's errors contain the signature (SAS) of a container's address. No message may contain it."""

from __future__ import annotations

import pytest

from trainfleet.training.data.remote import with_retries
from trainfleet.training.stores.error_messages import explain, redact_signature

AZURE_ERROR = "GetProperties failed for 'https://10.0.0.1/account/other/x.json?se=2026-11-23&sig=xOuR3Tf9%2Bb4&sp=racwdl'. Azure Error: [AuthorizationFailure] 403"


def test_the_query_of_an_address_is_removed() -> None:
    assert (
        redact_signature(AZURE_ERROR)
        == "GetProperties failed for 'https://10.0.0.1/account/other/x.json'. Azure Error: [AuthorizationFailure] 403"
    )
    assert redact_signature("is it there? https://host/path") == "is it there? https://host/path"


def test_the_explanation_of_an_error_has_no_signature() -> None:
    words = explain(OSError(AZURE_ERROR), local=False)
    assert "no permission" in words.what
    assert "sig=" not in words.what


def test_an_error_of_a_data_source_has_no_signature_and_no_cause() -> None:
    def read() -> None:
        raise OSError(AZURE_ERROR)

    with pytest.raises(PermissionError) as caught:
        with_retries(read, "az://other/x.json", pause=lambda _: None)
    assert "sig=" not in str(caught.value)
    assert caught.value.__suppress_context__
