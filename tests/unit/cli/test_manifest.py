"""From flags or a file to a TrainingJob; every way to say it wrong."""

import random

import pytest

from remuda.api.errors import Refusal
from remuda.api.training import TrainingJob
from remuda.cli.jobs.manifest import (
    JobRequest,
    build_job,
    derive_job_name,
    job_from_document,
    job_topology_option_label,
    job_with_workdir,
    parse_job_budget_options,
    parse_job_env_options,
    parse_job_file,
)
from remuda.runtime.up_config import RACK_LABEL

GOOD = """
apiVersion: remuda.dev/v1alpha1
kind: TrainingJob
metadata: {name: hello}
spec:
  roles:
    - replicas: 4
      gpus: 8
      template:
        spec:
          containers:
            - command: [python, train.py]
"""


def read(text: str, **options: object) -> TrainingJob:
    arguments = {"name": "", "namespace": "default", "explicit_namespace": False, **options}
    return job_from_document(parse_job_file(text, "job.yaml"), **arguments)  # type: ignore[arg-type]


def test_flags_become_a_job() -> None:
    job = build_job(
        JobRequest(
            command=["python", "train.py"],
            name="hello",
            replicas=8,
            gpus=4,
            spares=1,
            topology=RACK_LABEL,
            checkpoint="/tmp/ckpt",
            hang_after=30.0,
            env={"A": "1"},
            budgets={"code": 5},
            workdir="/tmp",
        )
    )
    role = job.spec.roles[0]
    assert (role.replicas, role.gpus, job.spec.spares) == (8, 4, 1)
    assert role.template.spec["containers"] == [
        {
            "name": "main",
            "command": ["python", "train.py"],
            "env": [{"name": "A", "value": "1"}],
            "workingDir": "/tmp",
        }
    ]
    assert job.spec.topology.required == RACK_LABEL
    assert job.spec.checkpoint.path == "/tmp/ckpt"
    assert job.spec.failure.hang_after_seconds == 30.0
    assert (job.spec.failure.budgets.code, job.spec.failure.budgets.device) == (5, 10)


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"command": []}, "NoCommand", "after `--`"),
        ({"replicas": -1}, "InvalidReplicas", "replicas is -1"),
        ({"replicas": 0}, "InvalidReplicas", "from 1"),
        ({"gpus": -8}, "InvalidGpus", "gpus is -8"),
        ({"spares": -1}, "InvalidSpares", "spares is -1"),
        ({"hang_after": -1.0}, "InvalidSeconds", "--hang-after is -1 seconds"),
        ({"name": "Not_A_Name"}, "InvalidName", "lower-case"),
        ({"name": "x" * 60}, "InvalidName", "at most 52"),
    ],
)
def test_flags_that_make_no_job(changes: dict[str, object], reason: str, words: str) -> None:
    with pytest.raises(Refusal) as caught:
        build_job(JobRequest(**{"command": ["python", "train.py"], "name": "hello", **changes}))  # type: ignore[arg-type]
    assert caught.value.reason == reason
    assert words in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "budgets"),
    [(["code=5,device=10"], {"code": 5, "device": 10}), (["hang=unlimited", "code=0"], {"hang": -1, "code": 0})],
)
def test_budgets_are_read(text: list[str], budgets: dict[str, int]) -> None:
    assert parse_job_budget_options(text) == budgets


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("cod=5", "Did you mean `code`?"),
        ("weather=5", "Causes: code, device,"),
        ("code", "Write --budget code=5"),
        ("code=-3", "Write --budget code=5"),
        ("", "Causes:"),
    ],
)
def test_budgets_that_make_no_sense(text: str, fix: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_job_budget_options([text])
    assert caught.value.reason == "InvalidBudget"
    assert fix in caught.value.fix


def test_env_is_set_or_handed_on() -> None:
    assert parse_job_env_options(["A=1", "B=x=y", "C", "D="], {"C": "here"}) == {
        "A": "1",
        "B": "x=y",
        "C": "here",
        "D": "",
    }
    for wrong in ("=1", "1A=x", "C"):
        with pytest.raises(Refusal) as caught:
            parse_job_env_options([wrong], {})
        assert caught.value.reason == "InvalidEnv"


def test_topology_has_short_names() -> None:
    assert job_topology_option_label("rack") == RACK_LABEL
    assert job_topology_option_label("none") == ""
    assert job_topology_option_label("example.com/zone") == "example.com/zone"
    with pytest.raises(Refusal, match="InvalidTopology"):
        job_topology_option_label("two words")


def test_derived_names_are_free_and_valid() -> None:
    chance = random.Random(1)
    assert derive_job_name(["python", "train.py"], (), chance).startswith("train-")
    assert derive_job_name(["python", "my_Big.Model.py"], (), chance).startswith("my-big-model-")
    assert derive_job_name(["torchrun", "-m", "pkg"], (), chance).startswith("train-")
    taken: set[str] = set()
    for _ in range(50):
        name = derive_job_name(["python", "9.py"], taken, chance)
        assert name not in taken
        build_job(JobRequest(command=["x"], name=name))
        taken.add(name)


# --- files ---------------------------------------------------------------------------------------------------------------


def test_a_file_becomes_a_job() -> None:
    job = read(GOOD, namespace="team")
    assert (job.name, job.namespace, job.spec.roles[0].replicas) == ("hello", "team", 4)
    assert read(GOOD, name="other").name == "other"


def test_a_status_in_the_file_is_not_the_users_to_write() -> None:
    assert read(GOOD + "status: {phase: Succeeded}\n").status.phase == "Pending"


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("a: b: c", "InvalidYaml", "job.yaml line 1, column 5: mapping values are not allowed here"),
        ("spec:\n\troles: []", "InvalidYaml", "Indent with spaces only"),
        ("spec: [1, 2", "InvalidYaml", "line 1, column 12"),
        ("spec: {}\nspec: {}", "InvalidYaml", "line 2, column 1: `spec` is given twice"),
        ("a: \x01", "InvalidYaml", "job.yaml"),
        ("a: !!python/object:os.system x", "InvalidYaml", "line 1"),
        ("", "EmptyFile", "no job"),
        ("---\n---\n", "EmptyFile", "no job"),
        (f"{GOOD}---{GOOD}", "SeveralDocuments", "2 documents"),
        ("- a\n- b", "NotAnObject", "not an object"),
        ("just words", "NotAnObject", "not an object"),
        (GOOD.replace("TrainingJob", "Trainingjob"), "NotATrainingJob", "Write `kind: TrainingJob`"),
        (GOOD.replace("kind: TrainingJob", ""), "NotATrainingJob", "`kind` is missing"),
        (GOOD.replace("v1alpha1", "v1"), "NotATrainingJob", "Write `apiVersion: remuda.dev/v1alpha1`"),
        (GOOD.replace("{name: hello}", "{}"), "NoName", "Set metadata.name"),
        (GOOD.replace("{name: hello}", "[]"), "NoName", "Set metadata.name"),
        (GOOD.replace("{name: hello}", "5"), "InvalidField", "`metadata` is not an object"),
        (GOOD.replace("replicas", "replica"), "UnknownField", "Did you mean `replicas`?"),
        (GOOD.replace("replicas: 4", "replicas: -4"), "InvalidReplicas", "replicas is -4"),
        (GOOD.replace("replicas: 4", "replicas: four"), "InvalidField", "expected integer, got string"),
        (GOOD.replace("command:", "comand:"), "UnknownField", "Did you mean `command`?"),
        (GOOD.replace("containers", "container"), "UnknownField", "Did you mean `containers`?"),
        (GOOD + "  spares: -1\n", "InvalidSpares", "spares is -1"),
        (GOOD + "  spare: 1\n", "UnknownField", "Did you mean `spares`?"),
        (GOOD + "specs: {}\n", "UnknownField", "Did you mean `spec`?"),
        (GOOD + "  checkpoint: {path: here}\n", "RelativeCheckpointPath", "absolute"),
    ],
)
def test_files_that_make_no_job(text: str, reason: str, words: str) -> None:
    with pytest.raises(Refusal) as caught:
        read(text)
    assert caught.value.reason == reason, str(caught.value)
    assert words in str(caught.value)
    assert caught.value.fix
    assert "\n" not in str(caught.value)


