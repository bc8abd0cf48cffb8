"""Strategic merge patch: a merge patch that knows which lists are sets or maps.

A list whose field says `merge_patch` is joined with the patch's by the merge key (or, for plain values, as a set); every
other list is replaced. Directives inside the patch: `$patch: delete` empties an object or removes the list item with that
merge key, `$patch: replace` takes the patch's value as it is, `$retainKeys` drops all other fields,
`$deleteFromPrimitiveList/NAME` removes values, `$setElementOrder/NAME` gives the order of a list.

Order of a joined list: what the patch names stands in the patch's order (or that of `$setElementOrder`); what only the
server has stays before the first item that it stood before.

The result may hold nulls in new list items; `settled` says what becomes of them.

Where Kubernetes answers a malformed patch with an internal error, this answers with a bad request.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from remuda.api.errors import ApiError, BadRequest, Invalid
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.patching.bounds import CONTAINERS, WorkBudget, check_body_bounds
from remuda.embedded.apiserver.patching.patch_schema import KindSchema, PatchSchema

_PATCH: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_DELETE: Final = "$deleteFromPrimitiveList"
_ORDER: Final = "$setElementOrder"
_DIRECTIVES: Final = (_PATCH, _RETAIN, _DELETE, _ORDER)


def strategic_merge(doc: JsonObject, patch: Any, schema: KindSchema) -> JsonObject:
    if schema.custom:
        raise ApiError(
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            reason="UnsupportedMediaType",
            code=415,
            fix="Custom resources have no merge keys: use a merge patch.",
        )
    if not isinstance(patch, dict):
        raise BadRequest("a strategic merge patch must be an object")
    check_body_bounds(patch)
    return _strategic_merge(doc, patch, schema.root, "", WorkBudget("send the patch in parts, and name each item once"))


def _strategic_merge(
    doc: JsonObject, patch: JsonObject, schema: PatchSchema, path: str, work: WorkBudget
) -> JsonObject:
    work.spend(len(doc) + len(patch))
    if _PATCH in patch:
        return _follow_patch_directive(patch, path)
    out = dict(doc)
    if _RETAIN in patch:
        _retain_keys(out, patch, path)
    ordered = {_directive_target(key, _ORDER, path): order for key, order in patch.items() if key.startswith(_ORDER)}
    for name, order in ordered.items():
        field = _declared_schema(schema, name, path)
        if name in out or name in patch:
            out[name] = _set_element_order(out.get(name), patch.get(name), order, field, f"{path}.{name}", work)
    for name, value in patch.items():
        if name.startswith(_DIRECTIVES) or name in ordered:
            continue
        if value is None:
            out.pop(name, None)
        elif type(out.get(name)) is not type(value) or not isinstance(value, CONTAINERS):
            new = _without_directives(value, as_given=False)
            if new is not None:
                out[name] = new
            else:
                out.pop(name, None)
        elif isinstance(value, dict):
            out[name] = _strategic_merge_object(out[name], value, schema.child(name), f"{path}.{name}", work)
        else:
            out[name] = _strategic_merge_list(out[name], value, schema.child(name), f"{path}.{name}", work)
    for key, values in patch.items():
        if key.startswith(_DELETE):
            name = _directive_target(key, _DELETE, path)
            if isinstance(out.get(name), list):
                work.spend(len(out[name]))
                out[name] = _delete_from_primitive_list(out[name], values, f"{path}.{name}")
    return out


def _follow_patch_directive(patch: JsonObject, path: str) -> JsonObject:
    if patch[_PATCH] == "delete":
        return {}
    if patch[_PATCH] == "replace":
        rest: JsonObject = _without_directives(
            {name: value for name, value in patch.items() if name != _PATCH}, as_given=True
        )
        return rest
    raise BadRequest(f"{path or '.'}: `{_PATCH}: {patch[_PATCH]}` is not supported; use delete or replace")


def _retain_keys(out: JsonObject, patch: JsonObject, path: str) -> None:
    names = patch[_RETAIN]
    if not isinstance(names, list):
        raise BadRequest(f"{path or '.'}: {_RETAIN} must be a list of names")
    kept = {name for name in names if isinstance(name, str)}
    for name, value in patch.items():
        if value is not None and not name.startswith(_DIRECTIVES) and name not in kept:
            raise BadRequest(f"{path}.{name}: the patch sets it but {_RETAIN} does not name it; add it there")
    for name in [name for name in out if name not in kept]:
        del out[name]


def _directive_target(key: str, directive: str, path: str) -> str:
    prefix, slash, name = key.partition("/")
    if prefix != directive or not slash:
        raise BadRequest(f"{path or '.'}: `{key}` must be {directive}/ and the name of a list")
    return name


def _declared_schema(schema: PatchSchema, name: str, path: str) -> PatchSchema:
    if name not in schema.fields and schema.element is None:
        raise BadRequest(f"{path}.{name}: is not a field, so it has no order")
    return schema.child(name)


def _without_directives(value: Any, *, as_given: bool) -> Any:
    """A value of the patch for a place where there is nothing to merge with: without directives.

    An object that carries `$patch` asks for a merge that cannot be, and a null for the removal of nothing: both are left out,
    unless the value is to be taken `as_given`, as a new item of a list is.
    """
    if isinstance(value, dict):
        if _PATCH in value and not as_given:
            return None
        pairs = (
            (name, _without_directives(of, as_given=as_given))
            for name, of in value.items()
            if not name.startswith(_DIRECTIVES)
        )
        return {name: of for name, of in pairs if of is not None or as_given}
    if isinstance(value, list):
        items = [(item, _without_directives(item, as_given=as_given)) for item in value]
        return [new for item, new in items if new is not None or item is None]
    return value


def _strategic_merge_object(
    doc: JsonObject, patch: JsonObject, schema: PatchSchema, path: str, work: WorkBudget
) -> JsonObject:
    if "replace" in schema.strategy:
        new: JsonObject = _without_directives(patch, as_given=True)
        return new
    return _strategic_merge(doc, patch, schema, path, work)


# Lists.


def _strategic_merge_list(
    doc: list[Any], patch: list[Any], schema: PatchSchema, path: str, work: WorkBudget
) -> list[Any]:
    work.spend(len(doc) + len(patch))
    if "merge" not in schema.strategy:
        new: list[Any] = _without_directives(patch, as_given=True)
        return new
    if not _items_are_objects([*doc, *patch], path):
        _check_hashable_items([*doc, *patch], path)
        return _arrange_items(list(dict.fromkeys([*doc, *patch])), _item_places(patch), _item_places(doc), "", path)
    if not schema.merge_key:
        raise BadRequest(f"{path}: this list has no merge key; replace it as a whole")
    return _strategic_merge_items(doc, patch, schema, path, work)


def _strategic_merge_items(
    doc: list[Any], patch: list[Any], schema: PatchSchema, path: str, work: WorkBudget
) -> list[Any]:
    key = schema.merge_key
    doc, patch, replaced = _follow_item_directives(doc, patch, key, path)
    if replaced:
        return [_without_directives(item, as_given=True) for item in patch]
    before = _item_places([_merge_key_of(item, key, path) for item in doc])
    place = dict(before)
    out = list(doc)
    for item in patch:
        value = _merge_key_of(item, key, path)
        if value in place:
            out[place[value]] = _strategic_merge(out[place[value]], item, schema.items, f"{path}[{key}={value}]", work)
        else:
            place[value] = len(out)
            out.append(_without_directives(item, as_given=True))
    return _arrange_items(out, _item_places([item[key] for item in patch]), before, key, path)


def _follow_item_directives(doc: list[Any], patch: list[Any], key: str, path: str) -> tuple[list[Any], list[Any], bool]:
    """Carries out the `$patch` items of a list: the items left on both sides, and whether the patch replaces the list."""
    plain = [item for item in patch if _PATCH not in item]
    marked = [item for item in patch if _PATCH in item]
    gone = set()
    replaced = False
    for item in marked:
        if item[_PATCH] == "delete":
            gone.add(_merge_key_of(item, key, path))
        elif item[_PATCH] == "replace":
            replaced = True
        else:
            raise BadRequest(f"{path}: `{_PATCH}: {item[_PATCH]}` is unknown for a list item; use delete or replace")
    return ([item for item in doc if _merge_key_of(item, key, path) not in gone] if gone else doc), plain, replaced


def _set_element_order(doc: Any, patch: Any, order: Any, schema: PatchSchema, path: str, work: WorkBudget) -> list[Any]:
    """A list with the order that `$setElementOrder` asks for."""
    for what in (doc, patch, order):
        if what is not None and not isinstance(what, list):
            raise BadRequest(f"{path}: it is given an order, so it must be a list")
    if not isinstance(order, list):
        raise BadRequest(f"{path}: its order must be a list")
    work.spend(len(doc or ()) + len(patch or ()) + len(order))
    key = schema.merge_key
    wanted = [_merge_key_of(item, key, path) for item in order]
    if patch and order:
        _check_element_order(patch, wanted, key, path)
    before: list[Any] = doc or []
    if doc is not None and patch is not None:
        out = _strategic_merge_list(doc, patch, schema, path, work)
    else:
        out = _without_directives(patch, as_given=False) if doc is None else doc
    if not _items_are_objects([*before, *(patch or ())], path):
        key = ""
    return _arrange_items(
        out, _item_places(wanted), _item_places([_merge_key_of(item, key, path) for item in before]), key, path
    )


def _check_element_order(patch: list[Any], wanted: list[Any], key: str, path: str) -> None:
    """The patch's own items must come in the order it asks for."""
    rest = iter(wanted)
    for item in patch:
        if isinstance(item, dict) and _PATCH in item:
            continue
        value = _merge_key_of(item, key, path)
        if value not in rest:  # looks on from the last one found
            raise BadRequest(f"{path}: the order of its items does not match {_ORDER}")


