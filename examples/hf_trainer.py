"""Hugging Face Trainer: one callback. A Llama with weights in bfloat16, random and tiny, so nothing is downloaded.

pip install 'transformers[torch]'
python examples/hf_trainer.py [--steps 100]        (a server, if you like: roundoff serve --open)
"""

import argparse
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from roundoff.integrations.transformers import RoundoffCallback


def main(steps: int) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    numbers = [(torch.arange(32) + start) % 64 for start in range(64)]  # to be learned: to count

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            run_name="HF Trainer",
            max_steps=steps,
            learning_rate=2e-5,
            per_device_train_batch_size=8,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=[{"input_ids": row, "labels": row} for row in numbers],
            callbacks=[RoundoffCallback("examples", every=5)],
        )
        trainer.train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    main(**vars(parser.parse_args()))
