"""Double DQN with prioritized experience replay on a toy control task."""
import random
import time
from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn

Transition = namedtuple("Transition", "state action reward next_state done")


class PrioritizedReplay:
    def __init__(self, capacity, alpha=0.6):
        self.capacity, self.alpha = capacity, alpha
        self.memory, self.priorities, self.position = [], [], 0

    def push(self, *args):
        top = max(self.priorities[-100:], default=1.0)
        if len(self.memory) < self.capacity:
            self.memory.append(Transition(*args))
            self.priorities.append(top)
        else:
            self.memory[self.position] = Transition(*args)
            self.priorities[self.position] = top
        self.position = (self.position + 1) % self.capacity

    def sample(self, batch_size, beta=0.4):
        probs = np.array(self.priorities) ** self.alpha
        probs /= probs.sum()
        indices = np.random.choice(len(self.memory), batch_size, p=probs)
        weights = (len(self.memory) * probs[indices]) ** (-beta)
        weights /= weights.max()
        return indices, [self.memory[i] for i in indices], torch.tensor(weights, dtype=torch.float32)

    def update(self, indices, errors):
        for i, error in zip(indices, errors):
            self.priorities[i] = abs(error) + 1e-5


class QNet(nn.Module):
    def __init__(self, states=16, actions=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(states, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, actions))

    def forward(self, x):
        return self.net(x)


class Agent:
    def __init__(self):
        self.q, self.target = QNet(), QNet()
        self.target.load_state_dict(self.q.state_dict())
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=1e-3)
        self.memory = PrioritizedReplay(60_000)

    def act(self, state, epsilon=0.1):
        if random.random() < epsilon:
            return random.randrange(4)
        with torch.no_grad():
            return int(self.q(torch.from_numpy(state)).argmax())

    def learn(self, batch_size=128, gamma=0.99):
        indices, batch, weights = self.memory.sample(batch_size)
        states = torch.from_numpy(np.stack([t.state for t in batch]))
        next_states = torch.from_numpy(np.stack([t.next_state for t in batch]))
        actions = torch.tensor([t.action for t in batch])
        rewards = torch.tensor([t.reward for t in batch])
        done = torch.tensor([t.done for t in batch], dtype=torch.float32)
        with torch.no_grad():
            best = self.q(next_states).argmax(1, keepdim=True)
            expected = rewards + gamma * (1 - done) * self.target(next_states).gather(1, best).squeeze(1)
        value = self.q(states).gather(1, actions[:, None]).squeeze(1)
        errors = value - expected
        loss = (weights * errors.pow(2)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.memory.update(indices, errors.detach().tolist())
        return loss.item()


def env_step(state, action):
    nxt = (0.9 * state + 0.1 * np.random.randn(16) + 0.01 * action).astype(np.float32)
    return nxt, float(-abs(nxt[0])), random.random() < 0.01


def main():
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    agent, state = Agent(), np.zeros(16, np.float32)
    for _ in range(50_000):
        nxt, reward, done = env_step(state, 0)
        agent.memory.push(state, 0, reward, nxt, done)
        state = nxt
    times = []
    for step in range(120):
        began = time.perf_counter()
        action = agent.act(state)
        nxt, reward, done = env_step(state, action)
        agent.memory.push(state, action, reward, nxt, done)
        state = nxt
        loss = agent.learn()
        if step % 50 == 0:
            agent.target.load_state_dict(agent.q.state_dict())
            print(f"step {step}: loss {loss:.4f}")
        times.append(time.perf_counter() - began)
    print(f"median step {np.median(times) * 1000:.2f} ms")


if __name__ == "__main__":
    main()
