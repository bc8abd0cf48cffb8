"""TokenReview (authentication.k8s.io/v1): asking the API whom a token speaks for. Created and read back, never stored."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from remuda.api.meta import KObject, Resource


class TokenReviewSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    token: str = ""
    audiences: list[str] = []


class UserInfo(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class TokenReviewStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    authenticated: bool = False
    user: UserInfo = UserInfo()
    audiences: list[str] = []  # those asked for that the token is meant for
    error: str = ""


class TokenReview(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        "authentication.k8s.io", "v1", "TokenReview", "tokenreviews", namespaced=False
    )

    spec: TokenReviewSpec = TokenReviewSpec()
    status: TokenReviewStatus = TokenReviewStatus()
