"""Fine-tune a small BERT from scratch on synthetic sentences with the Trainer."""
import os
import tempfile
import time
from statistics import median

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments, set_seed

STEPS = int(os.environ.get("STEPS", "45"))
BATCH = 16
set_seed(0)


class Sentences(torch.utils.data.Dataset):
    def __init__(self, n):
        rng = np.random.default_rng(0)
        self.items = []
        for i in range(n):
            ids = rng.integers(5, 2000, rng.integers(20, 64)).tolist()
            self.items.append({"input_ids": ids, "labels": i % 2})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    ids = torch.zeros(len(features), longest, dtype=torch.long)
    mask = torch.zeros(len(features), longest, dtype=torch.long)
    for i, f in enumerate(features):
        n = len(f["input_ids"])
        ids[i, :n] = torch.tensor(f["input_ids"])
        mask[i, :n] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([f["labels"] for f in features])}


class StepTimer(TrainerCallback):
    def __init__(self):
        self.ends = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())


config = BertConfig(vocab_size=2000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512,
                    max_position_embeddings=64, num_labels=2)
model = BertForSequenceClassification(config)
timer = StepTimer()
with tempfile.TemporaryDirectory() as out:
    training_args = TrainingArguments(
        output_dir=out, per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=5e-4, logging_steps=20,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
    )
    trainer = Trainer(model=model, args=training_args, train_dataset=Sentences(BATCH * STEPS), data_collator=collate, callbacks=[timer])
    result = trainer.train()
print("train loss", result.training_loss)
times = [b - a for a, b in zip(timer.ends, timer.ends[1:])]
print(f"median step {median(times[8:]) * 1e3:.2f} ms")
