"""Failures of late, by the domains they fell into: the index that correlation reads.

A failure costs its own domains when it is added and when it is old, never the cluster. Domains are named as incidents name them:
`label=value` for every `topology.remuda.dev/` label of a node, `nvlink/<clique>` for its multi-node NVLink domain; within a node
`nvswitch/<node>/<n>` for devices that meet in one switch and `node/<node>` for all of them.

A failure counts once, however often and in whatever order it is told. A device that is *held back* (a power cap, heat) has not
failed: that counts within its node alone, where one cap holds back all of them, and says nothing against a rack.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping

import msgspec

from remuda.api.devices import ObservedLink
from remuda.api.names import LABEL_CLIQUE

TOPOLOGY = "topology.remuda.dev/"
NVLINK, SWITCH, NODE = "nvlink/", "nvswitch/", "node/"

WINDOW_S = 60.0
KEEP_S = 3600.0  # how long a domain stays suspect
AT_LEAST = 3
HELD_BACK = "held-back"  # scope of what is no failure

_SWITCHED = re.compile(r"nv\d+", re.IGNORECASE)  # as agents write links over NVLink


class DeviceFailure(msgspec.Struct, frozen=True, order=True):
    """`device`: "" when it is the node itself that was lost. `scope`: as in the fault table, or HELD_BACK."""

    at: float
    node: str
    device: str = ""
    reason: str = ""
    scope: str = "device"

    @property
    def key(self) -> tuple[str, str, float]:
        return self.node, self.device, self.at

    @property
    def name(self) -> str:
        return f"{self.node}/{self.device}" if self.device else self.node


class RecentFailures:
    """Failures of the last KEEP_S by domain, and which nodes and devices each domain has."""

    def __init__(self) -> None:
        self._domains: dict[str, tuple[str, ...]] = {}  # of each node
        self._switches: dict[str, tuple[frozenset[str], ...]] = {}  # of each node: devices on one switch
        self._devices: dict[str, int] = {}
        self.nodes: dict[str, set[str]] = {}  # of each domain
        self.by_domain: dict[str, list[DeviceFailure]] = {}  # oldest first
        self.hot: set[str] = set()  # domains with AT_LEAST failures
        self._all: list[DeviceFailure] = []
        self._by_node: dict[str, list[DeviceFailure]] = {}
        self._filed: dict[
            tuple[str, str, float], tuple[str, ...]
        ] = {}  # node, device, time -> domains it was filed under

    @property
    def size(self) -> int:
        """Nodes there are."""
        return len(self._domains)

    def __len__(self) -> int:
        """Failures that are remembered."""
        return len(self._all)

    def place(self, node: str, labels: Mapping[str, str]) -> bool:
        """The node is there, with those labels. Whether that puts a failure elsewhere: a new manager may hear of failures before
        it hears of the node."""
        domains = failure_domains_of(labels)
        if self._domains.get(node) == domains:
            return False
        self._unplace_node(node)
        self._domains[node] = domains
        for domain in domains:
            self.nodes.setdefault(domain, set()).add(node)
        return self._refile_node(node)

    def join(self, node: str, groups: Iterable[Iterable[str]], devices: int) -> bool:
        """Which of the node's devices share a switch, and how many it has; as `place`."""
        self._switches[node] = tuple(frozenset(group) for group in groups)
        self._devices[node] = devices
        return self._refile_node(node)

    def forget(self, node: str) -> None:
        """The node is gone from the cluster; what failed there stays known until it is old."""
        self._unplace_node(node)
        self._switches.pop(node, None)
        self._devices.pop(node, None)

    def add(self, failure: DeviceFailure) -> bool:
        """Whether it is news."""
        if failure.key in self._filed:
            return False
        insort(self._all, failure)
        self._by_node.setdefault(failure.node, []).append(failure)
        self._file_failure(failure)
        return True

    def expire(self, now: float) -> None:
        """Drop what is older than KEEP_S."""
        count = bisect_left(self._all, now - KEEP_S, key=lambda f: f.at)
        for failure in self._all[:count]:
            self._unfile_failure(failure)
            mine = self._by_node[failure.node]
            mine.remove(failure)
            if not mine:
                del self._by_node[failure.node]
        del self._all[:count]

    def nodes_failed(self, start: float, end: float) -> set[str]:
        first = bisect_left(self._all, start, key=lambda f: f.at)
        last = bisect_right(self._all, end, key=lambda f: f.at)
        return {f.node for f in self._all[first:last] if f.scope != HELD_BACK}

    def devices_on(self, domain: str) -> int:
        """Of a switch or a node."""
        if domain.startswith(NODE):
            return self._devices.get(domain.removeprefix(NODE), 0)
        return len(self.on_switch(domain))

    def on_switch(self, domain: str) -> frozenset[str]:
        node, _, number = domain.removeprefix(SWITCH).rpartition("/")
        groups = self._switches.get(node, ())
        return groups[int(number)] if int(number) < len(groups) else frozenset()

    def _file_failure(self, failure: DeviceFailure) -> None:
        self._filed[failure.key] = self._domains_of_failure(failure)
        for domain in self._filed[failure.key]:
            found = self.by_domain.setdefault(domain, [])
            insort(found, failure)
            if len(found) >= AT_LEAST:
                self.hot.add(domain)

    def _unfile_failure(self, failure: DeviceFailure) -> None:
        for domain in self._filed.pop(failure.key):
            found = self.by_domain[domain]
            found.remove(failure)
            if len(found) < AT_LEAST:
                self.hot.discard(domain)
            if not found:
                del self.by_domain[domain]

    def _refile_node(self, node: str) -> bool:
        failures = self._by_node.get(node, ())
        for failure in failures:
            self._unfile_failure(failure)
            self._file_failure(failure)
        return bool(failures)

    def _domains_of_failure(self, failure: DeviceFailure) -> tuple[str, ...]:
        if failure.scope == HELD_BACK:
            return (f"{NODE}{failure.node}",)
        domains = list(self._domains.get(failure.node, ()))
        if failure.device:
            domains.append(f"{NODE}{failure.node}")
            groups = enumerate(self._switches.get(failure.node, ()))
            domains += (f"{SWITCH}{failure.node}/{number}" for number, group in groups if failure.device in group)
        return tuple(domains)

    def _unplace_node(self, node: str) -> None:
        for domain in self._domains.pop(node, ()):
            self.nodes[domain].discard(node)
            if not self.nodes[domain]:
                del self.nodes[domain]


def failure_domains_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """The domains a node is in, by its labels, as incidents name them."""
    found = [f"{key}={value}" for key, value in sorted(labels.items()) if key.startswith(TOPOLOGY) and value]
    if clique := labels.get(LABEL_CLIQUE):
        found.append(f"{NVLINK}{clique}")
    return tuple(found)


def nvswitch_correlation_groups(links: Iterable[ObservedLink]) -> list[frozenset[str]]:
    """Devices that meet in one NVSwitch: groups larger than what direct links make."""
    return [frozenset(link.among) for link in links if _SWITCHED.fullmatch(link.kind) and len(link.among) >= 4]
