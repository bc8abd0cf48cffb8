"""Lists in pages. A continue token names the revision of the first page and the key the next one starts after, so all pages
show one state of the collection; when the history no longer reaches back to it, the client starts anew (410)."""

from __future__ import annotations

import base64
import binascii

import msgspec

from remuda.api.errors import ApiError, BadRequest, Expired, Invalid, StatusCause, StatusDetails
from remuda.embedded.apiserver.kinds_served import Served
from remuda.embedded.apiserver.naming import invalid_option
from remuda.embedded.apiserver.objects import Objects, parse_revision
from remuda.embedded.apiserver.selection import matcher, within_prefix
from remuda.embedded.apiserver.store import Record, Store
from remuda.embedded.apiserver.wire.url_paths import Query


class _Token(msgspec.Struct, frozen=True):
    rv: int
    after: str


class Page(msgspec.Struct, frozen=True):
    records: list[Record]
    revision: int
    continue_: str = ""
    remaining: int = 0


class TooNew(ApiError):
    """The asked version has not been reached; waiting may help."""

    code, reason = 504, "Timeout"


def page(objects: Objects, served: Served, namespace: str, query: Query) -> Page:
    store = objects.store
    prefix = within_prefix(served.store, namespace)
    revision, after = store.revision, ""
    if query.continue_:
        if query.resource_version not in ("", "0"):
            raise BadRequest("specifying resource version is not allowed when using continue")
        token = _decoded(query.continue_)
        revision, after = token.rv, token.after
        if not after.startswith(prefix) or revision > store.revision:
            raise BadRequest("continue key is not valid: it is another list's; list again without it")
        try:
            found = store.scan_at(prefix, revision)
        except Expired as error:
            raise Expired(f"the provided continue parameter is too old; {error.message}") from None
    elif query.version_match == "Exact":
        revision = check_reached(store, query.resource_version)
        found = store.scan_at(prefix, revision)
    else:
        check_reached(store, query.resource_version)
        found = store.scan(prefix)
    matches = matcher(query.labels, query.fields)
    if matches is not None:
        found = [record for record in found if matches(record.body)]
    if after:
        found = [record for record in found if record.key > after]
    if not query.limit or len(found) <= query.limit:
        return Page(found, revision)
    # How many are left is not said when a selector would have to be run over them (as Kubernetes does not).
    remaining = len(found) - query.limit if matches is None else 0
    shown = found[: query.limit]
    return Page(shown, revision, _encoded(_Token(revision, shown[-1].key)), remaining)


def check_reached(store: Store, version: str) -> int:
    """Reads show the newest state; one that asks for a version that is still to come has to come back."""
    asked = parse_revision(version or "0")
    if asked > store.revision:
        cause = StatusCause("ResourceVersionTooLarge", "Too large resource version")
        raise TooNew(
            f"Too large resource version: {version}, current: {store.revision}",
            details=StatusDetails(causes=[cause], retry_after_seconds=1),
        )
    return asked


def check_version_match(query: Query) -> None:
    match, version = query.version_match, query.resource_version
    if query.is_watch and query.sends_initial and match != "NotOlderThan":
        raise _forbidden("Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    if query.is_watch and match and not query.sends_initial:
        raise _forbidden("Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
    if not match:
        return
    if match not in ("Exact", "NotOlderThan"):
        raise _forbidden(f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan"')
    if query.continue_:
        raise _forbidden("Forbidden: resourceVersionMatch is forbidden when continue is provided")
    if query.is_watch:
        return
    if not version:
        raise _forbidden("Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided")
    if match == "Exact" and version == "0":
        raise _forbidden('Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"')


def _forbidden(what: str) -> Invalid:
    return invalid_option("ListOptions", "resourceVersionMatch", what)


def _encoded(token: _Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def _decoded(text: str) -> _Token:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise BadRequest("continue key is not valid: use the one that the list before gave") from None
