"""What a RemedyPolicy may say: contradictions are refused when it is written, not found out when a device has failed."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from remuda.api.errors import Refusal
from remuda.api.remedies import (
    DEFAULT_POLICY,
    Action,
    Hook,
    Idle,
    Ladder,
    Limits,
    RemedyPolicy,
    RemedyPolicySpec,
    Rung,
    Webhook,
)
from remuda.api.selectors import is_label_key

DAY_S = 86_400.0
MAX_TIMEOUT_S = 30 * DAY_S
MAX_ATTEMPTS = 20
WEBHOOK_EVENTS = ("Opened", "Remedy", "AwaitingApproval", "Closed", "Breaker")
IDLE_ACTIONS = ("Warn", "Reclaim")

_REASON = re.compile(r"[A-Z][A-Za-z0-9]*")
_BOUND = re.compile(r"[0-9]{1,9}%?")
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_KNOWN_PLACEHOLDERS = ("node", "device", "uuid", "incident", "action")
# Rungs from the mildest on: a policy that reboots before it resets would never come to the reset's good.
_ORDER = {action: number for number, action in enumerate(Action)}


def check_policy(policy: RemedyPolicy) -> None:
    """Raises Refusal."""
    spec = policy.spec
    _selector(policy)
    seen: set[str] = set()
    for index, ladder in enumerate(spec.ladders):
        path = f"spec.ladders[{index}]"
        if not (_REASON.fullmatch(ladder.when) or ladder.when == "*"):
            raise Refusal(
                "InvalidReason",
                f"A ladder waits for `{ladder.when}`, which no verdict can have as its reason.",
                "Name a remedy (ResetDevice), a reason (Xid79, DeviceFlapping), or `*` for any.",
                f"{path}.when",
            )
        if ladder.when in seen:
            raise Refusal(
                "LadderSaidTwice",
                f"Two ladders wait for {ladder.when}; only one can be climbed.",
                "Put their rungs into one ladder.",
                f"{path}.when",
            )
        seen.add(ladder.when)
        _ladder(ladder, path)
    _limits(spec.limits)
    _timers(spec)
    _idle(spec.idle)
    for index, webhook in enumerate(spec.webhooks):
        _webhook(webhook, f"spec.webhooks[{index}]")
    pause = spec.pause
    if pause is not None and pause.since is not None and pause.until is not None and pause.until <= pause.since:
        raise Refusal("InvalidPause", "The pause ends before it begins.", "Give a later `until`.", "spec.pause.until")


def _selector(policy: RemedyPolicy) -> None:
    selector = policy.spec.selector
    if policy.name == DEFAULT_POLICY and (selector.device_types or selector.nodes):
        raise Refusal(
            "DefaultSelects",
            "The policy `default` takes what no other does, so it cannot select.",
            "Leave its selector empty, or give the policy another name.",
            "spec.selector",
        )
    if any(not pattern for pattern in selector.device_types):
        raise Refusal(
            "InvalidSelector",
            "A pattern for device types is empty and matches nothing.",
            'Write `"*"`, or leave deviceTypes out.',
            "spec.selector.deviceTypes",
        )
    for name in selector.nodes:
        if not is_label_key(name):
            raise Refusal(
                "InvalidSelector", f"`{name}` is not a label.", "Name a label of nodes.", "spec.selector.nodes"
            )


def _ladder(ladder: Ladder, path: str) -> None:
    if not ladder.rungs:
        raise Refusal(
            "EmptyLadder",
            f"The ladder for {ladder.when} has no rungs.",
            "Give it one, or leave the ladder out: what has no ladder is left alone.",
            f"{path}.rungs",
        )
    highest = -1
    for number, rung in enumerate(ladder.rungs):
        where = f"{path}.rungs[{number}]"
        _rung(rung, where)
        if rung.action is Action.PROBE:
            continue  # worth a try again at any height
        if _ORDER[rung.action] < highest:
            raise Refusal(
                "LadderGoesDown",
                f"The ladder for {ladder.when} comes to {rung.action} after something harder.",
                "Order the rungs: probe, reset, reboot, replace, ticket.",
                f"{where}.action",
            )
        highest = _ORDER[rung.action]


def _rung(rung: Rung, where: str) -> None:
    _in_range(rung.attempts, 1, MAX_ATTEMPTS, "InvalidAttempts", f"{where}.attempts")
    _in_range(rung.timeout_seconds, 1, MAX_TIMEOUT_S, "InvalidSeconds", f"{where}.timeoutSeconds")
    if rung.hook is not None:
        _hook(rung.hook, f"{where}.hook")


def _hook(hook: Hook, where: str) -> None:
    if bool(hook.command) == bool(hook.object):
        both = "both a command and an object" if hook.command else "neither a command nor an object"
        raise Refusal("InvalidHook", f"The hook has {both}.", "Give it exactly one of the two.", where)
    if hook.command and not hook.command[0].startswith("/"):
        raise Refusal(
            "InvalidHook",
            f"The command `{hook.command[0]}` is not an absolute path; the agent looks nothing up.",
            "Write the program's whole path.",
            f"{where}.command",
        )
    if not hook.object:
        return
    for field in ("apiVersion", "kind"):
        if not isinstance(hook.object.get(field), str) or not hook.object[field]:
            raise Refusal("InvalidHook", f"The object has no {field}.", f"Set {field}.", f"{where}.object.{field}")
    for name in sorted(_placeholders(hook.object)):
        if name not in _KNOWN_PLACEHOLDERS:
            known = ", ".join(f"{{{p}}}" for p in _KNOWN_PLACEHOLDERS)
            raise Refusal("InvalidHook", f"Nothing fills in {{{name}}}.", f"There are {known}.", f"{where}.object")
    if hook.success_condition == hook.failure_condition:
        raise Refusal(
            "InvalidHook",
            f"The condition {hook.success_condition} would mean success and failure.",
            "Name two different conditions.",
            f"{where}.failureCondition",
        )


def _placeholders(body: object) -> set[str]:
    if isinstance(body, str):
        return set(_PLACEHOLDER.findall(body))
    inner = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return {name for value in inner for name in _placeholders(value)}


def _limits(limits: Limits) -> None:
    for field in ("pool", "rack", "tenant", "reservation", "cause", "per_hour"):
        name = "perHour" if field == "per_hour" else field
        _bound(getattr(limits, field), f"spec.limits.{name}", may_be_empty=True)
    if not is_label_key(limits.rack_label):
        raise Refusal(
            "InvalidLimit",
            f"`{limits.rack_label}` is not a label.",
            "Name the label of nodes that says their rack.",
            "spec.limits.rackLabel",
        )


def _bound(text: str, field: str, *, may_be_empty: bool) -> None:
    is_good = bool(_BOUND.fullmatch(text)) or (may_be_empty and not text)
    if is_good and text.endswith("%"):
        is_good = int(text[:-1]) <= 100
    if not is_good:
        raise Refusal(
            "InvalidLimit",
            f"{field} is `{text}`, which is neither a number nor a share.",
            'Write a number, say "3", or a share from "0%" to "100%".',
            field,
        )


def _timers(spec: RemedyPolicySpec) -> None:
    _bound(spec.breaker.share, "spec.breaker.share", may_be_empty=False)
    _in_range(spec.breaker.at_least, 0, 1_000_000, "InvalidBreaker", "spec.breaker.atLeast")
    for value, low, field in (
        (spec.breaker.window_seconds, 1, "spec.breaker.windowSeconds"),
        (spec.breaker.cooldown_seconds, 1, "spec.breaker.cooldownSeconds"),
        (spec.drain.patience_seconds, 0, "spec.drain.patienceSeconds"),
        (spec.drain.checkpoint_seconds, 0, "spec.drain.checkpointSeconds"),
        (spec.drain.deadline_seconds, 0, "spec.drain.deadlineSeconds"),
        (spec.soak.seconds, 0, "spec.soak.seconds"),
        (spec.offender.window_seconds, 1, "spec.offender.windowSeconds"),
        (spec.timers.hold_down_seconds, 0, "spec.timers.holdDownSeconds"),
        (spec.timers.debounce_seconds, 0, "spec.timers.debounceSeconds"),
        (spec.timers.flap_window_seconds, 1, "spec.timers.flapWindowSeconds"),
    ):
        _in_range(value, low, 365 * DAY_S, "InvalidSeconds", field)
    if spec.drain.checkpoint_seconds > spec.drain.deadline_seconds:
        raise Refusal(
            "InvalidSeconds",
            "drain.checkpointSeconds is longer than drain.deadlineSeconds: pods would be deleted while they still save.",
            f"Set deadlineSeconds to {spec.drain.checkpoint_seconds:g} or more.",
            "spec.drain.deadlineSeconds",
        )
    # More of them are not remembered.
    _in_range(spec.offender.incidents, 1, 31, "InvalidOffender", "spec.offender.incidents")
    _in_range(spec.timers.flap_limit, 0, 15, "InvalidLimit", "spec.timers.flapLimit")


def _idle(idle: Idle) -> None:
    if idle.action not in IDLE_ACTIONS:
        raise Refusal(
            "InvalidIdle",
            f"`{idle.action}` is nothing to do to the idle.",
            "Write Warn or Reclaim.",
            "spec.idle.action",
        )
    _in_range(idle.after_seconds, 0, 365 * DAY_S, "InvalidSeconds", "spec.idle.afterSeconds")
    _in_range(idle.gpu_hour_price, 0, 1e9, "InvalidIdle", "spec.idle.gpuHourPrice")
    if idle.action == "Reclaim" and not idle.after_seconds:
        raise Refusal(
            "InvalidIdle",
            "idle.action is Reclaim and nothing says after how long.",
            "Set idle.afterSeconds.",
            "spec.idle.afterSeconds",
        )


def _webhook(webhook: Webhook, where: str) -> None:
    parts = urlsplit(webhook.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refusal(
            "InvalidWebhook",
            f"`{webhook.url}` is not an address that can be posted to.",
            "Write a whole http:// or https:// address.",
            f"{where}.url",
        )
    for event in webhook.on:
        if event not in WEBHOOK_EVENTS:
            raise Refusal(
                "InvalidWebhook", f"`{event}` never happens.", f"There are {', '.join(WEBHOOK_EVENTS)}.", f"{where}.on"
            )


def _in_range(value: float, low: float, high: float, reason: str, field: str) -> None:
    if not low <= value <= high:
        raise Refusal(reason, f"{field} is {value:g}.", f"Give a number from {low:g} to {high:g}.", field)
