"""What the manager tells this node to do (`NodeDevices.orders`), done once per id, and answered (`status.answers`).

The record of what was begun is the API's, not the agent's: an order is begun by writing the answer Running, guarded by the
object's version, and only whoever's write stood carries it out. So an id is carried out once, whatever restarts in between and
even while two agents of a node overlap. What an agent finds Running at its start was begun by one that is gone:

    probe     asks and changes nothing: done again
    reset     who knows how far it came: Failed, Interrupted
    command   the same; its processes went with the agent
    reboot    Succeeded when the node's boot is another than the one the answer names, else it is still waited for

Every order has a deadline, its own or its kind's, and whatever it waits for is left at it: a driver that hangs costs its own
order. Orders for one device are carried out one after another. A device that a pod holds is not reset, nor are those it would
take with it (`core.devices.reset_groups`). Who gave an order takes it away; its answer stays a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import structlog

from remuda.agent.hardware.backend_port import DeviceBackend, unknown_hardware_device
from remuda.agent.inventory import Inventory, inventory_device_of_plugin_id
from remuda.agent.orders.node_commands import Run, check_node_command_order, run_node_hook
from remuda.api.codec import to_wire
from remuda.api.devices import DeviceOrder, DeviceState, Holding, NodeDevices, OrderAnswer
from remuda.api.errors import Conflict, NotFound, Refusal
from remuda.api.meta import to_seconds, to_time
from remuda.core.devices.fault_codes import DeviceRemedy, FaultClass
from remuda.core.devices.reset_groups import reset_group
from remuda.kube.cluster import Cluster, Preconditions

log = structlog.get_logger(__name__)

PROBE, RESET, REBOOT, COMMAND = "probe", "reset", "reboot", "command"
RUNNING, SUCCEEDED, FAILED, TIMED_OUT, REFUSED = "Running", "Succeeded", "Failed", "TimedOut", "Refused"
LIMITS_S = {PROBE: 60.0, RESET: 300.0, REBOOT: 1200.0, COMMAND: 600.0}
MAX_ANSWERS = 16  # beside those whose order still stands
LONGEST_MESSAGE = 1024
MAX_AWAY_S = 1200.0  # that a reboot is believed to have lasted already: clocks are set while a node comes up
RETRY_FIRST_S, RETRY_MAX_S = 0.05, 2.0
_BOOT = "Rebooting; the boot was "  # and its id: how the next agent knows that it happened

Reboot = Callable[[], Awaitable[None]]


class OrderRules(msgspec.Struct, frozen=True):
    """What this node lets itself be told. `hooks`: as `parse_node_hooks` reads them."""

    hooks: tuple[tuple[str, ...], ...] = ()
    reboot_command: tuple[str, ...] = ()


class OrderRunner:
    """`holdings`: who has which devices. `reboot`: of an embedded node, which does it itself."""

    def __init__(
        self,
        node: str,
        rules: OrderRules,
        *,
        cluster: Cluster,
        backend: DeviceBackend,
        inventory: Inventory,
        holdings: Callable[[], Iterable[Holding]],
        clock: Callable[[], float],
    ) -> None:
        self.reboot: Reboot | None = None
        self._node = node
        self._rules = rules
        self._cluster = cluster
        self._backend = backend
        self._inventory = inventory
        self._holdings = holdings
        self._clock = clock
        self._run: Run = run_node_hook
        self._is_open = False
        self._given: Mapping[str, DeviceOrder] = {}
        self._begun: set[str] = set()  # by this agent, or answered before
        self._again: set[str] = set()  # probes that an earlier agent did not end
        self._locks: dict[str, asyncio.Lock] = {}
        self._record = asyncio.Lock()
        self._resetting: dict[str, FaultClass] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life -----------------------------------------------------------------------------------------------------------

    def open(self, found: NodeDevices | None) -> None:
        """Take over what an earlier agent left Running, then begin what was given."""
        self._is_open = True
        for answer in found.observed.answers if found is not None else ():
            order = found.orders.get(answer.id) if found is not None else None
            if answer.outcome == RUNNING:
                self._inherit(answer, order)
            else:
                self._begun.add(answer.id)
        self.given(self._given or (found.orders if found is not None else {}))

    def given(self, orders: Mapping[str, DeviceOrder]) -> None:
        """These stand now."""
        self._given = orders
        self._begun &= orders.keys() | self._begun_here()
        if not self._is_open:
            return
        for id, order in sorted(orders.items(), key=lambda item: _order_time(item[1])):
            if id not in self._begun:
                self._begun.add(id)
                self._spawn(self._carry_out(id, order), id)

    def close(self) -> None:
        """Begin nothing more and leave what is under way. What was begun stays Running in the API, for the next agent."""
        self._is_open = False
        for task in self._tasks:
            task.cancel()

    async def closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begun_here(self) -> set[str]:
        return {task.get_name() for task in self._tasks}

    def _spawn(self, work: Awaitable[None], id: str) -> None:
        task = asyncio.ensure_future(work)
        task.set_name(id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _inherit(self, answer: OrderAnswer, order: DeviceOrder | None) -> None:
        if answer.action == PROBE and order is not None:
            self._again.add(answer.id)
            return
        self._begun.add(answer.id)
        if answer.action == REBOOT:
            self._spawn(self._await_boot(answer, order), answer.id)
            return
        words = "The agent stopped while this was running; how far it came is unknown."
        self._spawn(self._settle(_ended_order_answer(answer, FAILED, "Interrupted", words)), answer.id)

    async def _await_boot(self, answer: OrderAnswer, order: DeviceOrder | None) -> None:
        """Begun by an earlier agent."""
        was = answer.message.removeprefix(_BOOT).rstrip(".")
        if was == self._backend.boot:
            begun = to_seconds(answer.started_at) if answer.started_at else self._clock()
            gone_s = min(max(0.0, self._clock() - begun), MAX_AWAY_S)
            await asyncio.sleep(max(0.0, _order_seconds_left(order, answer, begun) - gone_s))
            await self._settle(
                _ended_order_answer(answer, TIMED_OUT, "NotRebooted", "The node did not reboot in time.")
            )
        else:
            await self._settle(
                _ended_order_answer(answer, SUCCEEDED, "", f"The node came back; its boot is {self._backend.boot}.")
            )

    # --- one order ------------------------------------------------------------------------------------------------------

    async def _carry_out(self, id: str, order: DeviceOrder) -> None:
        async with self._locks.setdefault(order.device, asyncio.Lock()):
            begun = await self._begin(id, order)
            if begun is None:
                return
            seconds = _order_seconds_left(order, begun, self._clock())
            log.info("order", node=self._node, id=id, action=order.action, device=order.device)
            scope = asyncio.timeout(seconds)
            try:
                async with scope:
                    answer = await self._do(order, begun)
            except Refusal as refusal:
                words = f"{refusal.message} {refusal.fix or ''}".strip()
                answer = _ended_order_answer(begun, REFUSED, refusal.reason, words)
            except TimeoutError as error:
                words = f"It did not finish within {seconds:.0f} s."
                answer = _ended_order_answer(begun, TIMED_OUT, "DeadlinePassed", words)
                if not scope.expired():
                    answer = _ended_order_answer(
                        begun, FAILED, "DriverError", str(error) or "A call of the driver timed out."
                    )
            except (
                Exception
            ) as error:  # whatever a driver or a library raises is the order's failure, never the agent's
                answer = _ended_order_answer(begun, FAILED, "DriverError", f"{type(error).__name__}: {error}")
            await self._settle(answer)

    async def _do(self, order: DeviceOrder, begun: OrderAnswer) -> OrderAnswer:
        match order.action:
            case "probe":
                self._check_device(order.device)
                probe = await self._backend.probe(order.device)
                return _ended_order_answer(
                    begun, SUCCEEDED if probe.passed else FAILED, "" if probe.passed else "ProbeFailed", probe.message
                )
            case "reset":
                self._check_device(order.device)
                group = self._reset_group(order.device)
                with self._withheld(group):
                    await self._backend.reset(group)
                also = f" with {', '.join(d for d in group if d != order.device)}" if len(group) > 1 else ""
                return _ended_order_answer(begun, SUCCEEDED, "", f"{order.device} was reset{also}.")
            case "command":
                return await self._command(order, begun)
            case "reboot":
                return await self._reboot_node(begun)
        raise Refusal("UnknownOrder", f"This agent knows no order `{order.action}`.", "Upgrade the agent.", "action")

    def _check_device(self, device: str) -> None:
        row = self._inventory.rows.get(device)
        if row is None:
            raise unknown_hardware_device(device, self._node, list(self._inventory.rows))

    def _reset_group(self, device: str) -> tuple[str, ...]:
        row = self._inventory.rows[device]
        if row.parent:
            raise Refusal(
                "IsASlice", f"{device} is a slice and cannot be reset alone.", f"Order it for {row.parent}.", "device"
            )
        group = reset_group(device, self._backend.links(), self._backend.facts().family)
        touched = {row.id: row.parent or row.id for row in self._inventory.rows.values()}
        for holding in self._holdings():
            for held in map(inventory_device_of_plugin_id, holding.devices):
                if touched.get(held) in group:
                    also = "" if touched[held] == device else f" Resetting {device} also resets {held}."
                    raise Refusal(
                        "DeviceHeld",
                        f"{held} is held by {holding.pod or 'a pod that is being started'}.{also}",
                        "Drain it first.",
                        "device",
                    )
        return group

    @contextlib.contextmanager
    def _withheld(self, devices: Sequence[str]) -> Iterator[None]:
        """Nobody is handed a device that is being reset."""
        why = FaultClass(
            "resetting", "health", DeviceState.UNKNOWN, DeviceRemedy.NONE, "Resetting", "The device is being reset."
        )
        self._resetting |= dict.fromkeys(devices, why)
        self._inventory.withhold("Resetting", self._resetting)
        try:
            yield
        finally:
            self._resetting = {device: why for device, why in self._resetting.items() if device not in devices}
            self._inventory.withhold("Resetting", self._resetting)

    async def _command(self, order: DeviceOrder, begun: OrderAnswer) -> OrderAnswer:
        check_node_command_order(order.command, order.env, self._rules.hooks, self._node)
        row = self._inventory.rows.get(order.device)
        own = {"REMUDA_NODE": self._node, "REMUDA_DEVICE": order.device, "REMUDA_UUID": row.uuid if row else ""}
        ran = await self._run(order.command, {"REMUDA_ACTION": COMMAND, **order.env, **own})
        if ran.code:
            return _ended_order_answer(begun, FAILED, "CommandFailed", f"It exited with code {ran.code}. {ran.output}")
        return _ended_order_answer(begun, SUCCEEDED, "", ran.output)

    async def _reboot_node(self, begun: OrderAnswer) -> OrderAnswer:
        if self.reboot is not None:
            await self.reboot()
            return _ended_order_answer(begun, SUCCEEDED, "", f"The node rebooted; its boot is {self._backend.boot}.")
        if not self._rules.reboot_command:
            raise Refusal(
                "NoRebootCommand",
                f"The agent of {self._node} has no way to reboot it.",
                "Start it with --reboot-command, or give the rung a hook.",
            )
        ran = await self._run(self._rules.reboot_command, {"REMUDA_ACTION": REBOOT, "REMUDA_NODE": self._node})
        if ran.code:
            return _ended_order_answer(
                begun, FAILED, "CommandFailed", f"The reboot command exited with code {ran.code}. {ran.output}"
            )
        await asyncio.get_running_loop().create_future()  # until the node goes down, or the deadline
        raise AssertionError

    # --- the record -----------------------------------------------------------------------------------------------------

    async def _begin(self, id: str, order: DeviceOrder) -> OrderAnswer | None:
        """The answer Running, written; None when the order is not this agent's to carry out."""
        now = to_time(self._clock())
        message = f"{_BOOT}{self._backend.boot}." if order.action == REBOOT else ""
        begun = OrderAnswer(id, order.action, RUNNING, order.device, "", message, now, now)

        def claim(found: NodeDevices) -> OrderAnswer | None:
            before = next((a for a in found.observed.answers if a.id == id), None)
            is_free = before is None or (before.outcome == RUNNING and id in self._again)
            if id not in found.orders or not is_free:
                return None
            return begun

        written = await self._write(claim)
        self._again.discard(id)
        return written

    async def _settle(self, answer: OrderAnswer) -> None:
        answer = msgspec.structs.replace(answer, message=answer.message[:LONGEST_MESSAGE], time=to_time(self._clock()))
        log.info("order.answered", node=self._node, id=answer.id, outcome=answer.outcome, reason=answer.reason)
        await self._write(lambda found: answer)

    async def _write(self, change: Callable[[NodeDevices], OrderAnswer | None]) -> OrderAnswer | None:
        """One change of the answers, guarded by the object's version; tried until the API takes it or has no such object."""
        delay = RETRY_FIRST_S
        while True:
            with contextlib.suppress(Conflict):
                async with self._record:
                    try:
                        found = await self._cluster.get(NodeDevices, self._node)
                        answer = change(found)
                        if answer is None:
                            return None
                        answers = [to_wire(a) for a in _kept_order_answers(found, answer)]
                        when = Preconditions(resource_version=found.metadata.resource_version)
                        body = {"status": {"answers": answers}}
                        await self._cluster.patch(NodeDevices, self._node, body, subresource="status", when=when)
                        return answer
                    except NotFound:
                        return None
                    except Conflict:
                        raise
                    except Exception as error:
                        log.warning("order.retry", node=self._node, error=str(error))
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MAX_S)


