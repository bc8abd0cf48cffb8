"""Drills on the node of an agent beside a kubelet: what it can break there, and why it does not do the rest.

Fake devices and their plugins break as in `remuda up`. Real ones are never broken: a drill that takes a real device away is a
failure. Of a pod the agent reaches what its launcher's connection leads to: the launcher, and the user's process. What is the
kubelet's, the cloud's or the network's is refused by name, with what to do instead; so no drill on this node waits for ever.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from remuda.agent.agent import Agent
from remuda.agent.launchers.launcher_processes import LauncherProcess, signal_launcher_process, signal_user_process
from remuda.agent.orders.node_commands import Run, run_node_hook
from remuda.api.drills import DrillKind, DrillSpec
from remuda.api.errors import Refusal
from remuda.link.device_drills import (
    device_drill_factor,
    inject_device_drill_over_link,
    inject_plugin_drill_over_link,
    take_back_drill_over_link,
)

REBOOT_COMMAND_S = 60.0
LOOK_S = 0.2  # for a launcher that has not dialled this agent yet
_BOOT = "Rebooting; the boot was "  # and its id: how the next agent knows that it happened

_PLUGINS = (DrillKind.PLUGIN_KILL, DrillKind.PLUGIN_HANG, DrillKind.ALLOCATE_FAIL)
_INSTEAD = {
    DrillKind.NODE_LOST: "Switch the machine off yourself",
    DrillKind.NODE_PARTITION: "Cut its network off yourself",
    DrillKind.KUBELET_RESTART: "Restart it on the node: systemctl restart kubelet",
    DrillKind.SPOT_NOTICE: "Set the node's condition SpotTermination yourself, in its status",
    DrillKind.MAINTENANCE_NOTICE: "Set the node's condition MaintenancePlanned yourself, in its status",
}


class AgentDrills:
    """The `DrillSite` of one agent. `boot`: the kernel's id of this boot. `is_in_charge`: no newer agent has taken over."""

    after_restart = "AgentRestarted"

    def __init__(self, agent: Agent, boot: str, is_in_charge: Callable[[], bool]) -> None:
        self._agent = agent
        self._node = agent.config.node
        self._boot = boot
        self._is_in_charge = is_in_charge
        self._run: Run = run_node_hook

    def is_here(self, spec: DrillSpec) -> bool | None:
        """An agent may answer only what names its own node. Deleting a pod is the manager's."""
        return spec.node == self._node and spec.type is not DrillKind.POD_DELETE

    def is_in_charge(self) -> bool:
        return self._is_in_charge()

    def claim_words(self, spec: DrillSpec) -> str:
        return f"{_BOOT}{self._boot}." if spec.type is DrillKind.NODE_REBOOT else ""

    def has_happened(self, spec: DrillSpec, words: str) -> str:
        was = words.removeprefix(_BOOT).rstrip(".") if words.startswith(_BOOT) else self._boot
        return f"{self._node} was rebooted." if spec.type is DrillKind.NODE_REBOOT and was != self._boot else ""

    async def inject(self, spec: DrillSpec) -> str:
        match spec.type:
            case DrillKind.LAUNCHER_KILL:
                signal_launcher_process(self._launcher(spec), signal.SIGKILL)
                return f"SIGKILL to the launcher of pod {spec.pod} on {self._node}."
            case DrillKind.PROCESS_KILL:
                self._signal_process(spec, signal.SIGKILL)
                return f"SIGKILL to the user's process of pod {spec.pod} on {self._node}."
            case DrillKind.PROCESS_HANG:
                self._signal_process(spec, signal.SIGSTOP)
                return f"SIGSTOP to the user's process of pod {spec.pod} on {self._node}."
            case DrillKind.NODE_REBOOT:
                return await self._reboot()
            case DrillKind.DEVICE_SLOW:
                self._agent.hardware().throttle(spec.device, "hw-thermal")
                return (
                    f"{spec.device} of {self._node} reports that heat holds its clocks down. Its process is not slowed."
                )
            case DrillKind.POWER_CAP:
                factor = device_drill_factor(spec)
                self._agent.hardware().cap_power(1.0 / factor)
                return f"Every device of {self._node} reports a power cap (1/{factor:g}). No process is slowed."
        if spec.type in _INSTEAD:
            raise Refusal(
                "NotOnARealNode",
                f"The agent of {self._node} cannot do a {spec.type}: beside a kubelet that is not its to do.",
                f"{_INSTEAD[spec.type]}, or run the drill in `remuda up`.",
            )
        if spec.type in _PLUGINS:
            self._agent.hardware()  # a plugin of real devices serves real pods
            return inject_plugin_drill_over_link(self._agent, spec)
        return inject_device_drill_over_link(self._agent, spec)

    async def take_back(self, spec: DrillSpec) -> None:
        match spec.type:
            case DrillKind.PROCESS_HANG:
                await self._await_launcher(spec)
                self._signal_process(spec, signal.SIGCONT)
            case DrillKind.DEVICE_SLOW:
                self._agent.hardware().throttle(spec.device)
            case _:
                take_back_drill_over_link(self._agent, spec)

    async def carry_out_notice(self, spec: DrillSpec) -> None:
        raise Refusal("NotOnARealNode", "An agent gives no notices.", "Nothing is to be done.")

    # --- pods -----------------------------------------------------------------------------------------------------------

    def _launcher(self, spec: DrillSpec) -> LauncherProcess:
        found = self._agent.launchers.process_of(spec.namespace, spec.pod)
        if found is None:
            raise Refusal(
                "NoLauncher",
                f"No launcher of pod {spec.namespace}/{spec.pod} is connected on {self._node}.",
                "Wait until it runs; a pod without remuda-launch can only be deleted.",
            )
        if not found.pid:
            raise Refusal(
                "ProcessesHidden",
                f"The agent of {self._node} does not see the processes of other pods.",
                "Set hostPID: true in its DaemonSet, or use pod-delete.",
            )
        return found

    def _signal_process(self, spec: DrillSpec, number: signal.Signals) -> None:
        if not signal_user_process(self._launcher(spec), number):
            raise Refusal("NotRunning", "The launcher runs no user process now.", "Wait until the barrier opens.")

    async def _await_launcher(self, spec: DrillSpec) -> None:
        """After a restart of the agent it dials again; a process that was stopped must not stay so."""
        launchers = self._agent.launchers
        for _ in range(round(self._agent.config.rejoin_s / LOOK_S)):
            if launchers.process_of(spec.namespace, spec.pod) is not None:
                return
            await asyncio.sleep(LOOK_S)

    # --- the node -------------------------------------------------------------------------------------------------------

    async def _reboot(self) -> str:
        command = self._agent.config.rules.reboot_command
        if not command:
            raise Refusal(
                "NoRebootCommand",
                f"The agent of {self._node} has no way to reboot it.",
                "Start it with --reboot-command.",
            )
        try:
            async with asyncio.timeout(REBOOT_COMMAND_S):
                ran = await self._run(command, {"REMUDA_ACTION": "reboot", "REMUDA_NODE": self._node})
        except TimeoutError:
            raise Refusal(
                "DeadlinePassed", f"The reboot command did not end within {REBOOT_COMMAND_S:g} s.", "Look at the node."
            ) from None
        if ran.code:
            raise Refusal(
                "CommandFailed", f"The reboot command exited with code {ran.code}. {ran.output}", "Look at the node."
            )
        return f"The reboot command of {self._node} ran."
