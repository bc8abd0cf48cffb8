"""Remedy policies on the screen: a line each, one in full with its ladders, and the answer of a dry run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from remuda.cli.output import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from remuda.api.remedies import RemedyPolicy
    from remuda.core.remedies.what_if import WhatIf

NARROW = 100  # columns of a terminal below which gaps are smaller


def render_policies(found: Sequence[RemedyPolicy], now: float, width: int) -> RenderableType:
    from remuda.core.remedies.limits import limit_of_share

    table = plain_table(
        *("NAME", "MODE", "PRIORITY", "SELECTS", "NODES", "UNDER REMEDY", "HELD BACK", "STATE"),
        right=("PRIORITY", "NODES", "UNDER REMEDY", "HELD BACK"),
        tight=width < NARROW,
        words=("NAME", "SELECTS", "STATE", "UNDER REMEDY", "HELD BACK"),
    )
    for policy in found:
        status = policy.status
        most = limit_of_share(policy.spec.limits.pool, status.nodes)
        remedied = str(len(status.under_remedy)) + ("" if most is None else f" of {most}")
        table.add_row(
            policy.name,
            policy.spec.mode.value,
            str(policy.spec.priority),
            _selector_words(policy),
            str(status.nodes),
            remedied,
            str(status.held_back),
            _policy_state_words(policy, now),
        )
    return table


def render_policy(policy: RemedyPolicy, now: float) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from remuda.cli.text import span_text
    from remuda.core.remedies.policies import policy_ladders

    spec, status = policy.spec, policy.status
    head = plain_table("", "what", words=("what",))
    head.show_header = False

    def say(name: str, text: str) -> None:
        head.add_row(name, text)

    say("policy", policy.name + ("" if policy.uid else "   (built in)"))
    say("applies to", _selector_words(policy) + (f", priority {spec.priority}" if spec.priority else ""))
    say("mode", spec.mode.value)
    say("state", _policy_state_words(policy, now))
    say("limits", _limit_words(policy))
    say(
        "breaker",
        f"opens above {spec.breaker.share} of the nodes (and {spec.breaker.at_least}) within "
        f"{span_text(spec.breaker.window_seconds)}, closes after {span_text(spec.breaker.cooldown_seconds)} without another",
    )
    whole = "whole domains" if spec.drain.whole_domain else "nodes alone"
    waits = [
        span_text(s) for s in (spec.drain.patience_seconds, spec.drain.checkpoint_seconds, spec.drain.deadline_seconds)
    ]
    say("drain", f"other pods protected for {waits[0]}, checkpoint {waits[1]}, deadline {waits[2]}, {whole}")
    say("soak", span_text(spec.soak.seconds))
    say(
        "offenders",
        f"more than {spec.offender.incidents} failures within {span_text(spec.offender.window_seconds)}: "
        f"start at {spec.offender.action}",
    )
    for webhook in spec.webhooks:
        say("webhook", f"{webhook.url} on {', '.join(webhook.on) or 'everything'}")
    rungs = plain_table(
        "WHEN", "RUNG", "ATTEMPTS", "TIMEOUT", "DONE BY", right=("ATTEMPTS", "TIMEOUT"), words=("DONE BY",)
    )
    for ladder in policy_ladders(policy):
        for number, rung in enumerate(ladder.rungs):
            when = ladder.when if number == 0 else ""
            early = f", not before {span_text(rung.after_seconds)} have passed" if rung.after_seconds else ""
            done_by = f"{_rung_doer_words(rung)}{early}"
            rungs.add_row(when, rung.action.value, str(rung.attempts), span_text(rung.timeout_seconds), done_by)
        if not ladder.rungs:
            rungs.add_row(ladder.when, "none", "", "", "nobody: the device is fine, the workload restarts")
    parts: list[RenderableType] = [head, Text(), rungs]
    for condition in status.conditions:
        if condition.status == "True":
            parts += [Text(), Text(f"{condition.type}: {condition.message}", style="yellow")]
    return Group(*parts)


def render_what_if(answer: WhatIf, node: str, device: str, code: str) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from remuda.cli.text import compact_names, plural_text

    asks = f", needs {answer.remedy}" if answer.remedy != "None" else ""
    lines = [
        f"If {device} of {node} had {code} ({answer.reason}{asks}), policy {answer.policy} ({answer.mode}):",
        *answer.remarks,
    ]
    if answer.quarantined:
        lines.append(f"quarantined: {compact_names(answer.quarantined)}; the node's other devices stay in use")
    parts: list[RenderableType] = [Text(line) for line in lines]
    if answer.hits:
        columns = ("NODES", "DEVICES", "PODS THAT LEAVE", "NAMESPACES", "BY")
        table = plain_table("RUNG", *columns, words=columns)
        for hit in answer.hits:
            pods = ", ".join(hit.pods[:4]) + (f" and {len(hit.pods) - 4} more" if len(hit.pods) > 4 else "")
            devices = ", ".join(hit.devices) if len(hit.devices) < 3 else plural_text(len(hit.devices), "device")
            table.add_row(
                hit.key,
                compact_names(hit.nodes),
                devices or "-",
                pods or "-",
                ", ".join(hit.namespaces) or "-",
                hit.how,
            )
        parts += [Text(), table]
    parts += [Text(), Text("Nothing was changed.")]
    return Group(*parts)


def _selector_words(policy: RemedyPolicy) -> str:
    from remuda.api.remedies import DEFAULT_POLICY

    if policy.name == DEFAULT_POLICY:
        return "everything else"
    selector = policy.spec.selector
    said = [*selector.device_types, *(f"{name}={value}" for name, value in selector.nodes.items())]
    return ", ".join(said) or "everything"


def _policy_state_words(policy: RemedyPolicy, now: float) -> str:
    from remuda.core.remedies.policies import is_policy_paused

    pause, breaker = policy.spec.pause, policy.status.breaker
    if pause is not None and is_policy_paused(pause, now):
        until = f" until {pause.until:%H:%M:%S}" if pause.until else ""
        why = f": {pause.message}" if pause.message else ""
        return f"paused{until}{f' by {pause.by}' if pause.by else ''}{why}"
    if breaker.open:
        ends = f", closes at {breaker.closes_at:%H:%M:%S}" if breaker.closes_at else ""
        return f"breaker open{ends}: {breaker.message}"
    return "active"


def _limit_words(policy: RemedyPolicy) -> str:
    limits, status = policy.spec.limits, policy.status
    named = ("pool", "rack", "tenant", "reservation", "cause", "per_hour")
    said = [f"{name.replace('per_hour', 'an hour')} {getattr(limits, name)}" for name in named if getattr(limits, name)]
    use = ""
    if policy.uid or status.nodes:
        nodes = ", ".join(status.under_remedy[:6]) + (" ..." if len(status.under_remedy) > 6 else "")
        use = f"; in use: {len(status.under_remedy)} of {status.nodes} nodes{f' ({nodes})' if nodes else ''}"
        use += f", {status.held_back} held back" if status.held_back else ""
    return (", ".join(said) or "none") + use


def _rung_doer_words(rung: Any) -> str:
    if rung.hook is not None:
        return f"command {rung.hook.command[0]}" if rung.hook.command else f"object {rung.hook.object.get('kind')}"
    return {"replace": "nobody yet: add a hook", "ticket": "recorded, sent to webhooks"}.get(rung.action, "the agent")
