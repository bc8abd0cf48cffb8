"""Bad input to a real split cluster: parts started by hand, tokens of other nodes, a supervisor that is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from remuda.embedded.apiserver.security.tokens import load_security_token
from remuda.link.stream_messages import Downward, LinkHello, LinkRefused, link_message_line, read_downward_link_message
from remuda.runtime.split_parts import split_part_node_token
from remuda.runtime.state_dir import StateDir
from tests.builders.waiting import until
from tests.e2e.clusters import Up

PARTS = ("server", "manager", "nodes-1", "nodes-2")


async def greeted(state: StateDir, node: str, token: str) -> Downward:
    reader, writer = await asyncio.open_unix_connection(str(state.link_socket))
    try:
        writer.write(link_message_line(LinkHello(node, token)))
        return read_downward_link_message(await reader.readline())
    finally:
        writer.close()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_split_cluster_refuses_what_is_not_its_own_and_leaves_nobody_behind(tmp_path: Path) -> None:
    up = Up(tmp_path)
    up.start("--split", "--groups=2", "--port=0")
    state = StateDir(tmp_path)
    try:
        for words, reason in (
            (("part", "manager", "--groups=2"), "PartInUse"),
            (("part", "nodes-1", "--groups=2"), "PartInUse"),
            (("part", "nodes-9", "--groups=2"), "NoSuchPart"),
            (("up", "--split"), "StateInUse"),
        ):
            code, said = await up.run(*words)
            assert (code, reason in said) == (2, True), said
        secret = load_security_token(state.link_secret)
        for node, token in (
            ("node-02", split_part_node_token(secret, "node-01")),
            ("node-01", "guessed"),
            ("node-01", ""),
        ):
            answer = await greeted(state, node, token)
            assert isinstance(answer, LinkRefused)
            assert answer.reason == "NotThisNode"
        assert "NotThisNode" in (state.parts / "manager.log").read_text(), "refused and logged"
        pids = [int((state.parts / f"{name}.pid").read_text()) for name in PARTS]
        assert all(map(is_alive, pids))
    finally:
        up.kill()

    async def are_gone() -> bool:
        return not any(map(is_alive, pids))

    await until("every part to go with its supervisor", are_gone)
    assert state.database.exists()
