"""Topics of headlines: own word tokenizer, a two-layer transformer encoder, buckets of like length."""
import random
import re
import time
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F

TOPICS = {
    "sport": "match goal league coach striker win season final score cup".split(),
    "markets": "shares bank profit stock rate investors bond index rise quarter".split(),
    "science": "study planet cells telescope protein climate fossil laser genome orbit".split(),
    "culture": "film album festival actor stage novel museum prize concert director".split(),
}
FILLER = "the a of in after for with new says as at over first two more on by from".split()
PAD, UNK = 0, 1


def corpus(n, rng):
    names = list(TOPICS)
    for _ in range(n):
        topic = rng.randrange(len(names))
        words = [rng.choice(TOPICS[names[topic]] if rng.random() < 0.3 else FILLER) for _ in range(rng.randint(20, 70))]
        yield " ".join(words).capitalize(), topic


class Tokenizer:
    pattern = re.compile(r"[a-z']+")

    def __init__(self, texts, max_size=5000):
        counts = Counter(w for text in texts for w in self.pattern.findall(text.lower()))
        self.ids = {w: i for i, (w, _) in enumerate(counts.most_common(max_size), start=2)}

    def __len__(self):
        return len(self.ids) + 2

    def encode(self, text):
        return torch.tensor([self.ids.get(w, UNK) for w in self.pattern.findall(text.lower())])


def make_batches(encoded, labels, batch_size):
    """Padded batches of texts of like length, made once."""
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    batches = []
    for i in range(0, len(order), batch_size):
        part = order[i : i + batch_size]
        ids = nn.utils.rnn.pad_sequence([encoded[j] for j in part], batch_first=True, padding_value=PAD)
        batches.append((ids, torch.tensor([labels[j] for j in part])))
    return batches


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, keep):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Classifier(nn.Module):
    def __init__(self, vocab, classes, dim=192, heads=4, layers=2, max_len=80):
        super().__init__()
        self.words = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.places = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        real = ids != PAD
        x = self.words(ids) + self.places[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, real[:, None, None, :])
        weight = real.unsqueeze(-1).float()
        return self.head((x * weight).sum(1) / weight.sum(1))


def main(epochs=4, batch_size=32):
    rng = random.Random(0)
    torch.manual_seed(0)
    texts, labels = zip(*corpus(500, rng))
    tokenizer = Tokenizer(texts)
    batches = make_batches([tokenizer.encode(t) for t in texts], labels, batch_size)
    model = Classifier(len(tokenizer), len(TOPICS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    times, cpu = [], time.process_time()
    for epoch in range(epochs):
        rng.shuffle(batches)
        total = 0.0
        for ids, topic in batches:
            start = time.perf_counter()
            loss = F.cross_entropy(model(ids), topic, label_smoothing=0.05)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
            times.append(time.perf_counter() - start)
        print(f"epoch {epoch} loss {total / len(batches):.4f}")
    print(f"median step {sorted(times)[len(times) // 2] * 1e3:.2f} ms, cpu {time.process_time() - cpu:.2f} s")


if __name__ == "__main__":
    main()
