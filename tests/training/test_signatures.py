"""The signature that opens an Azure container stands in the addresses of Azure's errors, and must not be told
with them.
"""

from __future__ import annotations

import pytest

from trainfleet.training.data.remote import with_retries
from trainfleet.training.stores.error_messages import explain, redact_signature

SAID = "GetProperties failed for 'https://10.0.0.1/account/other/x.json?se=2026-11-23&sig=xOuR3Tf9%2Bb4&sp=racwdl'. Azure Error: [AuthorizationFailure] 403"


def test_an_address_loses_what_stands_behind_its_question_mark() -> None:
    assert (
        redact_signature(SAID)
        == "GetProperties failed for 'https://10.0.0.1/account/other/x.json'. Azure Error: [AuthorizationFailure] 403"
    )
    assert redact_signature("is it there? https://host/path") == "is it there? https://host/path"


def test_the_words_for_a_refusal_hold_no_signature() -> None:
    words = explain(OSError(SAID), local=False)
    assert "no permission" in words.what
    assert "sig=" not in words.what


def test_data_that_may_not_be_read_is_told_without_signature_and_without_its_cause() -> None:
    def read() -> None:
        raise OSError(SAID)

    with pytest.raises(PermissionError) as caught:
        with_retries(read, "az://other/x.json", pause=lambda _: None)
    assert "sig=" not in str(caught.value)
    assert caught.value.__suppress_context__
