"""Most nodes of a zone silent at once: that is the network, the power or us, and nobody is replaced for it.

A node is *silent* when its lease has run out, and *quiet* when more than half of it passed without a renewal: leases of one
moment run out one after another, and the first of them must not be replaced before the rest is looked at. Silence *at once*
means that leases run out within `window_s` of one another. When those are more than half of the zone's nodes that were there
until then (two at least), it is mass silence: they are held, which means that they are neither lost nor fit for anything new.

It is over when so many answer again that it is no longer most; those that have not yet are held for one lease more, since they
come back one after another, too. If it is not over after `hold_s`, the rule's `then` says what happens: wait for an operator, or
replace what is on them. What an operator gives up counts as lost at once; that word is void when the node has been heard since.

Nodes without a zone make one zone together: the whole cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Lease, Node
from remuda.api.meta import to_seconds
from remuda.api.names import ANNOTATION_GIVEN_UP

MASS_SILENCE = "MassSilence"
ZONE_LABEL = "topology.kubernetes.io/zone"
WAIT, REPLACE = "wait", "replace"
LEAST = 2  # a node that is alone in its zone is lost like any other


class MassSilenceRule(msgspec.Struct, frozen=True):
    window_s: float = 30.0
    hold_s: float = 600.0
    then: str = WAIT
    is_on: bool = True


def check_mass_silence_rule(rule: MassSilenceRule) -> MassSilenceRule:
    """The rule, or a Refusal that names the option."""
    if rule.then not in (WAIT, REPLACE):
        words = f"`{rule.then}` is not what can be done when most nodes fall silent."
        raise Refusal("InvalidMassSilence", words, f"Say {WAIT} or {REPLACE}.", "mass-silence")
    if not 0 < rule.window_s <= 3600 or not 0 <= rule.hold_s <= 7 * 86_400:
        words = f"The window is {rule.window_s:g} s and the hold {rule.hold_s:g} s."
        raise Refusal(
            "InvalidMassSilence", words, "Give a window up to an hour, and a hold up to a week.", "mass-silence-hold"
        )
    return rule


class NodeSilence(msgspec.Struct, frozen=True):
    """A node as its lease shows it. `ends_at`: when that runs, or ran, out. `given_up_at`: an operator's word."""

    name: str
    zone: str
    ends_at: float
    lease_s: float
    given_up_at: float | None = None

    @property
    def is_given_up(self) -> bool:
        return self.given_up_at is not None and self.given_up_at >= self.ends_at

    def is_quiet(self, now: float) -> bool:
        return now > self.ends_at - self.lease_s / 2


def node_silence_of(node: Node, ends_at: float, lease: Lease) -> NodeSilence:
    zone, lease_s = node.labels.get(ZONE_LABEL, ""), float(lease.spec.lease_duration_seconds)
    return NodeSilence(node.name, zone, ends_at, lease_s, _node_given_up_at(node))


def _node_given_up_at(node: Node) -> float | None:
    """A word that cannot be read is none: nobody is given up on doubt."""
    try:
        said = datetime.fromisoformat(node.annotations.get(ANNOTATION_GIVEN_UP, ""))
    except ValueError:
        return None
    return to_seconds(said) if said.tzinfo is not None else None


class MassSilence(msgspec.Struct, frozen=True):
    zone: str
    since: float  # when the first lease ran out
    nodes: tuple[str, ...]  # that are silent
    of: int  # that were there until then

    @property
    def words(self) -> str:
        return f"zone {self.zone}" if self.zone else "the cluster"


def find_mass_silences(nodes: Sequence[NodeSilence], now: float, rule: MassSilenceRule) -> list[MassSilence]:
    """What is so at this moment, by zone."""
    if not rule.is_on:
        return []
    zones: dict[str, list[NodeSilence]] = {}
    for node in nodes:
        zones.setdefault(node.zone, []).append(node)
    found = (_mass_silence_in(zone, there, now, rule) for zone, there in sorted(zones.items()))
    return [silence for silence in found if silence is not None]


def _mass_silence_in(zone: str, nodes: Sequence[NodeSilence], now: float, rule: MassSilenceRule) -> MassSilence | None:
    quiet = sorted((n for n in nodes if n.is_quiet(now)), key=lambda n: n.ends_at)
    if not quiet or quiet[0].ends_at >= now:
        return None  # nobody is silent yet
    held: dict[str, NodeSilence] = {}
    of = 0
    for first in quiet:
        if first.ends_at >= now:
            break
        there = sum(1 for n in nodes if n.ends_at >= first.ends_at)
        together = [n for n in quiet if first.ends_at <= n.ends_at <= first.ends_at + rule.window_s]
        if len(together) >= LEAST and 2 * len(together) > there:
            held |= {n.name: n for n in together}
            of = max(of, there)
    if not held:
        return None
    return MassSilence(zone, min(n.ends_at for n in held.values()), tuple(sorted(held)), of)


class MassSilences:
    """Those that stand, from look to look. A manager that comes new finds them by the leases, and holds anew."""

    def __init__(self, rule: MassSilenceRule) -> None:
        self.rule = rule
        self.standing: dict[str, MassSilence] = {}  # by zone
        self._held_until: dict[str, float] = {}  # by node: of a silence that is over

    def look(self, nodes: Sequence[NodeSilence], now: float) -> frozenset[str]:
        """Nodes that are held: silent or about to be, and nobody is to be replaced for it."""
        found = {silence.zone: silence for silence in find_mass_silences(nodes, now, self.rule)}
        by_name = {node.name: node for node in nodes}
        for zone, before in self.standing.items():
            if zone not in found:
                for name in before.nodes:
                    if name in by_name:
                        self._held_until[name] = now + by_name[name].lease_s
        for zone, silence in found.items():
            old = self.standing.get(zone)
            if old is not None:
                found[zone] = msgspec.structs.replace(silence, since=min(old.since, silence.since))
        self.standing = found
        self._held_until = {name: until for name, until in self._held_until.items() if until > now}
        held = {name for silence in found.values() if self._is_waited_for(silence, now) for name in silence.nodes}
        held |= self._held_until.keys()
        return frozenset(n.name for n in nodes if n.name in held and n.is_quiet(now) and not n.is_given_up)

    def _is_waited_for(self, silence: MassSilence, now: float) -> bool:
        return self.rule.then == WAIT or now < silence.since + self.rule.hold_s
