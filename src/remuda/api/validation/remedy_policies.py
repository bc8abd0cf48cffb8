"""What a RemedyPolicy may say: contradictions are refused when it is written, not found out when a device has failed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from urllib.parse import urlsplit

from remuda.api.errors import Refusal
from remuda.api.remedies import (
    DEFAULT_POLICY,
    Action,
    Drain,
    Idle,
    Ladder,
    Limits,
    Pause,
    RemedyPolicy,
    RemedyPolicySpec,
    Rung,
    Webhook,
)
from remuda.api.selectors import is_selector_label_key
from remuda.api.validation.hooks import check_hook
from remuda.api.validation.incidents import time_zone_validation_refusal
from remuda.api.validation.numbers import validate_number_range

DAY_S = 86_400.0
MAX_TIMEOUT_S = 30 * DAY_S
MAX_ATTEMPTS = 20
MAX_LADDERS = 256
MAX_RUNGS = 32
MAX_PATTERNS = 64
MAX_STARS = 8
MAX_PATTERN = 256  # characters; a type's name has at most some dozens
MAX_WEBHOOKS = 16
MAX_URL = 2048
MAX_PRIORITY = 1_000_000_000
WEBHOOK_EVENTS = ("Opened", "Remedy", "AwaitingApproval", "Closed", "Breaker")
IDLE_ACTIONS = ("Warn", "Reclaim")

_REASON = re.compile(r"[A-Z][A-Za-z0-9]*")
_BOUND = re.compile(r"[0-9]{1,9}%?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_PLACEHOLDERS = ("node", "device", "uuid", "incident", "action")
# Rungs from the mildest on: a policy that reboots before it resets would never come to the reset's good.
_ORDER = {action: number for number, action in enumerate(Action)}


def check_policy(policy: RemedyPolicy) -> None:
    """Raises Refusal."""
    spec = policy.spec
    validate_number_range(spec.priority, -MAX_PRIORITY, MAX_PRIORITY, "InvalidPriority", "spec.priority")
    _check_policy_selector(policy)
    _check_at_most(spec.ladders, MAX_LADDERS, "spec.ladders")
    _check_at_most(spec.webhooks, MAX_WEBHOOKS, "spec.webhooks")
    seen: set[str] = set()
    for index, ladder in enumerate(spec.ladders):
        path = f"spec.ladders[{index}]"
        if not (_REASON.fullmatch(ladder.when) or ladder.when == "*"):
            raise Refusal(
                "InvalidReason",
                f"A ladder is for `{ladder.when}`, which no verdict can have as its reason.",
                "Name a remedy (ResetDevice), a reason (Xid79, DeviceFlapping), or `*` for any.",
                f"{path}.when",
            )
        if ladder.when in seen:
            raise Refusal(
                "LadderSaidTwice",
                f"There are two ladders for {ladder.when}.",
                "Put their rungs into one ladder.",
                f"{path}.when",
            )
        seen.add(ladder.when)
        _check_ladder(ladder, path)
    _check_policy_limits(spec.limits)
    _check_policy_timers(spec)
    _check_idle_policy(spec.idle)
    for index, webhook in enumerate(spec.webhooks):
        _check_policy_webhook(webhook, f"spec.webhooks[{index}]")
    _check_policy_pause(spec.pause)


def _check_policy_pause(pause: Pause | None) -> None:
    if pause is None:
        return
    for field in ("since", "until"):
        moment = getattr(pause, field)
        if moment is not None and moment.tzinfo is None:
            raise time_zone_validation_refusal(f"spec.pause.{field}")
    if pause.since is not None and pause.until is not None and pause.until <= pause.since:
        raise Refusal("InvalidPause", "The pause ends before it begins.", "Give a later `until`.", "spec.pause.until")


def _check_policy_selector(policy: RemedyPolicy) -> None:
    selector = policy.spec.selector
    if policy.name == DEFAULT_POLICY and (selector.device_types or selector.nodes):
        raise Refusal(
            "DefaultSelects",
            "The policy `default` applies to what no other policy selects, so it cannot have a selector.",
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
    _check_at_most(selector.device_types, MAX_PATTERNS, "spec.selector.deviceTypes")
    for pattern in selector.device_types:
        if len(pattern) > MAX_PATTERN or pattern.count("*") > MAX_STARS:
            raise Refusal(
                "InvalidSelector",
                f"The pattern `{pattern:.40}...` is longer than any device type.",
                f"Use at most {MAX_PATTERN} characters and {MAX_STARS} stars.",
                "spec.selector.deviceTypes",
            )
    _check_at_most(selector.nodes, MAX_PATTERNS, "spec.selector.nodes")
    check_remedy_policy_node_labels(selector.nodes, "InvalidSelector", "spec.selector.nodes")


def check_remedy_policy_node_labels(labels: Mapping[str, str], reason: str, field: str) -> None:
    """Labels a node can have. Raises Refusal."""
    for name, value in labels.items():
        if not is_selector_label_key(name):
            raise Refusal(reason, f"`{name:.100}` is not a label.", "Give the key of a node label.", field)
        if not _LABEL_VALUE.fullmatch(value):
            raise Refusal(
                reason,
                f"No node can have `{value.encode('unicode_escape').decode('ascii'):.100}` as the value of {name}.",
                "Use at most 63 letters, digits, dashes, dots and underscores.",
                field,
            )


def _check_ladder(ladder: Ladder, path: str) -> None:
    if not ladder.rungs:
        raise Refusal(
            "EmptyLadder",
            f"The ladder for {ladder.when} has no rungs.",
            "Give it one, or leave the ladder out: what has no ladder is left alone.",
            f"{path}.rungs",
        )
    _check_at_most(ladder.rungs, MAX_RUNGS, f"{path}.rungs")
    highest = -1
    for number, rung in enumerate(ladder.rungs):
        where = f"{path}.rungs[{number}]"
        _check_rung(rung, where)
        if rung.action is Action.PROBE:
            continue  # worth a try again at any height
        if _ORDER[rung.action] < highest:
            raise Refusal(
                "LadderGoesDown",
                f"The ladder for {ladder.when} has {rung.action} after a harsher rung.",
                "Order the rungs: probe, reset, reboot, replace, ticket.",
                f"{where}.action",
            )
        highest = _ORDER[rung.action]


def _check_rung(rung: Rung, where: str) -> None:
    validate_number_range(rung.attempts, 1, MAX_ATTEMPTS, "InvalidAttempts", f"{where}.attempts")
    validate_number_range(rung.timeout_seconds, 1, MAX_TIMEOUT_S, "InvalidSeconds", f"{where}.timeoutSeconds")
    validate_number_range(rung.after_seconds, 0, MAX_TIMEOUT_S, "InvalidSeconds", f"{where}.afterSeconds")
    if rung.hook is not None:
        check_hook(rung.hook, f"{where}.hook", _PLACEHOLDERS)


def _check_policy_limits(limits: Limits) -> None:
    for field in ("pool", "rack", "tenant", "reservation", "cause", "per_hour"):
        name = "perHour" if field == "per_hour" else field
        _check_policy_bound(getattr(limits, field), f"spec.limits.{name}", may_be_empty=True)
    if not is_selector_label_key(limits.rack_label):
        raise Refusal(
            "InvalidLimit",
            f"`{limits.rack_label}` is not a label.",
            "Give the node label that names the rack.",
            "spec.limits.rackLabel",
        )


def _check_policy_bound(text: str, field: str, *, may_be_empty: bool) -> None:
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


def _check_policy_timers(spec: RemedyPolicySpec) -> None:
    _check_policy_bound(spec.breaker.share, "spec.breaker.share", may_be_empty=False)
    validate_number_range(spec.breaker.at_least, 0, 1_000_000, "InvalidBreaker", "spec.breaker.atLeast")
    for value, low, field in (
        (spec.breaker.window_seconds, 1, "spec.breaker.windowSeconds"),
        (spec.breaker.cooldown_seconds, 1, "spec.breaker.cooldownSeconds"),
        (spec.soak.seconds, 0, "spec.soak.seconds"),
        (spec.offender.window_seconds, 1, "spec.offender.windowSeconds"),
        (spec.timers.hold_down_seconds, 0, "spec.timers.holdDownSeconds"),
        (spec.timers.debounce_seconds, 0, "spec.timers.debounceSeconds"),
        (spec.timers.flap_window_seconds, 1, "spec.timers.flapWindowSeconds"),
    ):
        validate_number_range(value, low, 365 * DAY_S, "InvalidSeconds", field)
    check_drain(spec.drain)
    # More of them are not remembered.
    validate_number_range(spec.offender.incidents, 1, 31, "InvalidOffender", "spec.offender.incidents")
    validate_number_range(spec.timers.flap_limit, 0, 15, "InvalidLimit", "spec.timers.flapLimit")


def check_drain(drain: Drain) -> None:
    """Raises Refusal. Of a policy or a roll-out."""
    for name in ("patience", "checkpoint", "deadline"):
        validate_number_range(
            getattr(drain, f"{name}_seconds"), 0, 365 * DAY_S, "InvalidSeconds", f"spec.drain.{name}Seconds"
        )
    if drain.checkpoint_seconds > drain.deadline_seconds:
        raise Refusal(
            "InvalidSeconds",
            "drain.checkpointSeconds is longer than drain.deadlineSeconds: pods would be deleted while they still save.",
            f"Set deadlineSeconds to {drain.checkpoint_seconds:g} or more.",
            "spec.drain.deadlineSeconds",
        )


def _check_idle_policy(idle: Idle) -> None:
    if idle.action not in IDLE_ACTIONS:
        raise Refusal(
            "InvalidIdle",
            f"`{idle.action}` is not an action for idle devices.",
            "Write Warn or Reclaim.",
            "spec.idle.action",
        )
    validate_number_range(idle.after_seconds, 0, 365 * DAY_S, "InvalidSeconds", "spec.idle.afterSeconds")
    validate_number_range(idle.gpu_hour_price, 0, 1e9, "InvalidIdle", "spec.idle.gpuHourPrice")
    if idle.action == "Reclaim" and not idle.after_seconds:
        raise Refusal(
            "InvalidIdle",
            "idle.action is Reclaim, but idle.afterSeconds is not set.",
            "Set idle.afterSeconds.",
            "spec.idle.afterSeconds",
        )


def _check_policy_webhook(webhook: Webhook, where: str) -> None:
    if not _is_webhook_address(webhook.url):
        raise Refusal(
            "InvalidWebhook",
            f"`{webhook.url:.200}` is not an address that can be posted to.",
            "Write a whole http:// or https:// address.",
            f"{where}.url",
        )
    for event in webhook.on:
        if event not in WEBHOOK_EVENTS:
            raise Refusal(
                "InvalidWebhook",
                f"`{event}` is not an event.",
                f"Use one of {', '.join(WEBHOOK_EVENTS)}.",
                f"{where}.on",
            )


def _is_webhook_address(url: str) -> bool:
    if len(url) > MAX_URL or not url.isprintable() or not url.isascii() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # half an IPv6 address, a port beyond 65535
        return False


def _check_at_most(given: Sized, most: int, field: str) -> None:
    if len(given) > most:
        raise Refusal("TooMany", f"{field} has {len(given)} entries.", f"Use at most {most}.", field)
