"""Rows of the plugin: what its word of a device does, what becomes of its pods without it, over restarts and reboots."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from remuda.link.device_plugin_port import HEALTHY
from tests.builders.waiting import PATIENCE_S
from tests.kubelet_rows.rig import (
    FOUR,
    NodeRig,
    StartPlugin,
    container_status,
    counts,
    health,
    held,
    is_running,
    phase,
    pod_body,
    reject_pod,
    restarts,
    run_pod,
    see_counts,
    see_held,
    see_pod,
    serving,
)
from tests.kubelet_rows.stock_plugin import StockPlugin


class PluginRows:
    """Needs the fixtures `rig` and `plugin`."""

    # --- health -------------------------------------------------------------------------------------------------------

    async def test_unhealthy_lowers_allocatable_alone_and_reaches_the_pod(
        self, rig: NodeRig, plugin: StartPlugin
    ) -> None:
        resource = "rows.test/unhealthy"
        stock = await serving(rig, plugin, resource)
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
        stock = await serving(rig, plugin, resource)
        await run_pod(rig, pod_body("holder", resource, 4))
        await stock.set_health("d1", "Degraded")
        await see_counts(rig, resource, 4, 3)
        await see_pod(rig, "holder", "told", lambda p: health(p, resource).get("d1") == "Unhealthy")

    async def test_a_device_dropped_from_the_list_lowers_both_and_the_pod_hears_healthy(
        self, rig: NodeRig, plugin: StartPlugin
    ) -> None:
        resource = "rows.test/dropped"
        stock = await serving(rig, plugin, resource)
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
        stock = await serving(rig, plugin, resource)
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

        again = await serving(rig, plugin, resource)
        assert again.asked("allocate") == []
        pod = await rig.pod("holder")
        assert restarts(pod) == 1
        assert is_running(pod)
        assert await held(rig, "holder") == mine
        assert phase(await rig.pod("late")) == "Failed", "nobody retries it"

    async def test_two_plugins_of_one_resource_overlap_without_a_dip(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/overlap"
        old = await serving(rig, plugin, resource)
        new = await plugin(resource)
        await asyncio.wait_for(new.watched.wait(), PATIENCE_S)
        await old.stop()
        pod = await run_pod(rig, pod_body("late", resource, 1))
        assert len(new.asked("allocate")) == 1
        assert restarts(pod) == 0
        await see_counts(rig, resource, 4, 4)

    # --- the kubelet restarts -----------------------------------------------------------------------------------------

    async def test_a_kubelet_restart_keeps_devices_and_restart_count(self, rig: NodeRig, plugin: StartPlugin) -> None:
        resource = "rows.test/restart"
        stock = await serving(rig, plugin, resource)
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

        await serving(rig, plugin, resource)
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
        stock = await serving(rig, plugin, resource)
        await run_pod(rig, pod_body("holder", resource, 1))
        await run_pod(rig, pod_body("plain"))

        await rig.stop_kubelet()
        await stock.stop()
        await rig.lose_containers()
        await rig.start_kubelet()
        pod = await see_pod(rig, "holder", "refused", lambda p: phase(p) == "Failed")
        assert pod["status"]["reason"] == "UnexpectedAdmissionError"
        assert "no healthy devices present; cannot allocate unhealthy devices" in pod["status"]["message"]
        await see_pod(rig, "plain", "restarted", lambda p: is_running(p) and restarts(p) == 1)
        await serving(rig, plugin, resource)
        assert phase(await rig.pod("holder")) == "Failed", "and stays so when the plugin is back"

    async def test_a_reboot_with_the_device_gone_bad_fails_its_holder(self, rig: NodeRig, plugin: StartPlugin) -> None:
        """The plugin is back before the pods are looked at: then what they held is looked at, device by device."""
        resource = "rows.test/reboot-bad"
        stock = await serving(rig, plugin, resource)
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
            pod = await see_pod(rig, "one", "refused", lambda p: phase(p) == "Failed")
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
        stock = await serving(rig, plugin, resource)
        await rig.stop_kubelet()
        await stock.stop()
        await rig.lose_checkpoint()
        await rig.start_kubelet()
        await run_pod(rig, pod_body("blind", resource, 1))
        assert await held(rig, "blind") == ()
        assert counts(await rig.node(), resource) == ("4", "4")
        await serving(rig, plugin, resource)
        status = await reject_pod(rig, pod_body("greedy", resource, 4))
        assert status["reason"] == f"OutOf{resource}", "the blind pod counts as if it had a device"
        await run_pod(rig, pod_body("sighted", resource, 3))
        assert len(await held(rig, "sighted")) == 3

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
        stock = await serving(rig, plugin, resource)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stock.register()
        assert "device plugin already connected" in str(refused.value.details())
        await see_counts(rig, resource, 4, 4)
