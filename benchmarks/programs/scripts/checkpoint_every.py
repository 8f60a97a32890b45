# -*- coding: utf-8 -*-
"""Text classifier with a TextCNN. The cluster kills jobs, so the state is saved in order to resume."""
import os
import shutil
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class HParams(dict):
    __getattr__ = dict.__getitem__


hp = HParams(vocab=12000, embed=64, kernels=(3, 4, 5), maps=96, classes=6, bs=32, seqlen=64, iters=60, lr=0.05)


class TextCNN(nn.Module):
    def __init__(self, hp):
        super(TextCNN, self).__init__()
        self.embedding = nn.Embedding(hp.vocab, hp.embed)
        self.convs = nn.ModuleList([nn.Conv1d(hp.embed, hp.maps, k) for k in hp.kernels])
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(len(hp.kernels) * hp.maps, hp.classes)

    def forward(self, x):
        x = self.embedding(x).permute(0, 2, 1)
        x = [F.relu(conv(x)).max(dim=2)[0] for conv in self.convs]
        return self.fc(self.dropout(torch.cat(x, dim=1)))


class Saver(object):
    """Keeps the newest `keep` checkpoints."""

    def __init__(self, directory, keep=3):
        self.directory = directory
        self.keep = keep
        self.written = []

    def save(self, step, model, optimizer, best):
        state = {
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "best": best,
            "rng": torch.get_rng_state(),
        }
        path = os.path.join(self.directory, "ckpt_%06d.pt" % step)
        torch.save(state, path)
        self.written.append(path)
        while len(self.written) > self.keep:
            os.remove(self.written.pop(0))


def get_batch(hp, gen):
    y = torch.randint(0, hp.classes, (hp.bs,), generator=gen)
    x = torch.randint(0, hp.vocab, (hp.bs, hp.seqlen), generator=gen)
    x[:, :8] = y[:, None] * 7 + torch.arange(8)
    return x, y


def train(hp, saver):
    torch.manual_seed(1234)
    gen = torch.Generator().manual_seed(99)
    model = TextCNN(hp)
    optimizer = torch.optim.SGD(model.parameters(), lr=hp.lr, momentum=0.9)
    best = 0.0
    durations = []
    model.train()
    for it in range(1, hp.iters + 1):
        tic = time.time()
        x, y = get_batch(hp, gen)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        acc = (logits.argmax(1) == y).float().mean().item()
        best = max(best, acc)
        saver.save(it, model, optimizer, best)
        durations.append(time.time() - tic)
        if it % 20 == 0:
            print("iter %d loss %.4f acc %.3f best %.3f" % (it, loss.item(), acc, best))
    return durations


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    try:
        durations = sorted(train(hp, Saver(folder))[6:])
    finally:
        shutil.rmtree(folder)
    print("median step %.2f ms" % (1000.0 * durations[len(durations) // 2]))
