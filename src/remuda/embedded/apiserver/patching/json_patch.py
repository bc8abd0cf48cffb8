"""JSON patch (RFC 6902) with the manners of Kubernetes' implementation.

Those are: `replace` and `copy` of a key that an object lacks set it (to null, for `copy`), a negative index counts from the
end, `test` against null passes when there is nothing, and what stands before the first slash of a path is ignored. A patch
that is no list of operations is a bad request; an operation that does not apply is Invalid and names its number.

The document given is never changed. Objects and lists on the way to a change are copied once; from then on they are this
call's own and are changed in place. So an operation costs its path, the items that a list has to move, and what it copies; a
`move` does not look at what it moves. The document's bounds are checked once, at the end.
"""

from __future__ import annotations

import re
from typing import Any, Final

from remuda.api.codec import decode_json_with_codec, encode
from remuda.api.errors import BadRequest, Invalid
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.patching.bounds import (
    MAX_COPIED,
    MAX_OPERATIONS,
    BodyTooLarge,
    WorkBudget,
    check_body_bounds,
)
from remuda.embedded.apiserver.patching.compare import is_equal_json

_INDEX: Final = re.compile(r"[+-]?[0-9]{1,18}")
_NOTHING: Final = object()
_MOVED_AT_ONCE: Final = 64  # items of a list that move in the time of a step


def json_patch(doc: JsonObject, ops: Any) -> JsonObject:
    """The document after all operations, or an error and no change at all."""
    if not isinstance(ops, list):
        raise BadRequest("a JSON patch must be a list of operations")
    if len(ops) > MAX_OPERATIONS:
        raise BodyTooLarge(f"the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(ops)}")
    for number, op in enumerate(ops):
        _check_operation(number, op)
    check_body_bounds(ops)
    document = _PatchedDocument(doc)
    for number, op in enumerate(ops):
        try:
            document.do(op)
        except _OperationInapplicable as error:
            where = op.get("path") if op.get("path") is not None else ""
            raise Invalid(f"operation {number} of the patch ({op.get('op')} {where}): {error}") from None
    check_body_bounds(document.root)
    if not isinstance(document.root, dict):
        raise Invalid("the patch leaves no object; replace the whole document by an object only")
    return document.root


def _check_operation(number: int, op: Any) -> None:
    if not isinstance(op, dict):
        raise BadRequest(f"operation {number} of the patch is not an object")
    for field in ("op", "path", "from"):
        value = op.get(field)
        if value is not None and not isinstance(value, str):
            raise BadRequest(f"operation {number} of the patch: `{field}` must be text")


class _OperationInapplicable(Exception):
    pass


