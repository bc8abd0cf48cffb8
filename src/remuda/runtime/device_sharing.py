"""How the devices of a machine are shared out, checked against its model before anything starts: MIG layouts and replicas.

A layout or a number of shares that cannot be is refused here, in the words of the option, instead of by each node later. What
depends on the moment (a device that somebody holds) is the agent's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from remuda.agent.allocation.mig_slicing import ALL, Layouts
from remuda.agent.hardware.slice_rows import hardware_slice_resource, plan_hardware_mig_slices
from remuda.agent.plugin.resource_plugin import MAX_REPLICAS
from remuda.api.errors import Refusal
from remuda.core.devices.machine_models import MachineModel


def check_cluster_mig_layouts(model: MachineModel, layouts: Layouts) -> None:
    """Refusal UnknownDevice, MigNotSupported, UnknownMigProfile (naming the near ones) or IllegalMigLayout."""
    known = {d.id: d for d in model.devices}
    for device, profiles in layouts.items():
        if device != ALL and device not in known:
            raise Refusal(
                "UnknownDevice",
                f"A {model.name} has no device `{device}`.",
                f"Its devices: {', '.join(known) or 'none'}; or say {ALL}.",
                "mig",
            )
        if not profiles:
            continue
        for one in known.values() if device == ALL else (known[device],):
            plan_hardware_mig_slices(one.id, model.geometry(one.index), profiles)


def check_cluster_device_shares(model: MachineModel, layouts: Layouts, replicas: Mapping[str, int]) -> None:
    """Refusal InvalidReplicas for a number that is not possible, or a resource no device counts for."""
    offered = resources_after_device_sharing(model, layouts)
    for resource, number in replicas.items():
        if resource not in offered:
            raise Refusal(
                "InvalidReplicas",
                f"No device of a {model.name} counts for {resource}.",
                f"There are: {', '.join(offered) or 'none'}.",
                "replicas",
            )
        if not 1 <= number <= MAX_REPLICAS:
            raise Refusal(
                "InvalidReplicas",
                f"{number} replicas of {resource} are not possible.",
                f"Say a number from 1 to {MAX_REPLICAS}.",
                "replicas",
            )


def resources_after_device_sharing(model: MachineModel, layouts: Layouts) -> list[str]:
    """The resources a machine cut like that has devices for; the whole ones first."""
    whole, slices = False, dict[str, None]()
    for device in model.devices:
        geometry = model.geometry(device.index)
        profiles = layouts.get(device.id, layouts.get(ALL, ()))
        if profiles and geometry is not None:
            slices.update(dict.fromkeys(hardware_slice_resource(geometry.profile(name).name) for name in profiles))
        else:
            whole = True
    return [*([model.resource] if whole else []), *slices]


def cluster_config_mig_words(layouts: Layouts) -> list[str]:
    """As `--mig` takes them."""
    return [f"{device}={','.join(_counted_profiles(profiles))}" for device, profiles in layouts.items()]


def _counted_profiles(profiles: Sequence[str]) -> list[str]:
    """3g.40gb*2 for two in a row."""
    runs = [(name, len(list(same))) for name, same in groupby(profiles)]
    return [f"{name}*{count}" if count > 1 else name for name, count in runs]


def cluster_config_replica_words(replicas: Mapping[str, int]) -> list[str]:
    """As `--replicas` takes them."""
    return [f"{resource}={number}" for resource, number in replicas.items()]