def _delete_from_primitive_list(doc: list[Any], values: Any, path: str) -> list[Any]:
    if values is None:
        return doc
    if not isinstance(values, list):
        raise BadRequest(f"{path}: {_DELETE} must be a list of values")
    _check_hashable_items([*doc, *values], path)
    gone = set(values)
    return [item for item in doc if item not in gone]


def _arrange_items(items: list[Any], order: dict[Any, int], before: dict[Any, int], key: str, path: str) -> list[Any]:
    """Items named by `order` in that order, the others among them where they stood `before`."""
    pairs = [(_merge_key_of(item, key, path), item) for item in items]
    named = sorted((pair for pair in pairs if pair[0] in order), key=lambda pair: order[pair[0]])
    rest = [pair for pair in pairs if pair[0] not in order]
    rest.sort(key=lambda pair: before.get(pair[0], len(before)))
    out: list[Any] = []
    taken = 0
    for name, item in named:
        place = before.get(name, -1)
        while taken < len(rest) and before.get(rest[taken][0], place) < place:
            out.append(rest[taken][1])
            taken += 1
        out.append(item)
    out.extend(item for _, item in rest[taken:])
    return out


def _item_places(values: list[Any]) -> dict[Any, int]:
    places: dict[Any, int] = {}
    for index, value in enumerate(values):
        places.setdefault(value, index)
    return places


def _merge_key_of(item: Any, key: str, path: str) -> Any:
    """What an item is known by: its merge key's value, or itself in a list of plain values."""
    if key:
        if not isinstance(item, dict):
            raise BadRequest(f"{path}: its items must be objects")
        if key not in item:
            raise BadRequest(f"{path}: an item has no `{key}`, the merge key of this list; add it")
        item = item[key]
    _check_hashable_items([item], path)
    return item


def _check_hashable_items(values: list[Any], path: str) -> None:
    if not all(isinstance(value, Hashable) for value in values):
        raise BadRequest(f"{path}: a plain value is needed to tell its items apart")


def _items_are_objects(items: list[Any], path: str) -> bool:
    """A list has items of one sort."""
    objects = sum(isinstance(item, dict) for item in items)
    if any(isinstance(item, list) for item in items):
        raise Invalid(f"{path}: lists of lists cannot be merged; replace it as a whole")
    if objects not in (0, len(items)):
        raise BadRequest(f"{path}: its items are not of one type")
    return objects > 0
