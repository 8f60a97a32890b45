"""Completes verses: a queue of prompts, answered one after the other by a small GPT."""
import queue
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = "abcdefghijklmnopqrstuvwxyz ,.;!?\n'"


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab=len(VOCAB), n_layer=4, n_head=4, n_embd=256, block_size=160):
        super().__init__()
        self.block_size = block_size
        self.wte, self.wpe = nn.Embedding(vocab, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block(n_embd, n_head) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x)[:, -1])

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=0.8):
        for _ in range(max_new_tokens):
            idx_cond = idx[:, -self.block_size :]
            logits = self(idx_cond) / temperature
            idx_next = torch.multinomial(F.softmax(logits, dim=-1), 1)
            idx = torch.cat((idx, idx_next), dim=1)
        return idx


class VerseServer:
    def __init__(self, model):
        self.model = model.eval()
        self.stoi = {c: i for i, c in enumerate(VOCAB)}

    def answer(self, prompt, new_tokens=24):
        ids = torch.tensor([[self.stoi[c] for c in prompt]])
        out = self.model.generate(ids, new_tokens)
        return "".join(VOCAB[i] for i in out[0, ids.shape[1] :].tolist())


def main():
    torch.manual_seed(1337)
    server = VerseServer(GPT())  # stands for a trained checkpoint
    requests = queue.Queue()
    lines = ["shall i compare thee to a summer's day?", "from fairest creatures we desire increase,",
             "when forty winters shall besiege thy brow", "look in thy glass and tell the face"]
    for i in range(40):
        requests.put(lines[i % len(lines)])
    times, cpu = [], time.process_time()
    while not requests.empty():
        start = time.perf_counter()
        text = server.answer(requests.get())
        times.append(time.perf_counter() - start)
    print(repr(text))
    print(f"median step {sorted(times)[len(times) // 2] * 1e3:.2f} ms, cpu {time.process_time() - cpu:.2f} s")


if __name__ == "__main__":
    main()
