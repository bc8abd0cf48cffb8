"""When lines of a log were written: rows beside the log, and what can be read from them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remuda.embedded.node.log_times import LogTimeIndex, LogTimes


class Log:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.times = LogTimes()

    def write(self, text: bytes, at: float) -> None:
        with self.path.open("ab") as file:
            file.write(text)
        os.utime(self.path, (at, at))

    def index(self) -> LogTimeIndex:
        index = LogTimeIndex(self.path)
        index.refresh()
        return index


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "main.log")


def test_a_line_has_the_time_of_the_first_look_that_saw_it_whole(log: Log) -> None:
    log.write(b"one\ntwo\nthr", 100.0)  # 11 bytes
    log.times.look(log.path)
    log.write(b"ee\nfour\n", 105.0)
    log.times.look(log.path)
    index = log.index()
    assert [index.time_of(end) for end in (4, 8, 14, 19)] == [100.0, 100.0, 105.0, 105.0]
    assert index.time_of(999) == 105.0


def test_a_look_that_finds_nothing_new_writes_nothing(log: Log) -> None:
    rows = log.path.with_suffix(".times")
    log.times.look(log.path)
    assert not rows.exists()
    log.write(b"one\n", 100.0)
    log.times.look(log.path)
    log.times.look(log.path)
    LogTimes().look(log.path)  # another life of the node
    assert rows.stat().st_size == 16


def test_what_was_written_since(log: Log) -> None:
    for number in range(4):
        log.write(b"line\n", 100.0 + 10 * number)
        log.times.look(log.path)
    index = log.index()
    assert [index.offset_since(at) for at in (0.0, 100.0, 100.5, 110.0, 130.0, 130.5)] == [0, 0, 5, 5, 15, 20]


def test_times_never_go_back(log: Log) -> None:
    log.write(b"one\n", 100.0)
    log.times.look(log.path)
    log.write(b"two\n", 50.0)  # the clock was set back
    log.times.look(log.path)
    assert [log.index().time_of(end) for end in (4, 8)] == [100.0, 100.0]


def test_a_torn_row_is_cut_off_by_the_next(log: Log) -> None:
    log.write(b"one\n", 100.0)
    log.times.look(log.path)
    with log.path.with_suffix(".times").open("ab") as file:
        file.write(b"torn")
    assert log.index().time_of(4) == 100.0
    log.write(b"two\n", 101.0)
    LogTimes().look(log.path)
    assert [log.index().time_of(end) for end in (4, 8)] == [100.0, 101.0]


def test_an_index_reads_on_where_it_was(log: Log) -> None:
    index = log.index()
    assert index.time_of(4) == 0.0
    for number in range(3):
        log.write(b"line\n", 100.0 + number)
        log.times.look(log.path)
        index.refresh()
        assert index.time_of(5 * (number + 1)) == 100.0 + number
