import collections
import math
import random
import time

import torch
import torch.nn as nn

# toy translation: reverse a sentence and shift its words
PAD, BOS, EOS = 0, 1, 2
VOCAB = 800
MAX_LEN = 28
BATCH_SIZE = 48
NUM_BATCHES = 60


def make_pair(rng):
    n = rng.randint(12, MAX_LEN - 2)
    src = [rng.randint(3, VOCAB - 1) for _ in range(n)]
    tgt = [(w + 17) % (VOCAB - 3) + 3 for w in reversed(src)]
    return src, [BOS] + tgt + [EOS]


def pad(seqs):
    out = torch.full((len(seqs), MAX_LEN), PAD)
    for i, s in enumerate(seqs):
        out[i, : len(s)] = torch.tensor(s)
    return out


class Seq2Seq(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.src_embed = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.tgt_embed = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.encoder = nn.GRU(d, d, batch_first=True)
        self.decoder = nn.GRU(d, d, batch_first=True)
        self.mix = nn.Linear(2 * d, d)
        self.out = nn.Linear(d, VOCAB)

    def forward(self, src, tgt):
        memory, h = self.encoder(self.src_embed(src))
        dec, _ = self.decoder(self.tgt_embed(tgt), h)
        attn = torch.softmax(dec @ memory.transpose(1, 2) / math.sqrt(dec.shape[-1]), -1)
        return self.out(torch.tanh(self.mix(torch.cat([dec, attn @ memory], -1))))


def ngrams(tokens, n):
    return collections.Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def sentence_bleu(hyp, ref):
    score = 0.0
    for n in range(1, 5):
        h, r = ngrams(hyp, n), ngrams(ref, n)
        overlap = sum(min(count, r[gram]) for gram, count in h.items())
        score += math.log((overlap + 1) / (sum(h.values()) + 1))
    brevity = min(0.0, 1 - len(ref) / max(1, len(hyp)))
    return math.exp(score / 4 + brevity)


def strip(ids):
    return [t for t in ids if t not in (PAD, BOS, EOS)]


def batch_bleu(logits, target):
    hyps = logits.argmax(-1).tolist()
    refs = target.tolist()
    return sum(sentence_bleu(strip(h), strip(r)) for h, r in zip(hyps, refs)) / len(refs)


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    pairs = [make_pair(rng) for _ in range(BATCH_SIZE * 20)]
    src_all, tgt_all = pad([p[0] for p in pairs]), pad([p[1] for p in pairs])
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    running_bleu, times = 0.0, []
    for batch in range(NUM_BATCHES):
        start = time.time()
        rows = slice(batch % 20 * BATCH_SIZE, (batch % 20 + 1) * BATCH_SIZE)
        src, tgt = src_all[rows], tgt_all[rows]
        logits = model(src, tgt[:, :-1])
        loss = criterion(logits.flatten(0, 1), tgt[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running_bleu = 0.9 * running_bleu + 0.1 * batch_bleu(logits, tgt[:, 1:])
        times.append(time.time() - start)
        if batch % 10 == 0:
            print("batch", batch, "loss", round(loss.item(), 3), "bleu", round(running_bleu, 4))
    times = sorted(times[5:])
    print("median step %.2f ms" % (1000 * times[len(times) // 2]))


main()
