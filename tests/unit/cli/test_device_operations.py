"""`remuda probe`, `quarantine`, `release`: what they write, and what they say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from remuda.api.codec import to_wire
from remuda.api.devices import NodeDevices, OrderAnswer, QuarantineOrder
from remuda.api.kubernetes.core_v1 import Pod, PodSpec, PodStatus
from remuda.api.meta import ObjectMeta, OwnerReference
from remuda.api.names import ANNOTATION_DEVICES
from remuda.api.remedies import Mode, RemedyPolicy, RemedyPolicySpec
from remuda.kube.cluster import Cluster
from remuda.runtime.state_dir import StateDir
from tests.builders.remedies import incident
from tests.unit.cli.scenes import GPUS, Cli, a_job, a_node, a_sliced_node, machines, pods


class Answering(Cli):
    """Its agents answer every order with `outcome`."""

    outcome = "Succeeded"

    @contextlib.asynccontextmanager
    async def connect(self, state: StateDir) -> AsyncIterator[Cluster]:
        async with super().connect(state) as cluster:
            task = asyncio.create_task(self._answer(cluster))
            try:
                yield cluster
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _answer(self, cluster: Cluster) -> None:
        async for event in cluster.watch(NodeDevices, "0"):
            found = event.obj
            done = {a.id for a in found.observed.answers} if found is not None else set()
            for id, order in found.orders.items() if found is not None else ():
                if id not in done and self.outcome:
                    reason = "" if self.outcome == "Succeeded" else "ProbeFailed"
                    answer = OrderAnswer(id, order.action, self.outcome, order.device, reason, "So it is.")
                    body = {"status": {"answers": [to_wire(answer)]}}
                    await cluster.patch(NodeDevices, found.name if found else "", body, subresource="status")


@pytest.fixture
def cli(tmp_path: Path) -> Answering:
    return Answering(tmp_path, machines())


def node(cli: Cli, name: str = "node-01") -> NodeDevices:
    found: NodeDevices = next(found for found in cli.objects(NodeDevices) if found.name == name)
    return found


def test_a_probe_is_ordered_awaited_and_taken_away(cli: Answering) -> None:
    passed = cli.run("probe", "node-01", "gpu-1")
    assert (passed.code, passed.out) == (0, "gpu-1 of node-01 passed: So it is.\n")
    assert not node(cli).orders
    cli.outcome = "Failed"
    failed = cli.run("probe", "node-01", "gpu-1")
    assert failed.code == 1
    assert "did not pass (ProbeFailed): So it is." in failed.out


def test_an_agent_that_does_not_answer_is_not_waited_for_for_ever(cli: Answering) -> None:
    cli.outcome = ""
    found = cli.run("probe", "node-01", "gpu-1", "--timeout", "0.1")
    assert found.code == 1
    assert "NoAnswer" in found.out
    assert not node(cli).orders


@pytest.mark.parametrize("command", [["probe"], ["quarantine", "--why", "smoke"], ["release"]])
def test_what_is_not_there_is_refused_with_what_is(cli: Answering, command: list[str]) -> None:
    name, *rest = command
    assert "NodeNotFound" in cli.run(name, "node-99", "gpu-1", *rest).err
    found = cli.run(name, "node-01", "gpu-33", *rest)
    assert (found.code, "DeviceNotFound" in found.err) == (2, True)


def test_a_quarantine_is_lifted_by_word_or_probe_alone(cli: Answering) -> None:
    assert cli.run("quarantine", "node-01", "gpu-1", "--why", "it smokes").code == 0
    order = node(cli).quarantine["gpu-1"]
    assert (order.reason, order.message, bool(order.by)) == ("ByOperator", "it smokes", True)
    assert "AlreadyQuarantined" in cli.run("quarantine", "node-01", "gpu-1", "--why", "again").err
    cli.outcome = "Failed"
    stays = cli.run("release", "node-01", "gpu-1", "--after-probe")
    assert stays.code == 1
    assert "stays quarantined" in stays.out
    assert "gpu-1" in node(cli).quarantine
    cli.outcome = "Succeeded"
    assert cli.run("release", "node-01", "gpu-1", "--after-probe").code == 0
    assert not node(cli).quarantine
    assert "NotQuarantined" in cli.run("release", "node-01", "gpu-1").err
    cli.run("quarantine", "node-01", "gpu-1", "--why", "it smokes")
    assert cli.run("release", "node-01", "gpu-1").code == 0


def test_what_an_open_incident_keeps_out_is_not_released_by_word(tmp_path: Path) -> None:
    """It would give its order again at the next look."""
    about = incident(node="node-01", device="gpu-1", name="dev-1")
    cli = Answering(tmp_path, [*machines(), about])
    order = QuarantineOrder("Xid48", "It failed.", "remuda", incident="dev-1")

    async def keep_out() -> None:
        async with cli.connect(StateDir(tmp_path)) as cluster:
            await cluster.patch(NodeDevices, "node-01", {"quarantine": {"gpu-1": to_wire(order)}})

    asyncio.run(keep_out())
    refused = cli.run("release", "node-01", "gpu-1")
    assert refused.code == 2
    assert refused.err.startswith(
        "error: IncidentOpen: The open incident dev-1 would quarantine gpu-1 of node-01 again"
    )
    assert "gpu-1" in node(cli).quarantine
    assert cli.run("release", "node-01", "gpu-1", "--after-probe").code == 0
    assert not node(cli).quarantine


def test_devices_says_what_is_done_about_one(tmp_path: Path) -> None:
    cli = Cli(tmp_path, machines())
    cli.run("quarantine", "node-01", "gpu-1", "--why", "it smokes")
    found = cli.run("devices", "-o", "wide").out
    assert "REMEDY" in found
    assert "quarantined by" in found
    assert "REMEDY" not in Cli(tmp_path / "other", machines()).run("devices", "-o", "wide").out


# --- whom a quarantine hits -------------------------------------------------------------------------------------------


def foreign(name: str, device: str, owner: str = "", **annotations: str) -> Pod:
    """A pod that is no job's of ours, on node-01."""
    marks = {f"remuda.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    owners = [OwnerReference("apps/v1", owner, "web", "uid-web", controller=True)] if owner else []
    meta = ObjectMeta(
        name=name,
        namespace="team",
        uid=f"uid-{name}",
        annotations={ANNOTATION_DEVICES: device, **marks},
        owner_references=owners,
    )
    return Pod(metadata=meta, spec=PodSpec(node_name="node-01"), status=PodStatus(phase="Running"))


def quarantine(cli: Cli, device: str = "gpu-1", node: str = "node-01") -> list[str]:
    """What is said below the first line and above the way back."""
    result = cli.run("quarantine", node, device, "--why", "it smokes")
    assert result.code == 0, result.err
    first, *rest, last = result.out.splitlines()
    assert last.startswith("To put it back into use: remuda")
    return [first.removeprefix(f"{device} of {node} is quarantined. "), *rest]


def test_a_quarantine_says_that_nobody_is_hit(tmp_path: Path) -> None:
    assert quarantine(Cli(tmp_path, machines())) == ["Nobody holds it."]


def test_a_quarantine_names_the_rank_that_moves(tmp_path: Path) -> None:
    cli = Cli(tmp_path, [*machines(), *pods(), a_job()])
    assert quarantine(cli, node="node-04") == [
        "It was in use:",
        "  job default/hello: rank 1 (pod default/hello-worker-3) moves to other devices. "
        "The job stops for it and goes on from its checkpoint.",
    ]
    spare = quarantine(cli, node="node-05")
    assert spare[1] == "  job default/hello: pod default/hello-worker-4 has no rank now; it is replaced."


def test_a_quarantine_says_what_becomes_of_other_pods(tmp_path: Path) -> None:
    cli = Cli(
        tmp_path,
        [
            *machines(),
            foreign("bare", "gpu-0"),
            foreign("web", "gpu-1", "ReplicaSet"),
            foreign("tough", "gpu-2", "ReplicaSet", device_failed="restart"),
            foreign("going", "gpu-3", "ReplicaSet", device_failed="gang"),
            foreign("ends", "gpu-4", "ReplicaSet", device_failed="fail"),
        ],
    )
    said = {name: quarantine(cli, device)[1:] for name, device in zip("abcde", GPUS, strict=False)}
    assert said == {
        "a": ["  pod team/bare stays where it is and gets the condition DeviceFailed."],
        "b": ["  pod team/web is deleted; its owner makes another one elsewhere."],
        "c": ["  pod team/tough restarts in place, and is deleted when the device is not back in time."],
        "d": ["  pod team/going is deleted with all pods of its gang."],
        "e": ["  pod team/ends ends as Failed, with the reason DeviceFailed."],
    }


def test_where_a_policy_only_observes_nobody_is_sent_away(tmp_path: Path) -> None:
    watching = RemedyPolicy(metadata=ObjectMeta(name="default"), spec=RemedyPolicySpec(mode=Mode.OBSERVE))
    cli = Cli(tmp_path, [*machines(), watching, foreign("web", "gpu-1", "ReplicaSet")])
    assert quarantine(cli)[1] == (
        "  pod team/web stays where it is and gets the condition DeviceFailed: policy default only observes."
    )


def test_a_quarantine_of_a_sliced_device_names_who_holds_a_slice(tmp_path: Path) -> None:
    there = [one for one in machines() if one.name != "node-02"]
    web = foreign("web", "gpu-1-3g.40gb-4", "ReplicaSet")
    moved = replace(web, spec=replace(web.spec, node_name="node-02"))
    cli = Cli(tmp_path, [*there, a_node(2), a_sliced_node(), moved])
    assert quarantine(cli, node="node-02")[1].startswith("  pod team/web is deleted")


def test_a_release_without_a_device_lists_what_can_be_released(cli: Answering) -> None:
    said = "error: NothingToRelease: Which device of node-01 is meant? "
    assert cli.run("release", "node-01").err == f"{said}Nothing is quarantined or withheld on node-01.\n"
    cli.run("quarantine", "node-01", "gpu-1", "--why", "it smokes")
    assert "release node-01 gpu-1`.\n" in cli.run("release", "node-01").err
    both = cli.run("release", "node-01", "gpu-1", "--resource", "nvidia.com/gpu")
    assert (both.code, "not both" in both.err) == (2, True)


@pytest.mark.parametrize("why", [[], ["--why", " "]])
def test_a_quarantine_without_a_reason_is_told_the_line_to_type(cli: Answering, why: list[str]) -> None:
    refused = cli.run("quarantine", "node-01", "gpu-1", *why)
    assert refused.code == 2
    assert refused.err.startswith("error: ReasonMissing: A quarantine needs a reason. Add why: remuda ")
    assert refused.err.endswith('quarantine node-01 gpu-1 --why "smells burnt"\n')
    assert not node(cli).quarantine
