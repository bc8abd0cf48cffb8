"""policies, policy, --what-if, apply, pause, approve and deny, run against a small cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from remuda.api.incidents import Incident, IncidentPhase, RemedyOutcome, RemedyRecord
from remuda.api.meta import ObjectMeta, to_time
from remuda.api.names import LABEL_CLIQUE
from remuda.api.remedies import Mode, PolicySelector, RemedyPolicy
from remuda.cli.durations import parse_duration_option
from remuda.cli.faults.policy_screen import render_policies, render_policy, render_what_if
from remuda.cli.faults.remedy_control import approval_effect
from remuda.core.remedies.policies import BUILT_IN
from remuda.core.remedies.what_if import RungImpact, WhatIf
from tests.builders.remedies import incident, remedy_policy
from tests.unit.cli.scenes import NOW, Cli, a_node, devices_of_node, machines, pods, text_of

MANIFEST = """
apiVersion: remuda.dev/v1alpha1
kind: RemedyPolicy
metadata: {name: h100}
spec:
  selector: {deviceTypes: ["H100*"]}
  mode: Approve
  ladders:
    - when: ResetDevice
      rungs: [{action: probe}, {action: reset, attempts: 2}, {action: ticket}]
"""


def written(tmp_path: Path, text: str = MANIFEST) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def stored(cli: Cli, name: str) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(cli.run("get", "remedypolicies", name, "-o", "yaml").out)
    return body


def test_apply_makes_changes_and_leaves_as_it_is(cli: Cli, tmp_path: Path) -> None:
    assert cli.run("apply", "-f", written(tmp_path)).out == "h100: created\n"
    assert cli.run("apply", "-f", written(tmp_path)).out == "h100: unchanged\n"
    cli.run("pause", "--policy", "h100")
    assert cli.run("apply", "-f", written(tmp_path, MANIFEST.replace("Approve", "Observe"))).out == "h100: configured\n"
    spec = stored(cli, "h100")["spec"]
    assert spec["mode"] == "Observe"
    assert "pause" in spec, "what an operator said meanwhile stands"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("action: reset, attempts: 2", "action: reset, attempts: 0"), "InvalidAttempts"),
        (("kind: RemedyPolicy", "kind: TrainingJob"), "NotAPolicy"),
        (("mode:", "mod:"), "UnknownField"),
        (("{name: other}", "{}"), "NoName"),
        (("mode: Approve", "mode: Approve\n  mode: Auto"), "InvalidYaml"),
    ],
)
def test_apply_refuses_and_sends_nothing(cli: Cli, tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    bad = MANIFEST + "---" + MANIFEST.replace("h100", "other").replace(*change)
    result = cli.run("apply", "-f", written(tmp_path, bad))
    assert result.code == 2
    assert reason in result.err
    assert cli.run("get", "remedypolicies", "h100").code != 0, "half a file is no file"


def test_policies_tells_of_the_built_in_one(cli: Cli) -> None:
    out = cli.run("policies").out
    assert "default" in out
    assert "everything else" in out


def test_policy_says_its_ladders_rung_by_rung(cli: Cli, tmp_path: Path) -> None:
    out = cli.run("policy", "default").out
    assert "built in" in out
    assert "RebootNode" in out
    cli.run("apply", "-f", written(tmp_path))
    out = cli.run("policy", "h100").out
    assert "H100*" in out
    assert "RebootNode" not in out, "a policy that names ladders has no others"
    assert cli.run("policy", "h10").err.strip().endswith("Did you mean `h100`?")


def test_row_44_what_if_names_devices_pods_and_namespaces_and_changes_nothing(tmp_path: Path) -> None:
    cli = Cli(tmp_path, [*machines(), *pods()])
    before = cli.run("get", "nodedevices", "-o", "json").out
    found = cli.run("policy", "default", "--what-if", "device", "node-03", "gpu-2", "-o", "json").document
    assert found["reason"] == "Xid79"
    assert found["quarantined"] == ["gpu-2"]
    hits = {hit["key"]: hit for hit in found["hits"]}
    assert list(hits) == ["probe-1", "reboot-1", "reboot-2", "replace-1", "ticket-1"]
    assert hits["probe-1"]["devices"] == ["node-03/gpu-2"]
    assert hits["reboot-1"]["devices"] == [f"node-03/gpu-{i}" for i in range(8)]
    assert hits["reboot-1"]["pods"] == ["default/hello-worker-2"]
    assert hits["reboot-1"]["namespaces"] == ["default"]
    assert "no hook" in hits["replace-1"]["how"]
    text = cli.run("policy", "default", "--what-if", "device", "node-03", "gpu-2").out
    assert "Nothing was changed." in text
    assert cli.run("get", "nodedevices", "-o", "json").out == before
    assert not cli.run("get", "incidents", "-o", "json").document["items"]


def test_what_if_names_the_whole_domain(tmp_path: Path) -> None:
    trays = [
        msgspec.structs.replace(a_node(i), metadata=ObjectMeta(name=f"node-0{i}", labels={LABEL_CLIQUE: "rack.7"}))
        for i in range(1, 4)
    ]
    cli = Cli(tmp_path, [*trays, *(devices_of_node(i) for i in range(1, 4))])
    found = cli.run("policy", "default", "--what-if", "device", "node-02", "gpu-2", "-o", "json").document
    hit = next(h for h in found["hits"] if h["key"] == "reboot-1")
    assert hit["nodes"] == ["node-01", "node-02", "node-03"]


def test_what_if_of_a_fault_of_the_application_does_nothing(tmp_path: Path) -> None:
    cli = Cli(tmp_path, machines())
    out = cli.run("policy", "default", "--what-if", "device", "node-02", "gpu-2", "--code", "xid-31").out
    assert "nothing is done" in out
    assert cli.run("policy", "default", "--what-if", "device", "node-02", "gpu-99").code == 2


def test_pause_and_unpause(cli: Cli, tmp_path: Path) -> None:
    cli.run("apply", "-f", written(tmp_path))
    assert "default, h100" in cli.run("pause", "--for", "1h", "--why", "power work").out
    pause = stored(cli, "default")["spec"]["pause"]
    assert pause["message"] == "power work"
    assert "paused until" in cli.run("policies").out
    assert cli.run("pause").code == 0
    assert "until" not in stored(cli, "h100")["spec"]["pause"], "the later pause says all"
    assert "default, h100" in cli.run("unpause").out
    assert "pause" not in stored(cli, "default").get("spec", {})
    assert cli.run("unpause").out == "Nothing was paused.\n"
    assert cli.run("pause", "--policy", "nope").code == 2


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("45m", 2700), ("1h30m", 5400), ("2d", 172_800)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_option(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "1h soon", "-1h", "0m", "99999999999999h", "9" * 400])
def test_what_is_no_duration(cli: Cli, text: str) -> None:
    assert "InvalidDuration" in cli.run("pause", "--for", text or " ").err


def waiting(*outcomes: tuple[str, RemedyOutcome], **changes: Any) -> Incident:
    found = incident(name="dev-node-02-gpu-2", opened=NOW, **changes)
    records = [RemedyRecord(key, key.rpartition("-")[0], outcome=outcome) for key, outcome in outcomes]
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, remedies=records))


def test_approve_and_deny_say_it_to_the_remedy_that_waits(tmp_path: Path) -> None:
    about = waiting(("probe-1", RemedyOutcome.FAILED), ("reset-1", RemedyOutcome.WAITING))
    cli = Cli(tmp_path, [about])
    assert "reset-1" in cli.run("approve", about.name).out
    assert "reset-1" in cli.run("deny", about.name, "reset-1").out
    said = cli.run("get", "incidents", about.name, "-o", "json").document["spec"]["approvals"]
    assert [(a["remedy"], a.get("granted", True)) for a in said] == [("reset-1", False)], "the last word counts"
    for odd in ("bogus", "reset-0", "reset-99", "format-1", "\x1b[2J"):
        assert "UnknownRemedy" in cli.run("approve", about.name, odd).err
    result = cli.run("approve", about.name, "probe-1")
    assert (result.code, "NotWaiting" in result.err) == (2, True)
    assert "IncidentNotFound" in cli.run("approve", "dev-node-02-gpu-3").err


def test_a_part_of_a_domain_waits_for_an_operators_word_too(tmp_path: Path) -> None:
    about = waiting(("probe-1", RemedyOutcome.FAILED))
    part = RemedyRecord("reboot-1", "reboot", outcome=RemedyOutcome.HELD_BACK, reason="PartOfDomain")
    full = RemedyRecord("reset-1", "reset", outcome=RemedyOutcome.HELD_BACK, reason="PoolLimit")
    status = msgspec.structs.replace(about.status, remedies=[*about.status.remedies, full, part])
    cli = Cli(tmp_path, [msgspec.structs.replace(about, status=status)])
    assert "reboot-1" in cli.run("approve", about.name).out
    assert "NotWaiting" in cli.run("approve", about.name, "reset-1").err, "a limit is not an operator's to lift so"


def test_approve_says_what_still_holds_it_back(tmp_path: Path) -> None:
    about = waiting(("reset-1", RemedyOutcome.FAILED))
    full = RemedyRecord(
        "reset-2", "reset", outcome=RemedyOutcome.HELD_BACK, reason="PoolLimit", message="1 of 1 is busy."
    )
    held = msgspec.structs.replace(about.status, remedies=[*about.status.remedies, full])
    assert approval_effect(msgspec.structs.replace(about, status=held), "reboot-1") == (
        "It does not start yet: reset-2 is held back (PoolLimit). 1 of 1 is busy."
    )
    soaking = msgspec.structs.replace(about.status, phase=IncidentPhase.VERIFYING, soak_until=to_time(NOW))
    assert "soak lasts until 08:00:00 UTC" in approval_effect(
        msgspec.structs.replace(about, status=soaking), "reboot-1"
    )
    assert "passes the probe and its soak" in approval_effect(about, "recheck-1")
    assert (
        Cli(tmp_path, [about])
        .run("approve", about.name, "reboot-1")
        .out.startswith(f"Approved: reboot-1 of {about.name}. It starts when the policy's limits")
    )


def test_nothing_to_approve(tmp_path: Path) -> None:
    about = waiting(("reset-1", RemedyOutcome.RUNNING))
    assert "NothingWaits" in Cli(tmp_path, [about]).run("approve", about.name).err


def test_policies_of_the_cluster_are_shown_with_what_is_in_use(tmp_path: Path) -> None:
    made = remedy_policy("racks", priority=3)
    cli = Cli(tmp_path, [made])
    row = next(line for line in cli.run("policies").out.splitlines() if line.startswith("racks"))
    assert row.split()[1:3] == ["Auto", "3"]
    items = cli.run("policies", "-o", "json").document["items"]
    assert [item["kind"] for item in items] == [RemedyPolicy.resource.kind]


def test_the_built_in_policy_says_how_it_stands(tmp_path: Path) -> None:
    failed = [incident(node=f"node-0{n}", device="gpu-0", opened=NOW - 60) for n in range(1, 5)]
    cli = Cli(tmp_path / "some", [*machines(), *failed[:3]])
    row = next(line for line in cli.run("policies").out.splitlines() if line.startswith("default"))
    assert row.split()[5:] == ["6", "0", "of", "1", "0", "active"], "three nodes of six are no storm"

    cli = Cli(tmp_path / "more", [*machines(), *failed])
    row = next(line for line in cli.run("policies").out.splitlines() if line.startswith("default"))
    assert "breaker open" in row
    assert "4 of 6 nodes failed" in cli.run("policy", "default").out


def test_pause_names_each_policy_once(cli: Cli) -> None:
    cli.run("pause")
    assert cli.run("pause", "--policy", "nope").err.strip().endswith("Choose from: default.")


def test_approve_takes_the_beginning_of_a_name(tmp_path: Path) -> None:
    about = waiting(("reset-1", RemedyOutcome.WAITING))
    assert Cli(tmp_path, [about]).run("approve", "dev-node").out == (
        f"Approved: reset-1 of {about.name}. It starts when the policy's limits, pause and breaker allow it: "
        f"see `remuda incident {about.name}`.\n"
    )


def test_the_beginning_of_several_names_is_no_name(tmp_path: Path) -> None:
    result = Cli(tmp_path, [incident(name="dev-node-1"), incident(name="dev-node-2")]).run("approve", "dev-node")
    assert result.code == 2
    found = "error: AmbiguousName: 2 incidents begin with `dev-node`. Choose from: dev-node-1, dev-node-2.\n"
    assert result.err == found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"\xa6\x00", "error: InvalidYaml: {file} is not UTF-8 text. Give a YAML file.\n"),
        (None, "error: FileNotReadable: Cannot read {file}: no such file or directory. Check the path after -f.\n"),
    ],
)
def test_a_file_that_is_none(cli: Cli, tmp_path: Path, text: bytes | None, line: str) -> None:
    file = tmp_path / "policy.yaml"
    if text is not None:
        file.write_bytes(text)
    assert cli.run("apply", "-f", str(file)).err == line.format(file=file)


def test_narrow_terminals_cut_nothing() -> None:
    long = remedy_policy(
        "h100-training", mode=Mode.APPROVE, selector=PolicySelector(["NVIDIA-H100*"], {"pool": "training"})
    )
    hit = RungImpact(
        "probe-1", ("node-03",), ("node-03/gpu-2",), ("default/my-job-worker-4",), ("default",), "an order to the agent"
    )
    shown = [
        render_policies([long, BUILT_IN], NOW, 80),
        render_policy(BUILT_IN, NOW),
        render_what_if(
            WhatIf("default", Mode.AUTO, "Xid79", "RebootNode", "RebootNode", hits=(hit,)), "node-03", "gpu-2", "xid-79"
        ),
    ]
    for renderable in shown:
        text = text_of(renderable, 80)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80
