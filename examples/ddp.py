"""DistributedDataParallel: replicas take the same steps, so one process watches. Two processes on a CPU:

torchrun --nproc-per-node 2 examples/ddp.py [--steps 100]        (a server, if you like: roundoff serve --open)
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import roundoff

LR = 1e-4


def main(steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # other data on each; DDP hands out the weights of rank 0
    net = nn.Sequential(nn.Embedding(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)).to(torch.bfloat16)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)

    mode = None if dist.get_rank() == 0 else "disabled"  # every call of a disabled run does nothing
    with roundoff.init("examples", "two processes", config={"lr": LR}, mode=mode) as run:
        run.watch(model, optimizer, every=5)
        for step in range(steps):
            characters = torch.randint(64, (256,))
            loss = functional.cross_entropy(model(characters).float(), (7 * characters + 3) % 64)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log({"loss": loss}, step=step)
    dist.barrier()  # a rank that ends while another still writes may abort
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    main(**vars(parser.parse_args()))
