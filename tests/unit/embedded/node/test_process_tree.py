"""Reading /proc, on a made-up one."""

from __future__ import annotations

import os

import pytest

from remuda.embedded.node import process_tree

HZ = os.sysconf("SC_CLK_TCK")
UPTIME_S = 1000


def stat(state: str = "S", *, flags: int = 0, age_s: float = 100.0) -> bytes:
    start = int((UPTIME_S - age_s) * HZ)
    return f"1 (odd ) name) {state} 1 5 5 0 0 {flags} {'0 ' * 12}{start} 0".encode()


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    files: dict[str, bytes] = {"/proc/uptime": f"{UPTIME_S}.00 1.0".encode()}
    monkeypatch.setattr(process_tree, "_read_proc_file", files.get)
    monkeypatch.setattr(os, "listdir", lambda path: sorted({name.split("/")[2] for name in files}))
    return files


def process(
    files: dict[str, bytes], pid: int, *, environ: bytes = b"A=1\0", cmdline: bytes = b"x\0", **fields: object
) -> None:
    files |= {
        f"/proc/{pid}/environ": environ,
        f"/proc/{pid}/cmdline": cmdline,
        f"/proc/{pid}/stat": stat(**fields),  # type: ignore[arg-type]
    }


def test_processes_are_found_by_a_whole_variable(proc: dict[str, bytes]) -> None:
    process(proc, 10, environ=b"A=1\0ID=one\0B=2\0")
    process(proc, 11, environ=b"ID=one-more\0")
    process(proc, 12, environ=b"XID=one\0")
    process(proc, 13, environ=b"ID=two\0")
    assert process_tree.processes_tagged("ID", {"one", "two"}) == ([10, 13], False)
    assert not process_tree.processes_tagged("ID", set())
    assert not process_tree.processes_tagged("ID", {"three"})


def test_processes_are_found_by_a_whole_argument(proc: dict[str, bytes]) -> None:
    process(proc, 10, cmdline=b"python\0shim.py\0/a/spec.json\0")
    process(proc, 11, cmdline=b"cat\0/a/spec.json.tmp\0")
    assert process_tree.processes_with_shim_argument("/a/spec.json").pids == [10]


@pytest.mark.parametrize(
    ("fields", "unsure"),
    [
        ({"age_s": 0.01}, True),
        ({"age_s": 60.0}, False),
        ({"age_s": 0.01, "state": "Z"}, False),
        ({"age_s": 0.01, "flags": 0x00200000}, False),
        ({"age_s": 0.01, "cmdline": b"env\0-i\0"}, False),
    ],
    ids=["in its exec", "old and nameless", "zombie", "kernel thread", "without environment"],
)
def test_a_process_in_its_exec_asks_for_another_look(
    proc: dict[str, bytes], fields: dict[str, object], unsure: bool
) -> None:
    process(proc, 10, **{"environ": b"", "cmdline": b"", **fields})  # type: ignore[arg-type]
    found = process_tree.processes_tagged("ID", {"one"})
    assert found == ([], unsure)
    assert bool(found) is unsure


@pytest.mark.parametrize("looks", [1, 2])
def test_a_process_whose_exec_ends_while_it_is_looked_at_is_found(
    proc: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    process(proc, 10, environ=b"", cmdline=b"", age_s=0.01)
    seen: list[str] = []

    def read(path: str) -> bytes | None:
        seen.append(path)
        if len([each for each in seen if each.startswith("/proc/10/")]) > looks:
            process(proc, 10, environ=b"ID=one\0", cmdline=b"python\0/a/spec.json\0", age_s=0.01)
        return proc.get(path)

    monkeypatch.setattr(process_tree, "_read_proc_file", read)
    assert process_tree.processes_with_shim_argument("/a/spec.json")
    seen.clear()
    process(proc, 10, environ=b"", cmdline=b"", age_s=0.01)
    assert process_tree.processes_tagged("ID", {"one"})


def test_group_leaders_and_the_gone(proc: dict[str, bytes]) -> None:
    process(proc, 5)
    process(proc, 6)
    assert process_tree.is_process_tree_group_leader(5)
    assert not process_tree.is_process_tree_group_leader(6)
    assert not process_tree.is_process_tree_group_leader(7)
