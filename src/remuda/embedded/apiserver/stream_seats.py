"""Who may open one more stream: a watch, or a log that is followed. Clients on the unix socket have seats of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from remuda.api.errors import StatusDetails, TooManyRequests
from remuda.embedded.apiserver.connections import local_apiserver_connection_limits, remote_apiserver_connection_limits
from remuda.embedded.apiserver.wire.http_exchange import HttpRequest

RETRY_AFTER_S = 5


class StreamPlaces:
    """Places for requests that do not end: each costs a connection, and a watch a share of every write. Tenants are told apart by
    address and namespace."""

    def __init__(self, most: int, of_tenant: int) -> None:
        self.most = most
        self.of_tenant = of_tenant
        self._taken: Counter[str] = Counter()
        self._sum = 0

    def take(self, tenant: str) -> int:
        """Takes a place and answers with 0; without a free one, takes none and answers with the bound that was met."""
        if self._taken[tenant] >= self.of_tenant:
            return self.of_tenant
        if self._sum >= self.most:
            return self.most
        self._taken[tenant] += 1
        self._sum += 1
        return 0

    def give_back(self, tenant: str) -> None:
        self._sum -= 1
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]


class StreamSeats:
    """`descriptors`: how many the process may have; a stream holds one."""

    def __init__(self, descriptors: int) -> None:
        local, remote = local_apiserver_connection_limits(descriptors), remote_apiserver_connection_limits(descriptors)
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
