"""Devices that fail together: the domain that explains them.

Faults of devices are independent; faults of what devices share are not. When AT_LEAST nodes of one domain (rack, NVLink
domain, power feed, any `topology.remuda.dev/` label) fail within WINDOW_S, and the share of the domain's nodes that did is far
above the share elsewhere, the domain is *suspect*. Within a node the same holds of devices on one switch, and of all its
devices, also when they did not fail but are held back alike: by a power cap, by heat. Of domains that explain the same failures
the one that explains most of them, most completely, is named: a feed of two racks that lost both, the rack when only one of its
racks fell.

The cost is that of the domains failures fell into (`RecentFailures`), never the cluster's. Nothing here cannot be read again from
the API, so a new manager finds the same suspects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set

import msgspec

from remuda.api.devices import Signal
from remuda.api.meta import to_time
from remuda.core.health.failure_index import (
    AT_LEAST,
    HELD_BACK,
    NODE,
    NVLINK,
    SWITCH,
    TOPOLOGY,
    WINDOW_S,
    DeviceFailure,
    RecentFailures,
)

LABEL_RACK = "topology.remuda.dev/rack"
LABEL_POWER = "topology.remuda.dev/power"

SOURCE = "correlation"
CODE = "switch-suspect"
NVSWITCH_FAILED = "NvswitchFailed"

FAR_ABOVE = 4.0  # times the share of the rest
LEAST_SHARE = 0.1  # of a domain: a few nodes of a large zone are not the zone
CHANCE = 0.1
MOST = 0.5  # of a switch's devices, or of a cluster that is all one domain


class DomainSuspect(msgspec.Struct, frozen=True):
    """`members`: what failed, "node/device" or "node"; `nodes`: theirs; `every`: all nodes of the domain."""

    domain: str
    reason: str  # RackSuspect | NvlinkDomainSuspect | PowerEvent | DomainSuspect | NvswitchFailed | NodeSuspect
    message: str
    since: float
    until: float  # the newest failure of them
    members: tuple[str, ...]
    nodes: tuple[str, ...]
    every: tuple[str, ...] = ()


def correlated_switch_findings(
    recent: RecentFailures, suspects: Iterable[DomainSuspect], node: str
) -> dict[str, Signal]:
    """Devices of the node that did not fail and share a failed switch with those that did, and the finding about each."""
    found: dict[str, Signal] = {}
    for suspect in suspects:
        if suspect.reason == NVSWITCH_FAILED and suspect.nodes == (node,):
            failed = {member.rpartition("/")[2] for member in suspect.members}
            finding = Signal(SOURCE, CODE, suspect.message, to_time(suspect.until))
            found |= dict.fromkeys(recent.on_switch(suspect.domain) - failed, finding)
    return found


def find_domain_suspects(recent: RecentFailures) -> list[DomainSuspect]:
    """Domains that explain failures, each failure explained once; the best explanation first."""
    found: list[tuple[float, DomainSuspect]] = []
    for domain in recent.hot:
        judge = _suspect_inside_node if domain.startswith((SWITCH, NODE)) else _suspect_across_nodes
        judged = judge(recent, domain, recent.by_domain[domain])
        if judged is not None:
            found.append(judged)
    # A domain of several nodes explains more than one of its nodes does; a switch is named before its node.
    found.sort(key=lambda one: (-one[0], one[1].domain.startswith(NODE), one[1].domain))
    explained: set[str] = set()
    kept: list[DomainSuspect] = []
    for _, suspect in found:
        if not explained.issuperset(suspect.members):
            kept.append(suspect)
            explained.update(suspect.members)
    return kept


def _suspect_across_nodes(
    recent: RecentFailures, domain: str, failures: Sequence[DeviceFailure]
) -> tuple[float, DomainSuspect] | None:
    """(how much it explains, the suspect) of a domain of several nodes."""
    every = recent.nodes.get(domain, set())
    judged = (_suspect_of_run(recent, domain, run, every) for run in _failure_runs(failures, lambda f: f.node))
    return next(filter(None, judged), None)


def _suspect_of_run(
    recent: RecentFailures, domain: str, together: Sequence[DeviceFailure], every: Set[str]
) -> tuple[float, DomainSuspect] | None:
    start, end = together[0].at, together[-1].at
    failed = {f.node for f in together}
    share = len(failed & every) / max(1, len(every))
    outside = recent.size - len(every)
    others = len(recent.nodes_failed(start, end) - every)
    if not _is_domain_outlier(len(failed), len(every), others, outside):
        return None
    reason, words = _correlated_domain_reason(domain)
    text = (
        f"{len(failed)} of {len(every)} nodes of {_correlated_domain_words(domain)} failed within {end - start:.0f} s, "
        f"{others} of {outside} elsewhere: {words}"
    )
    return len(failed) * share, _make_suspect(domain, reason, text, together, every)


def _is_domain_outlier(failed: int, every: int, others: int, outside: int) -> bool:
    """Whether so many of the domain's nodes, against so many of the others, need an explanation."""
    share = failed / max(1, every)
    if not outside:
        return share > MOST  # nothing to compare it with
    by_chance = (every / (every + outside)) ** failed  # that failures of nothing in common all fall into this domain
    return share >= LEAST_SHARE and share >= FAR_ABOVE * others / outside and by_chance <= CHANCE


