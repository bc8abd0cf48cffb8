"""Handing out devices: the table, the directories and the launchers' doors kept in step.

Two ways in. A device plugin's Allocate (`hand_out`) makes a grant that is nobody's: directory, socket, environment. Who it is
for comes later (`attach`): from the embedded node at once, on a real one from the launcher's hello and podresources. A pod
without devices is given its directory by name (`allocate`). On a real node every pod under the launcher has one by name, whoever
handed out its devices (`open_door`). One way out: `release`, when the pod's processes are confirmed gone,
or `drop` for a grant whose pod never came.

Invariants: a grant with a directory has its door open; a device of an attached grant goes to no other pod before `release`;
after a restart (`restore`) every record on disk is a grant again, so an upgrade of the agent frees nothing.

Earlier agents kept the record in the directory itself (`allocation.json`), where the container could write it. Such a directory
is taken over. What its marker says of the holder counts where the agent's own report in the API agrees; otherwise the grant is
nobody's until podresources says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import structlog

from remuda.agent.allocation.allocation_dirs import AllocationDirs
from remuda.agent.allocation.allocation_table import AllocationTable, Grant, granted_device_env, granted_pod_env
from remuda.agent.allocation.cdi_specs import CdiSpecs, cdi_name
from remuda.agent.allocation.device_choice import devices_in_order, other_devices_chosen
from remuda.agent.allocation.grant_records import GrantRecords
from remuda.agent.inventory import Inventory, inventory_device_of_plugin_id
from remuda.agent.launchers.launcher_registry import LauncherRegistry
from remuda.agent.launchers.launcher_state import LauncherRecord
from remuda.agent.launchers.log_tails import container_running_launcher_process
from remuda.api.devices import Holding
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_seconds, to_time
from remuda.api.names import LABEL_GANG
from remuda.link.allocation_port import Allocation
from remuda.link.device_plugin_port import ContainerAllocation, DeviceNode, Mount
from remuda.link.untrusted_files import read_untrusted_file

log = structlog.get_logger(__name__)

ALLOC_PATH = "/run/remuda/alloc"  # in the container
LAUNCHER_PATH = "/run/remuda/bin"
OLD_MARKER = "allocation.json"  # in a directory of an earlier agent
MAX_MARKER_BYTES = 64 * 1024


class GrantPlace(msgspec.Struct, frozen=True):
    """`root` holds the allocations' directories, and `records` beside it, the agent's alone, what is known of them. `sockets`
    False: every pod is simulated, so nothing touches the disk. `launcher`: the directory with remuda-launch.pyz to show to
    containers; "" when it is in their images. `shared`: containers have users of their own, who must reach their door."""

    node: str
    root: str
    sockets: bool = True
    launcher: str = ""
    shared: bool = False

    @property
    def records(self) -> Path:
        return Path(self.root).with_name("grants")


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
        self._dirs = AllocationDirs(place.root, shared=place.shared)
        self._records = GrantRecords(place.records)
        self._inventory = inventory
        self._launchers = launchers
        self._clock = clock
        self._changed = changed
        self._device_files = device_files
        self._inherited: dict[str, list[Holding]] = {}  # by uid
        self._served: set[str] = set()
        self._at_doors: set[str] = set()  # uids of pods whose own door is open
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
        path = self._dirs.path(new.name)
        if self._place.sockets:
            if new.name not in self.table.grants or not self._dirs.is_ours_alone(new.name):
                self._make_directory(new)
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
        mounts = [Mount(ALLOC_PATH, str(path), True)] if self._place.sockets else []
        if self._place.launcher:
            mounts.append(Mount(LAUNCHER_PATH, self._place.launcher, True))
        nodes = tuple(DeviceNode(file, file, "rw") for file in files)
        return ContainerAllocation(env, tuple(mounts), nodes, cdi_devices=names)

    # --- whose it is ----------------------------------------------------------------------------------------------------

    async def attach(
        self,
        pod: Pod,
        container: str,
        resource: str,
        ids: Sequence[str],
        *,
        simulated: bool = False,
        beside: Iterable[Pod] = (),
    ) -> Allocation:
        """`beside`: pods of this node. Those of the pod's gang may have each other's devices: the gang has what was chosen."""
        if not self.serves(resource):
            return await self._attach_foreign(pod, ids, simulated=simulated)
        devices = tuple(devices_in_order(ids))
        known = self.table.grants.get(Grant(devices, pod.uid).name)
        chosen = other_devices_chosen(pod, container, resource, devices, beside, self._inventory.resource_of)
        if known is not None and known.uid == pod.uid:
            chosen = known.chosen  # the annotation names what it holds by now
        new = Grant(
            devices,
            pod.uid,
            f"{pod.namespace}/{pod.name}",
            resource,
            container,
            chosen,
            known.at if known is not None else self._since(pod.uid, container, resource),
        )
        self.table.check(new, self._inventory.rows)
        if new.chosen:
            log.warning("KubeletChoseOtherDevices", pod=new.pod, devices=list(devices), chosen=list(chosen))
        return await self._enter(pod, new, simulated, keep=known is not None and known.uid in ("", pod.uid))

    def serves(self, resource: str) -> bool:
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
        shown = str(self._dirs.path(mine.name)) if has_directory else ""
        return Allocation(tuple(ids), shown, granted_pod_env(mine) | granted_device_env(self._place.node, shown, []))

    def has_door(self, uid: str) -> bool:
        return uid in self._at_doors

    async def open_door(self, pod: Pod, gpus: int) -> None:
        """The pod's own directory, beside what it has of devices: the kubelet mounts it by the pod's uid, and may have made it.
        `gpus`: how many devices it has where they are no grants of ours."""
        known = self.table.grants.get(f"pod-{pod.uid}")
        at = known.at if known is not None else self._since(pod.uid, "", "")
        new = Grant((), pod.uid, f"{pod.namespace}/{pod.name}", at=at)
        await self._enter(pod, new, simulated=False, keep=True)
        if not any(grant.devices for grant in self.table.of(pod.uid)):
            self._launchers.equip(pod.uid, gpus)
        self._at_doors.add(pod.uid)

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
        if not mine and not (not simulated and self._was_made_for(new)):
            self._check_health(new)
        return await self._enter(pod, new, simulated, keep=bool(mine))

    async def _enter(self, pod: Pod, new: Grant, simulated: bool, *, keep: bool) -> Allocation:
        path = self._dirs.path(new.name)
        has_directory = self._place.sockets and not simulated
        if has_directory:
            if not (self._dirs.has(new.name) and (keep or self._was_made_for(new))):
                self._make_directory(new)
            else:
                self._dirs.let_in(new.name)
                if self._records.read(new.name) != new:
                    self._records.write(new)
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
                pod.name,
                pod.uid,
                pod.namespace,
                gang,
                gpus,
                simulated,
                container=container_running_launcher_process(pod),
            )
            self._launchers.welcome(new)

    # --- the end --------------------------------------------------------------------------------------------------------

    def release(self, uid: str) -> None:
        self._launchers.forget(uid)
        self._at_doors.discard(uid)
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
            self._launchers.links.shut(str(self._dirs.path(grant.name)))
            self._dirs.remove(grant.name)
            self._records.remove(grant.name)

    def _remove_left_behind(self, uid: str) -> None:
        """The directory of a pod that ended while no agent was here: only the record knows whose it was."""
        if self._place.sockets:
            for grant in (*self._records.all(), *self._old_grants()):
                if grant.uid == uid:
                    self._close(grant)

    # --- on disk --------------------------------------------------------------------------------------------------------

    def _make_directory(self, new: Grant) -> None:
        """The record comes last: without it the next allocation starts over."""
        self._launchers.links.shut(str(self._dirs.path(new.name)))
        self._records.remove(new.name)
        self._dirs.make(new.name)
        self._records.write(new)

    def _was_made_for(self, new: Grant) -> bool:
        """Whether the directory is of exactly this pod with these devices. A forged old marker keeps a directory that would
        otherwise be made anew, and gains nothing else."""
        found = self._records.read(new.name) or self._old_grant(new.name)
        return found is not None and (found.uid, found.devices) == (new.uid, new.devices)

    def _old_grants(self) -> list[Grant]:
        """Of directories that an earlier agent made and this one has not taken over."""
        known = {grant.name for grant in self._records.all()}
        found = (self._old_grant(name) for name in self._dirs.names() if name not in known)
        return [grant for grant in found if grant is not None]

    def _old_grant(self, name: str) -> Grant | None:
        """As its marker has it, which the container could write; else as its name has it, which only agents and kubelets give."""
        try:
            data = read_untrusted_file(self._place.root, f"{name}/{OLD_MARKER}", MAX_MARKER_BYTES)
            found = msgspec.json.decode(data, type=Grant)
            if found.name == name:
                return found
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            log.warning("allocation.old_marker_unreadable", directory=name, error=str(error))
        found = Grant((), name[4:]) if name.startswith("pod-") else Grant(tuple(name.split("_")))
        return found if found.name == name and set(found.rows) <= self._inventory.rows.keys() else None

    def _taken_over(self, old: Grant) -> Grant:
        """Its devices are in the directory's name, which only agents give. The rest counts where our own report agrees."""
        if not old.devices:
            return Grant((), old.uid, at=self._clock())  # the uid is in the name, too
        for holding in self._inherited.get(old.uid, ()):
            told = (holding.pod, holding.container, holding.resource, sorted(holding.devices))
            if told == (old.pod, old.container, old.resource, sorted(old.rows)):
                return msgspec.structs.replace(old, at=self._since(old.uid, old.container, old.resource), chosen=())
        return Grant(old.devices, resource=self._inventory.resource_of(old.rows[0]), at=self._clock())

    async def restore(self) -> None:
        """Every record on disk is a grant again, its door open; who it belongs to is attached when the pod is seen."""
        if not self._place.sockets:
            return
        for old in self._old_grants():
            if set(old.rows) <= self._inventory.rows.keys():
                log.info("allocation.taken_over", directory=old.name)
                self._records.write(self._taken_over(old))
        for grant in self._records.all():
            if not set(grant.rows) <= self._inventory.rows.keys():
                continue
            if grant.name not in self.table.grants:
                self.table.enter(grant)
            try:
                await self._launchers.links.listen("", str(self._dirs.path(grant.name)))
            except OSError as error:  # its container's doing, or somebody's who removed it: the others have theirs
                log.warning("allocation.no_door", directory=grant.name, error=str(error))
        self._dirs.empty_trash()

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
                [inventory_device_of_plugin_id(d) for d in g.chosen],
                to_time(g.at),
            )
            for g in self.table.grants.values()
            if g.uid and g.devices
        ]
        held += [h for uid, earlier in self._inherited.items() if not self.table.of(uid) for h in earlier]
        return sorted(held, key=lambda h: (h.pod, h.container, h.resource, h.devices))
