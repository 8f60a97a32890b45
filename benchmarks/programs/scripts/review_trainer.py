"""Fine-tunes a small transformer for reviews with a Trainer of our own.

    python review_trainer.py
"""
import time
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class TrainingArguments:
    per_device_train_batch_size: int = 16
    per_device_eval_batch_size: int = 32
    learning_rate: float = 3e-4
    max_steps: int = 90
    logging_steps: int = 30
    eval_steps: int = 1
    warmup_steps: int = 10


class Reviews(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.input_ids = torch.randint(2, 4000, (n, 48), generator=g)
        self.labels = torch.randint(0, 2, (n,), generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.input_ids[i], "labels": self.labels[i]}


class Classifier(nn.Module):
    def __init__(self, vocab=4000, d=96, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(d, 2)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, input_ids, labels=None):
        logits = self.out(self.encoder(self.embed(input_ids)).mean(1))
        return {"loss": self.loss(logits, labels) if labels is not None else None, "logits": logits}


class Trainer:
    def __init__(self, model, args, train_dataset, eval_dataset):
        self.model, self.args = model, args
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, fused=True)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / args.warmup_steps)
        )
        self.best = 0.0

    def evaluate(self):
        self.model.eval()
        correct = 0
        with torch.no_grad():
            for inputs in DataLoader(self.eval_dataset, batch_size=self.args.per_device_eval_batch_size):
                correct += (self.model(**inputs)["logits"].argmax(-1) == inputs["labels"]).sum()
        self.model.train()
        return {"accuracy": correct.item() / len(self.eval_dataset)}

    def training_step(self, inputs):
        self.model.train()
        loss = self.model(**inputs)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train(self):
        step, times, start = 0, [], time.perf_counter()
        total = torch.zeros(())
        while step < self.args.max_steps:
            for inputs in DataLoader(self.train_dataset, self.args.per_device_train_batch_size, shuffle=True):
                total += self.training_step(inputs)
                step += 1
                if step % self.args.logging_steps == 0:
                    print({"step": step, "loss": round(total.item() / step, 4), "best": self.best})
                if step % self.args.eval_steps == 0:
                    self.best = max(self.best, self.evaluate()["accuracy"])
                now = time.perf_counter()
                times.append(now - start)
                start = now
                if step == self.args.max_steps:
                    break
        print(f"median step {median(times[10:]) * 1e3:.2f} ms")


torch.manual_seed(0)
trainer = Trainer(Classifier(), TrainingArguments(), Reviews(960, 0), Reviews(96, 1))
trainer.train()
