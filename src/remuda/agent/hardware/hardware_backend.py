"""`HardwareBackend`: real devices behind a driver library, asked through the driver process (`driver_process`).

It looks at the node when opened and again every `poll_s`: which devices there are, and what their counters say. Each device is
asked on its own (`driver_questions`), so what befalls one leaves the others served: over a hanging call the driver process
is killed and started anew, and the next device is asked at once. A device the node is known to have and the driver does not
show reports device-missing (`missing_devices`).

Nothing is reported before thresholds are crossed (`agent.hardware.counters`). Xid events come unasked.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import structlog

from remuda.agent.hardware.backend_port import NodeFacts, Probe, hardware_reset_not_supported, unknown_hardware_device
from remuda.agent.hardware.counters import (
    USUAL,
    CounterLimits,
    Counters,
    KnownCounters,
    throttle_words,
    update_hardware_counters,
)
from remuda.agent.hardware.device_ids import DeviceIdMap, IdAssignment, device_id, kernel_boot_id
from remuda.agent.hardware.device_links import observed_hardware_links
from remuda.agent.hardware.driver_process import DriverChild, DriverDown, DriverError, DriverHang
from remuda.agent.hardware.driver_questions import DriverQuestions
from remuda.agent.hardware.hardware_inventory import HardwareInventory
from remuda.agent.hardware.missing_devices import report_missing_devices
from remuda.agent.hardware.signal_listeners import (
    NODE,
    HardwareSignalListeners,
    SignallingBackend,
    real_hardware_refusal,
)
from remuda.agent.hardware.slice_rows import hardware_device_busy, mig_not_supported, plan_hardware_mig_slices
from remuda.agent.hardware.sysfs import nearest_nics
from remuda.agent.orders.node_commands import run_node_hook
from remuda.api.devices import ObservedDevice, ObservedLink
from remuda.api.errors import Refusal
from remuda.core.devices.fault_codes import classify_device_fault_code
from remuda.core.devices.machine_models import MachineModel

log = structlog.get_logger(__name__)

POLL_S = 5.0
_WIRING = "the wiring"  # beside devices: what may hang on its own


class HardwareConfig(msgspec.Struct, frozen=True):
    """`model`: of this machine, where it is known. `ids`: file of the id map. `expected`: devices the node should have, when
    no model says it."""

    node: str
    model: MachineModel | None = None
    ids: Path | None = None
    expected: int = 0
    poll_s: float = POLL_S
    call_s: float = 5.0
    limits: CounterLimits = USUAL
    boot: str = ""


class HardwareBackend(SignallingBackend):
    """`make`: which driver; `source`: what its signals are named after; `resource`: what a whole device counts for. `root`:
    where /proc and /sys are looked for. `environment`: of the driver process."""

    make: ClassVar[str]
    source: ClassVar[str]
    resource: ClassVar[str]
    reset_command: ClassVar[tuple[str, ...]] = ()  # {places}: the devices' PCI addresses

    def __init__(
        self,
        config: HardwareConfig,
        clock: Callable[[], float],
        *,
        environment: Mapping[str, str] | None = None,
        root: Path = Path("/"),
    ) -> None:
        self.config = config
        self._clock = clock
        self._root = root
        self._listeners = HardwareSignalListeners(clock)
        self.child = DriverChild(self.make, self._event, environment=environment, on_start=self._restarted)
        self.hardware = HardwareInventory(config.node, self.resource, config.ids)
        self._wire = "xgmi" if self.make == "amd" else "nvlink"
        self._links: tuple[ObservedLink, ...] = ()
        self._facts = NodeFacts()
        self._known: dict[int, KnownCounters] = {}
        self._asker = DriverQuestions(
            config.node,
            self.child,
            self.hardware,
            self._listeners,
            source=self.source,
            call_s=config.call_s,
            clock=clock,
        )
        self._unclean: dict[str, set[int]] = {}  # pids left on a device
        self._is_deaf = True
        self._seen_closer: tuple[frozenset[int], DeviceIdMap] | None = None
        self._task: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._task is None:
            self.hardware.load()
            await self.look()
            self._task = asyncio.get_running_loop().create_task(self._poll(), name=f"devices {self.config.node}")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self.child.close()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.config.poll_s)
            try:
                await self.look()
            except Exception as error:  # the next look may do better; signals of the driver come through regardless
                log.error("devices.look", node=self.config.node, error=repr(error))

    async def look(self) -> None:
        """One look at the whole node."""
        try:
            opened = await self.child.call("open", self.config.call_s)
        except (DriverHang, DriverDown, DriverError) as error:
            self._asker.blind(error)
            return
        self._asker.is_blind = False
        self._facts = msgspec.structs.replace(self._facts, driver=opened["driver"], cuda=opened["cuda"])
        if opened["count"] != len(self.hardware.present) or self._asker.lost or not self.hardware.raw:
            await self._scan(int(opened["count"]))
        if self._seen_closer is None and self._asker.hung.may_ask(_WIRING, self._clock()):
            await self._look_closer()
        if self._is_deaf:
            await self._listen()
        for number in sorted(self.hardware.present):
            await self.child.ready()
            await self._read(number)
        there = self.hardware.present_ids()
        self._unclean = {device: pids for device, pids in self._unclean.items() if device in there}
        for device in sorted(self._unclean):
            await self.check_clean(device)
        if not self._asker.hung:
            self._listeners.tell(NODE, self.source, "driver-back")

    # --- which devices there are --------------------------------------------------------------------------------------------

    async def _scan(self, count: int) -> None:
        """Ask each of the driver's devices who it is. One that does not answer leaves the rest."""
        raw: list[dict[str, Any]] = []
        silent: list[str] = []
        self._asker.hung.keep(lambda who: not who.startswith("index ") or int(who.split()[1]) < count)
        for index in range(count):
            key = f"index {index}"
            if not self._asker.hung.may_ask(key, self._clock()):
                silent.append("a call about it did not return")
                continue
            try:
                await self.child.ready()  # two hangs in a row delay the next start, and the next device is not to blame
                raw.append(await self.child.call("device", self.config.call_s, index=index))
                self._asker.hung.answered(key)
            except DriverError as error:
                silent.append(error.message)
            except DriverDown as error:
                self._asker.blind(error)
                return
            except DriverHang as error:
                self._asker.hung.add(key, self._clock())
                silent.append(str(error))
                self._asker.tell_hang()
        nics = nearest_nics(self._root / "sys", [r["pci"] for r in raw])
        before = self.hardware.present
        result = self.hardware.take(raw, nics)
        for number in result.replaced:
            self._known.pop(number, None)
            self._listeners.forget(device_id(number))
        self._is_deaf |= result.present != before
        self._asker.lost -= result.present
        self._tell_present(result, silent)
        if self._seen_closer != (result.present, result.ids):
            self._seen_closer = None

    def _tell_present(self, result: IdAssignment, silent: Sequence[str]) -> None:
        there = {device_id(n) for n in result.present}
        self._asker.hung.keep(lambda who: who == _WIRING or who.startswith("index ") or who in there)
        # Who is silent has no name; when as many are silent as are missing, it is them.
        why = dict(zip(result.missing, silent, strict=False)) if len(silent) == len(result.missing) else {}
        expected = len(self.config.model.devices) if self.config.model is not None else self.config.expected
        report_missing_devices(self._listeners, self.source, result.ids.devices, result.missing, expected, why)

    async def _look_closer(self) -> None:
        """Slices and wiring. Both can be had later: a failure here hides no device."""
        cut: dict[int, list[dict[str, Any]]] = {}
        for number in sorted(self.hardware.present):
            if self.hardware.raw[number].get("mig"):
                cut[number] = await self._asker.ask(number, "slices") or self.hardware.cut.get(number, [])
        self.hardware.set_cut(cut)
        ids = self.hardware.places()
        ends = {self.hardware.pci(n): self.hardware.raw[n].get("links", []) for n in sorted(self.hardware.present)}
        try:
            pairs = await self.child.call("topology", self.config.call_s, pcis=list(ids))
            self._asker.hung.answered(_WIRING)
            self._seen_closer = (self.hardware.present, self.hardware.ids)
        except (DriverHang, DriverDown, DriverError) as error:
            log.warning("devices.topology", node=self.config.node, error=str(error))
            self._asker.hung.add(_WIRING, self._clock())
            pairs = []
        self._links = observed_hardware_links(ids, ends, pairs, self._wire)
        first = next(iter(self.hardware.raw.values()), {})
        self._facts = msgspec.structs.replace(
            self._facts,
            compute=first.get("compute", ""),
            family=first.get("family", ""),
            mig_capable=any(r.get("mig") is not None for r in self.hardware.raw.values()),
        )
        self._listeners.changed()

    async def _listen(self) -> None:
        try:
            await self.child.call("listen", self.config.call_s, pcis=list(self.hardware.places()))
            self._is_deaf = False
        except (DriverHang, DriverDown, DriverError) as error:
            log.warning("devices.listen", node=self.config.node, error=str(error))

    # --- asking one device ------------------------------------------------------------------------------------------------

    async def _read(self, number: int) -> None:
        answer = await self._asker.ask(number, "counters")
        if answer is None:
            return
        if "throttleBits" in answer:
            answer["throttle"] = throttle_words(answer.pop("throttleBits"))
        reading = msgspec.convert(answer, Counters, strict=False)
        known, findings = update_hardware_counters(
            self._known.get(number, KnownCounters()), self._clock(), reading, self.config.limits
        )
        self._known[number] = known
        for finding in findings:
            self._listeners.tell(device_id(number), self.source, finding.code, finding.message)

    def _restarted(self) -> None:
        self._is_deaf = True  # the event set went with the process

    def _event(self, event: dict[str, Any]) -> None:
        if event["type"] != "xid":
            log.warning("devices.event", node=self.config.node, event=event)
            return
        number = self.hardware.ids.number(event["pci"]) if event["pci"] else None
        if number is None:
            return
        code = f"xid-{event['code']}"
        name = self.hardware.named(number, event.get("gi"))
        self._listeners.tell(name, self.source, code, classify_device_fault_code(self.source, code).message)

    # --- what is known ----------------------------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        return self.config.model.name if self.config.model is not None else ""

    @property
    def boot(self) -> str:
        return self.config.boot or kernel_boot_id()

    def inventory(self) -> Sequence[ObservedDevice]:
        return self.hardware.rows()

    def present(self) -> frozenset[str]:
        return self.hardware.present_ids()

    def links(self) -> Sequence[ObservedLink]:
        return self._links

    def facts(self) -> NodeFacts:
        return self._facts

    def device_files(self, device: str) -> Sequence[str]:
        return ()

    def counters(self, device: str) -> Counters | None:
        known = self._known.get(self.hardware.number(device))
        return known.last if known is not None else None

    def last_heard(self, device: str) -> float | None:
        number = next((n for n in self.hardware.ids.devices if device_id(n) == device), None)
        return None if number is None else self._asker.answered_at.get(number, self._asker.asks_since)

    def inject(self, device: str, code: str, heals: str = "") -> None:
        raise real_hardware_refusal(self.config.node)

    # --- asked from above ---------------------------------------------------------------------------------------------------

    async def probe(self, device: str) -> Probe:
        number = self.hardware.number(device)
        try:
            wrong = await self.child.call("probe", self.config.call_s, pci=self.hardware.pci(number))
            self._asker.answered(number)
            result = Probe(device, not wrong, f"The probe found: {wrong}." if wrong else "The device answered.")
        except (DriverHang, DriverDown, DriverError) as error:
            result = Probe(device, False, f"The probe failed: {error}.")
        code = "probe-passed" if result.passed else "probe-failed"
        self._listeners.tell(device, "probe", code, result.message)
        return result

    async def reset(self, devices: Sequence[str]) -> None:
        """By the maker's tool: no library has a call for it. The driver process lets go of the devices first, since the tool
        refuses while anybody has one open, and is started again by the next question."""
        if not self.reset_command:
            raise hardware_reset_not_supported(self.config.node)
        places = [self.hardware.pci(self.hardware.number(device)) for device in devices]
        async with self.child.let_go():
            await run_reset_tool([word.format(places=",".join(places)) for word in self.reset_command])
        self._seen_closer = None

    def utilisation(self, device: str) -> float | None:
        reading = self.counters(device)
        return reading.utilisation / 100 if reading is not None and reading.utilisation is not None else None

    async def check_clean(self, device: str) -> bool:
        number = self.hardware.number(device)
        left = await self._asker.ask(number, "processes")
        if left is None:
            return device not in self._unclean
        instance = next(
            (p["gi"] for p in self.hardware.cut.get(number, []) if self.hardware.slice(number, p).id == device), None
        )
        if instance is not None:
            left = [p for p in left if p.get("gi") == instance]  # its siblings' processes are none of its business
        if left:
            pids = {p["pid"] for p in left}
            if self._unclean.get(device) != pids:  # their memory changes all the time, and that is no news
                self._unclean[device] = pids
                who = ", ".join(f"pid {p['pid']} with {p['memory'] >> 20} MiB" for p in left)
                self._listeners.tell(device, self.source, "leftover-processes", f"Left on the device: {who}.")
        else:
            self._unclean.pop(device, None)
            self._listeners.tell(device, self.source, "device-clean")
        return not left

    async def apply_slices(self, device: str, profiles: Sequence[str]) -> Sequence[ObservedDevice]:
        number = self.hardware.number(device)
        if device != device_id(number) or number not in self.hardware.present:
            raise unknown_hardware_device(
                device, self.config.node, [device_id(n) for n in sorted(self.hardware.present)]
            )
        if self.hardware.raw[number].get("mig") is None:
            raise mig_not_supported(device)
        geometry = self.config.model.geometry(number) if self.config.model is not None else None
        layout: list[list[Any]] = [[name, None] for name in profiles]
        if geometry is not None and profiles:
            layout = [[piece.profile, piece.start] for piece in plan_hardware_mig_slices(device, geometry, profiles)]
        try:
            pci = self.hardware.pci(number)
            made = await self.child.call("apply_slices", self.config.call_s * 6, pci=pci, layout=layout)
        except DriverError as error:
            self._seen_closer = None  # what was there before was made again, and is not the same
            await self._look_closer()
            raise _driver_refused_slicing(device, error) from None
        except (DriverHang, DriverDown) as error:
            raise Refusal("DriverUnavailable", f"{device} was not cut: {error}.", "Look at the driver's log.") from None
        self.hardware.raw[number]["mig"] = 1 if profiles else 0
        self.hardware.set_cut({**self.hardware.cut, number: made})
        self._listeners.changed()
        return tuple(self.hardware.slice(number, piece) for piece in made)


