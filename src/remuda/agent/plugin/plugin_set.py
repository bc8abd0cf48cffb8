"""The agent's plugins: one per resource its devices count for, made as resources appear, and what is reported of each.

A resource whose last device went (a device cut anew) keeps its plugin with an empty list: the kubelet shows 0 then, and the next
cut may bring it back. With a device-plugin directory every plugin is also served there; without one a node in the same process
listens directly, and its listening is what Registered means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import msgspec

from remuda.agent.allocation.device_grants import AllocationGrants
from remuda.agent.inventory import Inventory
from remuda.agent.plugin.plugin_server import LOST, REGISTERED, STARTING, PluginServer
from remuda.agent.plugin.preferred_devices import BestSet
from remuda.agent.plugin.published_resources import Capacity, PublishedResources
from remuda.agent.plugin.resource_plugin import BoundPods, ResourcePlugin
from remuda.api.devices import PluginReport
from remuda.api.errors import Refusal
from remuda.api.meta import to_time


class PluginSet:
    def __init__(
        self,
        inventory: Inventory,
        grants: AllocationGrants,
        *,
        pods: BoundPods,
        best: BestSet,
        replicas: Mapping[str, int],
        directory: str,
        clock: Callable[[], float],
        token: Callable[[], str],
        changed: Callable[[], None],
        capacity: Capacity | None = None,
    ) -> None:
        """`changed`: `reports` says something new. `capacity`: what the Node says it has."""
        self.plugins: dict[str, ResourcePlugin] = {}
        self._inventory = inventory
        self._grants = grants
        self._pods = pods
        self._best = best
        self._replicas = replicas
        self._directory = directory
        self._clock = clock
        self._token = token
        self._changed = changed
        self._publication = PublishedResources(capacity, self._published) if capacity is not None else None
        self._reports: dict[str, PluginReport] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_open = False
        self._fill()
        inventory.subscribe(self._fill)

    def prefer(self, best: BestSet) -> None:
        """From now on, by a model of the user's own."""
        self._best = best
        for plugin in self.plugins.values():
            plugin.best = best

    def inherit(self, earlier: Iterable[PluginReport]) -> None:
        """A plugin that is as it was has been so since then."""
        for old in earlier:
            new = self._reports.get(old.resource)
            if new is not None and (new.state, new.message) == (old.state, old.message):
                self._reports[old.resource] = old

    def open(self) -> None:
        """Serve them, and those to come."""
        self._is_open = True
        if self._publication is not None:
            self._publication.want(self._unpublished())
        for resource in self.plugins:
            self._serve(resource)

    def silence(self) -> None:
        self._is_open = False
        for plugin in self.plugins.values():
            plugin.close()
        if self._publication is not None:
            self._publication.stop()
        for task in self._tasks.values():
            task.cancel()

    async def close(self) -> None:
        self.silence()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def inject(self, resource: str, fault: str) -> None:
        plugin = self.plugins.get(resource)
        if plugin is None:
            known = ", ".join(self.plugins) or "none"
            raise Refusal("UnknownPlugin", f"No plugin serves {resource} here.", f"Plugins here: {known}.", "resource")
        plugin.inject(fault)

    def reports(self) -> list[PluginReport]:
        return [self._reports[resource] for resource in sorted(self._reports)]

    def _fill(self) -> None:
        for resource in self._inventory.resources():
            if resource not in self.plugins:
                self.plugins[resource] = ResourcePlugin(
                    resource,
                    inventory=self._inventory,
                    grants=self._grants,
                    pods=self._pods,
                    best=self._best,
                    replicas=self._replicas.get(resource, 1),
                    streams_changed=self._streams_changed,
                )
                self._note(resource, STARTING, "")
                if self._is_open:
                    self._serve(resource)

    def _serve(self, resource: str) -> None:
        if self._directory and resource not in self._tasks:
            server = PluginServer(
                self.plugins[resource],
                self._directory,
                report=lambda state, message: self._note(resource, state, message),
                token=self._token,
                is_up=lambda: self._up(resource),
            )
            self._tasks[resource] = asyncio.get_running_loop().create_task(server.run(), name=f"plugin {resource}")

    def _streams_changed(self, plugin: ResourcePlugin) -> None:
        if self._directory or plugin.resource not in self.plugins:
            return  # the server knows better
        if plugin.streams:
            if self._reports[plugin.resource].state != REGISTERED:
                self._up(plugin.resource)
            self._note(plugin.resource, REGISTERED, "")
        elif self._reports[plugin.resource].state == REGISTERED:
            self._note(plugin.resource, LOST, "StreamEnded: the node does not listen any more.")

    def _note(self, resource: str, state: str, message: str) -> None:
        old = self._reports.get(resource)
        if old is not None and (old.state, old.message) == (state, message):
            return
        is_same = old is not None and old.state == state
        since = old.since if old is not None and is_same else to_time(self._clock())
        started = old.started_at if old is not None else None
        published = old.published_at if old is not None and is_same else None
        self._reports[resource] = PluginReport(resource, state, since, message, started, published)
        if self._is_open and self._publication is not None:
            self._publication.want(self._unpublished())
        self._changed()

    def _up(self, resource: str) -> None:
        """Its socket is served; the next word on it says so."""
        started = to_time(self._clock())
        self._reports[resource] = msgspec.structs.replace(self._reports[resource], started_at=started)

    def _unpublished(self) -> set[str]:
        found = self._reports.values()
        return {r.resource for r in found if r.state == REGISTERED and r.published_at is None}

    def _published(self, resource: str) -> None:
        seen = to_time(self._clock())
        self._reports[resource] = msgspec.structs.replace(self._reports[resource], published_at=seen)
        self._changed()