def test_two_namespaces_are_one_too_many() -> None:
    text = GOOD.replace("{name: hello}", "{name: hello, namespace: team}")
    assert read(text).namespace == "team"
    assert read(text, namespace="team", explicit_namespace=True).namespace == "team"
    with pytest.raises(Refusal, match="NamespaceMismatch"):
        read(text, namespace="other", explicit_namespace=True)


def test_commands_of_a_file_run_where_the_file_is() -> None:
    def directory(job: TrainingJob) -> str | None:
        found: str | None = job.spec.roles[0].template.spec["containers"][0].get("workingDir")
        return found

    here = read(GOOD)
    inside = read(GOOD + "              workingDir: sub\n")
    image = read(GOOD + "              image: trainer:1\n")
    assert directory(job_with_workdir(here, "/files", override=False)) == "/files"
    assert directory(job_with_workdir(inside, "/files", override=False)) == "/files/sub"
    assert directory(job_with_workdir(image, "/files", override=False)) is None
    assert directory(job_with_workdir(inside, "/files", override=True)) == "/files"
    assert directory(here) is None, "the job given is not changed"


def test_a_number_in_a_command_must_be_quoted() -> None:
    with pytest.raises(Refusal) as caught:
        read(GOOD.replace("train.py]", "train.py, 100]"))
    assert caught.value.reason == "InvalidField"
    place = "`spec.roles[0].template.spec.containers[0].command[2]`"
    assert caught.value.message == f"{place}: expected string, got integer."
    assert caught.value.fix == 'Put the value in quotes: "100".'
