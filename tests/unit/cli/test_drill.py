"""From job and rank to the exact drill, and what is said about it."""

from pathlib import Path
from typing import Any

import pytest

from remuda.api.drills import DRILLS, Drill, DrillKind, DrillSpec, DrillStatus
from remuda.api.errors import Refusal
from remuda.api.meta import ObjectMeta, to_time
from remuda.cli.faults.drill import drill, render_drills
from remuda.cli.faults.drill_target import DrillTarget, aim_drill, parse_fault_code_option
from remuda.cli.session import Session
from remuda.core.devices.fault_codes import fault_table
from tests.unit.cli.scenes import NOW, Cli, a_job, machines, text_of

HELLO = a_job()


def test_every_drill_can_be_said() -> None:
    assert set(drill.commands) == {kind.value for kind in DrillKind} | {"list", "undo"}


@pytest.mark.parametrize("text", ["79", "xid79", "Xid 79", "XID-79", "xid_79", " 079 "])
def test_codes_have_many_spellings(text: str) -> None:
    assert parse_fault_code_option(text) == "xid-79"
    assert parse_fault_code_option(text) in fault_table().by_code


def test_other_codes_go_as_they_are() -> None:
    assert parse_fault_code_option("ECC-DBE") == "ecc-dbe"
    for wrong in ("", "a b", "-", "xid-", "-5", "abc", "xid-79-x"):
        with pytest.raises(Refusal, match="InvalidFaultCode"):
            parse_fault_code_option(wrong)


@pytest.mark.parametrize(
    ("kind", "target", "spec"),
    [
        (
            DrillKind.PROCESS_KILL,
            DrillTarget(name="hello", rank=1),
            DrillSpec(type=DrillKind.PROCESS_KILL, node="node-04", pod="hello-worker-3", namespace="default"),
        ),
        (
            DrillKind.POD_DELETE,
            DrillTarget(name="hello", spare=True),
            DrillSpec(type=DrillKind.POD_DELETE, node="node-05", pod="hello-worker-4", namespace="default"),
        ),
        (
            DrillKind.DEVICE_FAIL,
            DrillTarget(name="hello", rank=2, code="79"),
            DrillSpec(type=DrillKind.DEVICE_FAIL, node="node-03", device="gpu-0", code="xid-79"),
        ),
        (
            DrillKind.DEVICE_FAIL,
            DrillTarget(name="hello", rank=2, device="gpu-5", code="48"),
            DrillSpec(type=DrillKind.DEVICE_FAIL, node="node-03", device="gpu-5", code="xid-48"),
        ),
        (DrillKind.NODE_LOST, DrillTarget(name="hello", rank=0), DrillSpec(type=DrillKind.NODE_LOST, node="node-01")),
    ],
)
def test_targets_named_by_job(kind: DrillKind, target: DrillTarget, spec: DrillSpec) -> None:
    assert aim_drill(kind, HELLO, target, "default") == spec


def test_targets_named_by_node() -> None:
    assert aim_drill(DrillKind.NODE_LOST, None, DrillTarget(node="node-03"), "default").node == "node-03"
    spec = aim_drill(DrillKind.DEVICE_FAIL, None, DrillTarget(node="node-03", device="gpu-2"), "default")
    assert (spec.node, spec.device, spec.code) == ("node-03", "gpu-2", "xid-79")


