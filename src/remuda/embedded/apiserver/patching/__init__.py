"""Patches and the ownership of fields: wire dicts in, a wire dict or an `ApiError` out. Pure; no argument is ever changed, and
what a patch leaves alone is shared with the result.

Schemas (`patch_schema`):
    builtin_kind_schema(api_version, kind)                  a built-in kind, from the committed table
    custom_kind_patch_schema(openAPIV3Schema, has_status=...) a custom kind's version

Patches; each takes the stored body and the decoded patch, and gives the new body:
    merge_patch(doc, patch)                                 RFC 7386
    json_patch(doc, ops)                                    RFC 6902; 400 malformed, 413 too much, 422 does not apply
    strategic_merge(doc, patch, schema)                     415 for custom kinds

Ownership:
    server_side_apply(live | None, applied, manager, force, schema, now, subresource="") -> body
        server-side apply, `metadata.managedFields` included. `ApplyConflict` (409) has the `causes` for Status.details.
        Returns `live` itself when nothing is to be written.
    track_field_owners(old | None, new, manager, schema, now, subresource="") -> body
        the same for every other write: `new` with the owners it leaves behind. Call it after decoding, patching and
        defaulting and before admission, whose changes nobody owns.
    manager_name(field_manager, user_agent) -> str          who the writer is

For the caller to use as it needs:
    settle_body_by_patch_schema(body, schema)              the form to store: no nulls, no empty optional lists and maps
    find_patch_schema_faults(body, schema.root)  unknown fields, wrong types, items that cannot be told apart; each by its path
    check_body_bounds(body)                400 or 413 for a body too deep, too rich or too long-named to walk; patches are
                                           checked already, what they make of an object is not

A patch of a built-in kind, in order:
    new = strategic_merge(live, patch, schema)
    ... find faults: of kind "type" -> 422 (400 for a body that was created or replaced), "unknown" -> as fieldValidation
    says, "item" is no error here ...
    new = settle_body_by_patch_schema(new, schema)
    ... fill in defaults ...
    new = track_field_owners(live, new, manager_name(asked, user_agent), schema, now)
    ... admission, the rules of the server, store ...
"""

from remuda.embedded.apiserver.patching.bounds import (
    MAX_DEPTH,
    MAX_VALUES,
    BodyTooLarge,
    WorkBudget,
    check_body_bounds,
)
from remuda.embedded.apiserver.patching.combine import settle_body_by_patch_schema
from remuda.embedded.apiserver.patching.field_owners import manager_name
from remuda.embedded.apiserver.patching.json_patch import json_patch
from remuda.embedded.apiserver.patching.merge_patch import merge_patch
from remuda.embedded.apiserver.patching.patch_schema import (
    KindSchema,
    PatchSchema,
    builtin_kind_schema,
    custom_kind_patch_schema,
    object_meta_patch_schema,
)
from remuda.embedded.apiserver.patching.schema_check import SchemaFault, find_patch_schema_faults
from remuda.embedded.apiserver.patching.server_side_apply import ApplyConflict, server_side_apply, track_field_owners
from remuda.embedded.apiserver.patching.strategic_patch import strategic_merge

__all__ = [
    "MAX_DEPTH",
    "MAX_VALUES",
    "ApplyConflict",
    "BodyTooLarge",
    "KindSchema",
    "PatchSchema",
    "SchemaFault",
    "WorkBudget",
    "builtin_kind_schema",
    "check_body_bounds",
    "custom_kind_patch_schema",
    "find_patch_schema_faults",
    "json_patch",
    "manager_name",
    "merge_patch",
    "object_meta_patch_schema",
    "server_side_apply",
    "settle_body_by_patch_schema",
    "strategic_merge",
    "track_field_owners",
]
