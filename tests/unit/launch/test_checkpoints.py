import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from remuda.launch import checkpoints
from remuda.launch.pythonpath.remuda_train import CorruptCheckpoint

RANK = 3


def stem(tmp_path: Path, step: int) -> Path:
    return tmp_path / f"rank-{RANK}" / f"step-{step}"


def names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / f"rank-{RANK}").iterdir()}


def save(tmp_path: Path, *steps: int, keep: int = 100) -> None:
    for step in steps:
        checkpoints.save(str(tmp_path), RANK, step, b"data of %d" % step, keep)


def scan(tmp_path: Path) -> list[int]:
    found = checkpoints.scan_checkpoints(str(tmp_path), RANK)
    assert not found.unreadable
    return list(found.steps)


def test_what_is_saved_is_found_newest_first_and_loads(tmp_path: Path) -> None:
    save(tmp_path, 2, 10, 9)
    assert scan(tmp_path) == [10, 9, 2]
    assert checkpoints.load(str(tmp_path), RANK, 9) == b"data of 9"
    assert json.loads(stem(tmp_path, 9).with_suffix(".json").read_text()) == {
        "step": 9,
        "bytes": 9,
        "sha256": hashlib.sha256(b"data of 9").hexdigest(),
    }


def test_ranks_do_not_see_each_other(tmp_path: Path) -> None:
    checkpoints.save(str(tmp_path), 7, 5, b"x")
    assert scan(tmp_path) == []
    assert checkpoints.scan_checkpoints(str(tmp_path), 7).steps == (5,)


def test_a_spare_knows_neither_rank_nor_directory(tmp_path: Path) -> None:
    nothing = checkpoints.CheckpointScan()
    assert checkpoints.scan_checkpoints(None, 3) == checkpoints.scan_checkpoints(str(tmp_path), None) == nothing


def test_a_directory_that_is_missing_or_not_one_holds_nothing(tmp_path: Path) -> None:
    assert scan(tmp_path) == []
    (tmp_path / f"rank-{RANK}").write_text("a file")
    assert scan(tmp_path) == []


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def edit_side(path: Path, **changes: object) -> None:
    side = path.with_suffix(".json")
    side.write_text(json.dumps({**json.loads(side.read_text()), **changes}))


def as_directory(path: Path) -> None:
    path.with_suffix(".ckpt").unlink()
    path.with_suffix(".ckpt").mkdir()
    edit_side(path, bytes=path.with_suffix(".ckpt").stat().st_size)


# What has happened to the newest checkpoint, of step 20.
DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit": lambda p: flip(p.with_suffix(".ckpt")),
    "cut short": lambda p: os.truncate(p.with_suffix(".ckpt"), 3),
    "grown": lambda p: os.truncate(p.with_suffix(".ckpt"), 300),
    "empty": lambda p: os.truncate(p.with_suffix(".ckpt"), 0),
    "data missing": lambda p: p.with_suffix(".ckpt").unlink(),
    "side file missing": lambda p: p.with_suffix(".json").unlink(),
    "side file empty": lambda p: os.truncate(p.with_suffix(".json"), 0),
    "side file cut short": lambda p: os.truncate(p.with_suffix(".json"), 30),
    "side file no object": lambda p: p.with_suffix(".json").write_text("[20]"),
    "side file no text": lambda p: p.with_suffix(".json").write_bytes(b"\xff\x00"),
    "side file endless": lambda p: p.with_suffix(".json").write_text('{"x":"' + "y" * 100_000 + '"}'),
    "of another step": lambda p: edit_side(p, step=21),
    "no digest": lambda p: edit_side(p, sha256=None),
    "wrong digest": lambda p: edit_side(p, sha256="0" * 64),
    "wrong size": lambda p: edit_side(p, bytes=11),
    "data is a directory": as_directory,
    "marked bad": lambda p: p.with_suffix(".bad").touch(),
    "renamed with zeros": lambda p: [p.with_suffix(s).rename(p.with_name("step-020" + s)) for s in (".ckpt", ".json")],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 10, 20)
    DAMAGE[damage](stem(tmp_path, 20))
    assert scan(tmp_path) == [10]
    corrupt = checkpoints.scan_checkpoints(str(tmp_path), RANK).corrupt
    assert corrupt == (() if damage == "renamed with zeros" else (20,))


@pytest.mark.parametrize("damage", ["a flipped bit", "cut short", "data missing", "side file missing", "no digest"])
def test_loading_a_damaged_one_marks_it_bad_and_raises(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 10, 20)
    DAMAGE[damage](stem(tmp_path, 20))
    with pytest.raises(CorruptCheckpoint, match="step 20 of rank 3"):
        checkpoints.load(str(tmp_path), RANK, 20)
    assert "step-20.bad" in names(tmp_path)
    assert scan(tmp_path) == [10]


