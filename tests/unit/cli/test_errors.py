"""Every exception becomes one line and an exit code."""

import click
import pytest

from remuda.api.errors import AlreadyExists, Conflict, Invalid, NotFound, Refusal, Unavailable
from remuda.cli.errors import Failed, Quiet, explain_error
from tests.unit.cli.scenes import Cli


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (Refusal("Odd", "It is odd.", "Make it even."), 2, "error: Odd: It is odd. Make it even."),
        (Refusal("Odd", "It is odd."), 2, "error: Odd: It is odd."),
        (Failed("Late", "It came late.", "Wait."), 1, "error: Late: It came late. Wait."),
        (NotFound('pods "x" not found'), 2, 'error: NotFound: pods "x" not found.'),
        (
            NotFound("the API answered 404: 404 page not found"),
            2,
            "error: NotInstalled: The cluster does not serve Remuda's kinds. Install Remuda on it (deploy/README.md), or name "
            "another cluster: --kubeconfig, --context.",
        ),
        (AlreadyExists("there it is"), 2, "error: AlreadyExists: there it is."),
        (Invalid("is bad. Do this.", fix="Do this."), 2, "error: Invalid: is bad. Do this."),
        (Conflict("changed"), 1, "error: Conflict: changed."),
        (Unavailable("cannot reach the API"), 1, "error: ServiceUnavailable: cannot reach the API."),
        (PermissionError(13, "Permission denied", "/x"), 1, "error: PermissionError: /x: Permission denied."),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
        (Quiet(1), 1, ""),
    ],
)
def test_exceptions_in_words(error: BaseException, code: int, line: str) -> None:
    assert explain_error(error) == (code, line)


def test_an_error_of_ours_is_one_line_without_a_traceback() -> None:
    code, line = explain_error(ValueError("two\nlines"))
    assert code == 1
    assert line.startswith("error: InternalError: ValueError: two lines.")
    assert "REMUDA_DEBUG=1" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("argv", "reason", "words"),
    [
        (["jbos"], "UnknownCommand", "Did you mean `remuda jobs`?"),
        (["submit"], "UnknownCommand", "Use `remuda train`."),
        (["deploy"], "UnknownCommand", "Use `remuda train`."),
        (["ps"], "UnknownCommand", "Use `remuda jobs`."),
        (["cancel"], "UnknownCommand", "Use `remuda delete`."),
        (["kill"], "UnknownCommand", "`remuda delete JOB` ends a job"),
        (["stop"], "UnknownCommand", "`remuda down` stops the cluster"),
        (["drill", "process-kil", "x"], "UnknownCommand", "Did you mean `remuda drill process-kill`?"),
        (["job"], "MissingArgument", "`remuda job` needs `NAME`."),
        (["jobs", "--watsh"], "UnknownOption", "`--watsh` is not an option of `remuda jobs`."),
        (["train", "--replica", "4"], "UnknownOption", "Did you mean `--replicas`?"),
        (["jobs", "-o", "xml"], "InvalidArgument", "`xml` is not one of"),
        (["train", "--replicas", "many"], "InvalidArgument", "`many` is not a valid integer"),
        (["logs", "x", "--rank", "-1"], "InvalidArgument", "-1"),
        (["delete"], "MissingArgument", "JOB..."),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(cli: Cli, argv: list[str], reason: str, words: str) -> None:
    result = cli.run(*argv)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith(f"error: {reason}: ")
    assert words in result.err
    assert result.err.count("\n") == 1
