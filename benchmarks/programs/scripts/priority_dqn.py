"""DQN with prioritized experience replay on a toy navigation task."""
import argparse
import collections
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = collections.namedtuple("Transition", "obs action reward next_obs done")


class PointMaze:
    """A point that should reach a goal in a box; 8 beams tell the distance to the walls."""

    moves = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32) * 0.05

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.pos = self.rng.random(2, dtype=np.float32)
        self.goal = self.rng.random(2, dtype=np.float32)
        self.t = 0
        return self.observe()

    def observe(self):
        beams = np.concatenate([self.pos, 1 - self.pos, self.pos ** 2, (1 - self.pos) ** 2])
        return np.concatenate([self.pos, self.goal, self.goal - self.pos, beams]).astype(np.float32)

    def step(self, a):
        self.pos = np.clip(self.pos + self.moves[a], 0, 1)
        self.t += 1
        dist = float(np.abs(self.pos - self.goal).sum())
        done = dist < 0.1 or self.t >= 100
        return self.observe(), -dist, done


class PrioritizedReplay:
    def __init__(self, capacity, alpha=0.6):
        self.capacity, self.alpha = capacity, alpha
        self.buffer = []
        self.priorities = []
        self.pos = 0

    def push(self, tr):
        prio = max(self.priorities[-1000:], default=1.0)
        if len(self.buffer) < self.capacity:
            self.buffer.append(tr)
            self.priorities.append(prio)
        else:
            self.buffer[self.pos] = tr
            self.priorities[self.pos] = prio
            self.pos = (self.pos + 1) % self.capacity

    def sample(self, batch_size, beta=0.4):
        probs = np.array(self.priorities) ** self.alpha
        probs /= probs.sum()
        idx = np.random.choice(len(self.buffer), batch_size, p=probs)
        weights = (len(self.buffer) * probs[idx]) ** (-beta)
        weights /= weights.max()
        batch = Transition(*zip(*[self.buffer[i] for i in idx]))
        return batch, idx, torch.from_numpy(weights.astype(np.float32))

    def update(self, idx, errors):
        for i, e in zip(idx, errors):
            self.priorities[i] = float(e) + 1e-5

    def __len__(self):
        return len(self.buffer)


class QNet(nn.Module):
    def __init__(self, obs=14, actions=4, hidden=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.value = nn.Linear(hidden, 1)
        self.adv = nn.Linear(hidden, actions)

    def forward(self, x):
        h = self.body(x)
        a = self.adv(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


def learn(net, target, opt, memory, batch_size, gamma):
    batch, idx, weights = memory.sample(batch_size)
    obs = torch.from_numpy(np.stack(batch.obs))
    nxt = torch.from_numpy(np.stack(batch.next_obs))
    act = torch.tensor(batch.action)
    rew = torch.tensor(batch.reward)
    done = torch.tensor(batch.done, dtype=torch.float32)
    q = net(obs).gather(1, act.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        best = net(nxt).argmax(1, keepdim=True)
        y = rew + gamma * (1 - done) * target(nxt).gather(1, best).squeeze(1)
    td = q - y
    loss = (weights * F.smooth_l1_loss(q, y, reduction="none")).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    memory.update(idx, td.detach().abs().numpy())
    return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1500)
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--warm", type=int, default=150000)
    args = ap.parse_args()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    env, memory = PointMaze(), PrioritizedReplay(200000)
    net, target = QNet(), QNet()
    target.load_state_dict(net.state_dict())
    opt = torch.optim.Adam(net.parameters(), lr=3e-4, fused=True)
    obs = env.reset()
    for _ in range(args.warm):  # random policy
        a = random.randrange(4)
        nxt, r, done = env.step(a)
        memory.push(Transition(obs, a, r, nxt, done))
        obs = env.reset() if done else nxt
    t0 = time.time()
    for step in range(1, args.steps + 1):
        for _ in range(4):
            if random.random() < 0.1:
                a = random.randrange(4)
            else:
                with torch.no_grad():
                    a = int(net(torch.from_numpy(obs).unsqueeze(0)).argmax())
            nxt, r, done = env.step(a)
            memory.push(Transition(obs, a, r, nxt, done))
            obs = env.reset() if done else nxt
        loss = learn(net, target, opt, memory, args.batch, 0.98)
        if step % 100 == 0:
            target.load_state_dict(net.state_dict())
            print(f"step {step} loss {loss.item():.4f} memory {len(memory)}")
    print(f"took {time.time() - t0:.1f}s")


if __name__ == "__main__":
    main()
