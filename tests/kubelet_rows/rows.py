"""What the kubelet does by event: one scenario per row of docs/kubelet-behaviour.md, run on a real kubelet and on ours.

`KubeletRows` is inherited by a test class per node; the fixture `rig` gives the node, `plugin` starts stock plugins on it. What
is asserted here was seen on the real kubelet of `make kube`; docs/kubelet-behaviour.md holds it against what is documented.
Each row has a resource of its own, so that what one leaves behind (a resource is remembered for five minutes) is no other's.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc
import pytest

from remuda.link.deviceplugin import HEALTHY, ContainerAllocation, PreferredRequest
from tests.builders.evidence import note
from tests.kubelet_rows.rig import (
    Body,
    NodeRig,
    container_status,
    counts,
    devices_of,
    health,
    is_running,
    pod_body,
    restarts,
    until,
)
from tests.kubelet_rows.stock_plugin import StockPlugin

FOUR = ("d0", "d1", "d2", "d3")
RESTARTING = "AllContainersRestarting"  # the pod condition


class StartPlugin(Protocol):
    def __call__(self, resource: str, devices: tuple[str, ...] = FOUR, **options: Any) -> Awaitable[StockPlugin]:
        """Serving and registered; stopped when the test ends."""
        ...


@asynccontextmanager
async def stock_plugins(directory: Path) -> AsyncIterator[StartPlugin]:
    """Registers those it is asked for, and stops them in the end."""
    started: list[StockPlugin] = []

    async def start(resource: str, devices: tuple[str, ...] = FOUR, **options: Any) -> StockPlugin:
        stock = StockPlugin(directory, resource, devices, **options)
        started.append(stock)
        await stock.serve()
        await stock.register()
        return stock

    yield start
    for stock in started:
        await stock.stop()


async def see_counts(rig: NodeRig, resource: str, capacity: int | None, allocatable: int | None) -> None:
    wanted = tuple(None if n is None else str(n) for n in (capacity, allocatable))
    seen: tuple[str | None, str | None] = (None, None)

    async def there() -> bool:
        nonlocal seen
        seen = counts(await rig.node(), resource)
        return seen == wanted

    try:
        await until(f"{resource} to read {wanted}", there)
    except AssertionError as error:
        raise AssertionError(f"{error}; it reads {seen}") from None


async def see_pod(rig: NodeRig, name: str, what: str, holds: Callable[[Body], bool]) -> Body:
    last: Body = {}

    async def there() -> bool:
        nonlocal last
        last = await rig.pod(name)
        return holds(last)

    try:
        await until(f"pod {name}: {what}", there)
    except AssertionError as error:
        raise AssertionError(f"{error}; its status is {last.get('status')}") from None
    return last


async def run_pod(rig: NodeRig, body: Body) -> Body:
    await rig.create_pod(body)
    return await see_pod(rig, body["metadata"]["name"], "running", is_running)


async def reject_pod(rig: NodeRig, body: Body) -> Body:
    """The status of a pod that the node refuses to admit."""
    await rig.create_pod(body)
    pod = await see_pod(rig, body["metadata"]["name"], "ended", lambda p: _phase(p) in ("Failed", "Running"))
    assert _phase(pod) == "Failed", pod["status"]
    status: Body = pod["status"]
    return status


def _phase(pod: Body) -> str:
    return str(pod.get("status", {}).get("phase", ""))


async def held(rig: NodeRig, pod: str, container: str = "main") -> tuple[str, ...]:
    return devices_of(await rig.pod_resources(), pod, container)


async def see_held(rig: NodeRig, pod: str, devices: tuple[str, ...]) -> None:
    async def there() -> bool:
        return await held(rig, pod) == devices

    await until(f"podresources to say that {pod} has {devices}", there)


class Once:
    """Containers that end with a code in their first run, and stay in their next: a volume tells them apart."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def ending(self, body: Body, code: int, rules: list[Body]) -> Body:
        """`body`'s first container. On the embedded node the directory is the machine's own, on a kubelet a volume."""
        name = body["metadata"]["name"]
        place = self._directory / name
        place.mkdir()
        mark = place / "ran"
        words = f"[ -e {mark} ] && echo again && exec sleep 3600; echo first > {mark}; sleep 1; exit {code}"
        body["spec"]["volumes"] = [{"name": "kept", "emptyDir": {}}]
        return {
            **body["spec"]["containers"][0],
            "command": ["sh", "-c", words],
            "restartPolicy": "Never",
            "restartPolicyRules": rules,
            "volumeMounts": [{"name": "kept", "mountPath": str(place)}],
        }


