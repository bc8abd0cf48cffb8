"""What agents remove of checkpoints and of copies, and what they leave: over real files, with clocks in the test's hand."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from remuda.agent.copies import copy_cleanup
from remuda.agent.copies.copy_cleanup import CopyCleanup
from remuda.api.training import RankCopies
from remuda.kube.client.http_errors import api_error_of_answer
from remuda.link.copy_wire import CopyMark
from tests.builders.copy_nodes import KEY, CopyNode, CopyNodes, pair, put, training_job

DATA = os.urandom(64 * 1024)


@pytest_asyncio.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[CopyNodes]:
    made = CopyNodes(tmp_path)
    yield made
    await made.stop()


def cleanup_of(node: CopyNode, now: list[float], ttl_s: float = 86_400.0) -> CopyCleanup:
    """Both of its clocks are `now`."""
    return CopyCleanup(node.service, node.dialler._cluster, ttl_s, lambda: now[0], lambda: now[0])


async def test_what_a_job_left_behind_goes_a_day_after_it_and_never_on_doubt(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    await put(home, 10)
    now = [1e9]
    cleaners = [cleanup_of(n, now) for n in (home, holder)]

    async def look_after(seconds: float) -> bool:
        end = now[0] + seconds
        while now[0] < end or seconds == 0.0:
            now[0] += min(copy_cleanup.LOOK_S, seconds)
            for cleaner in cleaners:
                await cleaner.look()
            if seconds == 0.0:
                break
        return home.folder.exists() or holder.store.used > 0 or (holder.store.root / KEY.directory).exists()

    assert await look_after(1e5), "the job is there"
    nodes.api.is_away = True
    assert await look_after(1e5)
    nodes.api.is_away = False
    job, nodes.api.job = nodes.api.job, None
    assert await look_after(0.0), "from now on"
    nodes.api.job = job
    assert await look_after(1e5), "it is back"
    nodes.api.job = None
    assert await look_after(0.0)
    assert await look_after(80_000.0)
    assert not await look_after(10_000.0)


@pytest.mark.parametrize(
    "body",
    [
        b"404 page not found\n",  # kube-apiserver, of a kind whose CRD is not there
        b'{"kind":"Status","reason":"NotFound","message":"the server could not find the requested resource","details":{}}',
        b"<html><body>404 Not Found</body></html>",  # something in between
        b'{"kind":"Status","reason":"NotFound","details":{"name":"default","kind":"namespaces"}}',
    ],
    ids=["kind not served", "unknown path", "proxy", "namespace"],
)
async def test_an_answer_that_is_not_about_the_job_does_not_mean_that_it_is_gone(nodes: CopyNodes, body: bytes) -> None:
    home, _ = await pair(nodes)
    home.save(0, 10, DATA)
    now = [1e9]
    cleaner = cleanup_of(home, now, ttl_s=100.0)
    nodes.api.instead = api_error_of_answer(404, body)
    for _ in range(3):
        await cleaner.look()
        now[0] += 101
    assert home.data(0, 10) == DATA
    said = (
        b'{"kind":"Status","reason":"NotFound","message":"trainingjobs.remuda.dev \\"job\\" not found",'
        b'"details":{"name":"job","group":"remuda.dev","kind":"trainingjobs"}}'
    )
    nodes.api.instead = api_error_of_answer(404, said)
    await cleaner.look()
    assert home.data(0, 10) == DATA, "the grace starts here"
    now[0] += 101
    await cleaner.look()
    assert not home.folder.exists()


async def test_a_clock_that_jumps_ahead_does_not_end_the_grace(nodes: CopyNodes) -> None:
    home, _ = await pair(nodes)
    home.save(0, 10, DATA)
    wall, now = [1e9], [50.0]
    nodes.api.job = None

    def agent() -> CopyCleanup:
        return CopyCleanup(home.service, home.dialler._cluster, 3000.0, lambda: wall[0], lambda: now[0])

    cleaner = agent()
    await cleaner.look()
    wall[0] += 1e8
    await cleaner.look()
    assert home.data(0, 10) == DATA
    now[0] += 1e8  # it stood still: nobody looked for most of that
    await cleaner.look()
    assert home.data(0, 10) == DATA
    now[0] = 7.0  # the machine was booted
    cleaner = agent()
    await cleaner.look()
    now[0] += 1000.0
    await cleaner.look()
    assert home.data(0, 10) == DATA
    now[0] += 1000.0
    await cleaner.look()
    assert not home.folder.exists(), "what counted before the restart counts: 1200 and 2000"


async def test_copies_go_when_another_node_has_them(nodes: CopyNodes) -> None:
    home, holder = await pair(nodes)
    home.save(0, 10, DATA)
    await put(home, 10)
    mtime = holder.store.path(KEY.directory, 0, 10).with_suffix(".json").stat().st_mtime
    now = [mtime]
    cleaner = cleanup_of(holder, now)
    nodes.api.job = training_job("home", copies=[RankCopies(0, "home", "third")])
    await cleaner.look()
    assert holder.held(0) == {10: 1}, "it may still be fetched"
    now[0] += copy_cleanup.RELEASE_S + 1
    await cleaner.look()
    assert holder.held(0) == {}


@pytest.mark.parametrize("strange", ["team/notes.txt", "team/lost", "team/-0123abcd", "team/lost+found"])
async def test_what_has_no_jobs_name_stays_and_keeps_nothing_else_from_being_cleaned(
    nodes: CopyNodes, strange: str
) -> None:
    home, _ = await pair(nodes)
    for directory in (strange, "zoo/gone-0123abcd"):
        (home.files.root / directory).mkdir(parents=True)
    now = [1e9]
    cleanup = cleanup_of(home, now, ttl_s=100.0)
    await cleanup.look()
    now[0] += 101
    await cleanup.look()
    assert not (home.files.root / "zoo" / "gone-0123abcd").exists()
    assert (home.files.root / strange).exists()


async def test_what_came_in_part_goes_with_the_next_and_with_time(nodes: CopyNodes) -> None:
    """Who tells of ever other checkpoints, and never sends one whole, fills no disk."""
    home, _ = await pair(nodes)
    incoming = home.files.own / "incoming"
    for step in range(5):
        fd = home.files.open_partial(KEY, 0, CopyMark(step, 1 << 20, "ab" * 32, 1))
        os.write(fd, b"x" * 1000)
        os.close(fd)
    assert [part.name for part in incoming.iterdir()] == [f"{KEY.uid}.0.4.{'ab' * 32}.part"]
    now = next(incoming.iterdir()).stat().st_mtime
    for at, left in ((now + 50, 1), (now + 101, 0)):
        await cleanup_of(home, [at], ttl_s=100.0).look()
        assert len(list(incoming.iterdir())) == left
