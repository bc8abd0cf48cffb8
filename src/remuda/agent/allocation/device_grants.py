"""Handing out devices: the table, the directories and the launchers' doors kept in step.

Two ways in. A device plugin's Allocate (`hand_out`) makes a grant that is nobody's: directory, socket, environment. Who it is
for comes later (`attach`): from the embedded node at once, on a real one from the launcher's hello and podresources. A pod
without devices is given its directory by name (`allocate`). One way out: `release`, when the pod's processes are confirmed gone,
or `drop` for a grant whose pod never came.

Invariants: a grant with a directory has its door open; a device of an attached grant goes to no other pod before `release`;
after a restart (`restore`) every directory on disk is a grant again, so an upgrade of the agent frees nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import structlog

from remuda.agent.allocation.allocation_table import (
    AllocationTable,
    Grant,
    granted_device_env,
    granted_pod_env,
    is_directory_of_grant,
    is_directory_of_pod,
    make_grant_directory,
    read_grant,
    remove_grant_directory,
    write_grant_marker,
)
from remuda.agent.allocation.cdi_specs import CdiSpecs, cdi_name
from remuda.agent.allocation.device_choice import devices_chosen_for, devices_in_order
from remuda.agent.inventory import Inventory, device_behind_plugin_id
from remuda.agent.launchers.launcher_registry import LauncherRegistry
from remuda.agent.launchers.launcher_state import LauncherRecord
from remuda.agent.launchers.log_tails import launcher_container
from remuda.api.devices import Holding
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_seconds, to_time
from remuda.api.names import LABEL_GANG
from remuda.link.allocation_port import Allocation
from remuda.link.device_plugin_port import ContainerAllocation, DeviceNode, Mount

log = structlog.get_logger(__name__)

ALLOC_PATH = "/run/remuda/alloc"  # in the container
LAUNCHER_PATH = "/run/remuda/bin"


class GrantPlace(msgspec.Struct, frozen=True):
    """`root` holds the allocations' directories. `sockets` False: every pod is simulated, so nothing touches the disk.
    `launcher_state`: the directory with remuda-launch.pyz to show to containers; "" when it is in their images. `shared`:
    containers have users of their own, who must be able to use their allocation's directory."""

    node: str
    root: str
    sockets: bool = True
    launcher: str = ""
    shared: bool = False


