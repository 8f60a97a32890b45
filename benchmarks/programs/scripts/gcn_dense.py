"""Semi-supervised node classification, two-layer GCN on a citation-like graph (assignment 3)."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=50)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--weight_decay", type=float, default=5e-4)
parser.add_argument("--dropout", type=float, default=0.5)


def load_graph(n=900, feats=500, classes=7, seed=0):
    rng = np.random.RandomState(seed)
    labels = rng.randint(classes, size=n)
    adj = np.zeros((n, n), dtype=np.float32)
    for i in range(n):
        same = np.flatnonzero(labels == labels[i])
        for j in rng.choice(same, 3).tolist() + rng.randint(n, size=1).tolist():
            adj[i, j] = adj[j, i] = 1
    X = (rng.rand(n, feats) < 0.02).astype(np.float32)
    X[np.arange(n), labels] = 1
    idx = rng.permutation(n)
    return map(torch.from_numpy, (adj, X, labels.astype(np.int64), idx[:140], idx[140:640]))


class GraphConvolution(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, A):
        A_hat = A + torch.eye(A.size(0))
        D_hat = torch.diag(A_hat.sum(1).pow(-0.5))
        L = D_hat @ A_hat @ D_hat
        return L @ (x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, A):
        x = F.relu(self.gc1(x, A))
        x = F.dropout(x, self.dropout, training=self.training)
        return F.log_softmax(self.gc2(x, A), dim=1)


def accuracy(output, labels):
    return (output.argmax(1) == labels).float().mean().item()


def main():
    args = parser.parse_args()
    torch.manual_seed(42)
    adj, features, labels, idx_train, idx_val = load_graph()
    model = GCN(features.shape[1], args.hidden, int(labels.max()) + 1, args.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    durations = []
    for epoch in range(args.epochs):
        t = time.time()
        model.train()
        optimizer.zero_grad()
        output = model(features, adj)
        loss_train = F.nll_loss(output[idx_train], labels[idx_train])
        loss_train.backward()
        optimizer.step()
        durations.append(time.time() - t)
        if epoch % 10 == 0:
            print("Epoch: {:04d} loss_train: {:.4f} acc_val: {:.4f} time: {:.4f}s".format(
                epoch, loss_train.item(), accuracy(output[idx_val], labels[idx_val]), durations[-1]))
    print(f"median step {np.median(durations) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
