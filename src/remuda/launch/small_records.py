"""Small immutable values without `dataclasses`.

Importing `dataclasses` takes longer than starting the interpreter (19 ms of CPU against 8: it pulls in `inspect`), and every
launcher would pay for it. A Record subclass declares annotated fields with optional defaults, exactly as a dataclass does; type
checkers see it as a frozen dataclass. Records compare by value and are treated as immutable: nothing assigns to a field.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, dataclass_transform
else:

    def dataclass_transform(**_: object):
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class SmallRecord:
    _fields: "tuple[str, ...]" = ()

    if not TYPE_CHECKING:

        def __init_subclass__(cls) -> None:
            cls._fields = (*cls._fields, *cls.__annotations__)

        def __init__(self, *args: object, **kwargs: object) -> None:
            fields = self._fields
            if len(args) > len(fields):
                raise TypeError(f"{type(self).__name__} takes {len(fields)} fields, got {len(args)}")
            values = self.__dict__
            values.update(zip(fields, args, strict=False))
            for name, value in kwargs.items():
                if name not in fields or name in values:
                    raise TypeError(f"{type(self).__name__} got an unexpected or repeated field: {name}")
                values[name] = value
            if len(values) < len(fields):
                for name in fields:
                    if name not in values:
                        if not hasattr(type(self), name):
                            raise TypeError(f"{type(self).__name__} is missing the field: {name}")
                        values[name] = getattr(type(self), name)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), tuple(self.__dict__.get(name) for name in self._fields)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={self.__dict__[name]!r}' for name in self._fields)})"

    def replace(self, **changes: "Any") -> "Any":
        """A copy with some fields changed."""
        return type(self)(**{**self.__dict__, **changes})
