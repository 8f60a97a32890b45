# Sentiment classifier: bag-of-embeddings + small transformer; tokenisation happens in the collate function.
import argparse, random, re, time, unicodedata
from collections import Counter
from statistics import median
import torch
from torch import nn
from torch.utils.data import DataLoader

MAX_LEN = 128
WORD = re.compile(r"[a-z]+'[a-z]+|[a-z]+|[0-9]+|[^\sa-z0-9]")


def make_corpus(n, seed=0):
    rng = random.Random(seed)
    words = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 9))) for _ in range(4000)]
    corpus = []
    for i in range(n):
        text = " ".join(rng.choice(words) for _ in range(rng.randint(120, 500)))
        corpus.append((text.capitalize() + " -- it's <br />" + str(i) + "!", i % 2))
    return corpus


def tokenize(text):
    text = unicodedata.normalize("NFKD", text).lower()
    text = "".join(c for c in text if not unicodedata.combining(c))
    text = re.sub(r"<br\s*/?>", " ", text)
    return WORD.findall(text)


def wordpieces(token, vocab):
    """Greedy longest match, as in BERT."""
    pieces, start = [], 0
    while start < len(token):
        end = len(token)
        while end > start and token[start:end] not in vocab:
            end -= 1
        if end == start:
            return [1]
        pieces.append(vocab[token[start:end]])
        start = end
    return pieces


def build_vocab(corpus, size=6000):
    counter = Counter()
    for text, _ in corpus:
        for token in tokenize(text):
            counter.update((token[:k] for k in range(1, len(token) + 1)))
    return {"<pad>": 0, "<unk>": 1, **{w: i + 2 for i, (w, _) in enumerate(counter.most_common(size))}}


class Sentiment(nn.Module):
    def __init__(self, vocab_size, d=64):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, d, padding_idx=0)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 4, 128, batch_first=True), 1)
        self.fc = nn.Linear(d, 2)

    def forward(self, ids):
        mask = ids == 0
        h = self.encoder(self.emb(ids), src_key_padding_mask=mask)
        return self.fc(h.masked_fill(mask[..., None], 0).sum(1) / (~mask).sum(1, keepdim=True))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=70)
    ap.add_argument("--bs", type=int, default=24)
    args = ap.parse_args()
    torch.manual_seed(0)
    corpus = make_corpus(400)
    vocab = build_vocab(corpus)
    data = [corpus[i % len(corpus)] for i in range(args.steps * args.bs)]

    def collate(samples):
        batch, labels = [], []
        for text, label in samples:
            ids = [i for token in tokenize(text) for i in wordpieces(token, vocab)][:MAX_LEN]
            batch.append(ids + [0] * (MAX_LEN - len(ids)))
            labels.append(label)
        return torch.tensor(batch), torch.tensor(labels)

    loader = DataLoader(data, batch_size=args.bs, shuffle=True, collate_fn=collate)
    net = Sentiment(len(vocab))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    net.train()
    times = []
    tic = time.perf_counter()
    for ids, labels in loader:
        loss = loss_fn(net(ids), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        toc = time.perf_counter()
        times.append(toc - tic)
        tic = toc
    print(f"final loss {loss.item():.3f}")
    print(f"median step {median(times[8:]) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
