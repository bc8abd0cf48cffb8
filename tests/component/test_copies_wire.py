"""Copies of checkpoints between nodes, over real TLS and real files: what is taken, what is refused, and by whom."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import stat
import threading
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from remuda.agent.copies import copy_service
from remuda.agent.copies.copy_ports import CopyNodeGone, CopyRefused, CopySourceGone
from remuda.agent.copies.copy_store import CopyLimits, CopyStore
from remuda.agent.copies.rank_copies import RankCopies as RankCare
from remuda.api.training import KeptCheckpoint, Progress, RankCopies, Resume
from remuda.core.health.peer_vouching import PeerPlace
from remuda.link.copy_wire import GO, VERB, AskPut, CopyMark, copy_wire_line, dial_copy_wire, widen_copy_wire_streams
from remuda.link.peer_door import MAX_OPEN_FROM_ONE, ask_peer_doors
from tests.builders.copy_nodes import KEY, CopyNode, CopyNodes, fetched, pair, put, training_job
from tests.builders.waiting import PATIENCE_S, until

DATA = os.urandom(3 * 1024 * 1024 + 17)


@pytest_asyncio.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[CopyNodes]:
    made = CopyNodes(tmp_path)
    yield made
    await made.stop()


# --- there and back -----------------------------------------------------------------------------------------------------


async def test_a_checkpoint_goes_to_another_node_and_from_there_to_a_third(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    assert await put(home, 10) == {10: 1}
    assert holder.held(0) == {10: 1}
    asked = nodes.api.asked
    home.save(0, 20, DATA[::-1])
    await put(home, 20)
    assert nodes.api.asked == asked, "nothing of it goes through the API"

    new = await nodes.add("new")
    nodes.api.job = training_job("new", attempt=2)
    found = await new.dialler.ask("holder", KEY, 0)
    assert {mark.step: mark.attempt for mark in found.marks} == {10: 1, 20: 1}
    for mark in found.marks:
        await fetched(new, "holder", mark)
    assert new.data(0, 20) == DATA[::-1]
    assert new.files.settle_rank(KEY, 0, None, frozenset()) == (20, 10)
    assert os.stat(new.folder / "rank-0").st_mode & 0o777 == 0o777, "whoever the container runs as"
    assert os.stat(new.folder / "rank-0" / "step-20.ckpt").st_mode & 0o444 == 0o444
    assert os.stat(new.files.root).st_mode & 0o777 == 0o700, "containers come by a mount, nobody else of the machine"


async def test_a_copy_that_is_there_is_not_sent_again_and_belongs_to_the_newer_attempt(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    await put(home, 10)
    inode = holder.store.path(KEY.directory, 0, 10).stat().st_ino
    nodes.api.job = training_job("home", attempt=2, resumes=[Resume(2, 10)])
    assert await put(home, 10, attempt=2) == {10: 2}
    assert holder.held(0) == {10: 2}
    assert holder.store.path(KEY.directory, 0, 10).stat().st_ino == inode


async def test_copies_outlive_the_agent_that_keeps_them(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    await put(home, 10)
    (holder.store.root / ".incoming" / "rest").write_bytes(b"of an agent that was killed")
    again = CopyStore(holder.store.root, holder.store.limits)
    again.open()
    assert again.marks(KEY, 0)[10].size == len(DATA)
    assert again.used == len(DATA)
    assert list((again.root / ".incoming").iterdir()) == []


async def test_the_newest_three_are_kept_and_the_one_that_the_gang_agreed_on(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    for step in (10, 20, 30, 40, 50):
        home.save(0, step, DATA[:step])
        await put(home, step)
    assert sorted(holder.held(0)) == [30, 40, 50]
    nodes.api.job = training_job("home", progress=Progress(kept=[KeptCheckpoint(30, 8)]))
    for step in (60, 70, 80):
        home.save(0, step, DATA[:step])
        await put(home, step)
    assert sorted(holder.held(0)) == [30, 40, 50, 60, 70, 80], "other ranks may be at any of those"
    nodes.api.job = training_job("home", progress=Progress(kept=[KeptCheckpoint(70, 8)]))
    home.save(0, 90, DATA)
    await put(home, 90)
    assert sorted(holder.held(0)) == [70, 80, 90]


async def test_copies_of_a_history_that_was_given_up_go(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    for step in (10, 20):
        home.save(0, step, DATA[:step])
        await put(home, step)
    nodes.api.job = training_job("home", attempt=2, resumes=[Resume(2, 10)])
    home.save(0, 15, DATA)
    assert await put(home, 15, attempt=2) == {10: 1, 15: 2}
    assert sorted(holder.held(0)) == [10, 15]


async def test_the_last_home_gives_what_no_copy_was_made_of(nodes: CopyNodes) -> None:
    home, _ = await pair(nodes)
    mark = home.save(0, 10, DATA)
    await home.files.note_home(KEY, 0, 1)
    new = await nodes.add("new")
    nodes.api.job = training_job("new", attempt=2)
    found = await new.dialler.ask("home", KEY, 0)
    assert (found.home, found.marks) == (1, (CopyMark(10, len(DATA), mark.sha256, 1),))
    await fetched(new, "home", found.marks[0])
    assert new.data(0, 10) == DATA


async def test_a_rank_that_moves_to_the_holder_finds_its_copies_there(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    await put(home, 10)
    nodes.api.job = training_job("holder", attempt=2)
    found = await holder.dialler.ask("holder", KEY, 0)
    await fetched(holder, "holder", found.marks[0])
    assert holder.data(0, 10) == DATA


async def test_what_was_copied_is_held_at_home_however_soon_the_program_removes_it(nodes: CopyNodes) -> None:
    home, _ = await pair(nodes)
    home.save(0, 10, DATA[10:])
    await put(home, 10)
    mark = home.save(0, 20, DATA[20:])
    await put(home, 20)
    await home.files.note_home(KEY, 0, 1)
    assert home.files.settle_rank(KEY, 0, None, frozenset()) == (20, 10), "the second name is ours"
    assert (await put(home, 20)).keys() == {10, 20}, "it can be copied again"
    for file in (home.folder / "rank-0").iterdir():
        file.unlink()
    found = await home.dialler.ask("home", KEY, 0)
    assert {m.step: m.attempt for m in found.marks} == {10: 1, 20: 1}
    await fetched(home, "home", CopyMark(20, mark.size, mark.sha256, 1))
    assert home.data(0, 20) == DATA[20:]
    await home.files.drop_held(KEY, 0, frozenset({20}))
    assert home.files.held_marks(KEY, 0).keys() == {20}
    home.save(0, 20, DATA[:7])  # saved anew: another file by that name
    await put(home, 20)
    assert home.files.held_marks(KEY, 0)[20].size == 7


async def test_a_fetch_that_broke_off_goes_on_where_it_was(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    await put(home, 10)
    nodes.api.job = training_job("home", attempt=2)
    mark = holder.store.marks(KEY, 0)[10]
    home.files.partial(KEY, 0, mark).write_bytes(DATA[: 1 << 20])
    said: list[int] = []
    await home.dialler.fetch("holder", KEY, 0, mark, said.append)
    assert min(said) > 1 << 20
    assert home.data(0, 10) == DATA


# --- what is broken -----------------------------------------------------------------------------------------------------


async def test_a_copy_that_was_damaged_on_the_holder_is_not_taken(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    await put(home, 10)
    damaged = bytearray(DATA)
    damaged[77] ^= 1
    holder.store.path(KEY.directory, 0, 10).write_bytes(damaged)
    new = await nodes.add("new")
    nodes.api.job = training_job("new", attempt=2)
    with pytest.raises(CopyRefused, match="CopyCorrupt"):
        await fetched(new, "holder", holder.store.marks(KEY, 0)[10])
    assert not (new.folder / "rank-0").exists()
    assert list((new.files.own / "incoming").iterdir()) == [], "it is not gone on with"


def forge(holder: CopyNode, step: int) -> bytes:
    """Whoever owns the holder owns what it says about its copies."""
    mark = holder.store.marks(KEY, 0)[step]
    file, forged = holder.store.path(KEY.directory, 0, step), b"whatever it likes"
    file.write_bytes(forged)
    side = {"step": step, "bytes": len(forged), "sha256": hashlib.sha256(forged).hexdigest(), "attempt": mark.attempt}
    file.with_suffix(".json").write_text(json.dumps(side), encoding="ascii")
    holder.store.open()
    return forged


async def brought(nodes: CopyNodes, new: CopyNode) -> bytes:
    """What the rank that moves to `new` finds there as step 10."""
    job = training_job("new", attempt=2, copies=[RankCopies(0, "home", "holder")])
    nodes.api.job = job = msgspec.structs.replace(
        job, status=msgspec.structs.replace(job.status, barrier="Closed", opened_attempt=1)
    )
    care = RankCare(
        "new",
        files=new.files,
        transport=new.dialler,
        candidates=list,
        find_job=lambda key: job,
        covers=lambda job: True,
        report=lambda beat: None,
        changed=lambda: None,
    )

    async def is_here() -> bool:
        return care.has_checkpoints(job, job.status.members[0])

    await until("its checkpoints to be there", is_here)
    await care.close()
    return new.data(0, 10)


async def test_what_a_holder_gives_out_is_checked_against_its_own_word_alone_when_the_last_home_is_lost(
    nodes: CopyNodes,
) -> None:
    """docs/trust.md says so: nobody else has the digest."""
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    await put(home, 10)
    forged = forge(holder, 10)
    new = await nodes.add("new")
    del nodes.api.doors["home"]
    assert await brought(nodes, new) == forged


async def test_the_last_home_of_a_rank_knows_better_than_who_has_its_copies(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    await home.files.note_home(KEY, 0, 1)
    await put(home, 10)
    forge(holder, 10)
    assert await brought(nodes, await nodes.add("new")) == DATA


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_copy_that_is_gone_or_shorter_on_the_holder_is_told(nodes: CopyNodes, is_there: bool) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    await put(home, 10)
    file, mark = holder.store.path(KEY.directory, 0, 10), holder.store.marks(KEY, 0)[10]
    if is_there:
        file.write_bytes(DATA[:100])
    else:
        file.unlink()
    with pytest.raises((CopyRefused, OSError)):
        await fetched(home, "holder", mark)


async def test_what_breaks_while_a_copy_is_given_out_is_not_taken_for_a_copy_that_is_not_there(
    nodes: CopyNodes,
) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    await put(home, 10)
    mark = holder.store.marks(KEY, 0)[10]
    for node in (holder, home):  # from the copies, and from what is held at home
        with pytest.raises(ConnectionError, match="the asker is gone"):
            async with node.service.opened(KEY, 0, mark):
                raise ConnectionError("the asker is gone")


async def test_a_checkpoint_that_is_not_what_its_side_file_says_is_no_copy(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA, sha256="0" * 64)
    with pytest.raises(CopySourceGone):
        await put(home, 10)
    assert holder.held(0) == {}
    assert holder.store.used == 0
    assert list((holder.store.root / ".incoming").iterdir()) == []


async def test_a_holder_that_dies_before_it_answers_has_acknowledged_nothing(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    real = holder.service.store.commit

    def commit_and_die(*args: object) -> None:
        real(*args)  # type: ignore[arg-type]
        for writer in holder.service._writers:
            asyncio.run_coroutine_threadsafe(_abort(writer), loop)

    loop = asyncio.get_running_loop()
    holder.store.commit = commit_and_die  # type: ignore[method-assign,assignment]
    with pytest.raises(OSError):  # noqa: PT011
        await put(home, 10)
    holder.store.commit = real  # type: ignore[method-assign]
    assert await put(home, 10) == {10: 1}


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def test_an_asker_that_goes_away_in_the_middle_leaves_nothing(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    reader, writer = await dial_copy_wire("holder", "127.0.0.1", holder.port, home.asker, PATIENCE_S)
    ask = AskPut(KEY.namespace, KEY.name, KEY.uid, 0, CopyMark(10, 1 << 20, "ab" * 32, 1))
    writer.write(copy_wire_line(ask))
    assert b"go" in await reader.readline()
    writer.write(b"x" * 1000)
    await writer.drain()
    assert holder.store.used == 1 << 20
    writer.transport.abort()

    async def is_idle() -> bool:
        return not holder.service.is_busy

    await until("it was noticed", is_idle)
    assert holder.store.used == 0
    assert list((holder.store.root / ".incoming").iterdir()) == []


# --- who may ------------------------------------------------------------------------------------------------------------


async def test_a_node_gets_nothing_of_a_rank_that_it_does_not_host(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    await put(home, 10)
    other = await nodes.add("other")
    nodes.api.job = training_job("home", "other")  # it hosts rank 1 of the same job
    mark = holder.store.marks(KEY, 0)[10]
    with pytest.raises(CopyRefused, match="NotAMember"):
        await other.dialler.ask("holder", KEY, 0)
    with pytest.raises(CopyRefused, match="NotAMember"):
        await fetched(other, "holder", mark)
    other.save(0, 10, DATA[::-1])
    with pytest.raises(CopyRefused, match="NotAMember"):
        await put(other, 10)
    assert holder.held(0) == {10: 1}


async def test_a_job_by_the_same_name_is_another_job(nodes: CopyNodes) -> None:
    home, _ = await pair(nodes)
    home.save(0, 10, DATA)
    old = type(KEY)(KEY.namespace, KEY.name, "ffffffffffff")
    with pytest.raises(CopyRefused, match="NotAMember"):
        await home.dialler.ask("holder", old, 0)


async def test_nobody_without_a_certificate_of_the_manager_gets_a_word(nodes: CopyNodes) -> None:
    _, holder = await pair(nodes)
    stranger = CopyNodes(nodes.root / "elsewhere")
    thief = await stranger.add("home")
    try:
        with pytest.raises(OSError):  # noqa: PT011
            await dial_copy_wire("holder", "127.0.0.1", holder.port, thief.asker, PATIENCE_S)
    finally:
        await stranger.stop()


async def test_a_node_that_the_cluster_does_not_have_any_more_is_gone(nodes: CopyNodes) -> None:
    home, _ = await pair(nodes)
    with pytest.raises(CopyNodeGone):
        await home.dialler.ask("nobody", KEY, 0)
    nodes.api.is_away = True
    with pytest.raises(OSError, match="away"):
        await home.dialler.ask("nobody", KEY, 0)


# --- bounds -------------------------------------------------------------------------------------------------------------


async def test_what_is_too_large_or_finds_no_room_is_refused_by_name(nodes: CopyNodes) -> None:
    home = await nodes.add("home")
    await nodes.add("small", CopyLimits(1 << 30, 1000))
    await nodes.add("full", CopyLimits(1000, 1 << 30))
    none = await nodes.add("none", CopyLimits(0, 1 << 30))
    nodes.api.job = training_job("home")
    home.save(0, 10, DATA)
    for node, reason in (("small", "CopyTooLarge"), ("full", "NoSpaceForCopies"), ("none", "NoSpaceForCopies")):
        with pytest.raises(CopyRefused, match=reason):
            await put(home, 10, to=node)
    assert none.store.used == 0


async def test_copies_that_are_under_way_shut_out_nobody_who_asks_whether_the_api_is_there(
    nodes: CopyNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        copy_service, "ASK_S", PATIENCE_S
    )  # on a busy machine the first would be gone before the last is there
    home, holder = await pair(nodes)
    talks = [
        await dial_copy_wire("holder", "127.0.0.1", holder.port, home.asker, PATIENCE_S)
        for _ in range(2 * MAX_OPEN_FROM_ONE)
        if holder.service._open["home"] < 6
    ]
    with pytest.raises(OSError):  # noqa: PT011
        await dial_copy_wire("holder", "127.0.0.1", holder.port, home.asker, PATIENCE_S)
    place = PeerPlace("holder", "127.0.0.1", holder.port)
    assert await ask_peer_doors([place], home.asker, 30.0) == {"holder": "reaches"}
    for _, writer in talks:
        writer.transport.abort()


async def test_copies_take_no_more_than_their_share_of_the_network(nodes: CopyNodes) -> None:
    home, _ = await nodes.add("home", bandwidth=4 << 20), await nodes.add("holder")
    nodes.api.job = training_job("home")
    home.save(0, 10, DATA)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await put(home, 10)
    assert loop.time() - began > (len(DATA) / (4 << 20)) * 0.5


# --- hostile containers -------------------------------------------------------------------------------------------------


async def test_links_and_other_things_in_place_of_a_checkpoint_are_not_followed(
    nodes: CopyNodes, tmp_path: Path
) -> None:
    home, holder = await pair(nodes)
    secret = tmp_path / "secret"
    secret.write_bytes(DATA)

    def link(path: Path) -> None:
        path.symlink_to(secret)

    def hard_link(path: Path) -> None:
        path.hardlink_to(secret)

    def device(path: Path) -> None:
        path.symlink_to("/dev/zero")

    for place in (link, hard_link, os.mkfifo, device, Path.mkdir):
        home.save(0, 10, DATA)
        file = home.folder / "rank-0" / "step-10.ckpt"
        file.unlink()
        place(file)
        with pytest.raises(CopySourceGone):
            await put(home, 10)
        file.rmdir() if file.is_dir() else file.unlink()
    folder = home.folder / "rank-0"
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    (tmp_path / "moved" / "step-10.ckpt").write_bytes(DATA)
    with pytest.raises(CopySourceGone):
        await put(home, 10)
    assert holder.held(0) == {}


async def test_a_side_file_without_end_or_sense_is_no_side_file(nodes: CopyNodes) -> None:
    home, _ = await pair(nodes)
    home.save(0, 10, DATA)
    side = home.folder / "rank-0" / "step-10.json"
    for text in (b"x" * (1 << 20), b"[" * 4000, b"{}", b'{"step": 10, "bytes": -1, "sha256": ""}', b"\xff"):
        side.write_bytes(text)
        with pytest.raises(CopySourceGone):
            await put(home, 10)
    side.unlink()
    os.mkfifo(side)
    with pytest.raises(CopySourceGone):
        await put(home, 10)


async def test_a_file_that_grows_or_shrinks_while_it_is_read_is_no_copy(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    file = home.folder / "rank-0" / "step-10.ckpt"
    with file.open("ab") as more:
        more.write(b"more")
    with pytest.raises(CopySourceGone):
        await put(home, 10)
    home.save(0, 10, DATA)
    real, is_first = os.pread, [True]

    def shrink(fd: int, size: int, offset: int) -> bytes:
        if is_first[0]:
            is_first[0] = False
            os.truncate(file, 1 << 20)
        return real(fd, size, offset)

    os.pread = shrink
    try:
        with pytest.raises(CopySourceGone):
            await put(home, 10)
    finally:
        os.pread = real
    assert holder.held(0) == {}


async def test_an_endless_sparse_file_costs_nothing(nodes: CopyNodes) -> None:
    home, _ = await pair(nodes)
    home.save(0, 10, b"x", bytes=1 << 42)
    os.truncate(home.folder / "rank-0" / "step-10.ckpt", 1 << 42)
    with pytest.raises(CopyRefused, match="CopyTooLarge"):
        await put(home, 10)


async def test_a_directory_with_a_hundred_thousand_files_is_not_looked_through(nodes: CopyNodes) -> None:
    home, _ = await pair(nodes)
    home.save(0, 10, DATA)
    folder = home.folder / "rank-0"
    for number in range(100_000):
        os.close(os.open(folder / f"step-{number + 100}.json", os.O_CREAT | os.O_WRONLY))
    tracemalloc.start()
    try:
        assert await put(home, 10) == {10: 1}, "it is found by its name"
        with pytest.raises(OSError, match="more than"):
            await home.files.settle(KEY, 0, None, frozenset())
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


async def test_what_comes_is_placed_over_links_and_through_none(nodes: CopyNodes, tmp_path: Path) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    await put(home, 10)
    mark = holder.store.marks(KEY, 0)[10]
    victim = tmp_path / "victim"
    victim.write_bytes(b"ours")
    for name in ("step-10.ckpt", "step-10.json", "step-10.abandoned"):
        file = home.folder / "rank-0" / name
        file.unlink(missing_ok=True)
        file.symlink_to(victim)
    await fetched(home, "holder", mark)
    assert victim.read_bytes() == b"ours"
    assert home.data(0, 10) == DATA
    folder = home.folder / "rank-0"
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    with pytest.raises(OSError):  # noqa: PT011
        await fetched(home, "holder", mark)


async def test_steps_of_a_given_up_history_are_marked_and_no_mark_follows_a_link(
    nodes: CopyNodes, tmp_path: Path
) -> None:
    home, _ = await pair(nodes)
    for step in (10, 20, 30):
        home.save(0, step, DATA[:step])
    victim = tmp_path / "victim"
    victim.write_bytes(b"ours")
    (home.folder / "rank-0" / "step-30.abandoned").symlink_to(victim)
    assert home.files.settle_rank(KEY, 0, 10, frozenset({20})) == (20, 10)
    assert victim.read_bytes() == b"ours"
    assert home.files.settle_rank(KEY, 0, None, frozenset()) == (20, 10)


# --- what goes ----------------------------------------------------------------------------------------------------------


# --- what comes, and is cut short ---------------------------------------------------------------------------------------


async def test_two_ranks_of_the_same_content_are_fetched_at_the_same_time(nodes: CopyNodes) -> None:
    """Replicas save the same bytes: the digest alone says nothing about whose a checkpoint is."""
    home, _ = await pair(nodes)
    nodes.api.job = training_job("home", "home")
    marks = [home.save(rank, 10, DATA) for rank in (0, 1)]
    for rank in (0, 1):
        await home.dialler.put("holder", KEY, rank, 10, 1)
    new = await nodes.add("new")
    nodes.api.job = training_job("new", "new", attempt=2)
    begun = [new.dialler.fetch("holder", KEY, rank, marks[rank], lambda count: None) for rank in (0, 1)]
    said = await asyncio.gather(*begun, return_exceptions=True)
    assert said == [None, None]
    assert [new.data(rank, 10) == DATA for rank in (0, 1)] == [True, True]


async def test_a_checkpoint_larger_than_the_disk_is_not_begun(nodes: CopyNodes) -> None:
    home, _ = await pair(nodes)
    free = os.statvfs(home.files.own)
    with pytest.raises(OSError, match="no room"):
        home.files.open_partial(KEY, 0, CopyMark(10, free.f_bavail * free.f_frsize, "ab" * 32, 1))


async def test_an_agent_that_was_killed_while_it_took_hold_of_a_checkpoint_spoils_none(nodes: CopyNodes) -> None:
    home, _ = await pair(nodes)
    home.save(0, 10, DATA)
    await put(home, 10)
    os.link(home.folder / "rank-0" / "step-10.ckpt", home.files.own / "incoming" / "held-0123456789abcdef")
    home.files.prepare()  # the next agent
    assert home.files.settle_rank(KEY, 0, None, frozenset()) == (10,)


async def test_nobody_has_a_file_in_hand_when_a_call_for_it_is_given_up(nodes: CopyNodes) -> None:
    """Else it is closed under a thread that goes on writing, into whatever has its number by then."""
    home, _ = await pair(nodes)
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(PATIENCE_S)
        ended.set()

    task = asyncio.create_task(home.files.run(work))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    task.cancel()
    asyncio.get_running_loop().call_later(0.05, may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.parametrize(
    "answer",
    [
        b"x" * (3 << 20),
        b'{"say":"has","marks":' + b"[" * 200_000 + b"\n",
        b'{"say":"sends","more":' + b"[" * 200_000 + b"\n",
    ],
    ids=["without end", "deep", "deep beside"],
)
async def test_a_holder_that_says_anything_at_all_was_not_reached(nodes: CopyNodes, answer: bytes) -> None:
    """Nothing else is expected of it by those who ask again."""
    home, holder = await pair(nodes)
    mark = home.save(0, 10, DATA)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asker: str) -> None:
        reader, writer = await widen_copy_wire_streams(reader, writer)
        writer.write(GO)
        assert await reader.readline()
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await reader.read()  # until it has gone
        writer.transport.abort()

    holder.door.further[VERB] = talk
    for call in (put(home, 10), fetched(home, "holder", mark), home.dialler.ask("holder", KEY, 0)):
        with pytest.raises(ConnectionError):
            await call


@pytest.mark.parametrize("door", ["127.0.0.1:99999999", "127.0.0.1:" + "9" * 5000, "a\0b:1", "a" * 70 + ".b:1"])
async def test_a_door_that_cannot_be_is_not_reached(nodes: CopyNodes, door: str) -> None:
    home, _ = await pair(nodes)
    nodes.api.doors["holder"] = door
    with pytest.raises(ConnectionError):
        await home.dialler.ask("holder", KEY, 0)


async def test_nobody_else_of_the_machine_gets_to_the_checkpoints(nodes: CopyNodes) -> None:
    """Containers come by a mount; a job's own directory takes writes of whoever is in it."""
    home, _ = await pair(nodes)
    assert stat.S_IMODE(home.files.root.stat().st_mode) == 0o700