def _suspect_inside_node(
    recent: RecentFailures, domain: str, failures: Sequence[DeviceFailure]
) -> tuple[float, DomainSuspect] | None:
    """The same of the devices of one switch, or of one node."""
    count = recent.devices_on(domain)
    if not count:
        return None  # it reports none any more: there is nothing left of which they were most
    runs = (run for run in _failure_runs(failures, lambda f: f.device) if len({f.device for f in run}) > MOST * count)
    together = next(runs, None)
    if together is None:
        return None
    failed = {f.device for f in together}
    is_switch = domain.startswith(SWITCH)
    if is_switch and not any(f.scope in ("link", "switch") for f in together):
        return None  # nothing was said of links: it is the node's board, power or driver
    node = together[0].node
    within = f"{len(failed)} of {count} devices"
    seconds = f"within {together[-1].at - together[0].at:.0f} s"
    if is_switch:
        text = f"{within} on one switch of {node} failed {seconds}: look at the switch before the devices."
        reason = NVSWITCH_FAILED
    elif all(f.scope == HELD_BACK for f in together):
        why = ", ".join(sorted({f.reason for f in together}))
        text = (
            f"{within} of {node} were slowed down {seconds} ({why}): look at its power and cooling before the devices."
        )
        reason = "NodeSuspect"
    else:
        text = f"{within} of {node} failed {seconds}: look at its board, power and driver before the devices."
        reason = "NodeSuspect"
    return len(failed) / count, _make_suspect(domain, reason, text, together, (node,))


def _failure_runs(
    failures: Sequence[DeviceFailure], unit: Callable[[DeviceFailure], str]
) -> Iterator[list[DeviceFailure]]:
    """Failures that followed each other without a pause longer than the window, newest run first, as far as AT_LEAST
    different units are in one. A run begins where that many first came within the window, not with what trickled in before."""
    end = len(failures)
    for place in range(len(failures) - 1, -1, -1):
        if place == 0 or failures[place].at - failures[place - 1].at > WINDOW_S:
            run, end = list(failures[place:end]), place
            begin = _correlated_run_begins_at(run, unit)
            if begin is not None:
                yield run[begin:]


def _correlated_run_begins_at(run: Sequence[DeviceFailure], unit: Callable[[DeviceFailure], str]) -> int | None:
    low = 0
    for high, failure in enumerate(run):
        while failure.at - run[low].at > WINDOW_S:
            low += 1
        if len({unit(f) for f in run[low : high + 1]}) >= AT_LEAST:
            return low
    return None


def _make_suspect(
    domain: str, reason: str, message: str, together: Sequence[DeviceFailure], every: Iterable[str]
) -> DomainSuspect:
    return DomainSuspect(
        domain=domain,
        reason=reason,
        message=message,
        since=together[0].at,
        until=together[-1].at,
        members=tuple(sorted({f.name for f in together})),
        nodes=tuple(sorted({f.node for f in together})),
        every=tuple(sorted(every)),
    )


def _correlated_domain_reason(domain: str) -> tuple[str, str]:
    if domain.startswith(NVLINK):
        return "NvlinkDomainSuspect", "look at its NVLink switches before the devices."
    if domain.startswith(f"{LABEL_RACK}="):
        return "RackSuspect", "look at its power and its switch before the devices."
    if domain.startswith(f"{LABEL_POWER}="):
        return "PowerEvent", "look at the feed before the devices."
    return "DomainSuspect", "look at what they share before the devices."


def _correlated_domain_words(domain: str) -> str:
    if domain.startswith(NVLINK):
        return f"NVLink domain {domain.removeprefix(NVLINK)}"
    key, _, value = domain.partition("=")
    return f"{key.removeprefix(TOPOLOGY)} {value}"