def _init_restarts(pod: Body, name: str) -> int:
    found = pod["status"].get("initContainerStatuses", [])
    return next(int(c["restartCount"]) for c in found if c["name"] == name)


def _condition(pod: Body, kind: str) -> str:
    found = pod.get("status", {}).get("conditions", [])
    return next((str(c["status"]) for c in found if c["type"] == kind), "")


class KubeletRows:
    """Needs the fixtures `rig` and `plugin`."""

    @pytest.fixture
    def once(self) -> Iterator[Once]:
        with tempfile.TemporaryDirectory(prefix="remuda-once-") as place:
            yield Once(Path(place))

    # --- health -------------------------------------------------------------------------------------------------------

    async def test_unhealthy_lowers_allocatable_alone_and_reaches_the_pod(
        self, rig: NodeRig, plugin: StartPlugin
    ) -> None:
        resource = "rows.test/unhealthy"
        stock = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        before = await run_pod(rig, pod_body("holder", resource, 2))
        mine = await held(rig, "holder")
        assert len(mine) == 2
        assert health(before, resource) == dict.fromkeys(mine, "Healthy")

        await stock.set_health(mine[0])
        await see_counts(rig, resource, 4, 3)
        after = await see_pod(rig, "holder", "told", lambda p: health(p, resource).get(mine[0]) == "Unhealthy")
        assert health(after, resource)[mine[1]] == "Healthy"
        assert is_running(after), "the holder is left alone"
        assert restarts(after) == 0
        assert await held(rig, "holder") == mine

        await stock.set_health(mine[0], HEALTHY)
        await see_counts(rig, resource, 4, 4)
        await see_pod(rig, "holder", "told again", lambda p: set(health(p, resource).values()) == {"Healthy"})

    async def test_any_other_word_counts_as_unhealthy(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/word"
        stock = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        await run_pod(rig, pod_body("holder", resource, 4))
        await stock.set_health("d1", "Degraded")
        await see_counts(rig, resource, 4, 3)
        await see_pod(rig, "holder", "told", lambda p: health(p, resource).get("d1") == "Unhealthy")

    async def test_a_device_dropped_from_the_list_lowers_both_and_the_pod_hears_healthy(
        self, rig: NodeRig, plugin: StartPlugin
    ) -> None:
        resource = "rows.test/dropped"
        stock = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        await run_pod(rig, pod_body("holder", resource, 4))
        await stock.set_health("d0")
        await see_pod(rig, "holder", "told", lambda p: health(p, resource).get("d0") == "Unhealthy")

        await stock.drop("d0")
        await see_counts(rig, resource, 3, 3)
        await stock.set_health("d1")  # something else makes the status be written
        pod = await see_pod(rig, "holder", "told", lambda p: health(p, resource).get("d1") == "Unhealthy")
        assert health(pod, resource)["d0"] == "Healthy", "the flaw: a device that is gone is called healthy"
        assert is_running(pod)
        assert restarts(pod) == 0
        assert await held(rig, "holder") == FOUR

    # --- the plugin goes away -----------------------------------------------------------------------------------------

    async def test_a_lost_plugin_takes_allocatable_to_zero_and_comes_back(
        self, rig: NodeRig, plugin: StartPlugin
    ) -> None:
        resource = "rows.test/lost"
        stock = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        await run_pod(rig, pod_body("holder", resource, 1))
        mine = await held(rig, "holder")

        await stock.stop()
        await see_counts(rig, resource, 4, 0)
        pod = await rig.pod("holder")
        assert health(pod, resource) == {mine[0]: "Healthy"}, "the flaw: the pod hears nothing of it"

        status = await reject_pod(rig, pod_body("late", resource, 1))
        assert status["reason"] == "UnexpectedAdmissionError"
        assert f"no healthy devices present; cannot allocate unhealthy devices {resource}" in status["message"]

        # The holder's container restarts from what was allocated.
        await rig.kill_container("holder")
        pod = await see_pod(rig, "holder", "restarted", lambda p: restarts(p) == 1 and is_running(p))
        assert health(pod, resource) == {mine[0]: "Healthy"}, "also in a status that was written anew"
        assert await held(rig, "holder") == mine

        again = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        assert again.asked("allocate") == []
        pod = await rig.pod("holder")
        assert restarts(pod) == 1
        assert is_running(pod)
        assert await held(rig, "holder") == mine
        assert _phase(await rig.pod("late")) == "Failed", "nobody retries it"

    async def test_two_plugins_of_one_resource_overlap_without_a_dip(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/overlap"
        old = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        new = await plugin(resource)
        await asyncio.wait_for(new.watched.wait(), 10)
        await old.stop()
        pod = await run_pod(rig, pod_body("late", resource, 1))
        assert len(new.asked("allocate")) == 1
        assert restarts(pod) == 0
        await see_counts(rig, resource, 4, 4)

    # --- the kubelet restarts -----------------------------------------------------------------------------------------

    async def test_a_kubelet_restart_keeps_devices_and_restart_count(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/restart"
        stock = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        before = await run_pod(rig, pod_body("holder", resource, 2))
        mine = await held(rig, "holder")
        socket = rig.plugin_directory / stock.socket

        await rig.stop_kubelet()
        assert socket.exists()
        await rig.start_kubelet()
        assert not socket.exists(), "sockets in the directory are deleted at start: a plugin must serve anew"
        assert (rig.plugin_directory / "kubelet_internal_checkpoint").exists()
        await see_counts(rig, resource, 0, 0)
        await see_held(rig, "holder", mine)  # for a moment it says that nobody holds anything

        await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        after = await rig.pod("holder")
        assert is_running(after)
        assert restarts(after) == 0
        assert container_status(after)["state"] == container_status(before)["state"], "it was never started anew"
        assert await held(rig, "holder") == mine
        await run_pod(rig, pod_body("second", resource, 2))
        assert sorted(await held(rig, "second") + mine) == list(FOUR)

    async def test_a_reboot_fails_the_pods_that_come_before_their_plugin(
        self, rig: NodeRig, plugin: StartPlugin
    ) -> None:
        resource = "rows.test/reboot"
        stock = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        await run_pod(rig, pod_body("holder", resource, 1))
        await run_pod(rig, pod_body("plain"))

        await rig.stop_kubelet()
        await stock.stop()
        await rig.lose_containers()
        await rig.start_kubelet()
        pod = await see_pod(rig, "holder", "refused", lambda p: _phase(p) == "Failed")
        assert pod["status"]["reason"] == "UnexpectedAdmissionError"
        assert "no healthy devices present; cannot allocate unhealthy devices" in pod["status"]["message"]
        await see_pod(rig, "plain", "restarted", lambda p: is_running(p) and restarts(p) == 1)
        await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        assert _phase(await rig.pod("holder")) == "Failed", "and stays so when the plugin is back"

    async def test_a_reboot_with_the_device_gone_bad_fails_its_holder(self, rig: NodeRig, plugin: StartPlugin) -> None:
        """The plugin is back before the pods are looked at: then what they held is looked at, device by device."""
        resource = "rows.test/reboot-bad"
        stock = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        for name in ("one", "two"):
            await run_pod(rig, pod_body(name, resource, 1))
        bad, good = await held(rig, "one"), await held(rig, "two")

        await rig.stop_kubelet()
        await stock.stop()
        await rig.lose_containers()
        quick = StockPlugin(rig.plugin_directory, resource, FOUR)
        await quick.set_health(bad[0])
        try:
            await rig.start_kubelet(quick.register_at_once())
            pod = await see_pod(rig, "one", "refused", lambda p: _phase(p) == "Failed")
            assert pod["status"]["reason"] == "UnexpectedAdmissionError"
            assert "previously allocated devices are no longer healthy" in pod["status"]["message"]
            await see_pod(rig, "two", "restarted", lambda p: is_running(p) and restarts(p) == 1)
            assert await held(rig, "two") == good
            assert quick.asked("allocate") == [], "it runs on what was allocated before the reboot"
        finally:
            await quick.stop()

    async def test_a_node_made_anew_shows_the_old_counts_and_starts_pods_without_devices(
        self, rig: NodeRig, plugin: StartPlugin
    ) -> None:
        """The flaw: the kubelet means to write zeros, but takes its own socket in the directory for a checkpoint."""
        resource = "rows.test/anew"
        stock = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        await rig.stop_kubelet()
        await stock.stop()
        await rig.lose_checkpoint()
        await rig.start_kubelet()
        await run_pod(rig, pod_body("blind", resource, 1))
        assert await held(rig, "blind") == ()
        assert counts(await rig.node(), resource) == ("4", "4")
        await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        status = await reject_pod(rig, pod_body("greedy", resource, 4))
        assert status["reason"] == f"OutOf{resource}", "the blind pod counts as if it had a device"
        await run_pod(rig, pod_body("sighted", resource, 3))
        assert len(await held(rig, "sighted")) == 3

    # --- Allocate -----------------------------------------------------------------------------------------------------

    async def test_one_allocate_per_container_with_what_was_preferred(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/prefer"

        async def last(request: PreferredRequest) -> tuple[str, ...]:
            return tuple(sorted(request.available)[-request.size :])

        stock = await plugin(resource, prefer=last)
        await see_counts(rig, resource, 4, 4)
        body = pod_body("holder", resource, 2)
        body["spec"]["containers"].append({**body["spec"]["containers"][0], "name": "other"})
        body["spec"]["containers"][1]["resources"] = {"limits": {resource: "1"}}
        await rig.create_pod(body)
        await see_pod(rig, "holder", "running", lambda p: is_running(p) and is_running(p, "other"))
        assert stock.asked("allocate") == [("d2", "d3"), ("d1",)]
        assert stock.asked("prefer") == [FOUR, ("d0", "d1")]
        assert await held(rig, "holder") == ("d2", "d3")
        assert await held(rig, "holder", "other") == ("d1",)

        async def shown() -> bool:
            return "TEST_DEVICES=d2,d3" in await rig.output("holder")

        await until("the container to show its devices", shown)

    async def test_a_preference_is_advice(self, rig: NodeRig, plugin: StartPlugin) -> None:
        """Ids that are not on offer are passed over, and what is short is filled up."""
        resource = "rows.test/advice"

        async def nonsense(request: PreferredRequest) -> tuple[str, ...]:
            return ("d3", "no-such-device")

        await plugin(resource, prefer=nonsense)
        await see_counts(rig, resource, 4, 4)
        await run_pod(rig, pod_body("holder", resource, 2))
        mine = await held(rig, "holder")
        assert len(mine) == 2
        assert "d3" in mine
        assert set(mine) <= set(FOUR)

    async def test_a_failing_preference_fails_the_pod(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/bad-prefer"

        async def broken(request: PreferredRequest) -> tuple[str, ...]:
            raise RuntimeError("no topology")

        await plugin(resource, prefer=broken)
        await see_counts(rig, resource, 4, 4)
        status = await reject_pod(rig, pod_body("pod", resource, 1))
        assert status["reason"] == "UnexpectedAdmissionError"
        assert "GetPreferredAllocation rpc failed" in status["message"]

    async def test_a_failing_allocate_fails_the_pod_for_good(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/bad-allocate"
        fails = True

        async def allocate(ids: tuple[str, ...]) -> ContainerAllocation:
            if fails:
                raise RuntimeError("the driver said no")
            return ContainerAllocation()

        stock = await plugin(resource, allocate=allocate)
        await see_counts(rig, resource, 4, 4)
        status = await reject_pod(rig, pod_body("pod", resource, 4))
        assert status["reason"] == "UnexpectedAdmissionError"
        assert status["message"].startswith("Pod was rejected: Allocate failed due to "), status
        assert status["message"].endswith(", which is unexpected"), status
        assert "containerStatuses" not in status or not is_running({"status": status})
        assert len(stock.asked("allocate")) == 1, "nobody retries"
        fails = False
        await run_pod(rig, pod_body("next", resource, 4))  # its devices were given back

    async def test_a_hanging_allocate_holds_up_every_pod_of_the_node(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/hang"
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def allocate(ids: tuple[str, ...]) -> ContainerAllocation:
            asked.set()
            await go_on.wait()
            return ContainerAllocation()

        await plugin(resource, allocate=allocate)
        await see_counts(rig, resource, 4, 4)
        try:
            await rig.create_pod(pod_body("stuck", resource, 1))
            await asyncio.wait_for(asked.wait(), 20)
            await rig.create_pod(pod_body("plain"))
            await self.nothing_starts(rig, "plain")
            assert _phase(await rig.pod("stuck")) in ("Pending", "")
        finally:
            go_on.set()
        await see_pod(rig, "stuck", "running", is_running)
        await see_pod(rig, "plain", "running", is_running)

    async def nothing_starts(self, rig: NodeRig, pod: str) -> None:
        """A pod that would run within a second or two has not been touched for three."""
        with pytest.raises(AssertionError):
            await until("", lambda: self._is_running(rig, pod), seconds=3.0)

    async def _is_running(self, rig: NodeRig, pod: str) -> bool:
        return is_running(await rig.pod(pod))

    # --- devices and pods ---------------------------------------------------------------------------------------------

    async def test_devices_of_an_ended_pod_are_free_for_the_next(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/ended"
        await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        await run_pod(rig, pod_body("first", resource, 4))
        await rig.delete_pod("first")

        async def freed() -> bool:
            return not await held(rig, "first")

        await until("podresources to forget the pod", freed)
        await run_pod(rig, pod_body("second", resource, 4))

    async def test_more_than_are_free_is_refused(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/short"
        await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        await run_pod(rig, pod_body("first", resource, 3))
        status = await reject_pod(rig, pod_body("second", resource, 2))
        assert status["reason"] == "UnexpectedAdmissionError"
        assert (
            f"requested number of devices unavailable for {resource}. Requested: 2, Available: 1" in status["message"]
        )

    async def test_running_pods_stay_when_allocatable_falls_below_what_they_hold(
        self, rig: NodeRig, plugin: StartPlugin
    ) -> None:
        resource = "rows.test/below"
        stock = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        await run_pod(rig, pod_body("first", resource, 2))
        await run_pod(rig, pod_body("second", resource, 2))
        for device in FOUR:
            await stock.set_health(device)
        await see_counts(rig, resource, 4, 0)
        await rig.kill_container("first")  # also a restart in place goes on, on devices known to be bad
        pod = await see_pod(rig, "first", "restarted", lambda p: restarts(p) == 1 and is_running(p))
        assert set(health(pod, resource).values()) == {"Unhealthy"}
        assert is_running(await rig.pod("second"))

    async def test_a_resource_nobody_serves_is_stripped_and_the_pod_starts_without(
        self, rig: NodeRig, plugin: StartPlugin
    ) -> None:
        pod = await run_pod(rig, pod_body("blind", "rows.test/nobody", 1))
        assert restarts(pod) == 0
        assert await held(rig, "blind") == ()

    async def test_init_containers_hand_their_devices_on(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/init"
        stock = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        body = pod_body("holder", resource, 1)
        main = body["spec"]["containers"][0]
        body["spec"]["initContainers"] = [{**main, "name": "init", "command": ["sh", "-c", "true"]}]
        await run_pod(rig, body)
        first, second = stock.asked("allocate")
        assert first == second
        assert await held(rig, "holder") == first

    async def test_a_sidecar_keeps_its_devices(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/sidecar"
        stock = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        body = pod_body("holder", resource, 1)
        main = body["spec"]["containers"][0]
        body["spec"]["initContainers"] = [{**main, "name": "side", "restartPolicy": "Always"}]
        await run_pod(rig, body)
        first, second = stock.asked("allocate")
        assert first != second
        assert await held(rig, "holder", "side") == first
        assert await held(rig, "holder") == second

    # --- restart rules ------------------------------------------------------------------------------------------------

    async def test_row_58_a_rule_restarts_just_its_container_and_the_first_match_wins(
        self, rig: NodeRig, plugin: StartPlugin, once: Once
    ) -> None:
        rules = [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}},
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42, 43]}},
        ]
        body = pod_body("ruled", restart="Never")
        beside = {**body["spec"]["containers"][0], "name": "beside"}
        body["spec"]["containers"] = [once.ending(body, 42, rules), beside]
        before = await run_pod(rig, body)
        after = await see_pod(rig, "ruled", "restarted", lambda p: restarts(p) == 1 and is_running(p))
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert container_status(after)["lastState"]["terminated"]["exitCode"] == 42
        assert restarts(after, "beside") == 0, "the first matching rule won: only that container"
        assert _phase(after) == "Running", "although the pod says Never"

        other = pod_body("other", restart="Never")
        other["spec"]["containers"] = [once.ending(other, 3, rules)]
        await rig.create_pod(other)
        ended = await see_pod(rig, "other", "ended", lambda p: _phase(p) == "Failed")
        assert restarts(ended) == 0, "no rule names 3, so Never holds"
        note("exit 42: that container restarted once, its neighbour not, pod Running under Never; exit 3: pod Failed")

    async def test_row_59_restart_all_keeps_the_pod_and_runs_init_again(
        self, rig: NodeRig, plugin: StartPlugin, once: Once
    ) -> None:
        resource = "rows.test/all"
        await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]
        body = pod_body("whole", resource, 2, restart="Never", grace_s=30)
        plain = {k: v for k, v in body["spec"]["containers"][0].items() if k != "resources"}
        init = {**plain, "name": "init", "command": ["sh", "-c", "echo prepared"]}
        stubborn = {**plain, "name": "beside", "command": ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]}
        body["spec"]["initContainers"] = [init]
        body["spec"]["containers"] = [once.ending(body, 42, rules), stubborn]
        before = await run_pod(rig, body)
        mine = await held(rig, "whole")
        after = await see_pod(
            rig,
            "whole",
            "restarted whole",
            lambda p: restarts(p) == 1 and is_running(p) and is_running(p, "beside") and restarts(p, "beside") == 1,
        )
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["status"]["podIP"] == before["status"]["podIP"]
        assert await held(rig, "whole") == mine
        assert _init_restarts(after, "init") == 1, "init containers run again"

        async def found_its_mark() -> bool:
            return (await rig.output("whole")).count("again") == 1

        await until("the container to find what it had written to its volume", found_its_mark)
        done = await see_pod(rig, "whole", "told that it is over", lambda p: _condition(p, RESTARTING) == "False")
        assert _condition(done, RESTARTING) == "False"
        note(
            f"exit 42: both containers and init ran again within the grace of 30 s, same UID, address and {len(mine)} devices"
        )

    # --- registration -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"version": "v1beta9"}, "v1beta9"),
            ({"resource": "cpu"}, "cpu"),
            ({"resource": "kubernetes.io/gpu"}, "kubernetes.io/gpu"),
            ({"endpoint": "nobody-serves.sock"}, "failed to dial device plugin"),
        ],
    )
    async def test_a_bad_registration_is_refused_and_says_why(
        self, rig: NodeRig, plugin: StartPlugin, change: dict[str, str], says: str
    ) -> None:
        stock = await plugin("rows.test/registered")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stock.register(**change)
        assert says in str(refused.value.details())

    async def test_the_same_socket_cannot_register_twice(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/twice"
        stock = await plugin(resource)
        await see_counts(rig, resource, 4, 4)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stock.register()
        assert "device plugin already connected" in str(refused.value.details())
        await see_counts(rig, resource, 4, 4)