@pytest.mark.parametrize(
    ("argv", "reason", "words"),
    [
        (("process-kill", "hello", "--rank", "7"), "RankNotFound", "Ranks: 0-2."),
        (("process-kill", "hello"), "NoTarget", "--rank (0 to 2) or --spare"),
        (("process-kill", "helo", "--rank", "1"), "JobNotFound", "Did you mean `hello`?"),
        (("process-kill", "ended", "--rank", "1"), "JobFinished", "has ended (Succeeded). Start a new job"),
        (("process-kill", "early", "--rank", "1"), "NotPlaced", "Wait until it runs"),
        (("process-hang", "early", "--spare"), "NoSpare", "--spares N"),
        (("device-fail", "hello", "--rank", "1", "--device", "gpu-9"), "NotItsDevice", "It holds: gpu-0"),
        (("device-fail", "hello", "--rank", "1", "--code", "a b"), "InvalidFaultCode", "--code 79"),
        (("device-fail", "hello", "--rank", "1", "--code", "-5"), "InvalidFaultCode", "ecc-dbe"),
        (("device-fail", "hello", "--rank", "1", "--code", "abc"), "InvalidFaultCode", "ecc-dbe"),
        (("device-fail", "hello", "--rank", "1", "--code", ""), "InvalidFaultCode", "--code 79"),
        (("device-fail", "hello", "--rank", "1", "--spare"), "TwoTargets", "--rank or --spare"),
        (("node-lost", "hello", "--rank", "1", "--spare"), "TwoTargets", "--rank or --spare"),
        (("device-slow", "hello", "--rank", "1", "--factor", "0"), "InvalidFactor", "from 1 to 100"),
        (("power-cap", "node-01", "--factor", "0.5"), "InvalidFactor", "from 1 to 100"),
        (("power-cap", "node-01", "--factor", "nan"), "InvalidFactor", "from 1 to 100"),
        (("device-flap", "hello", "--rank", "1", "--times", "0"), "InvalidTimes", "from 1 to 100000"),
        (("ecc-trend", "hello", "--rank", "1", "--times", "-1"), "InvalidTimes", "from 1 to 100000"),
        (("node-partition", "node-01", "--seconds", "0"), "InvalidSeconds", "to 86400"),
        (("device-fail",), "NoTarget", "--node and --device"),
        (("device-fail", "--node", "node-01"), "NoTarget", "--node and --device"),
        (("device-fail", "--node", "node-01", "--device", "gpu-9"), "DeviceNotFound", "It has gpu-0..7."),
        (("device-fail", "--node", "nod-01", "--device", "gpu-1"), "NodeNotFound", "Did you mean `node-01`?"),
        (("device-fail", "hello", "--node", "node-01", "--rank", "1"), "TwoTargets", "JOB with --rank, or --node"),
        (("node-lost", "node-77"), "NodeNotFound", "There is no node `node-77`"),
        (("node-lost",), "MissingArgument", "NODE"),
        (("pod-delete",), "MissingArgument", "JOB"),
        (("explode", "hello"), "UnknownCommand", "remuda drill --help"),
    ],
)
def test_targets_that_are_not_there_break_nothing(
    tmp_path: Path, argv: tuple[str, ...], reason: str, words: str
) -> None:
    ended = a_job("ended", phase="Succeeded")
    early = a_job("early", phase="Pending", members=[], spares=[])
    cluster = Cli(tmp_path, [*machines(), HELLO, ended, early], drills={"phase": "Done"})
    result = cluster.run("drill", *argv)
    assert result.code == 2
    assert result.err.startswith(f"error: {reason}: "), result.err
    assert words in result.err
    assert cluster.objects(Drill) == []


def test_a_drill_is_carried_out_and_told(busy: Cli) -> None:
    result = busy.run("drill", "process-kill", "hello", "--rank", "1")
    assert result.code == 0, result.err
    assert result.out == (
        "Done: rank 1 of hello: SIGKILL to the user's process of pod hello-worker-3 on node-04.\n"
        "Watch: remuda job hello -w\n"
    )
    (drill,) = busy.objects(Drill)
    assert drill.spec.pod == "hello-worker-3"
    assert drill.name.startswith("process-kill-")


def test_drills_have_names_of_their_own(busy: Cli) -> None:
    for _ in range(2):
        assert busy.run("drill", "device-fail", "hello", "--spare", "-o", "json").document["spec"]["node"] == "node-05"
    assert len({d.name for d in busy.objects(Drill)}) == 2


