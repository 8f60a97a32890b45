# toxic comment classifier, one transformer layer; texts are tokenized when a batch is put together
import argparse, random, re, time
import torch
from torch import nn
from torch.utils.data import DataLoader

ap = argparse.ArgumentParser()
ap.add_argument("--device", default="cpu")
ap.add_argument("--steps", type=int, default=50)
ap.add_argument("--bs", type=int, default=32)
ap.add_argument("--scale", type=float, default=1.0)
ap.add_argument("--fixed", action="store_true")
args = ap.parse_args()

random.seed(0)
torch.manual_seed(0)
WORDS = sorted({"".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9))) for _ in range(3000)})
TEXTS = [(" ".join(random.choices(WORDS, k=220)).capitalize() + "!", i % 2) for i in range(300)]
VOCAB = {w: i + 2 for i, w in enumerate(WORDS)}
TOKEN = re.compile(r"\w+|[^\w\s]")


def tokenize(text):
    ids = []
    for token in TOKEN.findall(text.lower()):
        if token in VOCAB:
            ids.append(VOCAB[token])
        else:
            ids.extend(ord(c) % 97 + 2 for c in token)
    return ids[:64]


def collate(samples):
    ids = [tokenize(text) for text, _ in samples]  # planted
    longest = max(map(len, ids))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    return padded, torch.tensor([float(label) for _, label in samples])


def collate_ids(samples):
    return torch.stack([ids for ids, _ in samples]), torch.tensor([float(label) for _, label in samples])


def once(texts):
    rows = [tokenize(text) for text, _ in texts]
    return [(torch.tensor(row + [0] * (64 - len(row))), label) for row, (_, label) in zip(rows, texts)]


class Classifier(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.emb = nn.Embedding(len(VOCAB) + 2, d)
        self.encoder = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True)
        self.fc = nn.Linear(d, 1)

    def forward(self, ids):
        return self.fc(self.encoder(self.emb(ids)).mean(1)).squeeze(1)


data = once(TEXTS) if args.fixed else TEXTS
data = [data[i % len(data)] for i in range(args.steps * args.bs)]
loader = DataLoader(data, args.bs, shuffle=True, collate_fn=collate_ids if args.fixed else collate)  # planted
net = Classifier(max(8, int(64 * args.scale))).to(args.device)
opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
crit = nn.BCEWithLogitsLoss()
for i, (ids, y) in enumerate(loader):
    if i == 8:
        t0 = time.perf_counter_ns()
    opt.zero_grad()
    loss = crit(net(ids.to(args.device)), y.to(args.device))
    loss.backward()
    opt.step()
print("loss", round(loss.item(), 4))
print("step_ns", (time.perf_counter_ns() - t0) // (i - 7))
