"""The table of `field_table` as it stands in docs/compatibility.md: one row for each entry, with every field of the schema it
decides about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from remuda.embedded.apiserver.patching.patch_schema import PatchSchema, builtin_kind_schema
from remuda.embedded.pod_fields.field_table import (
    POD_FIELDS,
    FieldClaim,
    PodField,
    find_pod_field,
    pod_field_table_path,
)

BEGIN: Final = "<!-- pod fields: written by tools/render-pod-fields -->"
END: Final = "<!-- end of pod fields -->"


def pod_schema_paths() -> list[str]:
    """Every field of a PodSpec in Kubernetes' schema, in the table's way of naming places."""
    kind = builtin_kind_schema("v1", "Pod")
    assert kind is not None
    return list(_paths_below(kind.root.fields["spec"], ""))


def _paths_below(schema: PatchSchema, path: str) -> Iterator[str]:
    for name, field in schema.fields.items():
        here, inner = f"{path}.{name}" if path else name, field
        while inner.type in ("array", "object") and inner.element is not None and not inner.fields:
            here += "[]" if inner.type == "array" else "{}"
            inner = inner.element
        yield here
        yield from _paths_below(inner, here)


def render_pod_field_table() -> str:
    """Pods first, then containers and volumes. Entries that say the same share a row."""
    below: dict[str, list[str]] = {}
    for path in pod_schema_paths():
        field = find_pod_field(path)
        if field is not None and not field.is_section and path == pod_field_table_path(path):
            below.setdefault(field.path, []).append(path.removeprefix(field.path).removeprefix("."))
    rows: dict[PodField, list[str]] = {}
    for path in sorted(below, key=lambda path: (path.startswith(("containers[]", "volumes[]")), path)):
        rows.setdefault(msgspec.structs.replace(POD_FIELDS[path], path=""), []).append(path)
    head = "| Field | Here | What that means |\n|---|---|---|\n"
    lines = (
        f"| {', '.join(_named(path, below[path]) for path in paths)} | {_claim_words(field)} | {_meaning(field)} |\n"
        for field, paths in rows.items()
    )
    return head + "".join(lines)


def _named(path: str, below: list[str]) -> str:
    inner = " ".join(f"`{each}`" for each in below if each)
    return f"`{path}` (with {inner})" if inner else f"`{path}`"


def _claim_words(field: PodField) -> str:
    if field.claim is FieldClaim.REFUSED and field.is_process_only:
        return "refused; warned where the pod is simulated"
    return str(field.claim)


def _meaning(field: PodField) -> str:
    said = f"{field.said[:1].upper()}{field.said[1:]}." if field.said else ""
    parts = [f"`{field.reason}`: {said}" if field.reason else said, field.fix]
    if field.quiet:
        words = (str(value).lower() if isinstance(value, bool) else value for value in field.quiet)
        parts.append(f"Not warned about: {', '.join(f'`{word}`' for word in words)}.")
    if field.shown_by:
        parts.append(f"Shown by `{field.shown_by.rpartition('::')[2]}`.")
    return " ".join(filter(None, parts))


def with_pod_field_table(page: str) -> str:
    """The page with the table between its marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render_pod_field_table()}{END}{after}"