async def run_reset_tool(command: Sequence[str]) -> None:
    """Reset devices by the maker's command-line tool, which must be in the agent's PATH: NVML has no public call for it, and
    amdsmi's is not for every device. The tool decides: it refuses while a process has the device open, and its words are
    passed on. Refusal ResetNotSupported without the tool, ResetFailed when it fails."""
    program = shutil.which(command[0])
    if program is None:
        raise Refusal(
            "ResetNotSupported",
            f"There is no {command[0]} on this node.",
            "Put it into the agent's image, or give the rung a hook.",
        )
    ran = await run_node_hook([program, *command[1:]], {})
    if ran.code:
        raise Refusal("ResetFailed", f"{command[0]} exited with code {ran.code}: {ran.output}", "Reboot the node.")


def _driver_refused_slicing(device: str, error: DriverError) -> Refusal:
    if error.code == "InUse":
        return hardware_device_busy(device, "a process")
    if error.code == "UnknownProfile":
        return Refusal("UnknownMigProfile", f"{device}: {error.message}.", "See `nvidia-smi mig -lgip`.", "profile")
    if error.code in ("InsufficientResources", "UnknownPlace"):
        return Refusal("IllegalMigLayout", f"The slices do not fit {device}: {error.message}.", "Ask for fewer.")
    return Refusal("DriverUnavailable", f"{device} was not cut: {error}.", "Look at the driver's log.")
