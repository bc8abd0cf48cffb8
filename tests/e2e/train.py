"""What the end-to-end tests train: synchronous steps over TCP, a checkpoint every few of them, standard library only.

Told where to wait (a file with the step nobody goes beyond), training stands at a known step while a test breaks something;
so every test knows exactly which checkpoint must be resumed from. The first line of each run says who it is, as JSON.
"""

import json
import os
import signal
import socket
import sys
import time

import remuda_train as remuda  # type: ignore[import-not-found,unused-ignore] # put on the path by remuda-launch

STEP_S = 0.02
EVERY = 4
STEPS = int(os.environ.get("E2E_STEPS", "1000000"))
LIMIT = os.environ.get("E2E_LIMIT", "")
STOP_FILE = os.environ.get("E2E_STOP_FILE", "")  # asked to end, the program does so once this file is there


def limit() -> int:
    try:
        with open(LIMIT, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return STEPS


class Gang:
    """Every rank waits for every other one, through rank 0."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if rank == 0:
            with socket.create_server(address, backlog=world) as server:
                self.peers = [server.accept()[0] for _ in range(world - 1)]
        else:
            self.peers = [_connect(address)]

    def meet(self) -> None:
        if self.rank == 0:
            for peer in self.peers:
                _receive(peer)
        for peer in self.peers:
            peer.sendall(b".")
        if self.rank != 0:
            _receive(self.peers[0])


def _connect(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _receive(peer: socket.socket) -> None:
    if not peer.recv(1):
        raise ConnectionError("a peer went away in the middle of a step")


def _stop_when_let(number: int, frame: object) -> None:
    while not os.path.exists(STOP_FILE):
        time.sleep(0.01)
    os._exit(128 + number)


def main() -> None:
    if STOP_FILE:
        signal.signal(signal.SIGTERM, _stop_when_let)
    resumed = remuda.resume_step()
    about = {"rank": remuda.rank(), "attempt": remuda.attempt(), "pid": os.getpid(), "resumed": resumed}
    print(json.dumps({**about, "env": dict(os.environ)}), "training", sep="\n", flush=True)
    if resumed is not None and remuda.load(resumed) != str(resumed).encode():
        sys.exit("the checkpoint is not what was saved")
    gang = Gang(remuda.rank(), remuda.world_size())
    for step in range((resumed or 0) + 1, STEPS + 1):
        while step > limit():
            time.sleep(0.01)
        time.sleep(STEP_S)
        gang.meet()
        remuda.report(step)
        if step % EVERY == 0:
            remuda.save(step, str(step).encode())
        print("step", step, flush=True)


if __name__ == "__main__":
    main()
