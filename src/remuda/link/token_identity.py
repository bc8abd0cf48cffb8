"""Whom a token speaks for: asked of the API by TokenReview, remembered for a short while.

A token is bound to a node when the API says that its owner *is* that node (a kubelet's credential) or that it was given to a pod
*on* that node (a service-account token bound to the agent's own pod carries the node's name). The agent's service account alone
is not enough: any node's agent has it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from remuda.api.errors import ApiError, Refusal
from remuda.api.kubernetes.authentication_v1 import TokenReview
from remuda.kube.cluster import Cluster

NODE_EXTRA = "authentication.kubernetes.io/node-name"
NODE_USER = "system:node:"
REMEMBER_S = 60.0
MAX_REMEMBERED = 20_000


class TokenReviewer:
    """Call it as `link.server.Authenticate`. `users`: user names that may open a stream; empty = any that is on the node.
    `audience`: whom tokens must be meant for; "" = the API itself."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        users: frozenset[str] = frozenset(),
        *,
        audience: str = "",
    ) -> None:
        self._audience = audience
        self._cluster = cluster
        self._clock = clock
        self._users = users
        self._known: dict[bytes, tuple[float, str, str]] = {}  # digest of the token -> (until, user, node)

    async def __call__(self, token: str, node: str) -> None:
        user, bound_to = await self._whose(token)
        if bound_to != node:
            where = f"node {bound_to}" if bound_to else "no node"
            raise Refusal(
                "WrongNode",
                f"The token of {user} is bound to {where} and the agent says it is {node}.",
                "Run the agent as a pod on its node, with its own service-account token.",
            )
        if self._users and user not in self._users and not user.startswith(NODE_USER):
            raise Refusal("NotAnAgent", f"{user} may not open a stream.", "Use the agent's service account.")

    async def _whose(self, token: str) -> tuple[str, str]:
        digest, now = hashlib.sha256(token.encode()).digest(), self._clock()
        until, user, node = self._known.get(digest, (0.0, "", ""))
        if now < until:
            return user, node
        asked = {"token": token, **({"audiences": [self._audience]} if self._audience else {})}
        if not token:
            raise Refusal("Unauthenticated", "There is no token.", "Mount a projected token into the agent's pod.")
        try:
            review = await self._cluster.create(TokenReview, {"metadata": {}, "spec": asked})
        except ApiError as error:
            raise Refusal(
                "IdentityUnknown",
                f"The API cannot say whose the token is: {error}.",
                "The agent tries again by itself.",
            ) from error
        if not review.status.authenticated:
            raise Refusal("Unauthenticated", "The API does not know the token.", "Renew the agent's token.")
        if self._audience and self._audience not in review.status.audiences:
            raise Refusal(
                "WrongAudience",
                "The token is not meant for the manager.",
                f"Give the agent's pod a projected token with audience {self._audience}.",
            )
        user = review.status.user.username
        node = user.removeprefix(NODE_USER) if user.startswith(NODE_USER) else ""
        node = node or next(iter(review.status.user.extra.get(NODE_EXTRA, [])), "")
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[digest] = (now + REMEMBER_S, user, node)
        return user, node
