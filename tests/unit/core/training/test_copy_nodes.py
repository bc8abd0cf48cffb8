"""What a job says of checkpoints that lie on single nodes: one condition, whose reason says which case it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from remuda.api.checkpoint_volume import NOT_SHARED
from remuda.api.conditions import find_condition, with_condition
from remuda.api.meta import Condition, to_time
from remuda.api.training import Checkpoint, RankCopies
from remuda.core.training.job_plan import plan_training
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import a_job, racks

JOB = a_job().replicas(2).gpus(8)
PER_NODE = {"per_node": True}
Reports = Sequence[dict[str, Any]]


def looked(
    gang: GangModel,
    reports: Reports = (),
    *,
    checkpoint: Checkpoint = Checkpoint(),  # noqa: B008 - a value
    on_kubelets: bool = True,
    copies: Sequence[RankCopies] = (),
    said: Sequence[Condition] = (),
) -> Condition | None:
    """The condition after one look. `reports`: what the launchers' reports say more, by rank."""
    seen, more = gang.observe(), {m.uid: r for m, r in zip(gang.status.members, reports, strict=False)}
    views = tuple(
        msgspec.structs.replace(v, report=msgspec.structs.replace(v.report, **more[v.uid]))
        if v.report is not None and v.uid in more
        else v
        for v in seen.pods
    )
    status = msgspec.structs.replace(seen.job.status, copies=list(copies), conditions=list(said))
    spec = msgspec.structs.replace(seen.job.spec, checkpoint=checkpoint)
    job = msgspec.structs.replace(seen.job, spec=spec, status=status)
    plan = plan_training(msgspec.structs.replace(seen, job=job, pods=views, on_kubelets=on_kubelets), gang.now)
    return find_condition(plan.status.conditions, NOT_SHARED)


@pytest.fixture
def gang() -> GangModel:
    found = a_gang(JOB, racks(4)).settle()
    assert found.is_running
    return found


def everywhere(gang: GangModel) -> list[RankCopies]:
    return [RankCopies(m.rank, m.node, "elsewhere") for m in gang.status.members]


def test_before_any_copy_it_says_that_there_is_none_yet(gang: GangModel) -> None:
    waiting = looked(a_gang(JOB, racks(4)))
    assert waiting is not None
    assert (waiting.status, waiting.reason) == ("True", "NotCopiedYet")
    found = looked(gang, [PER_NODE, PER_NODE], copies=everywhere(gang)[:1])
    assert found is not None
    assert found.reason == "NotCopiedYet"
    assert "Those of 1 of 2 ranks have not been copied" in found.message


def test_with_a_copy_of_each_rank_it_says_what_they_survive(gang: GangModel) -> None:
    found = looked(gang, [PER_NODE, PER_NODE], copies=everywhere(gang))
    assert found is not None
    assert (found.status, found.reason) == ("True", "Copied")
    assert "the loss of either, not of both" in found.message


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        (
            "its agent meets no others (NoPeers)",
            "Let agents meet (--link-token, --peer-host, --peer-port and a fence), or give",
        ),
        ("there is no other node that takes copies (NoPeer)", "Have agents with peers on more nodes, or give"),
        (
            "no other node took a copy (CopyTooLarge, NoSpaceForCopies)",
            "Make room on other nodes (--copy-space), raise --copy-max",
        ),
        ("something new (SomethingNew)", "Give the job a volume that all nodes reach"),
    ],
)
def test_a_rank_without_copies_is_named_with_the_reason_and_the_fix(gang: GangModel, why: str, fix: str) -> None:
    found = looked(gang, [PER_NODE, {**PER_NODE, "not_copied": why}], copies=everywhere(gang))
    assert found is not None
    assert (found.status, found.reason) == ("True", "NotCopied")
    assert f"rank 1 on {gang.status.members[1].node}: {why}. {fix}" in found.message
    assert "rank 0" not in found.message


def test_agents_that_know_nothing_of_copies_are_no_copies(gang: GangModel) -> None:
    found = looked(gang, [PER_NODE, {}], copies=everywhere(gang))
    assert found is not None
    assert found.reason == "NotCopied"
    assert "a release that makes no copies (NoCopies). Bring agents up to date" in found.message


def test_a_path_without_a_volume_is_not_copied(gang: GangModel) -> None:
    found = looked(gang, checkpoint=Checkpoint(path="/data"))
    assert found is not None
    assert (found.status, found.reason) == ("True", "PathNotCopied")


def test_what_all_nodes_share_is_not_said(gang: GangModel) -> None:
    shared = {"shared": True}
    assert looked(gang, [shared, shared]) is None, "--shared-checkpoints"
    assert looked(gang, checkpoint=Checkpoint(volume={"nfs": {"server": "s", "path": "/p"}})) is None
    assert looked(gang, on_kubelets=False) is None
    before = with_condition([], NOT_SHARED, True, "Copied", "", to_time(0.0))
    found = looked(gang, checkpoint=Checkpoint(volume={"nfs": {"server": "s", "path": "/p"}}), said=before)
    assert found is not None
    assert (found.status, found.reason) == ("False", "Shared")


def test_nodes_of_one_machine_without_a_shared_directory_say_it_too(gang: GangModel) -> None:
    found = looked(gang, [PER_NODE, PER_NODE], copies=everywhere(gang), on_kubelets=False)
    assert found is not None
    assert found.reason == "Copied"


def test_while_the_gang_stands_still_what_was_said_stays() -> None:
    before = with_condition([], NOT_SHARED, True, "NotCopied", "as it was", to_time(0.0))
    found = looked(a_gang(JOB, racks(4)), said=before)
    assert found is not None
    assert (found.reason, found.message) == ("NotCopied", "as it was")
