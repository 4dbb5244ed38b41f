"""One message to one address: format, signature, retries, what is refused, and that no error shows the address."""

from __future__ import annotations

import json

import pytest

from tests.training.notifications.receiver import TOKEN, receiving
from trainfleet.errors import InputError
from trainfleet.training.notifications import Endpoint, Message, endpoints
from trainfleet.training.notifications.delivery import deliver, url_fault
from trainfleet.training.notifications.messages import decoded_key, signature, slack_body
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Notifications

MESSAGE = Message("1-start", "start", "a-run", "1", "a-run trains", {"step": 1, "storage": "s3://b/a-run"})
KEY = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_signature_is_that_of_standard_webhooks() -> None:
    # The test vector of the specification's reference libraries.
    signed = signature(
        decoded_key(f"whsec_{KEY}"), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_webhook_gets_json_with_an_id_and_a_signature() -> None:
    with receiving() as receiver:
        endpoint = Endpoint("notifications.webhook", "HOOK", receiver.url, "webhook", decoded_key(KEY))
        assert deliver(endpoint, MESSAGE) == ""
    (got,) = receiver.received
    assert got.path.endswith(TOKEN)
    data = got.document["data"]
    assert got.document["type"] == "run.start"
    assert (data["run"], data["step"], data["text"]) == ("a-run", 1, "a-run trains")
    headers = got.headers
    assert headers["webhook-id"] == data["id"] == "1-start"
    assert headers["webhook-signature"] == signature(
        decoded_key(KEY), "1-start", int(headers["webhook-timestamp"]), got.body
    )


def test_slack_gets_text_and_blocks_without_its_reserved_characters() -> None:
    message = Message("1-failure", "failure", "a-run", "1", "died: <!channel> & more", {"step": 3})
    document = json.loads(slack_body(message))
    assert document["text"] == "a-run: failure: died: &lt;!channel&gt; &amp; more"
    section, context = document["blocks"]
    assert section["text"]["type"] == "mrkdwn"
    assert "<" not in section["text"]["text"]
    assert context["elements"][0]["text"] == "step 3"
    assert len(json.loads(slack_body(Message("1", "end", "a", "1", "x" * 9000)))["text"]) <= 3000


@pytest.mark.parametrize(
    ("answers", "headers", "why", "requests", "waits"),
    [
        ([], {}, "", 1, []),
        ([500, 503], {}, "", 3, [1.0, 4.0]),
        ([500] * 9, {}, "the server answers 500 after 4 attempts", 4, [1.0, 4.0, 16.0]),
        ([429], {"Retry-After": "7"}, "", 2, [7.0]),
        ([429], {"Retry-After": "9999"}, "", 2, [60.0]),
        ([429], {"Retry-After": "\u00b2"}, "", 2, [1.0]),
        ([404], {}, "the server answers 404", 1, []),
        ([403], {}, "the server answers 403", 1, []),
        ([302], {"Location": "/else"}, "the server answers 302, a redirect, which is not followed", 1, []),
        ([307], {"Location": "/else"}, "the server answers 307, a redirect, which is not followed", 1, []),
    ],
)
def test_a_message_is_retried_where_that_can_help(
    answers: list[int], headers: dict[str, str], why: str, requests: int, waits: list[float]
) -> None:
    waited: list[float] = []
    with receiving(answers=[*answers], headers=headers) as receiver:
        endpoint = Endpoint("notifications.slack", "HOOK", receiver.url, "slack")
        assert deliver(endpoint, MESSAGE, waited.append) == why
    assert (len(receiver.received), waited) == (requests, waits)
    assert {each.path for each in receiver.received} == {f"/hooks/{TOKEN}"}


def test_a_server_that_does_not_answer_or_does_not_exist_is_an_error_without_the_address() -> None:
    with receiving(silent=True) as receiver:
        endpoint = Endpoint("notifications.slack", "HOOK", receiver.url, "slack")
        why = deliver(endpoint, MESSAGE, waits_s=(), timeout_s=0.3)
        assert why == "the server does not answer in time"
    gone = deliver(endpoint, MESSAGE, waits_s=())
    assert gone == "no connection (Connection refused)"
    assert TOKEN not in repr(endpoint)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("https://hooks.slack.com/services/T/B/x", ""),
        ("https://example.com:8443/x?y=z", ""),
        ("http://127.0.0.1:9/x", ""),
        ("http://localhost/x", ""),
        ("http://[::1]/x", ""),
        ("http://hooks.slack.com/x", "plain http"),
        ("http://127.0.0.1.example.com/x", "plain http"),
        ("http://10.0.0.5/x", "plain http"),
        ("ftp://example.com/x", "is not an https:// URL"),
        ("file:///etc/passwd", "is not an https:// URL"),
        ("hooks.slack.com/x", "is not an https:// URL"),
        ("https://user:word@example.com/x", "user name"),
        ("https://example.com/a b", "spaces"),
        ("https://example.com/a\r\nHost: b", "spaces"),
        ("https://example.com:port/", "is not a URL"),
        ("https://example.com./x", ""),
        ("https://hooks..slack.com/x", "has no valid host name"),
        ("https://.slack.com/x", "has no valid host name"),
        (f"https://{'a' * 64}.com/x", "has no valid host name"),
    ],
)
def test_only_https_is_accepted_except_on_this_machine(url: str, fault: str) -> None:
    found = url_fault(url)
    assert fault in found
    assert bool(found) == bool(fault)


def test_what_is_missing_or_wrong_is_named_without_its_value() -> None:
    config = Notifications(webhook="HOOK", signing_key="KEY", slack="SLACK")
    found, problems = endpoints(
        config, {"HOOK": "https://a/b", "KEY": "c2hvcnQ=", "SLACK": f"http://a/{TOKEN}"}
    )
    assert found == []  # no unsigned message to an address that expects signed ones
    assert [each.where for each in problems] == ["notifications.slack", "notifications.signing_key"]
    text = "\n".join(map(str, problems))
    assert "plain http" in text
    assert "has 5 bytes" in text
    assert TOKEN not in text
    assert "c2hvcnQ" not in text
    missing = endpoints(config, {})[1]
    assert [each.where.partition(".")[2] for each in missing] == ["webhook", "slack", "signing_key"]


@pytest.mark.parametrize(
    "override",
    [
        f"notifications.slack=https://hooks.slack.com/{TOKEN}",
        f"notifications.webhook='{TOKEN}: ['",
        f"notifications.webhook={TOKEN}: [",
        f"notifications.webhook=[{TOKEN}]",
        f"notifications={TOKEN}",
    ],
)
def test_an_address_in_a_recipe_is_rejected_and_not_shown(override: str) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("lm-tiny", [override])
    assert TOKEN not in str(caught.value)
    key, _, value = override.partition("=")
    name = "TRAINFLEET_" + key.upper().replace(".", "__")
    with pytest.raises(InputError) as caught:
        load_recipe("lm-tiny", [], {name: value})
    assert TOKEN not in str(caught.value)


def test_a_key_without_a_webhook_is_rejected() -> None:
    with pytest.raises(InputError, match="there is none"):
        load_recipe("lm-tiny", ["notifications.signing_key=KEY", "notifications.slack=SLACK"])