class _PatchedDocument:
    def __init__(self, root: Any) -> None:
        self.root = root
        self._own: dict[int, Any] = {}  # by id; holding them keeps an id from being used again
        self._copied = 0
        self._work = WorkBudget("split the patch")

    def do(self, op: JsonObject) -> None:
        match op.get("op"):
            case "add":
                self._add(_operation_field(op, "path"), op.get("value"))
            case "remove":
                self._remove(_operation_field(op, "path"))
            case "replace":
                self._replace(_operation_field(op, "path"), op.get("value"))
            case "move":
                source = _operation_field(op, "from")
                value = self._get(source)
                self._remove(source)
                self._add(_operation_field(op, "path"), value)
            case "copy":
                value = self._get(_operation_field(op, "from"))
                self._add(_operation_field(op, "path"), self._copy(None if value is _NOTHING else value))
            case "test":
                self._test(_operation_field(op, "path"), op.get("value"))
            case other:
                raise _OperationInapplicable(
                    f"`{other}` is not an operation; use add, remove, replace, move, copy or test"
                )

    def _add(self, path: str, value: Any) -> None:
        holder, key = self._writable(path)
        if isinstance(holder, dict):
            holder[key] = value
        elif key == "-":
            holder.append(value)
        else:
            self._shift(holder, index := _pointer_index(key, len(holder) + 1))
            holder.insert(index, value)

    def _remove(self, path: str) -> None:
        holder, key = self._writable(path)
        if isinstance(holder, list):
            self._shift(holder, index := _pointer_index(key, len(holder)))
            del holder[index]
        elif key in holder:
            del holder[key]
        else:
            raise _OperationInapplicable("there is nothing to remove")

    def _replace(self, path: str, value: Any) -> None:
        if path == "":
            self.root = value
            return
        holder, key = self._writable(path)
        holder[_pointer_index(key, len(holder)) if isinstance(holder, list) else key] = value

    def _test(self, path: str, value: Any) -> None:
        found = self.root if path == "" else self._get(path)
        if not is_equal_json(None if found is _NOTHING else found, value):
            raise _OperationInapplicable("the value there is different")

    def _get(self, path: str) -> Any:
        """The value at a path; `_NOTHING` when only the last name is missing."""
        tokens = _pointer_tokens(path)
        holder = self.root
        for token in tokens[:-1]:
            holder = _pointer_step(holder, token)
        if isinstance(holder, list):
            return holder[_pointer_index(tokens[-1], len(holder))]
        if not isinstance(holder, dict):
            raise _OperationInapplicable("the path leads through a plain value")
        return holder.get(tokens[-1], _NOTHING)

    def _writable(self, path: str) -> tuple[Any, str]:
        """The holder of a path's last token, and that token; the holder is ours to change."""
        tokens = _pointer_tokens(path)
        self._work.spend(len(tokens))
        self.root = holder = self._owned(self.root)
        for token in tokens[:-1]:
            below = self._owned(_pointer_step(holder, token))
            holder[_pointer_index(token, len(holder)) if isinstance(holder, list) else token] = below
            holder = below
        return holder, tokens[-1]

    def _owned(self, value: Any) -> Any:
        if id(value) in self._own:
            return value
        if isinstance(value, dict):
            self._work.spend(len(value))
            value = dict(value)
        elif isinstance(value, list):
            self._work.spend(len(value))
            value = list(value)
        else:
            raise _OperationInapplicable("the path leads through a plain value")
        self._own[id(value)] = value
        return value

    def _shift(self, items: list[Any], index: int) -> None:
        """The items behind that place move by one: cheap for each, but there may be many."""
        self._work.spend((len(items) - index) // _MOVED_AT_ONCE)

    def _copy(self, value: Any) -> Any:
        check_body_bounds(value)
        data = encode(value)
        self._copied += len(data)
        if self._copied > MAX_COPIED:
            raise _OperationInapplicable(f"the copies of this patch are larger than {MAX_COPIED} bytes")
        return decode_json_with_codec(data)


def _operation_field(op: JsonObject, name: str) -> str:
    value = op.get(name)
    if value is None:
        raise _OperationInapplicable(f"it has no `{name}`")
    return str(value)


def _pointer_tokens(path: str) -> list[str]:
    tokens = path.split("/")[1:]
    if not tokens:
        raise _OperationInapplicable("the path is empty; it must start with a slash")
    return [token.replace("~1", "/").replace("~0", "~") for token in tokens] if "~" in path else tokens


def _pointer_step(holder: Any, token: str) -> Any:
    if isinstance(holder, dict):
        if holder.get(token) is None:
            raise _OperationInapplicable(f"there is no `{token}` on the way")
        return holder[token]
    if isinstance(holder, list):
        return holder[_pointer_index(token, len(holder))]
    raise _OperationInapplicable("the path leads through a plain value")


def _pointer_index(token: str, size: int) -> int:
    if _INDEX.fullmatch(token) is None:
        raise _OperationInapplicable(f"`{token}` is not a list index")
    index = int(token)
    if not -size <= index < size:
        raise _OperationInapplicable(f"the list has no index {token}")
    return index + size if index < 0 else index
