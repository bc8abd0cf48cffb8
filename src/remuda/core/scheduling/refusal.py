"""The words of a placement that cannot be had: what was asked, where most of it would fit, and the smallest change that would
admit it. One place, because the same sentence ends up in pod conditions, job status, CLI and dashboard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from remuda.api.errors import Refusal


def no_room(
    reason: str,
    *,
    gpus: Sequence[int],
    others: Sequence[tuple[str, int]] = (),
    fits: int,
    topology: str,
    domain: str,
    is_known: bool,
    away: Sequence[str],
    is_all_away: bool,
    is_plugin_lost: bool = False,
) -> Refusal:
    """`gpus` of each pod asked for, and `others` of other devices; `fits` of them would fit in `domain`; `away`: why each node
    there that takes none does."""
    if not is_known:
        if topology:
            return Refusal(reason, f"No node has the label {topology}.", "Label the nodes or drop topology.required.")
        return Refusal(reason, "The cluster has no nodes.", "Add a node.")
    level = topology.rsplit("/", 1)[-1]
    where = f"{level} {domain}" if topology else "the cluster"
    need = len(gpus)
    sentence = f"Needs {_pods(gpus, others)}{f' in one {level}' if topology else ''}; {where} has room for {fits}"
    sentence += f" ({_listed(away)})." if away else "."
    if is_plugin_lost:
        fix = "Wait for the plugin to register again, or look at the agent of that node (`remuda explain pod`)."
        return Refusal(reason, sentence, fix)
    if is_all_away:
        return Refusal(reason, sentence, f"Bring nodes of {where} back, or let the pods' selectors and tolerations in.")
    if fits == 0:
        return Refusal(reason, sentence, f"Free {_devices(max(gpus), others)} on one node of {where}.")
    return Refusal(
        reason, sentence, f"Free room for {need - fits} more in {where}, or ask for {need - fits} fewer replicas."
    )


def _pods(gpus: Sequence[int], others: Sequence[tuple[str, int]]) -> str:
    low, high = min(gpus), max(gpus)
    size = _devices(high, others) if low == high else f"{low} to {high} GPUs"
    return f"{len(gpus)} pod{'' if len(gpus) == 1 else 's'} of {size}"


def _devices(count: int, others: Sequence[tuple[str, int]] = ()) -> str:
    whole = [f"{count} GPU{'' if count == 1 else 's'}"] if count or not others else []
    return " and ".join([*whole, *(f"{number} {resource}" for resource, number in others)])


def _listed(away: Sequence[str]) -> str:
    """2 nodes cordoned, 1 node dead."""
    return ", ".join(f"{count} node{'' if count == 1 else 's'} {why}" for why, count in sorted(Counter(away).items()))
