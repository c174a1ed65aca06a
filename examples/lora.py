"""LoRA over a bfloat16 model. PEFT keeps the adapters in float32, where nothing is lost; with --bf16-adapters it is.

pip install peft transformers
python examples/lora.py [--steps 100] [--bf16-adapters]        (a server, if you like: roundoff serve --open)
"""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import roundoff

LR = 1e-4


def main(steps: int, bf16_adapters: bool) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    base = LlamaForCausalLM(config).to(torch.bfloat16)
    lora = LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(base, lora, autocast_adapter_dtype=not bf16_adapters)
    adapters = [param for param in model.parameters() if param.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=LR)

    name = "LoRA, bf16 adapters" if bf16_adapters else "LoRA, float32 adapters"
    with roundoff.init("examples", name, config={"lr": LR, "r": lora.r}) as run:
        run.watch(model, optimizer, every=5)  # the adapters; the frozen weights beneath take no steps
        for step in range(steps):
            numbers = (torch.arange(32) + torch.randint(64, (8, 1))) % 64
            loss = model(input_ids=numbers, labels=numbers).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log({"loss": loss}, step=step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--bf16-adapters", action="store_true")
    main(**vars(parser.parse_args()))
