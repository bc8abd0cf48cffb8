"""Drills on the node of `remuda agent` beside a kubelet that is played: what it breaks, what it refuses, and through restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remuda.agent.agent import Agent
from remuda.agent.hardware import choose_backend
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.agent.hardware.signal_listeners import real_hardware_refusal
from remuda.api.devices import NodeDevices
from remuda.api.drills import DRILLS, Drill, DrillKind, DrillSpec
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_seconds
from remuda.api.names import RESOURCE_GPU
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.kube.runtime.informer import Informer
from remuda.link.drill_runner import DrillRunner
from remuda.runtime.background_tasks import run_beside
from remuda.runtime.node_agent import node_agent
from tests.builders.waiting import PATIENCE_S, until
from tests.component.test_node_agent import NODE, Site, agent_site, turns  # noqa: F401
from tests.unit.agent.hardware.test_kernel_log_reader import an_xid

OVER = ("Done", "Refused", "Undone")


async def drill(site: Site, kind: str, *, phase: str = "", **spec: Any) -> Drill:
    """Carried out or refused."""
    made = await site.cluster.create(
        Drill, {"metadata": {"generateName": "d-"}, "spec": {"type": kind, "node": NODE, **spec}}
    )
    return await settled(site, made.name, phase)


async def settled(site: Site, name: str, phase: str = "") -> Drill:
    found: list[Drill] = []

    async def is_there() -> bool:
        found[:] = [await site.cluster.get(Drill, name)]
        return found[0].status.phase == phase if phase else found[0].status.phase in OVER

    await until(f"drill {name}", is_there)
    return found[0]


def codes(devices: NodeDevices, device: str) -> list[str]:
    return [s.code for row in devices.observed.devices if row.id == device for s in row.signals]


async def test_a_device_fails_and_is_mended(site: Site) -> None:
    async with node_agent(site.config, site.cluster):
        await site.registered()
        done = await drill(site, "device-fail", device="gpu-3", code="xid-79")
        assert (done.status.phase, done.status.message) == ("Done", f"gpu-3 of {NODE} reports xid-79.")
        await site.until(lambda nd: "xid-79" in codes(nd, "gpu-3"), "the signal")
        await site.cluster.patch(Drill, done.name, {"spec": {"undo": True}})
        assert (await settled(site, done.name, "Undone")).status.reason == "TakenBack"
        await site.until(lambda nd: "probe-passed" in codes(nd, "gpu-3"), "the probe")


FAKE_ONES: dict[DrillKind, dict[str, Any]] = {
    DrillKind.DEVICE_DROP: {"device": "gpu-1"},
    DrillKind.DEVICE_FLAP: {"device": "gpu-1", "times": 3},
    DrillKind.DEVICE_SLOW: {"device": "gpu-1", "factor": 2.0},
    DrillKind.DEVICE_IDLE: {"device": "gpu-1"},
    DrillKind.DEVICE_REPLACE: {"device": "gpu-1"},
    DrillKind.ECC_TREND: {"device": "gpu-1", "times": 5000},
    DrillKind.POWER_CAP: {},
    DrillKind.PLUGIN_KILL: {"resource": RESOURCE_GPU},
    DrillKind.PLUGIN_HANG: {"resource": RESOURCE_GPU},
    DrillKind.ALLOCATE_FAIL: {"resource": RESOURCE_GPU},
}
SIGNALS = {
    DrillKind.DEVICE_DROP: "device-missing",
    DrillKind.DEVICE_SLOW: "thermal",
    DrillKind.POWER_CAP: "power-cap",
}


async def test_fake_devices_and_their_plugins_break_and_are_mended(site: Site) -> None:
    async with node_agent(site.config, site.cluster):
        await site.registered()
        for kind, spec in FAKE_ONES.items():
            done = await drill(site, kind.value, **spec)
            assert done.status.phase == "Done", done
            if kind in SIGNALS:
                await site.until(lambda nd, code=SIGNALS[kind]: code in codes(nd, "gpu-1"), f"{kind}'s signal")  # type: ignore[misc]
            if DRILLS[kind].lasts:
                await site.cluster.patch(Drill, done.name, {"spec": {"undo": True}})
                assert (await settled(site, done.name, "Undone")).status.reason == "TakenBack"
        slow = await drill(site, "device-slow", device="gpu-2", seconds=0.01, phase="Undone")
        assert slow.status.reason == "TimeOver"
        assert "not slowed" in slow.status.message


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "node-lost": ({}, "NotOnARealNode"),
    "node-partition": ({"seconds": 5.0}, "NotOnARealNode"),
    "kubelet-restart": ({}, "NotOnARealNode"),
    "spot-notice": ({"seconds": 5.0}, "NotOnARealNode"),
    "maintenance-notice": ({"seconds": 5.0}, "NotOnARealNode"),
    "node-reboot": ({}, "NoRebootCommand"),
    "process-kill": ({"pod": "nobody", "namespace": "default"}, "NoLauncher"),
    "device-fail": ({"device": "gpu-77", "code": "xid-79"}, "UnknownDevice"),
    "plugin-kill": ({"resource": "nvidia.com/nothing"}, "UnknownPlugin"),
}


async def test_what_a_real_node_cannot_do_is_refused_with_what_to_do_instead(site: Site) -> None:
    async with node_agent(site.config, site.cluster):
        await site.registered()
        for kind, (spec, reason) in REFUSED.items():
            done = await drill(site, kind, **spec)
            assert (done.status.phase, done.status.reason) == ("Refused", reason), done
            assert done.status.message.count(".") >= 2, "a sentence and the fix"


class RealDevices(FakeBackend):
    """Devices that cannot be told to fail, like those of every real backend."""

    drop = None  # type: ignore[assignment]

    def inject(self, device: str, code: str, heals: str = "") -> None:
        raise real_hardware_refusal(self._node)


async def test_real_devices_and_their_plugins_are_never_broken(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choose_backend, "FakeBackend", RealDevices)
    kinds = {DrillKind.DEVICE_FAIL: {"device": "gpu-1", "code": "xid-79"}, **FAKE_ONES}
    async with node_agent(site.config, site.cluster):
        await site.registered()
        for kind, spec in kinds.items():
            done = await drill(site, kind.value, **spec)
            assert (done.status.phase, done.status.reason) == ("Refused", "RealHardware"), done


async def test_drills_of_other_nodes_and_deletions_of_pods_are_left_to_others(site: Site) -> None:
    async with node_agent(site.config, site.cluster):
        await site.registered()
        for name, spec in {
            "theirs": {"type": "device-fail", "node": "another", "device": "gpu-1", "code": "xid-79"},
            "nowhere": {"type": "process-kill", "pod": "a", "namespace": "default"},
            "managers": {"type": "pod-delete", "node": NODE, "pod": "a", "namespace": "default"},
        }.items():
            await site.cluster.create(Drill, {"metadata": {"name": name}, "spec": spec})
        await drill(site, "device-idle", device="gpu-1")  # it has seen those before this one
        phases = {d.name: d.status.phase for d in (await site.cluster.list(Drill)).items}
        assert {phases[name] for name in ("theirs", "nowhere", "managers")} == {"Pending"}


async def test_what_lasts_ends_with_the_agent_that_did_it(site: Site) -> None:
    async with node_agent(site.config, site.cluster):
        await site.registered()
        done = await drill(site, "device-fail", device="gpu-3", code="xid-79")
        await site.until(lambda nd: "xid-79" in codes(nd, "gpu-3"), "the signal")
    async with node_agent(site.config, site.cluster):
        assert (await settled(site, done.name, "Undone")).status.reason == "AgentRestarted"
        await site.until(lambda nd: "probe-passed" in codes(nd, "gpu-3"), "the probe")


async def test_a_drill_that_was_interrupted_is_not_done_again(site: Site) -> None:
    """Whoever began it is gone."""
    for name, kind, spec in (
        ("once", "device-replace", {"device": "gpu-1"}),
        ("reboot", "node-reboot", {}),
        ("lasting", "device-drop", {"device": "gpu-2"}),
    ):
        await site.cluster.create(Drill, {"metadata": {"name": name}, "spec": {"type": kind, "node": NODE, **spec}})
        begun = {"phase": "Running", "message": "Rebooting; the boot was an-earlier-one."}
        await site.cluster.patch(Drill, name, {"status": begun}, subresource="status")
    async with node_agent(site.config, site.cluster) as agent:
        await site.registered()
        uuid = agent.inventory.rows["gpu-1"].uuid
        assert (await settled(site, "once")).status.reason == "Interrupted"
        rebooted = (await settled(site, "reboot")).status
        assert (rebooted.phase, rebooted.message) == ("Done", f"{NODE} was rebooted.")
        assert (await settled(site, "lasting")).status.reason == "AgentRestarted"
        assert agent.inventory.rows["gpu-1"].uuid == uuid


async def test_a_drill_that_waited_for_too_long_happens_no_more(site: Site) -> None:
    """Made while the node had no agent, and forgotten."""
    spec = {"type": "device-replace", "node": NODE, "device": "gpu-1"}
    store = site.cluster
    made = await store.create(Drill, {"metadata": {"name": "old"}, "spec": spec})
    assert made.metadata.creation_timestamp is not None
    late = to_seconds(made.metadata.creation_timestamp) + 700.0
    informer = Informer(store, Drill)
    hit: list[DrillSpec] = []
    runner = DrillRunner(store, informer, OneNode(hit), lambda: late, refuses_strays=False, claims=True)
    async with run_beside(informer.run(), "informer"), run_beside(runner.run(), "runner"):
        assert (await settled(site, "old")).status.reason == "TooLate"
    assert hit == []


class OneNode:
    """A site where drills are only counted."""

    after_restart = "Restarted"

    def __init__(self, hit: list[DrillSpec]) -> None:
        self.hit = hit

    def is_here(self, spec: DrillSpec) -> bool | None:
        return True

    def is_in_charge(self) -> bool:
        return True

    async def inject(self, spec: DrillSpec) -> str:
        self.hit.append(spec)
        return "Hit."

    async def take_back(self, spec: DrillSpec) -> None: ...

    async def carry_out_notice(self, spec: DrillSpec) -> None: ...

    def claim_words(self, spec: DrillSpec) -> str:
        return ""

    def has_happened(self, spec: DrillSpec, words: str) -> str:
        return ""


async def test_two_that_may_answer_a_drill_carry_it_out_once(site: Site) -> None:
    hit: list[DrillSpec] = []
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            informer = Informer(site.cluster, Drill)
            runner = DrillRunner(site.cluster, informer, OneNode(hit), time.time, refuses_strays=False, claims=True)
            await stack.enter_async_context(run_beside(informer.run(), "informer"))
            await stack.enter_async_context(run_beside(runner.run(), "runner"))
        for _ in range(5):
            assert (await drill(site, "device-replace", device="gpu-1")).status.message == "Hit."
    assert len(hit) == 5


async def test_an_agent_has_one_watch_for_drills_and_asks_nothing_else(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("get", "list", "watch", "patch"):
        real = getattr(LocalCluster, name)

        def count(self: LocalCluster, kind: Any, *rest: Any, _real: Any = real, _name: str = name, **more: Any) -> Any:
            if kind is Drill:
                asked.append(_name)
            return _real(self, kind, *rest, **more)

        monkeypatch.setattr(LocalCluster, name, count)
    async with node_agent(site.config, site.cluster):
        await site.registered()
        await turns(lambda: "watch" in asked)
    assert sorted(asked) == ["list", "watch"]


async def test_a_reboot_is_done_by_the_nodes_own_command(site: Site, tmp_path: Path) -> None:
    mark = tmp_path / "rebooted"
    config = msgspec.structs.replace(site.config, reboot_command=f"/usr/bin/touch {mark}")
    async with node_agent(config, site.cluster):
        await site.registered()
        done = await drill(site, "node-reboot")
        assert (done.status.phase, mark.exists()) == ("Done", True), done
    failing = msgspec.structs.replace(site.config, reboot_command="/bin/false")
    async with node_agent(failing, site.cluster):
        assert (await drill(site, "node-reboot")).status.reason == "CommandFailed"


async def test_an_agent_that_a_newer_one_replaced_carries_out_nothing(site: Site) -> None:
    async with node_agent(site.config, site.cluster) as old:
        await site.registered()
        async with node_agent(site.config, site.cluster) as new:
            await turns(lambda: not old.grants.is_open)
            done = await drill(site, "device-replace", device="gpu-1")
            assert done.status.phase == "Done"
            fresh = new.inventory.rows["gpu-1"].uuid
            assert old.inventory.rows["gpu-1"].uuid != fresh


# --- processes ----------------------------------------------------------------------------------------------------------

LAUNCHER = """
import os, socket, subprocess, sys, threading, time
from remuda.launch.protocol import Hello, encode_launch_message

