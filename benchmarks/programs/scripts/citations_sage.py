"""Node classification on a citation-like graph: GraphSAGE, full batch, mean over neighbours by a sparse matrix."""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def random_graph(nodes=6000, degree=8, features=128, classes=7, seed=0):
    g = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, nodes, (2, nodes * degree), generator=g)
    x = torch.randn(nodes, features, generator=g)
    y = torch.randint(0, classes, (nodes,), generator=g)
    mask = torch.rand(nodes, generator=g) < 0.6
    return x, edges, y, mask


class SAGEConv(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self.self_lin = nn.Linear(dim_in, dim_out)
        self.neigh_lin = nn.Linear(dim_in, dim_out, bias=False)

    def forward(self, x, adj):
        return self.self_lin(x) + torch.sparse.mm(adj, self.neigh_lin(x))


class SAGE(nn.Module):
    def __init__(self, dim_in, hidden, classes):
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(dim_in, hidden), SAGEConv(hidden, classes)

    def forward(self, x, adj):
        h = F.dropout(F.relu(self.conv1(x, adj)), 0.5, self.training)
        return self.conv2(h, adj)


def mean_adjacency(edges, nodes):
    degree = torch.bincount(edges[1], minlength=nodes).clamp(min=1)
    values = 1.0 / degree[edges[1]].float()
    return torch.sparse_coo_tensor(edges.flip(0), values, (nodes, nodes)).coalesce().to_sparse_csr()


def run():
    torch.manual_seed(0)
    x, edges, y, train_mask = random_graph()
    adj = mean_adjacency(edges, len(x))
    train_idx = train_mask.nonzero().squeeze(1)
    targets = y[train_idx]
    model = SAGE(x.size(1), 128, 7)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    seconds = []
    for epoch in range(60):
        start = time.perf_counter()
        model.train()
        optimizer.zero_grad()
        out = model(x, adj)
        loss = F.cross_entropy(out[train_idx], targets)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        if epoch % 20 == 0:
            print(f"Epoch {epoch:03d} | loss {loss.item():.4f}")
    print(f"median step {sorted(seconds)[len(seconds) // 2] * 1000:.2f} ms")


run()
