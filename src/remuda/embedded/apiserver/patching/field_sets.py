"""Sets of fields in the form that `metadata.managedFields` has on the wire (FieldsV1), and their algebra.

A set is a tree of path elements. `f:NAME` is a field, `k:{...}` a list item by its keys, `v:VALUE` an item of a set, `i:N` an
item by its place. Every node is a dict: an empty one is a member, one with children is a member only if it also has ".".
The root is no member. So {"f:data": {".": {}, "f:a": {}}} holds two paths: `.data` and `.data.a`.

Elements are compared as text, so they are always written one way: keys sorted, no spaces, and escaped as Go's JSON encoder
does. `parse_field_set` brings a set from outside into that form.

Stored sets have their elements in order, for the eye and for stable bytes; every operation on ordered sets keeps the order.

Nothing here changes its arguments, and an operation that removes or adds nothing returns the very set it was given; the
callers see by identity that an owner did not change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from remuda.embedded.apiserver.patching.patch_schema import FieldSet

SELF: Final = "."
LEAF: Final[FieldSet] = {}
_SPECIAL: Final = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029\ud800-\udfff]')
_INDEX: Final = re.compile(r"[+-]?[0-9]{1,18}")


def union_fields(a: FieldSet, b: FieldSet) -> FieldSet:
    """Also right for two nodes, both of which are in a set."""
    if a is b:
        return a
    out: FieldSet | None = None
    for key, right in b.items():
        left = a.get(key)
        joined = right if left is None else left if key == SELF else _union_nodes(left, right)
        if joined is not left:
            if out is None:
                out = dict(a)
            out[key] = joined
    if out is None:
        return a
    return out if len(out) == len(a) else dict(sorted(out.items()))


def _union_nodes(a: FieldSet, b: FieldSet) -> FieldSet:
    """The union of two nodes: like that of sets, but an empty node is a member and stays one."""
    if a and b:
        return union_fields(a, b)
    more = b or a
    return more if not more or SELF in more else {SELF: LEAF, **more}


def subtract_fields(a: FieldSet, b: FieldSet) -> FieldSet:
    """The paths of `a` that are not in `b`. Removing `.x` leaves `.x.y`."""
    out: FieldSet | None = None
    for key, right in b.items():
        left = a.get(key)
        if left is None or key == SELF:
            continue
        rest = _subtract_node(left, right)
        if rest is not left:
            if out is None:
                out = dict(a)
            if rest is None:
                del out[key]
            else:
                out[key] = rest
    return a if out is None else out


def _subtract_node(a: FieldSet, b: FieldSet) -> FieldSet | None:
    taken = not b or SELF in b
    if not a:
        return None if taken else a
    out = subtract_fields(a, b)
    if taken and SELF in a:
        out = {key: node for key, node in out.items() if key != SELF}
    if out is a:
        return a
    if not out:
        return None
    return LEAF if len(out) == 1 and SELF in out else out


def subtract_fields_below(a: FieldSet, b: FieldSet) -> FieldSet:
    """The paths of `a` that are neither in `b` nor below a path of `b`."""
    out: FieldSet | None = None
    for key, right in b.items():
        left = a.get(key)
        if left is None or key == SELF:
            continue
        rest: FieldSet | None = None
        if right and SELF not in right:
            rest = left and subtract_fields_below(left, right)
            if rest is left:
                continue
            rest = LEAF if len(rest) == 1 and SELF in rest else rest or None
        if out is None:
            out = dict(a)
        if rest is None:
            del out[key]
        else:
            out[key] = rest
    return a if out is None else out


def intersect_fields(a: FieldSet, b: FieldSet) -> FieldSet:
    if len(b) < len(a):
        a, b = b, a
    out: FieldSet = {}
    for key, left in a.items():
        right = b.get(key)
        if right is not None and key != SELF and (common := _intersect_node(left, right)) is not None:
            out[key] = common
    return out


def _intersect_node(a: FieldSet, b: FieldSet) -> FieldSet | None:
    both = (not a or SELF in a) and (not b or SELF in b)
    below = intersect_fields(a, b) if a and b else LEAF
    if both:
        return {SELF: LEAF, **below} if below else LEAF
    return below or None


def is_member_field(node: FieldSet) -> bool:
    """The node is a member itself, not only on the way to one."""
    return not node or SELF in node


def ordered_fields(a: FieldSet) -> FieldSet:
    """The same set with its elements in order."""
    return {key: ordered_fields(node) if node else node for key, node in sorted(a.items())}


def field_paths(a: FieldSet, prefix: str = "") -> Iterator[str]:
    """Every member as Kubernetes words it: .spec.containers[name="a"].image"""
    for key, node in sorted(a.items()):
        if key != SELF and is_member_field(node):
            yield prefix + _element_in_words(key)
    for key, node in sorted(a.items()):
        if node:
            yield from field_paths(node, prefix + _element_in_words(key))


def _element_in_words(element: str) -> str:
    what, text = element[:2], element[2:]
    if what == "f:":
        return "." + text
    if what == "k:":
        keys: dict[str, Any] = json.loads(text)
        return "[" + ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in keys.items()) + "]"
    return f"[={text}]" if what == "v:" else f"[{text}]"


def field_path_json(value: Any) -> str:
    """JSON as Go writes it into path elements."""
    if isinstance(value, str):
        if _SPECIAL.search(value) is None:
            return f'"{value}"'
        return '"' + _SPECIAL.sub(_escape_like_go, value) + '"'
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e21 else repr(value)
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{field_path_json(key)}:{field_path_json(of)}" for key, of in sorted(value.items())) + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(field_path_json, value)) + "]"
    return str(value)


_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def _escape_like_go(found: re.Match[str]) -> str:
    character = found[0]
    return _ESCAPES.get(character) or f"\\u{ord(character):04x}"


def parse_field_set(given: Any) -> FieldSet:
    """A set that came from outside; ValueError when it is none. Elements of an unknown sort are dropped."""
    if not isinstance(given, dict):
        raise ValueError("fieldsV1 must be an object")
    out: FieldSet = {}
    for key, below in given.items():
        if key == SELF or (element := _known_element(key)) is None:
            continue
        below = {} if below is None else below
        children = parse_field_set(below)
        node = {SELF: LEAF, **children} if children and SELF in below else children
        out[element] = node if element not in out else _union_nodes(out[element], node)
    return out


def _known_element(key: str) -> str | None:
    if len(key) < 2 or key[1] != ":":
        raise ValueError(f"`{key}` in fieldsV1 is no path element")
    what, text = key[0], key[2:]
    if what == "f":
        return key
    if what == "k":
        keys = json.loads(text)
        if not isinstance(keys, dict):
            raise ValueError(f"`{key}` in fieldsV1 must name keys and their values")
        return "k:" + field_path_json(keys)
    if what == "v":
        return "v:" + field_path_json(json.loads(text))
    if what == "i":
        if _INDEX.fullmatch(text) is None:
            raise ValueError(f"`{key}` in fieldsV1 must name a place in a list")
        return f"i:{int(text)}"
    return None
