"""Document classifier: word vectors are pooled per document, documents differ in length. Kaggle style, one class."""
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

VOCAB, DIM, CLASSES = 3000, 96, 8


def seed_everything(seed=2024):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Docs:
    def __init__(self, n=2000):
        self.docs = [np.random.randint(0, VOCAB, size=random.randint(30, 120)) for _ in range(n)]
        self.y = np.array([int(d.mean()) % CLASSES for d in self.docs])

    def batches(self, bs):
        order = np.random.permutation(len(self.docs))
        for i in range(0, len(order) - bs + 1, bs):
            sel = order[i:i + bs]
            flat = torch.from_numpy(np.concatenate([self.docs[j] for j in sel]))
            lengths = torch.tensor([len(self.docs[j]) for j in sel])
            yield flat, lengths, torch.from_numpy(self.y[sel])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(VOCAB, DIM)
        self.att = torch.nn.Linear(DIM, 1)
        self.fc1 = torch.nn.Linear(DIM * 2, 128)
        self.fc2 = torch.nn.Linear(128, CLASSES)

    def pool(self, words, scores, lengths):
        pooled, start = [], 0
        for n in lengths.tolist():
            w = torch.softmax(scores[start:start + n], dim=0)
            x = words[start:start + n]
            pooled.append(torch.cat([(w * x).sum(0), x.mean(0)]))
            start += n
        return torch.stack(pooled)

    def forward(self, flat, lengths):
        words = self.emb(flat)
        doc = self.pool(words, self.att(words), lengths)
        return self.fc2(F.dropout(F.relu(self.fc1(doc)), 0.2, self.training))


def main():
    seed_everything()
    data, model = Docs(), Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, ts = [], []
    for epoch in range(2):
        model.train()
        t0 = time.time()
        for flat, lengths, y in data.batches(64):
            loss = F.cross_entropy(model(flat, lengths), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            ts.append(time.time() - t0)
            t0 = time.time()
        print(f"Epoch {epoch} loss {np.mean(losses[-20:]):.4f}")
    print(f"median step {np.median(ts) * 1000:.2f} ms")


main()
