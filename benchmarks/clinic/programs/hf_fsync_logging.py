"""Fine-tuning with the Hugging Face Trainer; a callback logs the norm of each layer in each step, safely on disk."""

import argparse
import json
import os
import tempfile
import time

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments, set_seed

STEPS, BATCH, LENGTH = 50, 8, 32


class LayerLog(TrainerCallback):
    def __init__(self, path, every):
        self.path, self.every = path, every

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every:
            return
        with open(self.path, "a") as file:
            for name, layer in model.bert.named_children():
                norm = sum(float(weight.detach().norm()) for weight in layer.parameters())
                file.write(json.dumps({"step": state.global_step, "layer": name, "norm": norm}) + "\n")
                file.flush()
                for _ in range(2):  # the network drive once lost a line
                    os.fsync(file.fileno())  # planted


class Stopwatch(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 8:
            self.start_ns = time.perf_counter_ns()

    def on_train_end(self, args, state, control, **kwargs):
        print("step_ns", (time.perf_counter_ns() - self.start_ns) // (STEPS - 8))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()

    set_seed(0)
    width = int(192 * args.scale)
    model = BertForSequenceClassification(
        BertConfig(vocab_size=1000, hidden_size=width, num_hidden_layers=1, num_attention_heads=4,
                   intermediate_size=4 * width, max_position_embeddings=LENGTH, num_labels=2)
    )
    rows = torch.randint(5, 1000, (BATCH * STEPS, LENGTH))
    data = [{"input_ids": row, "labels": int(row[0] > 500)} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model, train_dataset=data,
            args=TrainingArguments(
                output_dir=folder, per_device_train_batch_size=BATCH, max_steps=STEPS, save_strategy="no",
                optim="adamw_torch_fused", logging_strategy="no", report_to=[], disable_tqdm=True,
                use_cpu=args.device == "cpu",
            ),
            callbacks=[LayerLog(os.path.join(folder, "layers.jsonl"), 25 if args.fixed else 1), Stopwatch()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
