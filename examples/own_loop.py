"""A loop of your own. Plain bfloat16 stalls at this learning rate; --cure trains the same with Collage updates.

python examples/own_loop.py [--steps 100] [--cure]        (a server, if you like: roundoff serve --open)
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

import roundoff

LR = 1e-4


def main(steps: int, cure: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)).to(torch.bfloat16)
    if cure:
        optimizer = roundoff.CollageAdamW(model.named_parameters(), lr=LR, strategy="plus")
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)

    name = "own loop, Collage" if cure else "own loop, plain bf16"
    with roundoff.init("examples", name, config={"lr": LR}) as run:
        run.watch(model, optimizer, every=5)
        for step in range(steps):
            characters = torch.randint(64, (256,))
            loss = functional.cross_entropy(model(characters).float(), (7 * characters + 3) % 64)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log({"loss": loss}, step=step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--cure", action="store_true")
    main(**vars(parser.parse_args()))
