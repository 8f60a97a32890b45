"""Graph attention network (Velickovic et al.) on a synthetic citation graph, full batch."""
from __future__ import annotations

import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def load_graph(n=700, n_feat=300, n_class=7, degree=3, seed=72):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, n_class, n)
    src = np.repeat(np.arange(n), degree)
    same = rng.random(n * degree) < 0.8
    dst = rng.integers(0, n, n * degree)
    for c in range(n_class):
        members = np.flatnonzero(label == c)
        chosen = same & (label[src] == c)
        dst[chosen] = rng.choice(members, chosen.sum())
    adj = np.eye(n, dtype="float32")
    adj[src, dst] = adj[dst, src] = 1
    feat = (rng.random((n, n_feat)) < 0.02).astype("float32")
    feat[np.arange(n), label * 10 + rng.integers(0, 10, n)] = 1
    feat /= feat.sum(1, keepdims=True)
    order = rng.permutation(n)
    return torch.from_numpy(adj), torch.from_numpy(feat), torch.from_numpy(label), order[:200], order[200:]


class GraphAttentionLayer(nn.Module):
    def __init__(self, in_features, out_features, dropout, alpha=0.2, concat=True):
        super().__init__()
        self.dropout, self.concat = dropout, concat
        self.W = nn.Parameter(torch.empty(in_features, out_features))
        self.a_src = nn.Parameter(torch.empty(out_features, 1))
        self.a_dst = nn.Parameter(torch.empty(out_features, 1))
        for p in (self.W, self.a_src, self.a_dst):
            nn.init.xavier_uniform_(p, gain=1.414)
        self.leakyrelu = nn.LeakyReLU(alpha)

    def forward(self, h, adj):
        Wh = h @ self.W
        e = self.leakyrelu(Wh @ self.a_src + (Wh @ self.a_dst).T)
        attention = torch.where(adj > 0, e, -9e15)
        attention = F.softmax(attention, dim=1)
        attention = F.dropout(attention, self.dropout, training=self.training)
        h_prime = attention @ Wh
        return F.elu(h_prime) if self.concat else h_prime


class GAT(nn.Module):
    def __init__(self, n_feat, n_hid, n_class, dropout=0.4, n_heads=4):
        super().__init__()
        self.dropout = dropout
        self.attentions = nn.ModuleList(GraphAttentionLayer(n_feat, n_hid, dropout) for _ in range(n_heads))
        self.out_att = GraphAttentionLayer(n_hid * n_heads, n_class, dropout, concat=False)

    def forward(self, x, adj):
        x = F.dropout(x, self.dropout, training=self.training)
        x = torch.cat([att(x, adj) for att in self.attentions], dim=1)
        x = F.dropout(x, self.dropout, training=self.training)
        return F.log_softmax(F.elu(self.out_att(x, adj)), dim=1)


def accuracy(output, labels):
    return (output.argmax(1) == labels).float().mean().item()


def main():
    torch.manual_seed(72)
    adj, features, labels, idx_train, idx_test = load_graph()
    idx_train, idx_test = torch.from_numpy(idx_train), torch.from_numpy(idx_test)
    model = GAT(features.shape[1], 64, 7)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4, fused=True)

    times = []
    cpu = time.process_time()
    for epoch in range(80):
        t = time.perf_counter()
        model.train()
        optimizer.zero_grad()
        output = model(features, adj)
        loss_train = F.nll_loss(output[idx_train], labels[idx_train])
        loss_train.backward()
        optimizer.step()
        times.append(time.perf_counter() - t)
        if epoch % 20 == 0:
            print(f"Epoch {epoch:04d} loss {loss_train.item():.4f} acc {accuracy(output[idx_train], labels[idx_train]):.3f}")
    cpu = time.process_time() - cpu
    model.eval()
    with torch.no_grad():
        output = model(features, adj)
    print(f"test acc {accuracy(output[idx_test], labels[idx_test]):.3f}")
    print(f"median step {np.median(times) * 1e3:.2f} ms, cpu {cpu:.2f} s")


if __name__ == "__main__":
    main()