def _kept_order_answers(found: NodeDevices, new: OrderAnswer) -> Sequence[OrderAnswer]:
    """The answers with `new`: all whose order stands, and the newest of the others."""
    answers = [a for a in found.observed.answers if a.id != new.id] + [new]
    others = [a.id for a in answers if a.id not in found.orders and a.id != new.id]
    dropped = set(others[:-MAX_ANSWERS])
    return [a for a in answers if a.id not in dropped]


def _ended_order_answer(begun: OrderAnswer, outcome: str, reason: str, message: str) -> OrderAnswer:
    return msgspec.structs.replace(begun, outcome=outcome, reason=reason, message=message)


def _order_seconds_left(order: DeviceOrder | None, answer: OrderAnswer, now: float) -> float:
    """How long it may take. `since` and `deadline` are the manager's clock, `now` is ours: where they contradict each other
    ours is wrong, and the order gets the time it was given. (It still stands, so the manager has not given it up.)"""
    usual = LIMITS_S.get(answer.action, LIMITS_S[PROBE])
    if order is None or order.deadline is None:
        return usual
    left = to_seconds(order.deadline) - now
    whole = to_seconds(order.deadline) - to_seconds(order.since) if order.since is not None else usual
    return left if 0 < left <= whole else max(0.0, whole)


def _order_time(order: DeviceOrder) -> float:
    return to_seconds(order.since) if order.since is not None else 0.0
