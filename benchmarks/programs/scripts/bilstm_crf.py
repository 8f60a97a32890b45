# BiLSTM-CRF for named entities, after the well-known tutorial, but with batches of sentences of one length.
import random
import sys
import time

import torch
import torch.nn as nn
import torch.optim as optim

START_TAG, STOP_TAG = "<START>", "<STOP>"
TAGS = ["O"] + [f"{p}-{t}" for t in ("PER", "LOC", "ORG") for p in ("B", "I")] + [START_TAG, STOP_TAG]
tag_to_ix = {t: i for i, t in enumerate(TAGS)}
torch.manual_seed(1)
random.seed(1)


class BiLSTM_CRF(nn.Module):
    def __init__(self, vocab_size, tag_to_ix, embedding_dim, hidden_dim):
        super(BiLSTM_CRF, self).__init__()
        self.tag_to_ix = tag_to_ix
        self.tagset_size = len(tag_to_ix)
        self.word_embeds = nn.Embedding(vocab_size, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim // 2, num_layers=1, bidirectional=True, batch_first=True)
        self.hidden2tag = nn.Linear(hidden_dim, self.tagset_size)
        # transitions[i, j]: score of going to i from j
        self.transitions = nn.Parameter(torch.randn(self.tagset_size, self.tagset_size))
        self.transitions.data[tag_to_ix[START_TAG], :] = -10000
        self.transitions.data[:, tag_to_ix[STOP_TAG]] = -10000

    def _forward_alg(self, feats):
        B, T, K = feats.shape
        forward_var = torch.full((B, K), -10000.0)
        forward_var[:, self.tag_to_ix[START_TAG]] = 0.0
        for t in range(T):
            alphas_t = []
            for next_tag in range(self.tagset_size):
                # the emission score is the same whatever the previous tag was
                emit_score = feats[:, t, next_tag].view(B, 1).expand(B, K)
                trans_score = self.transitions[next_tag].view(1, -1)
                next_tag_var = forward_var + trans_score + emit_score
                alphas_t.append(torch.logsumexp(next_tag_var, dim=1))
            forward_var = torch.stack(alphas_t, dim=1)
        terminal_var = forward_var + self.transitions[self.tag_to_ix[STOP_TAG]]
        return torch.logsumexp(terminal_var, dim=1)

    def _score_sentence(self, feats, tags):
        B = len(tags)
        emit = feats.gather(2, tags.unsqueeze(2)).squeeze(2).sum(1)
        tags = torch.cat([torch.full((B, 1), self.tag_to_ix[START_TAG]), tags], dim=1)
        trans = self.transitions[tags[:, 1:], tags[:, :-1]].sum(1)
        return emit + trans + self.transitions[self.tag_to_ix[STOP_TAG], tags[:, -1]]

    def neg_log_likelihood(self, sentence, tags):
        feats = self.hidden2tag(self.lstm(self.word_embeds(sentence))[0])
        forward_score = self._forward_alg(feats)
        gold_score = self._score_sentence(feats, tags)
        return (forward_score - gold_score).mean()


def prepare_batch(corpus, size):
    """Sentences of one length, so that nothing needs a mask."""
    length = random.choice(list(corpus))
    chosen = random.choices(corpus[length], k=size)
    return torch.tensor([s for s, _ in chosen]), torch.tensor([t for _, t in chosen])


def make_corpus(vocab=4000, per_length=200):
    corpus = {}
    for length in (18, 20, 22):
        corpus[length] = [
            ([random.randrange(vocab) for _ in range(length)], [random.randrange(len(TAGS) - 2) for _ in range(length)])
            for _ in range(per_length)
        ]
    return corpus


if __name__ == "__main__":
    n_iter = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    training_data = make_corpus()
    model = BiLSTM_CRF(4000, tag_to_ix, 100, 200)
    optimizer = optim.SGD(model.parameters(), lr=0.01, weight_decay=1e-4)
    times = []
    for it in range(n_iter):
        began = time.perf_counter()
        model.zero_grad()
        sentence_in, targets = prepare_batch(training_data, 32)
        loss = model.neg_log_likelihood(sentence_in, targets)
        loss.backward()
        optimizer.step()
        times.append((time.perf_counter() - began) * 1e3)
        if it % 20 == 0:
            print("iter", it, "nll", round(loss.item(), 3))
    times.sort()
    print("median step %.2f ms" % times[len(times) // 2])
