"""The commands users know, typed at a cluster with a gang at work: what they print, and that it is true."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from remuda.api.codec import to_wire
from remuda.api.drills import DrillKind
from tests.builders.waiting import until
from tests.e2e.clusters import Up
from tests.e2e.kubectl import Kubectl
from tests.e2e.rig import NAME, RANKS, Rig

STOP_AT, LATER = 14, 21
POD = f"{NAME}-worker-0"
STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z ")


class Desk:
    """A cluster with a gang that was applied by kubectl and stands at `STOP_AT`."""

    def __init__(self, rig: Rig, kubectl: Kubectl) -> None:
        self.rig = rig
        self.kubectl = kubectl
        self.run = kubectl.run

    async def kill_a_process(self, attempt: int) -> None:
        job = await self.rig.get()
        await self.rig.strike(DrillKind.PROCESS_KILL, job.status.members[1])
        await self.rig.trained_to(STOP_AT, attempt=attempt)

    async def events(self, name: str, **fields: str) -> list[dict[str, Any]]:
        chosen = ",".join([f"involvedObject.name={name}", *(f"{k}={v}" for k, v in fields.items())])
        found: list[dict[str, Any]] = (await self.kubectl.get("events", f"--field-selector={chosen}"))["items"]
        return sorted(found, key=lambda e: str(e["lastTimestamp"]))

    async def told(self, name: str, *reasons: str) -> list[dict[str, Any]]:
        """The events of the object, once these reasons are among them: events come a second after what they tell of."""

        async def there() -> bool:
            return set(reasons) <= {e["reason"] for e in await self.events(name)}

        await until(f"events {reasons} of {name}", there)
        return await self.events(name)


@pytest.fixture
async def desk(state: Path, tmp_path: Path) -> AsyncIterator[Desk]:
    cluster = Up(state)
    cluster.start()
    try:
        async with cluster.rig() as rig:
            desk = Desk(rig, Kubectl(state / "kubeconfig", tmp_path / "home"))
            rig.let_run_to(STOP_AT)
            said = await desk.kubectl.apply(to_wire(rig.job(spares=1, rack=True)))
            assert said == f"trainingjob.remuda.dev/{NAME} created\n"
            await rig.trained_to(STOP_AT, spares=1)
            yield desk
    finally:
        cluster.kill()


async def test_tables_descriptions_and_events(desk: Desk) -> None:
    run, table = desk.run, desk.kubectl.table

    # get
    (job,) = await table("get", "trainingjobs")
    assert list(job) == ["NAME", "PHASE", "ATTEMPT", "RANKS", "STEP", "INTERRUPTIONS", "ETTR", "REASON", "AGE"]
    assert [job[c] for c in ("NAME", "PHASE", "ATTEMPT", "RANKS", "INTERRUPTIONS")] == [NAME, "Running", "1", "4", "0"]
    assert int(job["STEP"]) <= STOP_AT
    pods = await table("get", "pods", "-o", "wide")
    assert list(pods[0])[:7] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"]
    assert len(pods) == RANKS + 1
    assert {(p["READY"], p["STATUS"], p["RESTARTS"]) for p in pods} == {("1/1", "Running", "0")}
    assert all(p["IP"].startswith("127.") and p["NODE"].startswith("node-") for p in pods)
    nodes = await table("get", "nodes", "-o", "wide")
    assert {n["STATUS"] for n in nodes} == {"Ready"}
    assert all(n["VERSION"].endswith("+remuda") and n["INTERNAL-IP"] == "127.0.0.1" for n in nodes)
    assert all(n["CONTAINER-RUNTIME"].startswith("remuda-process://") for n in nodes)
    assert not [cell for n in nodes for name, cell in n.items() if name != "EXTERNAL-IP" and "<unknown>" in cell]

    # describe, with what happened
    await desk.told(NAME, "Placed", "Started")
    await desk.told(POD, "Scheduled", "Started")
    text = await run("describe", "trainingjob", NAME)
    assert re.search(r"Normal +Started +\S+ +remuda-training +All 4 ranks run attempt 1", text)
    text = await run("describe", "pod", POD)
    assert re.search(
        rf"Normal +Scheduled +\S+ +remuda-scheduler +Successfully assigned default/{POD} to node-\d+", text
    )
    assert re.search(r"Normal +Started +\S+ +remuda-node +Started container main", text)
    text = await run("describe", "node", "node-01")
    assert re.search(r"Kubelet Version: +v\S+\+remuda", text)
    assert "0001" not in text, "a time that nobody set"

    # explain, api-resources, auth
    text = await run("explain", "trainingjob")
    assert "A gang of pods that train together" in text
    for path in ("spec", "spec.failure", "spec.failure.budgets", "spec.roles.template"):
        assert "FIELD:" in await run("explain", f"trainingjob.{path}")
    assert "<no description>" not in await run("explain", "trainingjob.spec.failure.budgets")
    resources = await table("api-resources", "--api-group=remuda.dev")
    assert {r["NAME"]: r["SHORTNAMES"] for r in resources}["trainingjobs"] == "tj"
    assert await run("auth", "can-i", "create", "trainingjobs") == "yes\n"

    # why a pod waits
    big = to_wire(desk.rig.job(replicas=1, gpus=8))
    big["metadata"]["name"] = "big"
    big["spec"]["roles"][0]["replicas"] = 4  # every node whole; another job runs on them
    await desk.kubectl.apply(big)
    (event, *_) = await desk.told("big-worker-0", "FailedScheduling")
    assert event["type"] == "Warning"
    assert re.match(r"[A-Z][A-Za-z]+: .+\. .+\.$", event["message"]), "a reason, a sentence and the fix"
    waiting = await desk.told("big", "WaitingForRoom")
    assert waiting[-1]["type"] == "Warning"


async def test_watching_changing_and_deleting(desk: Desk) -> None:
    run = desk.run

    # get -w over a recovery, and what is told of it
    async with desk.kubectl.following("get", "trainingjob", NAME, "-w") as lines_until:
        await lines_until(lambda line: "Running" in line)
        await desk.kill_a_process(attempt=2)
        seen = await lines_until(_columns(PHASE="Running", ATTEMPT="2", INTERRUPTIONS="1"))
    assert seen
    events = await desk.told(NAME, "AttemptRaised", "Resumed")
    raised = next(e for e in events if e["reason"] == "AttemptRaised")
    assert raised["type"] == "Warning"
    assert raised["message"].startswith("Attempt 2 by RestartInPlace (code: ProcessExited: ")
    assert next(e for e in events if e["reason"] == "Resumed")["message"].endswith("attempt 2 from step 12.")

    # a device: the spare is promoted
    job = await desk.rig.get()
    victim = job.status.members[2]
    await desk.rig.fail_device(victim.node, victim.devices[0])
    await desk.rig.trained_to(STOP_AT, attempt=3)
    promoted = next(e for e in await desk.told(NAME, "SparePromoted") if e["reason"] == "SparePromoted")
    assert re.match(rf"{NAME}-worker-4 on node-\d+ takes rank 2\.", promoted["message"])
    await desk.told(victim.pod, "Killing")

    # label, patch, apply, wait
    assert await run("label", "tj", NAME, "team=blue") == f"trainingjob.remuda.dev/{NAME} labeled\n"
    assert len(await desk.kubectl.table("get", "tj", "-l", "team=blue")) == 1
    await run("wait", f"tj/{NAME}", "--for=jsonpath={.status.spares[0].parked}=true", "--timeout=120s")
    assert "patched" in await run("patch", "tj", NAME, "--type=merge", "-p", '{"spec":{"spares":0}}')
    await run("wait", f"tj/{NAME}", "--for=condition=Running", "--timeout=120s")
    assert "configured" in await desk.kubectl.apply(to_wire(desk.rig.job(spares=1, rack=True)))
    refused = await run("patch", "tj", NAME, "--type=merge", "-p", '{"spec":{"sparez":0}}', code=1)
    assert "sparez" in refused

    # scale
    await run("create", "deployment", "web", "--image=web:1", "--replicas=1")
    assert await run("scale", "deployment", "web", "--replicas=3") == "deployment.apps/web scaled\n"
    await run("rollout", "status", "deployment/web", "--timeout=120s")
    (deployment,) = await desk.kubectl.table("get", "deployment", "web")
    assert (deployment["READY"], deployment["AVAILABLE"]) == ("3/3", "3")

    # delete: it is over when kubectl is back, and the pods follow
    assert "deleted" in await run("delete", "tj", NAME)
    await run("wait", "pods", "-l", f"remuda.dev/gang={NAME}", "--for=delete", "--timeout=120s")
    assert desk.rig.live_ranks() == []


async def test_logs(desk: Desk) -> None:
    run = desk.run
    whole = (await run("logs", POD)).splitlines()
    assert whole[0].startswith("--- remuda attempt=1 rank=")
    assert whole[-1] == f"step {STOP_AT}"
    assert (await run("logs", POD, "--tail=2")).splitlines() == whole[-2:]
    assert await run("logs", POD, "--limit-bytes=12") == "\n".join(whole)[:12]
    await run("logs", POD, "--previous", code=1)

    # the times, and what was written since
    stamped = (await run("logs", POD, "--timestamps", "--tail=3")).splitlines()
    assert [STAMP.sub("", line) for line in stamped] == whole[-3:]
    times = [_time(line) for line in stamped]
    assert times == sorted(times)
    assert 0 <= time.time() - times[-1] < 600
    assert await run("logs", POD, f"--since-time={_iso(times[-1] + 2)}") == ""
    assert (await run("logs", POD, f"--since-time={_iso(times[0] - 60)}")).splitlines() == whole
    assert (await run("logs", POD, "--since=1h", "--tail=1")).splitlines() == whole[-1:]
    await until("two seconds to have passed", _passed(times[-1] + 2))
    assert await run("logs", POD, "--since=1s") == ""

    # following, with times
    async with desk.kubectl.following("logs", "-f", POD, "--tail=1", "--timestamps") as lines_until:
        await lines_until(lambda line: line.endswith(f"step {STOP_AT}"))
        desk.rig.let_run_to(LATER)
        new = await lines_until(lambda line: line.endswith(f"step {LATER}"))
    assert [STAMP.sub("", line) for line in new] == [f"step {n}" for n in range(STOP_AT + 1, LATER + 1)]
    assert all(_time(line) >= times[-1] + 1 for line in new)

    # the attempt before
    await desk.rig.trained_to(LATER)
    await desk.rig.strike(DrillKind.PROCESS_KILL, (await desk.rig.get()).status.members[1])
    await desk.rig.trained_to(LATER, attempt=2)
    assert (await run("logs", POD, "--previous", "--tail=1")).splitlines() == [f"step {LATER}"]
    now = (await run("logs", POD)).splitlines()
    assert sum(line.startswith("--- remuda attempt=") for line in now) == 2


def _columns(**wanted: str) -> Callable[[str], bool]:
    """Of a line of `get trainingjob -w`."""
    names = ["NAME", "PHASE", "ATTEMPT", "RANKS", "STEP", "INTERRUPTIONS", "ETTR", "AGE"]

    def holds(line: str) -> bool:
        row = dict(zip(names, line.split(), strict=False))
        return all(row.get(name) == cell for name, cell in wanted.items())

    return holds


def _time(line: str) -> float:
    found = STAMP.match(line)
    assert found, line
    return datetime.fromisoformat(found.group()[:26]).replace(tzinfo=UTC).timestamp()


def _iso(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _passed(moment: float) -> Any:
    async def passed() -> bool:
        return time.time() > moment

    return passed
