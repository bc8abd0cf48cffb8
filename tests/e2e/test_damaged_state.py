"""`remuda up` on a state that was damaged while it was down: it refuses, says how to go on, and going on so works."""

from __future__ import annotations

import re
import sqlite3

from remuda.api.kubernetes.core_v1 import Namespace
from remuda.api.meta import ObjectMeta
from remuda.runtime.state_dir import StateDir
from tests.e2e.clusters import Up

TEAMS = tuple(f"team-{number}" for number in range(8))


async def test_a_damaged_state_is_refused_and_recovered_as_the_refusal_says(up: Up) -> None:
    versions: dict[str, int] = {}
    async with up.rig() as rig:
        for name in TEAMS:
            made = await rig.api.create(Namespace, Namespace(metadata=ObjectMeta(name=name)))
            versions[name] = int(made.metadata.resource_version)
    code, words = await up.run("down")
    assert (code, up.wait()) == (0, 0), words
    damaged = versions[TEAMS[4]]
    with sqlite3.connect(StateDir(up.state).database) as connection:
        changed = connection.execute("UPDATE log SET body=x'7b7d' WHERE rv=?", (damaged,))
        assert changed.rowcount == 1
    connection.close()

    code, words = await up.run("up", "--nodes=4", "--racks=2")
    assert code != 0
    assert "StateDamaged" in words
    assert "Traceback" not in words
    advice = re.search(r"--recover-to[ =](\d+)", " ".join(words.split()))
    assert advice is not None, words
    assert int(advice[1]) == damaged - 1

    code, words = await up.run("up", "--nodes=4", "--racks=2", f"--recover-to={damaged}")
    assert code != 0
    assert "RecoveryNotPossible" in words

    up.start(f"--recover-to={advice[1]}")
    async with up.rig() as rig:
        there = {each.metadata.name for each in (await rig.api.list(Namespace)).items}
        assert {name for name in TEAMS if name in there} == set(TEAMS[:4]), "what was before the damage, and no more"
        made = await rig.api.create(Namespace, Namespace(metadata=ObjectMeta(name=TEAMS[7])))
        assert int(made.metadata.resource_version) > versions[TEAMS[7]], "no version is given twice"
    code, words = await up.run("down")
    assert (code, up.wait()) == (0, 0), words

    up.start()  # from now on as any other state
    async with up.rig() as rig:
        there = {each.metadata.name for each in (await rig.api.list(Namespace)).items}
        assert {*TEAMS[:4], TEAMS[7]} <= there