def test_loading_what_never_was_is_not_corruption(tmp_path: Path) -> None:
    save(tmp_path, 10)
    with pytest.raises(FileNotFoundError, match="no checkpoint of step 11 for rank 3"):
        checkpoints.load(str(tmp_path), RANK, 11)
    assert "step-11.bad" not in names(tmp_path)


def test_other_files_are_ignored(tmp_path: Path) -> None:
    save(tmp_path, 10)
    for name in ("step-.json", "step-x.json", "step--1.json", "step-5.json.tmp-1", "notes.json", "step-٣.json"):
        (tmp_path / f"rank-{RANK}" / name).write_text("{}")
    assert scan(tmp_path) == [10]


def test_large_ones_are_believed_by_size_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 10)
    flip(stem(tmp_path, 10).with_suffix(".ckpt"))
    assert scan(tmp_path) == []
    monkeypatch.setattr(checkpoints, "DIGEST_LIMIT_BYTES", 5)
    assert scan(tmp_path) == [10]


def test_large_and_small_digests_agree(tmp_path: Path) -> None:
    checkpoints.save(str(tmp_path), RANK, 1, b"x" * ((1 << 20) + 1))
    checkpoints.save(str(tmp_path), RANK, 2, b"x" * (1 << 20))
    assert scan(tmp_path) == [2, 1]


def test_only_as_many_as_wanted_are_read(tmp_path: Path) -> None:
    save(tmp_path, *range(1, 31))
    read: list[int] = []

    def intact(candidate: checkpoints.CheckpointCandidate) -> bool:
        read.append(candidate.step)
        return candidate.step != 29

    found = checkpoints.examine_checkpoints(checkpoints.list_checkpoints(str(tmp_path), RANK), 3, intact)
    assert (found.steps, found.corrupt) == ((30, 28, 27), (29,))
    assert read == [30, 29, 28, 27]
    assert len(scan(tmp_path)) == 16


def test_saving_keeps_the_newest_few_and_leaves_no_scraps(tmp_path: Path) -> None:
    for step in (8, 9, 10, 11, 100):
        checkpoints.save(str(tmp_path), RANK, step, b"x", keep=3)
    assert scan(tmp_path) == [100, 11, 10]
    assert names(tmp_path) == {f"step-{step}.{kind}" for step in (100, 11, 10) for kind in ("ckpt", "json")}


def test_bad_ones_do_not_count_as_kept(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 4)
    for step in (3, 4):
        checkpoints.mark_bad(str(tmp_path), RANK, step, "test")
    checkpoints.save(str(tmp_path), RANK, 5, b"x", keep=3)
    assert scan(tmp_path) == [5, 2, 1]


def test_saving_a_bad_step_again_makes_it_good(tmp_path: Path) -> None:
    save(tmp_path, 10)
    checkpoints.mark_bad(str(tmp_path), RANK, 10, "test")
    assert scan(tmp_path) == []
    save(tmp_path, 10)
    assert scan(tmp_path) == [10]


@pytest.mark.parametrize(
    ("resumed", "left"), [(10, [10]), (20, [20, 10]), (30, [30, 20, 10]), (5, []), (-1, [])], ids=str
)
def test_an_abandoned_history_is_not_offered_and_stays_whole(tmp_path: Path, resumed: int, left: list[int]) -> None:
    save(tmp_path, 10, 20, 30)
    before = {path: path.read_bytes() for path in (tmp_path / f"rank-{RANK}").iterdir()}
    marked = checkpoints.abandon_checkpoints_above(str(tmp_path), RANK, resumed, "attempt 2 went on from 10")
    assert sorted(marked + left) == [10, 20, 30]
    assert scan(tmp_path) == left
    assert checkpoints.scan_checkpoints(str(tmp_path), RANK).abandoned == tuple(sorted(marked, reverse=True))
    assert checkpoints.abandon_checkpoints_above(str(tmp_path), RANK, resumed, "again") == []
    assert not any(name.endswith(".bad") for name in names(tmp_path))
    assert {path: path.read_bytes() for path in before} == before


def test_going_on_from_an_abandoned_step_makes_it_one_of_this_history_again(tmp_path: Path) -> None:
    save(tmp_path, 10, 20, 30)
    checkpoints.abandon_checkpoints_above(str(tmp_path), RANK, 10, "attempt 2 went on from step 10")
    checkpoints.abandon_checkpoints_above(str(tmp_path), RANK, 20, "attempt 3 went on from step 20")
    assert scan(tmp_path) == [20, 10]
    assert checkpoints.load(str(tmp_path), RANK, 20) == b"data of 20"


