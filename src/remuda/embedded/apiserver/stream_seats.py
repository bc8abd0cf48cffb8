"""Who may open one more stream: a watch, or a log that is followed. Clients on the unix socket have seats of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from remuda.api.errors import StatusDetails, TooManyRequests
from remuda.embedded.apiserver.connections import StreamPlaces, local_limits, remote_limits
from remuda.embedded.apiserver.wire.http_exchange import HttpRequest

RETRY_AFTER_S = 5


class StreamSeats:
    """`descriptors`: how many the process may have; a stream holds one."""

    def __init__(self, descriptors: int) -> None:
        local, remote = local_limits(descriptors), remote_limits(descriptors)
        self._local = StreamPlaces(local.streams, local.of_tenant)
        self._remote = StreamPlaces(remote.streams, remote.of_tenant)

    @contextmanager
    def seat(self, request: HttpRequest, namespace: str) -> Iterator[None]:
        """Raises TooManyRequests when there is none."""
        places, tenant = (self._remote if request.client else self._local), f"{request.client}/{namespace}"
        if bound := places.take(tenant):
            whose = f"from {request.client} in this namespace" if bound == places.of_tenant else "in all"
            raise TooManyRequests(
                f"{bound} watches and logs are followed {whose} (limit {bound}); end some, or follow many objects with one",
                details=StatusDetails(retry_after_seconds=RETRY_AFTER_S),
            )
        try:
            yield
        finally:
            places.give_back(tenant)
