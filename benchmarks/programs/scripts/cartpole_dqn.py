"""DQN on a cart pole written with numpy. One environment step and one update per iteration."""
import argparse
import math
import random
import time
from collections import deque, namedtuple
from itertools import count
from statistics import median

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

FRAMES = 4
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward", "done"))


class CartPole:
    def reset(self):
        self.s = np.random.uniform(-0.05, 0.05, 4).astype(np.float32)
        self.frames = deque([self.s] * FRAMES, maxlen=FRAMES)
        return np.concatenate(self.frames)

    def step(self, action):
        x, v, th, w = self.s
        force = 10.0 if action == 1 else -10.0
        c, s = math.cos(th), math.sin(th)
        tmp = (force + 0.05 * w * w * s) / 1.1
        acc = (9.8 * s - c * tmp) / (0.5 * (4 / 3 - 0.1 * c * c / 1.1))
        xacc = tmp - 0.05 * acc * c / 1.1
        self.s = np.array([x + 0.02 * v, v + 0.02 * xacc, th + 0.02 * w, w + 0.02 * acc], dtype=np.float32)
        done = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.21
        self.frames.append(self.s)
        return np.concatenate(self.frames), 1.0, done


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(4 * FRAMES, 128), nn.Linear(128, 128), nn.Linear(128, 2)

    def forward(self, x):
        return self.l3(F.relu(self.l2(F.relu(self.l1(x)))))


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=512)
args = parser.parse_args()
GAMMA, TAU = 0.99, 0.005
policy_net, target_net = QNet(), QNet()
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=1e-4, amsgrad=True)
memory = ReplayMemory(10000)
env = CartPole()
steps_done = 0


def select_action(state):
    eps = 0.05 + 0.85 * math.exp(-steps_done / 1000)
    if random.random() > eps:
        with torch.no_grad():
            return policy_net(torch.tensor(state).unsqueeze(0)).max(1).indices.item()
    return random.randrange(2)


def optimize_model():
    batch = Transition(*zip(*memory.sample(args.batch)))
    states = torch.tensor([list(s) for s in batch.state])
    next_states = torch.tensor([list(s) for s in batch.next_state])
    actions = torch.tensor(batch.action).unsqueeze(1)
    rewards = torch.tensor(batch.reward)
    done = torch.tensor(batch.done, dtype=torch.float32)
    q = policy_net(states).gather(1, actions)
    with torch.no_grad():
        target = rewards + GAMMA * (1 - done) * target_net(next_states).max(1).values
    loss = F.smooth_l1_loss(q, target.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


times = []
state = env.reset()
while len(times) < args.steps:
    start = time.perf_counter()
    action = select_action(state)
    next_state, reward, done = env.step(action)
    memory.push(state, action, next_state, reward, float(done))
    state = env.reset() if done else next_state
    steps_done += 1
    if len(memory) < args.batch:
        continue
    optimize_model()
    target = target_net.state_dict()
    for key, value in policy_net.state_dict().items():
        target[key] = value * TAU + target[key] * (1 - TAU)
    target_net.load_state_dict(target)
    times.append(time.perf_counter() - start)
print(f"median step {median(times[20:]) * 1e3:.2f} ms")
