"""Posting to webhooks, against a server that answers as tests say."""

from __future__ import annotations

import asyncio
import json

import pytest

from remuda.kube.client.webhooks import HttpWebhookClient, WebhookFailed
from tests.builders.http_server import Asked, HttpServer, Reply


@pytest.mark.asyncio
async def test_a_body_is_posted_as_json() -> None:
    poster = HttpWebhookClient()
    async with HttpServer(Reply(200)) as server:
        await poster.post(f"http://127.0.0.1:{server.port}/hook?token=t", {"text": "hällo"})
        await poster.close()
    asked = server.asked[0]
    assert (asked.method, asked.path, asked.query) == ("POST", "/hook", {"token": "t"})
    assert asked.headers["content-type"] == "application/json"
    assert json.loads(asked.body) == {"text": "hällo"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("reply", "words", "patience"),
    [
        (Reply(500), "it answered 500", None),
        (Reply(429, headers={"Retry-After": "7"}), "it answered 429", 7.0),
        (Reply(302, headers={"Location": "http://127.0.0.1:1/"}), "it answered 302", None),
    ],
)
async def test_a_refusal_says_what_was_answered(reply: Reply, words: str, patience: float | None) -> None:
    poster = HttpWebhookClient()
    async with HttpServer(reply) as server:
        with pytest.raises(WebhookFailed, match=words) as failed:
            await poster.post(f"http://127.0.0.1:{server.port}/", {})
        await poster.close()
    assert failed.value.retry_after_s == patience
    assert len(server.asked) == 1, "a redirect is not followed"


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://no.such.host.invalid/", "nonsense", "ftp://x/"])
async def test_an_address_that_leads_nowhere_is_a_failure_too(url: str) -> None:
    poster = HttpWebhookClient(timeout_s=20.0)
    with pytest.raises(WebhookFailed) as failed:
        await poster.post(url, {})
    await poster.close()
    assert url.partition("://")[2].strip("/") not in str(failed.value) or "://" not in url, "addresses are secrets"


@pytest.mark.asyncio
async def test_a_server_that_never_answers_is_given_up() -> None:
    async def never(asked: Asked) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    poster = HttpWebhookClient(timeout_s=0.2)
    async with HttpServer(never) as server:
        with pytest.raises(WebhookFailed, match="no answer within"):
            await poster.post(f"http://127.0.0.1:{server.port}/", {})
        await poster.close()
