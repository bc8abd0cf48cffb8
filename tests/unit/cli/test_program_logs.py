"""What an exception costs the log: a line per frame, and nothing of what the frames held."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from remuda.cli.program_logs import show_logs


class Drawn:
    """A local that counts how often somebody draws it."""

    times = 0

    def __repr__(self) -> str:
        Drawn.times += 1
        return "token-of-somebody"


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_an_exception_is_told_without_the_locals_of_its_frames(capsys: pytest.CaptureFixture[str]) -> None:
    show_logs(logging.INFO)
    log = structlog.get_logger("test")

    def fails(secret: object, much: list[object]) -> None:
        raise OverflowError("date value out of range")

    Drawn.times = 0
    try:
        fails(Drawn(), [Drawn() for _ in range(100)])
    except OverflowError:
        log.exception("controller.failed", key="a")
    said = capsys.readouterr().err
    assert "OverflowError: date value out of range" in said
    assert "in fails" in said
    assert "token-of-somebody" not in said
    assert Drawn.times == 0
