"""Masked language modelling from scratch, BERT recipe: 15 % of the tokens are predicted."""
import time
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Config:
    vocab_size: int = 8000
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    seq_len: int = 64
    batch_size: int = 16
    mask_prob: float = 0.15
    mask_id: int = 4
    total_steps: int = 50


class BertForMaskedLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tokens = nn.Embedding(cfg.vocab_size, cfg.hidden)
        self.positions = nn.Embedding(cfg.seq_len, cfg.hidden)
        layer = nn.TransformerEncoderLayer(cfg.hidden, cfg.heads, 4 * cfg.hidden, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, cfg.layers)
        self.transform = nn.Sequential(nn.Linear(cfg.hidden, cfg.hidden), nn.GELU(), nn.LayerNorm(cfg.hidden))
        self.decoder = nn.Linear(cfg.hidden, cfg.vocab_size)
        self.loss_fct = nn.CrossEntropyLoss(ignore_index=-100)

    def forward(self, input_ids, labels):
        pos = torch.arange(input_ids.size(1))
        hidden = self.encoder(self.tokens(input_ids) + self.positions(pos))
        scores = self.decoder(self.transform(hidden))
        return self.loss_fct(scores.view(-1, scores.size(-1)), labels.view(-1))


def mask_tokens(ids, cfg):
    labels = ids.clone()
    masked = torch.rand(ids.shape) < cfg.mask_prob
    labels[~masked] = -100
    return ids.masked_fill(masked, cfg.mask_id), labels


def train():
    torch.manual_seed(42)
    cfg = Config()
    model = BertForMaskedLM(cfg)
    corpus = torch.randint(5, cfg.vocab_size, (2000, cfg.seq_len))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10))
    timings = []
    for step in range(cfg.total_steps):
        tick = time.perf_counter()
        ids = corpus[torch.randint(0, len(corpus), (cfg.batch_size,))]
        inputs, labels = mask_tokens(ids, cfg)
        loss = model(inputs, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        timings.append(time.perf_counter() - tick)
        if step % 10 == 0:
            print(f"{step:>5} mlm_loss={loss.item():.3f}")
    print(f"median step {sorted(timings)[len(timings) // 2] * 1000:.2f} ms")


train()