def wait(child):
    child.wait()
    print("ended", child.returncode, flush=True)

child = subprocess.Popen(["sleep", "600"], start_new_session=True)
threading.Thread(target=wait, args=(child,), daemon=True).start()
print(child.pid, flush=True)
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
while True:
    door = socket.socket(socket.AF_UNIX)
    try:
        door.connect(f"/proc/self/fd/{fd}/agent.sock")
        door.sendall(encode_launch_message(Hello(sys.argv[2], sys.argv[3], 1, "parked", 0)))
        while door.recv(4096):
            pass
    except OSError:
        time.sleep(0.02)
"""


class PlayedLauncher:
    """A process of its own, as a launcher is: the agent must never signal whom a message names."""

    def __init__(self, site: Site, pod: Pod, directory: str) -> None:
        arguments = [sys.executable, "-c", LAUNCHER, str(site.alloc / directory), pod.name, pod.uid]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.child = int(self.process.stdout.readline())

    def state(self) -> str:
        return Path(f"/proc/{self.child}/stat").read_text().rsplit(")", 1)[1].split()[0]

    def close(self) -> None:
        for pid in (self.child, self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


async def a_launcher(site: Site, agent: Agent, name: str, device: str) -> PlayedLauncher:
    pod = await site.bind(name, device)
    await site.start(pod, device)
    launcher = await asyncio.to_thread(PlayedLauncher, site, pod, device)
    await turns(lambda: agent.launchers.is_connected(pod.uid))
    return launcher


async def test_the_process_and_the_launcher_of_a_pod_are_hit_and_nobody_elses(site: Site) -> None:
    async with node_agent(site.config, site.cluster) as agent:
        await site.registered()
        one = await a_launcher(site, agent, "a", "gpu-0")
        other = await a_launcher(site, agent, "b", "gpu-1")
        pod = {"pod": "a", "namespace": "default"}
        try:
            hang = await drill(site, "process-hang", **pod)
            assert hang.status.phase == "Done", hang
            await turns(lambda: one.state() == "T")
            await site.cluster.patch(Drill, hang.name, {"spec": {"undo": True}})
            await settled(site, hang.name, "Undone")
            await turns(lambda: one.state() == "S")
            assert (await drill(site, "process-kill", **pod)).status.phase == "Done"
            assert one.process.stdout is not None
            assert await asyncio.to_thread(one.process.stdout.readline) == "ended -9\n"
            assert (await drill(site, "process-kill", **pod)).status.reason == "NotRunning"
            assert (await drill(site, "launcher-kill", **pod)).status.phase == "Done"
            assert await asyncio.to_thread(one.process.wait, PATIENCE_S) == -signal.SIGKILL
            await turns(lambda: agent.launchers.process_of("default", "a") is None)
            assert (await drill(site, "launcher-kill", **pod)).status.reason == "NoLauncher"
            assert (other.process.poll(), other.state()) == (None, "S")
        finally:
            one.close()
            other.close()


async def test_a_process_that_was_stopped_goes_on_when_the_next_agent_finds_it(site: Site) -> None:
    async with node_agent(site.config, site.cluster) as agent:
        await site.registered()
        one = await a_launcher(site, agent, "a", "gpu-0")
        hang = await drill(site, "process-hang", pod="a", namespace="default")
        await turns(lambda: one.state() == "T")
    try:
        async with node_agent(site.config, site.cluster):
            assert (await settled(site, hang.name, "Undone")).status.reason == "AgentRestarted"
            await turns(lambda: one.state() == "S")
    finally:
        one.close()


async def test_an_agent_that_sees_no_processes_of_others_says_so(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a process namespace of its own the kernel says 0."""
    monkeypatch.setattr(socket, "SO_PEERCRED", socket.SO_TYPE)  # answers with four bytes: no credentials
    async with node_agent(site.config, site.cluster) as agent:
        await site.registered()
        one = await a_launcher(site, agent, "a", "gpu-0")
        try:
            done = await drill(site, "launcher-kill", pod="a", namespace="default")
            assert (done.status.phase, done.status.reason) == ("Refused", "ProcessesHidden")
            assert one.process.poll() is None
        finally:
            one.close()


# --- beside it ----------------------------------------------------------------------------------------------------------


async def test_what_the_kernel_said_while_no_agent_ran_is_heard(site: Site, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    pci = "0000:51:00.0"
    (tmp_path / "dev/kmsg").write_text(an_xid(4, pci, 79), encoding="ascii")
    config = msgspec.structs.replace(site.config, machine_root=str(tmp_path))
    async with node_agent(config, site.cluster) as agent:
        (device,) = [row.id for row in agent.inventory.rows.values() if row.pci == pci]
        await site.until(lambda nd: "xid-79" in codes(nd, device), "the signal")
