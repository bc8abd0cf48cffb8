"""The process that talks to a driver library: `python -m remuda.agent.hardware.driver_child FD MAKE`.

A driver call can hang for good (a sick device, a firmware that does not answer) and takes its thread with it; a broken library
can take the whole process. So the library lives here and nowhere else, and whoever wants to know something sets a deadline and
kills this process when it passes.

One JSON object a line, over the socket FD:
    parent -> child   {"id": 7, "call": "counters", "params": {"pci": "0000:1b:00.0"}}
    child -> parent   {"ready": true}                            once, after the imports and before any driver call
                      {"id": 7, "result": ...}  or  {"id": 7, "error": {"code": "GpuIsLost", "message": "..."}}
                      {"event": {...}}                           whenever the driver reports one

Calls are answered in order, one at a time: drivers serialise them anyway. Events come from a second thread. The process ends
when the socket does.
"""

from __future__ import annotations

import ctypes
import json
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from remuda.agent.hardware.driver_port import Driver, DriverFault, Emit

_PR_SET_PDEATHSIG = 1


def serve_driver(channel: socket.socket, make: Callable[[Emit], Driver]) -> None:
    lock = threading.Lock()

    def write(message: dict[str, Any]) -> None:
        with lock:
            channel.sendall(json.dumps(message).encode() + b"\n")

    driver = make(lambda event: write({"event": event}))
    write({"ready": True})
    is_open = False
    with channel.makefile("rb") as lines:
        for line in lines:
            request = json.loads(line)
            try:
                if not is_open:  # a process that took the place of another is asked the next thing, whatever that is
                    driver.open()
                    is_open = True
                result = getattr(driver, request["call"])(**request["params"])
                answer = {"id": request["id"], "result": result}
            except DriverFault as fault:
                answer = {"id": request["id"], "error": {"code": fault.code, "message": str(fault)}}
            except Exception as error:  # a library in an unexpected state must not look like a dead process
                said = f"{type(error).__name__}: {error}"
                answer = {"id": request["id"], "error": {"code": "Unexpected", "message": said}}
            write(answer)


def driver_maker(name: str) -> Callable[[Emit], Driver]:
    """The library is imported here, late: the other make's may not be installed. One that is not answers so."""
    try:
        return _import_driver(name)
    except ImportError as error:
        missing = str(error)
        return lambda emit: _MissingDriver(missing)


class _MissingDriver:
    def __init__(self, why: str) -> None:
        self._why = why

    def open(self) -> dict[str, Any]:
        raise DriverFault("LibraryNotFound", self._why)


def _import_driver(name: str) -> Callable[[Emit], Driver]:
    if name == "nvml":
        from remuda.agent.hardware.nvml_calls import NvmlDriver

        return NvmlDriver
    if name == "amd":
        from remuda.agent.hardware.amd_calls import AmdDriver

        return AmdDriver
    raise SystemExit(f"no driver `{name}`")


def main(arguments: list[str]) -> None:
    # An agent that was killed must not leave this process behind, hung in a driver where it cannot see the socket close.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is for the agent
    with socket.socket(fileno=int(arguments[0])) as channel:
        try:
            serve_driver(channel, driver_maker(arguments[1]))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the agent went first


if __name__ == "__main__":
    main(sys.argv[1:])
