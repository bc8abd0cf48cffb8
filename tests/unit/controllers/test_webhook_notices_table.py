"""Webhook notices: each is posted until it is taken, remembered in its object, and told once however often managers start."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remuda.api.incidents import Incident, IncidentOutcome
from remuda.api.meta import JsonObject, KObject
from remuda.api.remedies import BreakerStatus, RemedyPolicyStatus, Webhook
from remuda.controllers.webhook_notices import WebhookNoticeController
from remuda.core.incidents.webhook_notices import ANNOTATION, MAX_AGE_S, webhook_id
from remuda.kube.client.webhooks import WebhookFailed
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.sim.virtual_time_loop import EPOCH
from tests.builders.api_trouble import before_next, lose_answer, refuse_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.happenings import Happening, after, delete, do, patch, put, restart, wait
from tests.builders.remedies import incident, machine, remedy_policy

GOOD, OTHER = "http://good", "http://other"


class Receiver:
    """What was posted is written down between the Events. `down`: addresses that take nothing."""

    def __init__(self, stage: ControllerStage, down: set[str]) -> None:
        self._stage = stage
        self._down = down

    async def post(self, url: str, body: JsonObject) -> None:
        if url in self._down:
            raise WebhookFailed("it answered 503")
        told = [f"{n['event']} {(n.get('incident') or n.get('policy'))['name']}" for n in body.get("notices", [body])]
        self._stage.events.note(f"{url} {', '.join(told)}")

    async def close(self) -> None:
        pass


async def _start(stage: ControllerStage) -> None:
    view, queue = stage.view(), WorkQueue[tuple[str, str]]()
    receiver = Receiver(stage, stage.props.setdefault("down", set()))
    controller = WebhookNoticeController(stage.api, view, queue, stage.clock, receiver, events=stage.events)
    await stage.sync(view.incidents, view.policies, view.nodes, view.devices)
    stage.run(queue, controller)
    stage.spawn(controller.run())


def down(*urls: str) -> Happening:
    """From now on these addresses take nothing, and all others do."""

    def act(stage: ControllerStage) -> None:
        taken: set[str] = stage.props.setdefault("down", set())
        taken.clear()
        taken.update(urls)

    return do(act)


NAME = "inc-n1-gpu-3"
FAULT = incident(opened=EPOCH)
POLICY = remedy_policy(webhooks=[Webhook(GOOD)])
GIVEN: list[KObject] = [machine(), POLICY, FAULT]
WRITE, OPENED, CLOSED = f"patch Incident/{NAME}", f"{GOOD} Opened {NAME}", f"{GOOD} Closed {NAME}"
CLOSE: JsonObject = {"status": {"phase": "Closed", "outcome": "Cured", "closedAt": after(2.0).isoformat()}}
REMEMBERED = {(Incident, NAME): {"metadata": {"annotations": {ANNOTATION: lambda said: webhook_id(GOOD) in said}}}}
FAILED = f"Warning Incident/{NAME} WebhookFailed"

SCENARIOS = [
    Scenario(
        name="without a webhook nobody is told",
        given=[machine(), remedy_policy(), FAULT],
        happens=[patch(Incident, NAME, CLOSE)],
        want=Want(looks=1),
    ),
    Scenario(
        name="what was told is not told again",
        given=GIVEN,
        happens=[restart, restart],
        want=Want([WRITE], [OPENED], REMEMBERED),
    ),
    Scenario(
        name="each of its notices is told once and its own note wakes nobody",
        given=GIVEN,
        happens=[patch(Incident, NAME, CLOSE)],
        want=Want([WRITE, WRITE], [OPENED, CLOSED], REMEMBERED, looks=3),
    ),
    Scenario(
        name="what comes together is one message",
        given=[machine(), POLICY, FAULT, incident(opened=EPOCH, device="gpu-4")],
        want=Want([WRITE, "patch Incident/inc-n1-gpu-4"], [f"{OPENED}, Opened inc-n1-gpu-4"]),
    ),
    Scenario(
        name="a webhook hears what it asked for",
        given=[machine(), remedy_policy(webhooks=[Webhook(GOOD, ["Closed"])]), FAULT],
        happens=[patch(Incident, NAME, CLOSE)],
        want=Want([WRITE], [CLOSED]),
    ),
    Scenario(
        name="a webhook that is added later hears of what is not too old",
        given=[machine(), remedy_policy(), FAULT, incident(opened=EPOCH - MAX_AGE_S - 1, device="gpu-4")],
        happens=[put(POLICY)],
        want=Want([WRITE], [OPENED]),
    ),
    Scenario(
        name="one that is merged or blank is not worth a notice",
        given=[
            machine(),
            POLICY,
            replace(FAULT, status=replace(FAULT.status, outcome=IncidentOutcome.MERGED)),
            replace(incident(device="gpu-4"), status=replace(FAULT.status, opened_at=None)),
        ],
    ),
    Scenario(
        name="a breaker is told to its policy's webhooks",
        given=[
            replace(
                POLICY,
                status=RemedyPolicyStatus(breaker=BreakerStatus(open=True, since=after(0.0), message="Many failed.")),
            )
        ],
        happens=[restart],
        want=Want(["patch RemedyPolicy/default"], [f"{GOOD} Breaker default"]),
    ),
    Scenario(
        name="an address that takes nothing is tried again and complained about once without its name",
        given=GIVEN,
        first=[down(GOOD)],
        happens=[wait(60.0), down(), wait(60.0)],
        want=Want([WRITE], [FAILED, OPENED], REMEMBERED),
    ),
    Scenario(
        name="an address that takes nothing holds up no other",
        given=[machine(), remedy_policy(webhooks=[Webhook(OTHER), Webhook(GOOD)]), FAULT],
        first=[down(OTHER)],
        want=Want([WRITE], [OPENED]),
    ),
    Scenario(
        name="what nobody took within an hour is dropped",
        given=GIVEN,
        first=[down(GOOD)],
        happens=[wait(MAX_AGE_S + 400.0), down(), wait(400.0)],
        want=Want([], [FAILED]),
    ),
    Scenario(
        name="an incident that goes before it was told is about nothing",
        given=GIVEN,
        first=[down(GOOD)],
        happens=[delete(Incident, NAME), down(), wait(60.0)],
    ),
    Scenario(
        name="one that goes while it is told is no matter",
        given=GIVEN,
        first=[before_next(WRITE, delete(Incident, NAME))],
        want=Want([f"{WRITE} !NotFound"], [OPENED]),
    ),
    Scenario(
        name="somebody who writes first keeps what he wrote and the note follows",
        given=GIVEN,
        first=[before_next(WRITE, patch(Incident, NAME, {"metadata": {"annotations": {"note": "x"}}}))],
        want=Want(
            [f"{WRITE} !Conflict", WRITE],
            [OPENED],
            {(Incident, NAME): {"metadata": {"annotations": {"note": "x", ANNOTATION: ...}}}},
        ),
    ),
    Scenario(
        name="an API that is out of reach is asked again and nothing is posted twice",
        given=GIVEN,
        first=[refuse_next(WRITE, times=2)],
        happens=[wait(10.0), patch(Incident, NAME, {"status": {"message": "x"}})],
        want=Want([f"{WRITE} !ServiceUnavailable"] * 2 + [WRITE], [OPENED], REMEMBERED),
    ),
    Scenario(
        name="a lost answer is no reason to post again",
        given=GIVEN,
        first=[lose_answer(WRITE)],
        happens=[restart],
        want=Want([WRITE, WRITE], [OPENED], REMEMBERED),
    ),
    Scenario(
        name="an annotation that somebody spoilt counts as none and spoils no other incident",
        given=[
            machine(),
            POLICY,
            replace(FAULT, metadata=replace(FAULT.metadata, annotations={ANNOTATION: "{[nonsense"})),
            incident(node="nowhere", opened=EPOCH, name="other"),
        ],
        want=Want([WRITE, "patch Incident/other"], [f"{OPENED}, Opened other"], REMEMBERED),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_webhook_notices(scenario: Scenario) -> None:
    scenario.play(_start)
