"""A PyTorch job as people write it, with four lines for Remuda: DistributedDataParallel over gloo, started by torchrun.

Every step's batch follows from the step's number, so that a step repeated after a failure computes what it computed before.
The model's state is the same on all ranks; each saves its own copy, so that any of them may be replaced.
"""

import io
import os
import time

import remuda_train as remuda  # put on the path by remuda-launch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "300"))
EVERY = int(os.environ.get("EVERY", "10"))
PAUSE_S = float(os.environ.get("PAUSE_S", "0.03"))  # stands for the work of a real model
FEATURES, BATCH = 64, 32


class OwnTime:
    """How long a rank works before it waits for the others: until its last bucket of gradients is ready to be sent."""

    def __init__(self) -> None:
        self.began = self.ready = time.monotonic()

    def begin(self) -> None:
        self.began = self.ready = time.monotonic()

    def hook(self, process_group: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self.ready = time.monotonic()
        tensor = bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0])

    @property
    def seconds(self) -> float:
        return self.ready - self.began


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(step * 1000 + rank)
    inputs = torch.randn(BATCH, FEATURES, generator=chance)
    return inputs, torch.tanh(inputs.sum(dim=1, keepdim=True))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    first = 0
    if (step := remuda.resume_step()) is not None:
        saved = torch.load(io.BytesIO(remuda.load(step)))
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        first = step
    own = OwnTime()
    model = DistributedDataParallel(net)
    model.register_comm_hook(None, own.hook)
    for step in range(first + 1, STEPS + 1):
        own.begin()
        time.sleep(PAUSE_S)
        inputs, targets = batch(step, rank)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        print(f"step {step} loss {total.item() / dist.get_world_size():.9f}", flush=True)
        remuda.report(step, self_time=own.seconds)
        if step % EVERY == 0 or remuda.checkpoint_requested():
            data = io.BytesIO()
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, data)
            remuda.save(step, data.getvalue())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
