"""`AdmissionField`: a place in a body, and the errors found there, in Kubernetes' words.

A validator walks the body with `AdmissionField`; what is wrong is noted under the place's path (`spec.containers[0].image`)
and all of it is raised at the end as one Invalid (422, with `details.causes`). A value of a wrong *type* cannot be walked
on: it is a `BadRequest` at once, as a typed decoder would answer.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from remuda.api.errors import BadRequest, StatusCause
from remuda.api.meta import JsonObject

Causes = list[StatusCause]


class AdmissionField:
    """One place: the value there (None when absent) and its path."""

    __slots__ = ("causes", "path", "value")

    def __init__(self, value: Any, path: str, causes: Causes) -> None:
        self.value = value
        self.path = path
        self.causes = causes

    # Walking.

    def __getitem__(self, name: str) -> AdmissionField:
        return AdmissionField(self.mapping().get(name), f"{self.path}.{name}" if self.path else name, self.causes)

    def key(self, name: str) -> AdmissionField:
        """An entry of a map, written with brackets."""
        return AdmissionField(self.mapping().get(name), f"{self.path}[{name}]", self.causes)

    def each(self) -> Iterator[AdmissionField]:
        for index, item in enumerate(self.items()):
            yield AdmissionField(item, f"{self.path}[{index}]", self.causes)

    @property
    def is_set(self) -> bool:
        return self.value is not None

    def mapping(self) -> JsonObject:
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self._ill_typed("an object")
        return self.value

    def items(self) -> list[Any]:
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self._ill_typed("a list")
        return self.value

    def text(self) -> str:
        if self.value is None:
            return ""
        if not isinstance(self.value, str):
            raise self._ill_typed("a string")
        return self.value

    def number(self) -> int | None:
        if self.value is None:
            return None
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self._ill_typed("an integer")
        return self.value

    def flag(self) -> bool:
        if self.value is None:
            return False
        if not isinstance(self.value, bool):
            raise self._ill_typed("true or false")
        return self.value

    def _ill_typed(self, wanted: str) -> BadRequest:
        return BadRequest(f"{self.path}: must be {wanted}, not {_shown_field_value(self.value)}")

    # Noting.

    def invalid(self, why: str, value: Any = ...) -> None:
        shown = _shown_field_value(self.value if value is ... else value)
        self._note("FieldValueInvalid", f"Invalid value: {shown}: {why}")

    def required(self, why: str = "") -> None:
        self._note("FieldValueRequired", f"Required value{': ' + why if why else ''}")

    def forbidden(self, why: str) -> None:
        self._note("FieldValueForbidden", f"Forbidden: {why}")

    def duplicate(self, value: Any = ...) -> None:
        self._note(
            "FieldValueDuplicate", f"Duplicate value: {_shown_field_value(self.value if value is ... else value)}"
        )

    def unsupported(self, supported: Collection[str]) -> None:
        names = ", ".join(json.dumps(name) for name in sorted(supported))
        self._note(
            "FieldValueNotSupported", f"Unsupported value: {_shown_field_value(self.value)}: supported values: {names}"
        )

    def too_long(self, why: str) -> None:
        self._note("FieldValueTooLong", f"Too long: {why}")

    def too_many(self, why: str) -> None:
        self._note("FieldValueTooMany", f"Too many: {len(self.items())}: {why}")

    def missing(self) -> None:
        """It names something that is not there."""
        self._note("FieldValueNotFound", f"Not found: {_shown_field_value(self.value)}")

    def _note(self, reason: str, message: str) -> None:
        self.causes.append(StatusCause(reason, message, self.path or "<nil>"))

    # The most common checks.

    def one_of(self, supported: Collection[str], *, required: bool = True) -> None:
        value = self.text()
        if not value:
            if required:
                self.required()
        elif value not in supported:
            self.unsupported(supported)

    def not_negative(self) -> None:
        number = self.number()
        if number is not None and number < 0:
            self.invalid("must be greater than or equal to 0")

    def same_as(self, old: Any) -> None:
        if _empty_is_absent(self.value) != _empty_is_absent(old):
            self.invalid("field is immutable")


def _empty_is_absent(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: kept for k, v in value.items() if (kept := _empty_is_absent(v)) not in (None, {}, [], "")}
    if isinstance(value, list):
        return [_empty_is_absent(item) for item in value]
    return value


def are_admitted_values_equal(one: Any, other: Any) -> bool:
    """Kubernetes' semantic equality: absent and empty are the same."""
    return bool(_empty_is_absent(one) == _empty_is_absent(other))


def _shown_field_value(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 200 else text[:200] + "..."