def test_a_refused_drill_is_an_error_with_the_clusters_words(tmp_path: Path) -> None:
    refused = {"phase": "Refused", "reason": "NotRunning", "message": "No container runs. Wait until it does."}
    cluster = Cli(tmp_path, [*machines(), HELLO], drills=refused)
    result = cluster.run("drill", "process-kill", "hello", "--rank", "0")
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: NotRunning: No container runs. Wait until it does.\n"


def a_drill(kind: DrillKind, **status: Any) -> Drill:
    return Drill(
        metadata=ObjectMeta(name="mine"), spec=DrillSpec(type=kind, node="node-01"), status=DrillStatus(**status)
    )


def test_what_was_undone_already_is_not_undone_again(tmp_path: Path) -> None:
    undone = a_drill(DrillKind.POWER_CAP, phase="Undone", reason="NodeRestarted", undone_at=to_time(NOW - 90))
    result = Cli(tmp_path, [undone]).run("drill", "undo", "mine")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: AlreadyUndone: `mine` was undone 1m30s ago (NodeRestarted)."), result.err
    assert "remuda drill undo" in result.err


def test_a_blow_cannot_be_undone_and_it_is_said_what_can(tmp_path: Path) -> None:
    result = Cli(tmp_path, [a_drill(DrillKind.NODE_LOST, phase="Done")]).run("drill", "undo", "mine")
    assert result.code == 2
    assert result.err.startswith("error: CannotBeUndone: "), result.err
    assert "repair what it broke" in result.err


def test_a_drill_nobody_carries_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remuda.cli.faults.drill.DEADLINE_S", 0.01)
    cli = Cli(tmp_path, [*machines(), HELLO])
    result = cli.run("drill", "process-kill", "hello", "--rank", "0")
    assert result.code == 1
    assert result.err.startswith("error: NobodyTookIt: ")
    assert "It is withdrawn; nothing was broken." in result.err
    assert cli.run("get", "drills", "-o", "name").out.strip() == "", "it must not happen later"


def test_who_waits_is_told_for_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remuda.cli.faults.drill.DEADLINE_S", 0.05)
    monkeypatch.setattr("remuda.cli.faults.drill.NOTE_AFTER_S", 0.0)
    result = Cli(tmp_path, [*machines(), HELLO]).run("drill", "power-cap", "node-01")
    assert result.err.startswith("note: waiting for node-01 to answer drill power-cap-"), result.err


def test_a_code_that_no_table_knows_is_noted(busy: Cli) -> None:
    result = busy.run("drill", "device-fail", "hello", "--rank", "1", "--code", "4711")
    assert result.code == 0
    assert result.err == (
        "note: The fault table does not know xid-4711, so the device is Unhealthy (UnknownFaultCode) until somebody looks "
        "at it.\n"
    )
    assert busy.run("drill", "device-fail", "hello", "--rank", "1", "--code", "79").err == ""


def test_what_to_do_next_names_the_directory_and_the_namespace_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "my state"
    elsewhere = Session(place)
    elsewhere.choose(namespace="other")
    assert elsewhere.command_line("job x -w") == f"remuda --state '{place}' -n other job x -w"
    monkeypatch.setenv("REMUDA_STATE", str(place))
    assert Session(place).command_line("job x -w") == Session().command_line("job x -w") == "remuda job x -w"


def test_what_lasts_says_how_to_undo_it(busy: Cli) -> None:
    result = busy.run("drill", "power-cap", "node-01")
    (made,) = busy.objects(Drill)
    assert result.out.splitlines()[1:] == ["Watch: remuda devices", f"Undo:  remuda drill undo {made.name}"]


def test_the_list_of_drills_fits_a_narrow_terminal() -> None:
    shown = text_of(render_drills(), 80)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert len(shown.splitlines()) < 3 * len(DRILLS)


def test_the_list_of_drills_needs_no_cluster(cli: Cli) -> None:
    assert "node-lost node-03" in cli.run("drill", "list").out
    assert {d["type"] for d in cli.run("drill", "list", "-o", "json").document["drills"]} == set(DRILLS)
