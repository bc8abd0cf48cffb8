"""Lists in pages. A continue token names the revision of the first page and the key the next one starts after, so all pages
show one state of the collection; when the history no longer reaches back to it, the client starts anew (410)."""

from __future__ import annotations

import base64
import binascii

import msgspec

from remuda.api.errors import ApiError, BadRequest, Expired, Invalid, StatusCause, StatusDetails
from remuda.embedded.apiserver.kinds_served import ServedKind
from remuda.embedded.apiserver.naming import served_request_option_invalid
from remuda.embedded.apiserver.objects import ObjectService, parse_served_object_version
from remuda.embedded.apiserver.selection import served_namespace_key_prefix, stored_object_matcher
from remuda.embedded.apiserver.store import ObjectStore, StoredObject
from remuda.embedded.apiserver.wire.url_paths import ReadQuery


class _ContinueToken(msgspec.Struct, frozen=True):
    rv: int
    after: str


class ListPage(msgspec.Struct, frozen=True):
    records: list[StoredObject]
    revision: int
    continue_: str = ""
    remaining: int = 0


class RevisionNotReached(ApiError):
    """The asked version has not been reached; waiting may help."""

    code, reason = 504, "Timeout"


class ListPageSource(msgspec.Struct, frozen=True):
    """The objects that a page is chosen from, as of one revision. Choosing reads nothing else, so it may take its time."""

    records: list[StoredObject]
    revision: int
    after: str
    query: ReadQuery

    def read(self) -> ListPage:
        query, found = self.query, self.records
        matches = stored_object_matcher(query.labels, query.fields)
        if matches is not None:
            found = [record for record in found if matches(record.body)]
        if self.after:
            found = [record for record in found if record.key > self.after]
        if not query.limit or len(found) <= query.limit:
            return ListPage(found, self.revision)
        # How many are left is not said when a selector would have to be run over them (as Kubernetes does not).
        remaining = len(found) - query.limit if matches is None else 0
        shown = found[: query.limit]
        return ListPage(shown, self.revision, _encode_continue(_ContinueToken(self.revision, shown[-1].key)), remaining)


def read_list_page(objects: ObjectService, served: ServedKind, namespace: str, query: ReadQuery) -> ListPage:
    return take_list_page(objects, served, namespace, query).read()


def take_list_page(objects: ObjectService, served: ServedKind, namespace: str, query: ReadQuery) -> ListPageSource:
    store = objects.store
    prefix = served_namespace_key_prefix(served.store, namespace)
    revision, after = store.revision, ""
    if query.continue_:
        if query.resource_version not in ("", "0"):
            raise BadRequest("specifying resource version is not allowed when using continue")
        token = _decode_continue(query.continue_)
        revision, after = token.rv, token.after
        if not after.startswith(prefix) or revision > store.revision:
            raise BadRequest("continue key is not valid: it is another list's; list again without it")
        try:
            found = store.scan_at(prefix, revision)
        except Expired as error:
            raise Expired(f"the provided continue parameter is too old; {error.message}") from None
    elif query.version_match == "Exact":
        revision = check_read_query_revision(store, query.resource_version)
        found = store.scan_at(prefix, revision)
    else:
        check_read_query_revision(store, query.resource_version)
        found = store.scan(prefix)
    return ListPageSource(found, revision, after, query)


def check_read_query_revision(store: ObjectStore, version: str) -> int:
    """Reads show the newest state; one that asks for a version that is still to come has to come back."""
    asked = parse_served_object_version(version or "0")
    if asked > store.revision:
        cause = StatusCause("ResourceVersionTooLarge", "Too large resource version")
        raise RevisionNotReached(
            f"Too large resource version: {version}, current: {store.revision}",
            details=StatusDetails(causes=[cause], retry_after_seconds=1),
        )
    return asked


def check_read_query_version_match(query: ReadQuery) -> None:
    match, version = query.version_match, query.resource_version
    if query.is_watch and query.sends_initial and match != "NotOlderThan":
        raise _forbidden_list_option(
            "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        )
    if query.is_watch and match and not query.sends_initial:
        raise _forbidden_list_option(
            "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        )
    if not match:
        return
    if match not in ("Exact", "NotOlderThan"):
        raise _forbidden_list_option(f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan"')
    if query.continue_:
        raise _forbidden_list_option("Forbidden: resourceVersionMatch is forbidden when continue is provided")
    if query.is_watch:
        return
    if not version:
        raise _forbidden_list_option("Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided")
    if match == "Exact" and version == "0":
        raise _forbidden_list_option('Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"')


def _forbidden_list_option(what: str) -> Invalid:
    return served_request_option_invalid("ListOptions", "resourceVersionMatch", what)


def _encode_continue(token: _ContinueToken) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def _decode_continue(text: str) -> _ContinueToken:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_ContinueToken)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise BadRequest("continue key is not valid: use the one that the list before gave") from None