def test_saving_an_abandoned_step_again_lifts_its_mark(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    checkpoints.abandon_checkpoints_above(str(tmp_path), RANK, 10, "test")
    save(tmp_path, 20)
    assert scan(tmp_path) == [20, 10]
    assert "step-20.abandoned" not in names(tmp_path)


def test_a_side_file_newer_than_the_mark_was_saved_again_whoever_did_it(tmp_path: Path) -> None:
    """A script without the helper knows nothing of the mark."""
    save(tmp_path, 10, 20)
    checkpoints.abandon_checkpoints_above(str(tmp_path), RANK, 10, "test")
    side, mark = (stem(tmp_path, 20).with_suffix(s) for s in (".json", ".abandoned"))
    os.utime(side, ns=(0, mark.stat().st_mtime_ns + 1))
    assert scan(tmp_path) == [20, 10]


def test_abandoned_ones_do_not_count_as_kept(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 4)
    checkpoints.abandon_checkpoints_above(str(tmp_path), RANK, 2, "test")
    checkpoints.save(str(tmp_path), RANK, 5, b"x", keep=3)
    assert scan(tmp_path) == [5, 2, 1]


# --- unreadable is not empty ------------------------------------------------------------------------------------------


def as_loop(path: Path) -> Path:
    """Moves what is there aside and puts a link to itself in its place; returns where it is now."""
    aside = path.with_name(path.name + ".aside")
    path.rename(aside)
    path.symlink_to(path.name)
    return aside


@pytest.mark.parametrize("what", ["directory", "rank folder", "side file", "data"])
def test_what_cannot_be_read_is_said_and_not_taken_for_nothing(tmp_path: Path, what: str) -> None:
    root = tmp_path / "checkpoints"
    for step in (10, 20):
        checkpoints.save(str(root), RANK, step, b"data of %d" % step)
    folder = root / f"rank-{RANK}"
    path = {
        "directory": root,
        "rank folder": folder,
        "side file": folder / "step-20.json",
        "data": folder / "step-20.ckpt",
    }[what]
    aside = as_loop(path)
    found = checkpoints.scan_checkpoints(str(root), RANK)
    assert "Too many levels of symbolic links" in found.unreadable
    assert str(path) in found.unreadable
    assert found.corrupt == ()
    assert found.steps == ((10,) if what in ("side file", "data") else ())
    path.unlink()
    aside.rename(path)
    assert checkpoints.scan_checkpoints(str(root), RANK) == checkpoints.CheckpointScan((20, 10))


def test_a_digest_that_cannot_be_read_says_nothing_about_the_data(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)

    def broken_disk(candidate: checkpoints.CheckpointCandidate) -> bool:
        if candidate.step == 20:
            raise OSError(5, "Input/output error")
        return True

    found = checkpoints.examine_checkpoints(checkpoints.list_checkpoints(str(tmp_path), RANK), intact=broken_disk)
    assert (found.steps, found.corrupt) == ((10,), ())
    assert found.unreadable == f"{stem(tmp_path, 20)}.ckpt: Input/output error"


def test_nothing_is_abandoned_where_nothing_can_be_read(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    folder = tmp_path / f"rank-{RANK}"
    aside = as_loop(folder)
    with pytest.raises(OSError, match="symbolic links"):
        checkpoints.abandon_checkpoints_above(str(tmp_path), RANK, -1, "test")
    folder.unlink()
    aside.rename(folder)
    assert scan(tmp_path) == [20, 10]


def test_loading_what_cannot_be_read_marks_nothing(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    data = stem(tmp_path, 20).with_suffix(".ckpt")
    aside = as_loop(data)
    with pytest.raises(OSError, match="symbolic links"):
        checkpoints.load(str(tmp_path), RANK, 20)
    data.unlink()
    aside.rename(data)
    assert scan(tmp_path) == [20, 10]


@pytest.mark.parametrize("killed_at", range(1, 13))
def test_a_save_cut_off_anywhere_never_offers_half_a_checkpoint(
    tmp_path: Path, killed_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every system call that changes the directory fails in turn, as a crash there would: old or new, never a mixture."""
    save(tmp_path, 10, 20)
    calls = 0

    class Crash(BaseException):
        pass

    def counting(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            if calls == killed_at:
                raise Crash
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("replace", "unlink", "fsync", "open"):
            patch.setattr(os, name, counting(getattr(os, name)))
        try:
            checkpoints.save(str(tmp_path), RANK, 20, b"other data", keep=100)
            is_complete = True
        except Crash:
            is_complete = False
    assert is_complete == (calls < killed_at)
    found = scan(tmp_path)
    assert found in ([20, 10], [10])
    if found[0] == 20:
        assert checkpoints.load(str(tmp_path), RANK, 20) == b"other data" or calls == 1
