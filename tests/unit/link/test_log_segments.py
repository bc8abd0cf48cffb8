"""A log in several files, read as one: positions, ends, and files that are renamed while somebody reads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from remuda.link import log_segments
from remuda.link.log_segments import log_begin, log_end, log_segments_tail_start, read_log_segments


def rotate(log: Path) -> None:
    log.rename(log.with_name(f"{log.name}.{log_end(log) - log.stat().st_size:020d}"))
    log.touch()


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def oldest(log: Path) -> Path:
    return sorted(log.parent.glob("*.log.*"))[0]


def test_positions_mean_the_same_byte_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "main.log"
    assert (log_begin(log), log_end(log), read_log_segments(log, 0)) == (0, 0, (0, b""))
    append(log, b"one\n")
    rotate(log)
    append(log, b"two\n")
    rotate(log)
    append(log, b"three\n")
    assert (log_begin(log), log_end(log)) == (0, 14)
    assert read_log_segments(log, 0) == (0, b"one\ntwo\nthree\n")
    assert read_log_segments(log, 5, 4) == (5, b"wo\nt")
    oldest(log).unlink()
    assert (log_begin(log), log_end(log)) == (4, 14)
    assert read_log_segments(log, 0) == (4, b"two\nthree\n"), "from the first byte that is kept"
    log.unlink()  # between the two renames of a rotation
    assert log_end(log) == 8


def test_tails_agree_with_splitting_the_whole() -> None:
    """Any text, any cut into files, any block size: the last n lines are the last n lines."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    import tempfile

    for _ in range(60):
        with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
            patch.setattr(log_segments, "_CHUNK", chance.choice([1, 2, 7, 64]))
            log = Path(directory) / "main.log"
            text = b""
            for _ in range(chance.randrange(1, 5)):
                part = bytes(chance.choice(b"ab\n\n") for _ in range(chance.randrange(0, 30)))
                append(log, part)
                text += part
                rotate(log)
            start = chance.randrange(0, len(text) + 1)
            end = chance.choice([None, chance.randrange(start, len(text) + 1)])
            wanted = text[start:end]
            for lines in range(6):
                found = log_segments_tail_start(log, start, end, lines)
                kept = wanted.splitlines(keepends=True)
                tail = b"".join(kept[len(kept) - min(lines, len(kept)) :])
                assert text[found:end] == tail, (text, start, end, lines)


def test_a_tail_of_a_long_log_reads_only_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "main.log"
    with log.open("wb") as file:
        file.truncate(1 << 30)  # a gigabyte, sparse
        file.seek(0, 2)
        file.write(b"\na\nb\nc\n")
    read: list[int] = []
    usual = log_segments._read_file

    def counted(segment: log_segments.LogSegment, offset: int, count: int) -> bytes:
        data = usual(segment, offset, count)
        read.append(len(data))
        return data

    monkeypatch.setattr(log_segments, "_read_file", counted)
    start = log_segments_tail_start(log, 0, None, 3)
    assert read_log_segments(log, start)[1] == b"a\nb\nc\n"
    assert sum(read) <= 256 * 1024


def test_a_rotation_between_looking_and_opening_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "main.log"
    append(log, b"one\n")
    usual = log_segments._read_file
    happened: list[int] = []

    def meanwhile(segment: log_segments.LogSegment, offset: int, count: int) -> bytes:
        if not happened:
            happened.append(1)
            rotate(log)
            append(log, b"TWO!\n")
        return usual(segment, offset, count)

    monkeypatch.setattr(log_segments, "_read_file", meanwhile)
    assert read_log_segments(log, 0) == (0, b"one\nTWO!\n")
