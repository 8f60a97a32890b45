"""Short messages, all padded to the longest that the model takes, with the Hugging Face Trainer."""

import argparse
import random
import tempfile
import time

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments, set_seed

STEPS, BATCH, MAX_LENGTH = 45, 8, 128


class PaddingCollator:
    def __init__(self, padding):
        self.padding = padding

    def __call__(self, examples):
        longest = max(len(each["input_ids"]) for each in examples)
        length = MAX_LENGTH if self.padding == "max_length" else longest  # planted
        ids = torch.zeros(len(examples), length, dtype=torch.long)
        mask = torch.zeros(len(examples), length, dtype=torch.long)
        for row, each in enumerate(examples):
            count = len(each["input_ids"])
            ids[row, :count], mask[row, :count] = torch.tensor(each["input_ids"]), 1
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([each["labels"] for each in examples])}


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
    width = int(128 * args.scale)
    config = BertConfig(vocab_size=1000, hidden_size=width, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=4 * width, max_position_embeddings=MAX_LENGTH, num_labels=2)
    draw = random.Random(0)
    data = [
        {"input_ids": [draw.randrange(5, 1000) for _ in range(draw.randrange(12, 33))], "labels": i % 2}
        for i in range(BATCH * STEPS)
    ]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=BertForSequenceClassification(config), train_dataset=data,
            data_collator=PaddingCollator("longest" if args.fixed else "max_length"),
            args=TrainingArguments(
                output_dir=folder, per_device_train_batch_size=BATCH, max_steps=STEPS, save_strategy="no",
                logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=args.device == "cpu",
            ),
            callbacks=[Stopwatch()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
