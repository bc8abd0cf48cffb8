"""The real kubectl of `make kube` against a cluster of the test's own.

Without it these tests skip, and the summary says so; with REMUDA_REQUIRE_KUBE=1 (CI) they fail instead.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.builders.waiting import PATIENCE_S
from tests.kube.planes import require_binaries

Row = dict[str, str]


def find_kubectl() -> str:
    return str(require_binaries() / "kubectl")


class Kubectl:
    """`home` keeps kubectl's cache out of the user's directory."""

    def __init__(self, kubeconfig: Path, home: Path) -> None:
        self._program = find_kubectl()
        home.mkdir(exist_ok=True)
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(home), "NO_PROXY": "*"}

    async def run(self, *words: str, stdin: str = "", code: int = 0) -> str:
        """Everything it said, errors included."""
        process = await self._start(*words, stdin=asyncio.subprocess.PIPE)
        async with asyncio.timeout(PATIENCE_S):
            said, _ = await process.communicate(stdin.encode())
        text = said.decode()
        assert process.returncode == code, f"kubectl {' '.join(words)}: code {process.returncode}\n{text}"
        return text

    async def apply(self, body: dict[str, Any]) -> str:
        return await self.run("apply", "-f", "-", stdin=json.dumps(body))

    async def get(self, *words: str) -> Any:
        return json.loads(await self.run("get", *words, "-o", "json"))

    async def table(self, *words: str) -> list[Row]:
        """The rows of a table by its headings."""
        return rows(await self.run(*words))

    @asynccontextmanager
    async def following(self, *words: str) -> AsyncIterator[Callable[[Callable[[str], bool]], Any]]:
        """A command that goes on. Gives `until(holds)`: the lines up to and with the first of which `holds` is true."""
        process = await self._start(*words, stdin=asyncio.subprocess.DEVNULL)
        assert process.stdout is not None
        output = process.stdout

        async def until(holds: Callable[[str], bool]) -> list[str]:
            lines: list[str] = []
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while not lines or not holds(lines[-1]):
                        line = await output.readline()
                        assert line, f"kubectl {' '.join(words)} ended: {lines}"
                        lines.append(line.decode().rstrip("\n"))
            except TimeoutError:
                raise AssertionError(f"kubectl {' '.join(words)} said only {lines}") from None
            return lines

        try:
            yield until
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _start(self, *words: str, stdin: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            self._program,
            *words,
            env=self._env,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )


def rows(table: str) -> list[Row]:
    """By position: cells may be empty, and headings may have blanks in them."""
    heading, *lines = table.rstrip("\n").splitlines()
    starts = [match.start() for match in re.finditer(r"(?<!\S)\S+(?: \S+)*", heading)]
    ends = [*starts[1:], None]
    names = [heading[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    return [
        dict(zip(names, (line[start:end].strip() for start, end in zip(starts, ends, strict=True)), strict=True))
        for line in lines
    ]
