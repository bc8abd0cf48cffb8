"""Posts to webhooks: one JSON body, one deadline, a typed failure. Retrying and remembering is the caller's.

Redirects are not followed and the answer's body is not read: whoever wrote the address said where to post, not whom to trust.
"""

from __future__ import annotations

from typing import Protocol

import aiohttp

from remuda.api.codec import encode
from remuda.api.meta import JsonObject

POST_S = 10.0


class WebhookFailed(Exception):
    """The webhook did not take it. `retry_after_s`: when the receiver asked for patience."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WebhookClient(Protocol):
    async def post(self, url: str, body: JsonObject) -> None:
        """Raises `WebhookFailed`."""
        ...

    async def close(self) -> None: ...


class HttpWebhookClient:
    def __init__(self, timeout_s: float = POST_S) -> None:
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: JsonObject) -> None:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, headers={"User-Agent": "remuda"})
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(url, data=encode(body), headers=headers, allow_redirects=False) as answer:
                if answer.status >= 300:
                    raise WebhookFailed(
                        f"it answered {answer.status}", _http_retry_after(answer.headers.get("Retry-After"))
                    )
        except TimeoutError:
            raise WebhookFailed(f"no answer within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise WebhookFailed(_webhook_http_error_words(error)) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def _webhook_http_error_words(error: Exception) -> str:
    """Without the address, which the library's own words have and which is often a secret."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return type(error).__name__


def _http_retry_after(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None
