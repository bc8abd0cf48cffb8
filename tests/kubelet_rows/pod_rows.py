"""Rows of the pod: how its containers get devices, who is refused, and which containers a rule restarts."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda.link.device_plugin_port import ContainerAllocation, PreferredRequest
from tests.builders.evidence import note
from tests.builders.waiting import PATIENCE_S, until
from tests.kubelet_rows.rig import (
    FOUR,
    NodeRig,
    Once,
    StartPlugin,
    condition,
    container_status,
    health,
    held,
    init_restarts,
    is_running,
    phase,
    pod_body,
    reject_pod,
    restarts,
    run_pod,
    see_counts,
    see_pod,
    serving,
)

RESTARTING = "AllContainersRestarting"  # the pod condition


class PodRows:
    """Needs the fixtures `rig` and `plugin`."""

    @pytest.fixture
    def once(self) -> Iterator[Once]:
        with tempfile.TemporaryDirectory(prefix="remuda-once-") as place:
            yield Once(Path(place))

    # --- Allocate -----------------------------------------------------------------------------------------------------

    async def test_one_allocate_per_container_with_what_was_preferred(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/prefer"

        async def last(request: PreferredRequest) -> tuple[str, ...]:
            return tuple(sorted(request.available)[-request.size :])

        stock = await serving(rig, plugin, resource, prefer=last)
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

        await serving(rig, plugin, resource, prefer=nonsense)
        await run_pod(rig, pod_body("holder", resource, 2))
        mine = await held(rig, "holder")
        assert len(mine) == 2
        assert "d3" in mine
        assert set(mine) <= set(FOUR)

    async def test_a_failing_preference_fails_the_pod(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/bad-prefer"

        async def broken(request: PreferredRequest) -> tuple[str, ...]:
            raise RuntimeError("no topology")

        await serving(rig, plugin, resource, prefer=broken)
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

        stock = await serving(rig, plugin, resource, allocate=allocate)
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

        await serving(rig, plugin, resource, allocate=allocate)
        try:
            await rig.create_pod(pod_body("stuck", resource, 1))
            await asyncio.wait_for(asked.wait(), PATIENCE_S)
            await rig.create_pod(pod_body("plain"))
            await self.nothing_starts(rig, "plain")
            assert phase(await rig.pod("stuck")) in ("Pending", "")
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
        await serving(rig, plugin, resource)
        await run_pod(rig, pod_body("first", resource, 4))
        await rig.delete_pod("first")

        async def freed() -> bool:
            return not await held(rig, "first")

        await until("podresources to forget the pod", freed)
        await run_pod(rig, pod_body("second", resource, 4))

    async def test_more_than_are_free_is_refused(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/short"
        await serving(rig, plugin, resource)
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
        stock = await serving(rig, plugin, resource)
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
        stock = await serving(rig, plugin, resource)
        body = pod_body("holder", resource, 1)
        main = body["spec"]["containers"][0]
        body["spec"]["initContainers"] = [{**main, "name": "init", "command": ["sh", "-c", "true"]}]
        await run_pod(rig, body)
        first, second = stock.asked("allocate")
        assert first == second
        assert await held(rig, "holder") == first

    async def test_a_sidecar_keeps_its_devices(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/sidecar"
        stock = await serving(rig, plugin, resource)
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
        assert phase(after) == "Running", "although the pod says Never"

        other = pod_body("other", restart="Never")
        other["spec"]["containers"] = [once.ending(other, 3, rules)]
        await rig.create_pod(other)
        ended = await see_pod(rig, "other", "ended", lambda p: phase(p) == "Failed")
        assert restarts(ended) == 0, "no rule names 3, so Never holds"
        note("exit 42: that container restarted once, its neighbour not, pod Running under Never; exit 3: pod Failed")

    async def test_row_59_restart_all_keeps_the_pod_and_runs_init_again(
        self, rig: NodeRig, plugin: StartPlugin, once: Once
    ) -> None:
        resource = "rows.test/all"
        await serving(rig, plugin, resource)
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
        assert init_restarts(after, "init") == 1, "init containers run again"

        async def found_its_mark() -> bool:
            return (await rig.output("whole")).count("again") == 1

        await until("the container to find what it had written to its volume", found_its_mark)
        done = await see_pod(rig, "whole", "told that it is over", lambda p: condition(p, RESTARTING) == "False")
        assert condition(done, RESTARTING) == "False"
        note(
            f"exit 42: both containers and init ran again within the grace of 30 s, same UID, address and {len(mine)} devices"
        )
