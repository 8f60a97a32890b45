"""Enhancer prediction from DNA. A CNN over one-hot encoded sequences, batches come from a generator.

    python dna_onehot.py -n 40 -b 32
"""

import logging
import random
from argparse import ArgumentParser
from time import perf_counter

import torch
from torch import nn

log = logging.getLogger("dna")
ALPHABET = "ACGT"
COMPLEMENT = {"A": "T", "C": "G", "G": "C", "T": "A", "N": "N"}


def simulate_genome(length=2_000_000):
    return "".join(random.choices("ACGTN", weights=[30, 20, 20, 30, 0.1], k=length))


def simulate_peaks(genome, count=4000, width=500):
    starts = [random.randrange(len(genome) - width) for _ in range(count)]
    return [(s, s + width, float(genome[s : s + width].count("GC") > 20)) for s in starts]


def reverse_complement(seq):
    return "".join(COMPLEMENT[base] for base in reversed(seq))


def one_hot(seq):
    encoded = []
    for base in seq:
        encoded.append([1.0 if base == letter else 0.0 for letter in ALPHABET])
    return encoded


def batches(genome, peaks, batch_size, num_batches):
    for _ in range(num_batches):
        xs, ys = [], []
        for start, end, label in random.sample(peaks, batch_size):
            seq = genome[start:end]
            if random.random() < 0.5:
                seq = reverse_complement(seq)
            xs.append(one_hot(seq))
            ys.append(label)
        yield torch.tensor(xs).transpose(1, 2), torch.tensor(ys)


def make_model():
    return nn.Sequential(
        nn.Conv1d(4, 48, 15, padding=7), nn.BatchNorm1d(48), nn.ReLU(), nn.MaxPool1d(4),
        nn.Conv1d(48, 64, 9, padding=4), nn.BatchNorm1d(64), nn.ReLU(), nn.MaxPool1d(4),
        nn.Conv1d(64, 64, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool1d(1),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 1),
    )


def run():
    ap = ArgumentParser()
    ap.add_argument("-n", "--num-batches", type=int, default=40)
    ap.add_argument("-b", "--batch-size", type=int, default=32)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    random.seed(0)
    torch.manual_seed(0)

    genome = simulate_genome()
    peaks = simulate_peaks(genome)
    model = make_model()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    criterion = nn.BCEWithLogitsLoss()
    ticks = [perf_counter()]
    for i, (x, y) in enumerate(batches(genome, peaks, args.batch_size, args.num_batches), start=1):
        opt.zero_grad()
        loss = criterion(model(x).squeeze(1), y)
        loss.backward()
        opt.step()
        ticks.append(perf_counter())
        if i % 10 == 0:
            log.info("batch %d loss %.4f", i, loss)
    steps = sorted(b - a for a, b in zip(ticks, ticks[1:]))
    log.info("median step %.2f ms", 1e3 * steps[len(steps) // 2])
    print("median step %.2f ms" % (1e3 * steps[len(steps) // 2]))


if __name__ == "__main__":
    run()
