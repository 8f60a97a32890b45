"""Part-of-speech tagging with a BiLSTM, length-bucketed batches."""
import argparse
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD = 0


def make_corpus(n, vocab, tags, seed=0):
    rng = random.Random(seed)
    corpus = []
    for _ in range(n):
        length = rng.randint(12, 48)
        words = [rng.randrange(1, vocab) for _ in range(length)]
        corpus.append((words, [1 + (w + (words[i - 1] if i else 0)) % (tags - 1) for i, w in enumerate(words)]))
    return corpus


def bucketed_batches(corpus, batch_size):
    """Sort by length and cut: hardly any padding. Tensors are made once, before training."""
    corpus = sorted(corpus, key=lambda s: len(s[0]))
    batches = []
    for i in range(0, len(corpus) - batch_size + 1, batch_size):
        part = corpus[i:i + batch_size]
        longest = len(part[-1][0])
        words = torch.full((batch_size, longest), PAD)
        tags = torch.full((batch_size, longest), PAD)
        for j, (w, t) in enumerate(part):
            words[j, :len(w)] = torch.tensor(w)
            tags[j, :len(t)] = torch.tensor(t)
        batches.append((words, tags))
    return batches


class Tagger(nn.Module):
    def __init__(self, vocab, tags, emb=128, hidden=192):
        super().__init__()
        self.emb = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.lstm = nn.LSTM(emb, hidden, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(2 * hidden, tags)

    def forward(self, words):
        h, _ = self.lstm(self.drop(self.emb(words)))
        return self.out(h)


@torch.no_grad()
def accuracy(model, batches):
    model.eval()
    right = total = 0
    for words, tags in batches:
        mask = tags != PAD
        right += (model(words).argmax(-1) == tags)[mask].sum()
        total += mask.sum()
    model.train()
    return (right / total).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=500)
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    vocab, tags = 2000, 17
    train = bucketed_batches(make_corpus(3200, vocab, tags), args.batch)
    dev = bucketed_batches(make_corpus(128, vocab, tags, seed=1), args.batch)
    model = Tagger(vocab, tags)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    t0, step = time.time(), 0
    while step < args.steps:
        random.shuffle(train)
        for words, gold in train:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(words).float()
            loss = F.cross_entropy(logits.flatten(0, 1), gold.flatten(), ignore_index=PAD)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            if step >= args.steps:
                break
        if step < args.steps:
            print(f"dev accuracy {accuracy(model, dev):.3f}")
    print(f"{time.time() - t0:.1f}s")


if __name__ == "__main__":
    main()
