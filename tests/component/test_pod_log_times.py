"""Pod logs with times: what `timestamps`, `sinceSeconds`, `sinceTime` and `limitBytes` give, and what is refused."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from remuda.api.errors import ApiError
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.log_source import LogQuery
from remuda.embedded.apiserver.subresources import _parse_log_query
from remuda.embedded.node.pod_logs import PodLogFiles, kubelet_log_timestamp
from tests.builders.waiting import PATIENCE_S

T = 1_800_000_000.0
POD: JsonObject = {
    "metadata": {"name": "p", "namespace": "team", "uid": "u"},
    "spec": {"containers": [{"name": "main"}]},
    "status": {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]},
}


class Logs:
    def __init__(self, root: Path) -> None:
        self.file = root / "team" / "p_u" / "p_u" / "main.log"
        self.file.parent.mkdir(parents=True)
        self.source = PodLogFiles(root, lambda namespace, name: POD)

    def write(self, text: bytes, at: float) -> None:
        with self.file.open("ab") as file:
            file.write(text)
        os.utime(self.file, (at, at))
        self.source.times.look(self.file)

    async def read(self, **query: object) -> str:
        async with asyncio.timeout(PATIENCE_S):
            asked = LogQuery("main", **query)  # type: ignore[arg-type]
            return b"".join([piece async for piece in self.source.read(POD, asked)]).decode()


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    logs = Logs(tmp_path)
    logs.write(b"one\ntwo\n", T)
    logs.write(b"three\n50%\r", T + 10.25)
    logs.write(b"100%\nlast, without an end", T + 20)
    return logs


async def test_each_line_has_its_time_before_it(logs: Logs) -> None:
    assert await logs.read(timestamps=True) == (
        "2027-01-15T08:00:00.000000000Z one\n"
        "2027-01-15T08:00:00.000000000Z two\n"
        "2027-01-15T08:00:10.250000000Z three\n"
        "2027-01-15T08:00:20.000000000Z 50%\r100%\n"
        "2027-01-15T08:00:20.000000000Z last, without an end"
    )
    assert await logs.read(timestamps=True, tail=1) == "2027-01-15T08:00:20.000000000Z last, without an end"
    assert await logs.read(timestamps=True, limit_bytes=40) == (await logs.read(timestamps=True))[:40]


async def test_since_gives_whole_lines(logs: Logs) -> None:
    assert await logs.read(since=T + 1) == "three\n50%\r100%\nlast, without an end"
    assert await logs.read(since=T + 15) == "50%\r100%\nlast, without an end"
    assert await logs.read(since=T + 15, tail=1) == "last, without an end"
    assert await logs.read(since=T + 30) == ""
    assert await logs.read(since=T - 30) == await logs.read()


async def test_lines_longer_than_a_read_stay_one_line(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.write(b"x" * 200_000 + b"\nend\n", T)
    stamp = kubelet_log_timestamp(T)
    assert await logs.read(timestamps=True) == f"{stamp} {'x' * 200_000}\n{stamp} end\n"
    logs.write(b"more\n", T + 9)
    assert await logs.read(since=T + 5) == "more\n"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, LogQuery("main")),
        ({"sinceSeconds": "5"}, LogQuery("main", since=T - 5)),
        ({"sinceTime": "2027-01-15T08:00:00Z"}, LogQuery("main", since=T)),
        ({"sinceTime": "2027-01-15T09:00:00.5+01:00"}, LogQuery("main", since=T + 0.5)),
        ({"timestamps": "true", "limitBytes": "7"}, LogQuery("main", timestamps=True, limit_bytes=7)),
    ],
)
def test_queries(query: dict[str, str], expected: LogQuery) -> None:
    assert _parse_log_query(query, POD, T) == expected


@pytest.mark.parametrize(
    ("query", "code", "names"),
    [
        ({"sinceSeconds": "0"}, 422, "sinceSeconds"),
        ({"sinceSeconds": "-1"}, 422, "sinceSeconds"),
        ({"sinceSeconds": "soon"}, 400, "sinceSeconds"),
        ({"tailLines": "9" * 5000}, 400, "tailLines"),
        ({"limitBytes": "0"}, 422, "limitBytes"),
        ({"tailLines": "-1"}, 422, "tailLines"),
        ({"sinceSeconds": "1", "sinceTime": "2027-01-15T08:00:00Z"}, 422, "sinceTime"),
        ({"sinceTime": "yesterday"}, 400, "sinceTime"),
    ],
)
def test_refusals_name_the_parameter(query: dict[str, str], code: int, names: str) -> None:
    with pytest.raises(ApiError) as refused:
        _parse_log_query(query, POD, T)
    assert refused.value.code == code
    assert names in refused.value.message