class AllocationGrants:
    def __init__(
        self,
        place: GrantPlace,
        inventory: Inventory,
        launchers: LauncherRegistry,
        *,
        clock: Callable[[], float],
        changed: Callable[[], None],
        device_files: Callable[[str], Sequence[str]],
    ) -> None:
        """`changed`: holdings are others now."""
        self.table = AllocationTable(place.node)
        self.is_open = True  # False: another agent has taken over, and only that one hands out
        self.recheck: Callable[[Sequence[str]], Awaitable[None]] | None = None  # are these devices' holders gone?
        self.check_clean: Callable[[str], Awaitable[bool]] | None = None  # report what an ended holder left on a device
        self.cdi: CdiSpecs | None = None  # devices are named to the runtime instead of listing their files
        self._place = place
        self._inventory = inventory
        self._launchers = launchers
        self._clock = clock
        self._changed = changed
        self._device_files = device_files
        self._inherited: dict[str, list[Holding]] = {}  # by uid
        self._served: set[str] = set()
        inventory.subscribe(lambda: self._served.update(inventory.resources()))
        launchers.links.socket_mode = 0o666 if place.shared else 0o600

    # --- what the device plugin does ------------------------------------------------------------------------------------

    async def hand_out(self, resource: str, ids: Sequence[str]) -> ContainerAllocation:
        """Allocate. Refusal UnknownDevice, DeviceNotHealthy, or DeviceHeld while the last holder is not known to be gone."""
        if not self.is_open:
            raise Refusal(
                "Superseded", "Another agent serves this node now.", "Ask that one; this one is about to end."
            )
        new = Grant(tuple(devices_in_order(ids)), resource=resource, at=self._clock())
        if not new.devices or len(set(new.devices)) != len(new.devices):
            raise Refusal(
                "InvalidAllocation", f"The allocation names {', '.join(ids) or 'no devices'}.", "Name each device once."
            )
        try:
            self._check(new, resource)
        except Refusal as refusal:
            if refusal.reason != "DeviceHeld" or self.recheck is None:
                raise
            await self.recheck(new.rows)
            self._check(new, resource)
        await self.look_for_leftovers(new.rows)
        self._check_health(new)
        path = self._directory(new)
        if self._place.sockets:
            old = self.table.grants.get(new.name)
            if old is None or not path.is_dir():
                self._launchers.links.shut(str(path))
                make_grant_directory(path, new, shared=self._place.shared)
            await self._launchers.links.listen("", str(path))
        self.table.enter(new)
        return self._answer(new, path)

    def _check(self, new: Grant, resource: str) -> None:
        self.table.check(new, self._inventory.rows)
        for row in new.rows:
            has = self._inventory.rows[row].resource
            if has != resource:
                what = f"belongs to {has}" if has else "is cut into slices"
                raise Refusal(
                    "WrongResource",
                    f"{row} of {self._place.node} {what}, so it does not count for {resource}.",
                    "Choose another device.",
                )

    async def look_for_leftovers(self, rows: Iterable[str]) -> None:
        """What is found makes the device unfit, so the next check refuses it. A device that is shared has processes on it."""
        for row in dict.fromkeys(rows):
            if self.check_clean is not None and row in self._inventory.rows and not self.table.on([row]):
                await self.check_clean(row)

    def _check_health(self, new: Grant) -> None:
        for row in new.rows:
            fault = self._inventory.fault(row)
            if fault is not None:
                raise Refusal(
                    "DeviceNotHealthy",
                    f"{row} of {self._place.node} cannot be used ({fault.reason}). {fault.message}",
                    "Choose another device.",
                )

    def _answer(self, new: Grant, path: Path) -> ContainerAllocation:
        rows = [self._inventory.rows[row] for row in new.rows]
        files = list(dict.fromkeys(file for row in new.rows for file in self._device_files(row)))
        env = granted_device_env(self._place.node, ALLOC_PATH if self._place.sockets else "", rows, by_uuid=bool(files))
        env["NVIDIA_VISIBLE_DEVICES"] = ",".join(row.uuid or str(row.index) for row in rows)
        names: tuple[str, ...] = ()
        if self.cdi is not None:
            self.cdi.ensure(new.rows)
            names, files = tuple(map(cdi_name, new.rows)), []
        mounts = [Mount(ALLOC_PATH, str(path))] if self._place.sockets else []
        if self._place.launcher:
            mounts.append(Mount(LAUNCHER_PATH, self._place.launcher, True))
        nodes = tuple(DeviceNode(file, file, "rw") for file in files)
        return ContainerAllocation(env, tuple(mounts), nodes, cdi_devices=names)

    # --- whose it is ----------------------------------------------------------------------------------------------------

    async def attach(
        self, pod: Pod, container: str, resource: str, ids: Sequence[str], *, simulated: bool = False
    ) -> Allocation:
        if not self._serves(resource):
            return await self._attach_foreign(pod, ids, simulated=simulated)
        devices = tuple(devices_in_order(ids))
        known = self.table.grants.get(Grant(devices, pod.uid).name)
        chosen = devices_chosen_for(pod, container, resource, self._inventory.resource_of)
        new = Grant(
            devices,
            pod.uid,
            f"{pod.namespace}/{pod.name}",
            resource,
            container,
            () if not chosen or set(chosen) <= {*devices, *map(device_behind_plugin_id, devices)} else chosen,
            known.at if known is not None else self._since(pod.uid, container, resource),
        )
        self.table.check(new, self._inventory.rows)
        if new.chosen:
            log.warning("KubeletChoseOtherDevices", pod=new.pod, devices=list(devices), chosen=list(chosen))
        return await self._enter(pod, new, simulated, keep=known is not None and known.uid in ("", pod.uid))

    def _serves(self, resource: str) -> bool:
        """Whether it is one of ours; once it is, it stays so, also while all its devices are cut into others."""
        self._served.update(self._inventory.resources(), (g.resource for g in self.table.grants.values()))
        return resource in self._served

    async def _attach_foreign(self, pod: Pod, ids: Sequence[str], *, simulated: bool) -> Allocation:
        """Devices of somebody else's plugin. Their ids say nothing here, not even when one of ours is called the same; the pod
        needs a door for its launcher all the same."""
        mine = next(iter(self.table.of(pod.uid)), None)
        if mine is None:
            door = await self.allocate(pod, [], simulated=simulated)
            return Allocation(tuple(ids), door.directory, door.env)
        has_directory = self._place.sockets and not simulated
        shown = str(self._directory(mine)) if has_directory else ""
        return Allocation(tuple(ids), shown, granted_pod_env(mine) | granted_device_env(self._place.node, shown, []))

    async def allocate(self, pod: Pod, ids: Sequence[str], *, simulated: bool = False) -> Allocation:
        new = Grant(tuple(ids), pod.uid, f"{pod.namespace}/{pod.name}", at=self._since(pod.uid, "", ""))
        self.table.check(new, self._inventory.rows)
        mine = self.table.of(pod.uid)
        if mine and new.name not in {grant.name for grant in mine}:
            raise Refusal(
                "DeviceHeld",
                f"{new.pod} already holds {', '.join(mine[0].devices) or 'no devices'} of {self._place.node}.",
                "A pod keeps its devices for life; delete it to choose others.",
            )
        # Who had them before this agent started keeps them: what becomes of the pod is the manager's decision.
        if not mine and not (not simulated and is_directory_of_grant(self._directory(new), new)):
            self._check_health(new)
        # The kubelet makes the directory of a pod without devices, when it mounts it; then it is in use already.
        return await self._enter(pod, new, simulated, keep=bool(mine) or (self._place.shared and not ids))

    async def _enter(self, pod: Pod, new: Grant, simulated: bool, *, keep: bool) -> Allocation:
        path = self._directory(new)
        has_directory = self._place.sockets and not simulated
        if has_directory:
            if not (path.is_dir() and (keep or is_directory_of_grant(path, new))):
                self._launchers.links.shut(str(path))
                make_grant_directory(path, new, shared=self._place.shared)
            elif read_grant(path) != new:
                write_grant_marker(path, new, shared=self._place.shared)
        elif new.name in self.table.grants:
            self._close(new)
        old, is_first = self.table.grants.get(new.name), pod.uid not in self._launchers
        self.table.enter(new)
        self._welcome(pod, simulated=not has_directory)
        if has_directory:
            try:
                await self._launchers.links.listen(
                    pod.uid, str(path)
                )  # who waits there is heard at once, so the registry comes first
            except OSError:
                if is_first:
                    self._launchers.forget(pod.uid)
                    self.table.drop(new.name)
                raise
        if old != new and new.devices:
            self._changed()
        shown = str(path) if has_directory else ""
        rows = [self._inventory.rows[row] for row in new.rows]
        return Allocation(new.devices, shown, granted_pod_env(new) | granted_device_env(self._place.node, shown, rows))

    def _welcome(self, pod: Pod, *, simulated: bool) -> None:
        gpus = sum(len(grant.devices) for grant in self.table.of(pod.uid))
        if pod.uid in self._launchers:
            self._launchers.equip(pod.uid, gpus)
        else:
            gang = pod.labels.get(LABEL_GANG, "")
            new = LauncherRecord(
                pod.name, pod.uid, pod.namespace, gang, gpus, simulated, container=launcher_container(pod)
            )
            self._launchers.welcome(new)

    # --- the end --------------------------------------------------------------------------------------------------------

    def release(self, uid: str) -> None:
        self._launchers.forget(uid)
        mine = self.table.free(uid)
        for grant in mine:
            self._close(grant)
        had = self._inherited.pop(uid, None) is not None
        if not mine:
            self._remove_left_behind(uid)
        if had or any(grant.devices for grant in mine):
            self._changed()

    def drop(self, name: str) -> None:
        """The grant's pod never came."""
        grant = self.table.drop(name)
        if grant is not None:
            self._close(grant)

    def _close(self, grant: Grant) -> None:
        if self._place.sockets:
            path = self._directory(grant)
            self._launchers.links.shut(str(path))
            remove_grant_directory(path)

    def _remove_left_behind(self, uid: str) -> None:
        """The directory of a pod that ended while no agent was here: only the marker knows whose it was."""
        for directory in self._directories():
            if is_directory_of_pod(directory, uid):
                remove_grant_directory(directory)

    def _directories(self) -> list[Path]:
        root = Path(self._place.root)
        return sorted(root.iterdir()) if self._place.sockets and root.is_dir() else []

    async def restore(self) -> None:
        """Every directory on disk is a grant again, its door open; who it belongs to is attached when the pod is seen."""
        for directory in self._directories():
            grant = read_grant(directory)
            if grant is None or grant.name != directory.name or not set(grant.rows) <= self._inventory.rows.keys():
                continue
            if grant.name not in self.table.grants:
                self.table.enter(grant)
            await self._launchers.links.listen("", str(directory))

    # --- who has what ---------------------------------------------------------------------------------------------------

    def inherit(self, earlier: Iterable[Holding]) -> None:
        """What an earlier agent said of pods: it holds until they are attached, released, or `forget_inherited`."""
        for holding in earlier:
            if holding.uid:
                self._inherited.setdefault(holding.uid, []).append(holding)

    def _since(self, uid: str, container: str, resource: str) -> float:
        """When the container got its devices: as an earlier agent said it, or now."""
        for holding in self._inherited.get(uid, ()):
            if (holding.container, holding.resource) == (container, resource) and holding.since is not None:
                return to_seconds(holding.since)
        return self._clock()

    def forget_inherited(self) -> None:
        """Who was not heard of by now is not here any more."""
        if self._inherited:
            self._inherited = {}
            self._changed()

    def holdings(self) -> list[Holding]:
        held = [
            Holding(
                g.pod,
                g.container,
                g.resource,
                list(g.rows),
                g.uid,
                [device_behind_plugin_id(d) for d in g.chosen],
                to_time(g.at),
            )
            for g in self.table.grants.values()
            if g.uid and g.devices
        ]
        held += [h for uid, earlier in self._inherited.items() if not self.table.of(uid) for h in earlier]
        return sorted(held, key=lambda h: (h.pod, h.container, h.resource, h.devices))

    def _directory(self, grant: Grant) -> Path:
        return Path(self._place.root) / grant.name
