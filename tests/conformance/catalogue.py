"""The cases: functions that use clients on a `Run`, found by the module they stand in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.conformance.run import Run

Body = Callable[[Run], None]


@dataclass(frozen=True)
class Case:
    client: str
    name: str
    body: Body

    @property
    def id(self) -> str:
        return f"{self.client}/{self.name}"

    @property
    def namespace(self) -> str:
        return f"{self.client[:2]}-{self.name}"[:63].strip("-")


CASES: dict[str, Case] = {}


def case(client: str, name: str) -> Callable[[Body], Body]:
    def register(body: Body) -> Body:
        made = Case(client, name, body)
        if made.id in CASES or any(other.namespace == made.namespace for other in CASES.values()):
            raise ValueError(f"two cases are called {made.id}")
        CASES[made.id] = made
        return body

    return register
