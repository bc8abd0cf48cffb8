"""The demo's training job: data-parallel gradient descent with a real collective, one process per rank.

Each rank has its own shard of a fixed linear regression. Every step it computes a gradient (mostly short naps, so that a
laptop's few cores do not blur the timing), all ranks average their gradients through rank 0 over TCP, and all take the same
step. A rank that dies therefore stops everybody, as in real synchronous training. Every few steps each rank saves its
checkpoint; started again it loads the one Remuda names.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time

import numpy as np

try:
    import remuda_train as remuda  # type: ignore[import-not-found,unused-ignore] # put on the path by remuda-launch
except ImportError:
    sys.exit("remuda_train is missing: start this script with `remuda train ... -- python train.py`")

STEP_S = float(os.environ.get("DEMO_STEP_SECONDS", "0.12"))
STEPS = int(os.environ.get("DEMO_STEPS", "1000000"))
EVERY = int(os.environ.get("DEMO_CHECKPOINT_EVERY", "10"))
SIZE = 64
NAP_S = 0.005


class DemoRing:
    """Average over all ranks through rank 0. Blocks until everybody has come: the collective couples the gang."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.peers: list[socket.socket] = []
        address = (os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500")))
        if world == 1:
            return
        if rank == 0:
            with socket.create_server(address, backlog=world) as server:
                while len(self.peers) < world - 1:
                    self.peers.append(server.accept()[0])
        else:
            self.peers.append(_connect_ring(address))

    def mean(self, values: np.ndarray) -> np.ndarray:
        if self.world == 1:
            return values
        if self.rank == 0:
            total = values + sum(_receive_from_ring(peer) for peer in self.peers)
            for peer in self.peers:
                _send_to_ring(peer, total / self.world)
            return total / self.world
        _send_to_ring(self.peers[0], values)
        return _receive_from_ring(self.peers[0])


def _connect_ring(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(address, timeout=60)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _send_to_ring(peer: socket.socket, values: np.ndarray) -> None:
    data = values.astype("<f8").tobytes()
    peer.sendall(struct.pack("<I", len(data)) + data)


def _receive_from_ring(peer: socket.socket) -> np.ndarray:
    (length,) = struct.unpack("<I", _receive_exactly(peer, 4))
    return np.frombuffer(_receive_exactly(peer, length), "<f8")


def _receive_exactly(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = peer.recv(count - len(data))
        if not piece:
            raise ConnectionError("a peer went away in the middle of a step")
        data += piece
    return data


def train_demo_model(seconds: float) -> None:
    """Computing, as a laptop can afford it: naps, counted rather than timed. A process that is held back takes longer for the
    same number of them, as it would for the same arithmetic."""
    for _ in range(round(seconds / NAP_S)):
        time.sleep(NAP_S)


def main() -> None:
    rank, world = remuda.rank(), remuda.world_size()
    chance = np.random.default_rng(rank)
    inputs = chance.normal(size=(256, SIZE))
    truth = np.linspace(-1.0, 1.0, SIZE)
    targets = inputs @ truth
    start = remuda.resume_step()
    weights = np.frombuffer(remuda.load(start), "<f8").copy() if start is not None else np.zeros(SIZE)
    print(f"rank {rank}/{world} attempt {remuda.attempt()} resumes after step {start or 0}", flush=True)
    ring = DemoRing(rank, world)
    for step in range((start or 0) + 1, STEPS + 1):
        began = time.monotonic()
        error = inputs @ weights - targets
        gradient = inputs.T @ error / len(inputs)
        train_demo_model(STEP_S - (time.monotonic() - began))
        self_time = time.monotonic() - began
        weights -= 0.05 * ring.mean(gradient)
        remuda.report(step, step_time=time.monotonic() - began, self_time=self_time)
        if step % EVERY == 0 or remuda.checkpoint_requested():
            remuda.save(step, weights.astype("<f8").tobytes())
        if step % 10 == 0:
            print(f"step {step} loss {float(np.mean(error**2)):.6f}", flush=True)


if __name__ == "__main__":
    main()
