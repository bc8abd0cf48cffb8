"""`remuda incidents` and `remuda incident`, as a user meets them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from remuda.api.devices import DeviceState, Signal
from remuda.api.incidents import Approval, Incident, IncidentOutcome, IncidentPhase, RemedyOutcome, RemedyRecord
from remuda.api.training import Cause, Remedy
from remuda.cli.faults.incident_screen import (
    incident_state_text,
    incident_timeline,
    remedy_words,
    render_incident,
    render_incidents,
)
from remuda.cli.faults.incidents import fold_parts_in_incident_table
from tests.builders.incidents import T0, Book, a_device_pod, a_gang, a_recovery, a_sight, a_verdict, at
from tests.unit.cli.scenes import Cli, text_of

DEVICE = "dev-node-1-gpu-0-tro8w0"
GANG = "gang-default-other-tro8xo"


def story() -> list[Incident]:
    """A device that broke, was reset in vain and rebooted; and a crash of another job, over long ago."""
    book = Book()
    pod = a_device_pod("job-worker-1", owner=("TrainingJob", "job"), labels={"remuda.dev/gang": "job"}, exit_code=134)
    broken = {"gpu-0": [Signal("kmsg", "xid-79", "xid-79: fell off the bus.", at(0))]}
    book.see_node(a_sight(a_verdict(), pods=[pod], signals=broken, ranks={pod.uid: 1}), 0.1)
    hit = a_recovery(cause=Cause.DEVICE, reason="Xid79", remedy=Remedy.PROMOTE_SPARE, first_step=4, lost_gpu_hours=0.5)
    book.see_gang(a_gang(hit), 5)
    book.see_node(a_sight(a_verdict(), gone=[pod], signals=broken), 6)
    device = book.only()
    ladder = [
        RemedyRecord(
            "reset-1",
            "reset",
            "node-1/gpu-0",
            RemedyOutcome.FAILED,
            "StillBroken",
            "It did not come back.",
            started_at=at(10),
            ended_at=at(20),
            via="agent order",
        ),
        RemedyRecord("reboot-1", "reboot", "node-1", RemedyOutcome.WAITING, message="Approve mode."),
    ]
    status = msgspec.structs.replace(device.status, remedies=[*device.status.remedies, *ladder])
    spec = msgspec.structs.replace(device.spec, approvals=[Approval("reset-1", "alice", time=at(9))])
    device = msgspec.structs.replace(device, status=status, spec=spec)
    other = Book()
    other.see_gang(msgspec.structs.replace(a_gang(a_recovery(detected=60)), gang="other"), 60)
    gang = other.only()
    done = msgspec.structs.replace(
        gang.status, phase=IncidentPhase.CLOSED, outcome=IncidentOutcome.CURED, closed_at=at(120), message="Past it."
    )
    return [device, msgspec.structs.replace(gang, status=done)]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setattr("tests.unit.cli.scenes.NOW", T0 + 3600)
    return Cli(tmp_path, story())


def test_one_line_each_newest_first(cli: Cli) -> None:
    lines = cli.run("incidents").out.splitlines()
    assert lines[0].split() == ["NAME", "AGE", "WHERE", "REASON", "STATE", "REMEDY", "GPU-H"]
    assert lines[1].startswith(GANG)
    assert "Cured" in lines[1]
    pieces = (
        DEVICE,
        "1h00m",
        "rank 1 job-worker-1 @ node-1/gpu-0",
        "Xid79",
        "Open",
        "reboot waits for approval",
        "0.50",
    )
    for piece in pieces:
        assert piece in lines[2], lines[2]


def test_a_narrow_terminal_cuts_nothing() -> None:
    lines = text_of(render_incidents(story(), T0 + 3600, 80), 80).splitlines()
    assert lines[0].split() == ["NAME", "AGE", "REASON", "STATE", "REMEDY"]
    assert "…" not in "".join(lines)
    assert any(line.startswith(DEVICE) and "Xid79" in line for line in lines)


def test_a_narrow_terminal_says_which_columns_are_left_out(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    note = "Columns left out: WHERE, GPU-H. Widen the terminal, or -o wide.\n"
    assert "left out" not in cli.run("incidents").out
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run("incidents", tty=True).out.endswith(note)
    assert "left out" not in cli.run("incidents", "-o", "wide", tty=True).out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--open"], [DEVICE]),
        (["--node", "node-1"], [GANG, DEVICE]),
        (["--node", "node-9"], []),
        (["--job", "job"], [DEVICE]),
        (["--job", "default/other"], [GANG]),
        (["--since", "59m"], [GANG]),
        (["--all"], [GANG, DEVICE]),
    ],
)
def test_which_are_shown(cli: Cli, words: list[str], found: list[str]) -> None:
    document = cli.run("incidents", *words, "-o", "json").document
    assert [item["metadata"]["name"] for item in document["items"]] == found


def test_closed_ones_leave_the_list_after_a_day(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.cli.scenes.NOW", T0 + 2 * 86_400)
    names = [item["metadata"]["name"] for item in cli.run("incidents", "-o", "json").document["items"]]
    assert names == [DEVICE]
    assert GANG in cli.run("incidents", "--all").out
    assert GANG in cli.run("incidents", "--since", "7d").out


def test_the_summary_counts_by_cause(cli: Cli) -> None:
    rows = {row["cause"]: row for row in cli.run("incidents", "--summary", "-o", "json").document["causes"]}
    assert (rows["device"]["lostGpuHours"], rows["device"]["open"], rows["code"]["curedSeconds"]) == (0.5, 1, 60.0)
    assert rows["total"]["count"] == 2
    assert "MEAN CURE" in cli.run("incidents", "--summary").out


def test_a_bad_length_of_time_is_refused(cli: Cli) -> None:
    result = cli.run("incidents", "--since", "yesterday")
    assert result.code == 2
    assert result.err.startswith("error: InvalidDuration:")


def test_no_incidents_is_said(tmp_path: Path) -> None:
    assert Cli(tmp_path).run("incidents").out == "No incidents. --all lists old ones.\n"


def test_the_story_is_told_in_order(cli: Cli) -> None:
    text = cli.run("incident", DEVICE).out
    order = [
        "kmsg xid-79: fell off the bus.",
        "gpu-0 is Unhealthy (Xid79)",
        "rank 1, default/job-worker-1 of job held gpu-0 on node-1",
        "attempt-2 PromoteSpare for default/job, price 0.10 GPU-hours.",
        "not PromoteSpare: costs 0.14 GPU-hours",
        "attempt-2 Succeeded after 4s, 0.50 GPU-hours lost.",
        "default/job-worker-1 was deleted with exit 134; gpu-0 was Unhealthy then.",
        "alice approves reset-1.",
        "reset-1 for node-1/gpu-0 (agent order).",
        "reset-1 Failed (StillBroken) after 10s: It did not come back.",
    ]
    places = [text.find(piece) for piece in order]
    assert -1 not in places, (order[places.index(-1)], text)
    assert places == sorted(places), text
    assert " ".join("now → remedy reboot-1 for node-1 waits for approval: Approve mode.".split()) in " ".join(
        text.split()
    )
    assert "0.50 GPU-hours of training; 1 device out of use for 1.00 device-hours" in text
    assert f'remuda incident {DEVICE} --dismiss "why"' in text
    assert "\x1b" not in text


def test_a_terminal_of_80_columns_loses_no_words(cli: Cli) -> None:
    text = " ".join(text_of(render_incident(story()[0], T0 + 100), 80).split())
    for piece in ("fell off the bus.", "0.50 GPU-hours lost.", "It did not come back."):
        assert piece in text
    assert max(len(line) for line in text_of(render_incident(story()[0], T0 + 100), 80).splitlines()) <= 80


def test_a_terminal_without_glyphs_gets_letters() -> None:
    plain = text_of(render_incident(story()[0], T0 + 100, plain=True), 100)
    assert plain.isascii()


def test_every_moment_has_a_time_and_they_never_go_back() -> None:
    moments = incident_timeline(story()[0])
    times = [m.at for m in moments if m.at is not None]
    assert times == sorted(times)
    assert [m.text for m in moments if m.at is None] == [m.text for m in moments[-1:]], "what waits now comes last"


def test_an_unknown_name_is_refused_with_the_nearest(cli: Cli) -> None:
    result = cli.run("incident", "dev-node-1-gpu-1-tro8w0")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"error: IncidentNotFound: There is no incident `dev-node-1-gpu-1-tro8w0`. Did you mean `{DEVICE}`?\n"
    )


def test_the_beginning_of_a_name_is_enough_when_it_is_one(cli: Cli) -> None:
    assert DEVICE in cli.run("incident", "dev-node-1").out


def test_dismissing_needs_a_reason_and_an_open_incident(cli: Cli) -> None:
    assert cli.run("incident", DEVICE, "--dismiss", " ").err.startswith("error: ReasonMissing:")
    assert cli.run("incident", GANG, "--dismiss", "no").err.startswith("error: IncidentClosed:")
    assert cli.run("incident", DEVICE, "--dismiss", "riser swapped").code == 0
    found = {i.name: i.spec.dismiss for i in cli.objects(Incident)}
    assert found[DEVICE] == "riser swapped"


def test_an_open_one_whose_ladder_has_ended_is_shown_as_not_cured() -> None:
    device = story()[0]
    assert incident_state_text(device).plain == "Open"
    owed = msgspec.structs.replace(device.status, outcome=IncidentOutcome.NOT_CURED)
    assert incident_state_text(msgspec.structs.replace(device, status=owed)).plain == "NotCured"


def test_a_healthy_verdict_is_good_news() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    book.see_node(a_sight(a_verdict(state=DeviceState.HEALTHY, since=30)), 95)
    kinds = [m.kind for m in incident_timeline(book.only())]
    assert kinds[-2:] == ["well", "closed"]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([("reset-1", "reset", "Succeeded"), ("probe-reset-1", "probe", "Succeeded")], "reset ok"),
        ([("probe-1", "probe", "HeldBack")], "probe held back"),
        ([("probe-1", "probe", "Failed"), ("reboot-1", "reboot", "HeldBack")], "reboot held back"),
        ([("attempt-2", "Fail", "Failed")], "job failed"),
        ([("attempt-2", "RestartInPlace", "Failed")], "RestartInPlace failed"),
        ([], "-"),
    ],
)
def test_the_remedy_that_counts_is_named(records: list[tuple[str, str, str]], words: str) -> None:
    remedies = [RemedyRecord(key, action, outcome=RemedyOutcome(outcome)) for key, action, outcome in records]
    first = story()[0]
    assert (
        remedy_words(msgspec.structs.replace(first, status=msgspec.structs.replace(first.status, remedies=remedies)))
        == words
    )


def test_a_remedy_that_another_interruption_cut_short_has_not_failed() -> None:
    """The gang was still starting, and the next attempt took over."""
    record = RemedyRecord(
        "attempt-2",
        "RestartInPlace",
        outcome=RemedyOutcome.FAILED,
        reason="AnotherInterruption",
        started_at=at(1),
    )
    first = story()[0]
    incident = msgspec.structs.replace(first, status=msgspec.structs.replace(first.status, remedies=[record]))
    assert remedy_words(incident) == "RestartInPlace overtaken"
    told = [m for m in incident_timeline(incident) if m.text.startswith("attempt-2")]
    assert [(m.kind, m.text) for m in told][-1] == ("ended", "attempt-2 overtaken by another interruption.")


def test_parts_of_a_larger_failure_are_told_by_that_one() -> None:
    device, gang = story()

    def part_of(whole: str, *records: RemedyRecord) -> Incident:
        status = msgspec.structs.replace(device.status, part_of=whole, remedies=list(records))
        return msgspec.structs.replace(device, status=status)

    asks = RemedyRecord("reboot-1", "reboot", "node-1", RemedyOutcome.WAITING)
    assert fold_parts_in_incident_table([part_of(gang.name), gang]) == [gang]
    assert fold_parts_in_incident_table([part_of(gang.name)]) == [part_of(gang.name)]  # the other is not in the list
    assert fold_parts_in_incident_table([part_of(gang.name, asks), gang]) == [part_of(gang.name, asks), gang]
