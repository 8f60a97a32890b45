"""Advantage actor-critic on a corridor with many agents at once.

    python a2c_corridor.py
"""
import time
from statistics import median

import torch
from torch import nn
from torch.distributions import Categorical


class Corridor:
    """Walk right along a corridor; the view is a window of its tiles."""

    def __init__(self, agents, length=64, view=32):
        self.agents, self.length, self.view = agents, length, view
        self.tiles = torch.randn(length + view, 4)
        self.at = torch.zeros(agents, dtype=torch.long)

    def observe(self):
        index = self.at[:, None] + torch.arange(self.view)
        return self.tiles[index].flatten(1)

    def step(self, action):
        self.at = (self.at + action * 2 - 1).clamp(0, self.length)
        done = self.at == self.length
        reward = done.float() - 0.01
        self.at = torch.where(done, torch.zeros_like(self.at), self.at)
        return self.observe(), reward, done.float()


class ActorCritic(nn.Module):
    def __init__(self, inputs, hidden=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.policy, self.value = nn.Linear(hidden, 2), nn.Linear(hidden, 1)

    def forward(self, x):
        x = self.body(x)
        return self.policy(x), self.value(x).squeeze(-1)


def collect(env, net, obs, steps):
    seen = {"obs": [], "action": [], "reward": [], "done": [], "value": []}
    for _ in range(steps):
        logits, value = net(obs)
        action = Categorical(logits=logits).sample()
        seen["obs"].append(obs)
        seen["action"].append(action)
        seen["value"].append(value.detach())
        obs, reward, done = env.step(action)
        seen["reward"].append(reward)
        seen["done"].append(done)
    return obs, {name: torch.stack(each) for name, each in seen.items()}


def returns_of(seen, last, gamma=0.98):
    target, result = last, []
    for reward, done in zip(seen["reward"].flip(0), seen["done"].flip(0)):
        target = reward + gamma * target * (1 - done)
        result.append(target)
    return torch.stack(result[::-1])


torch.manual_seed(0)
torch.distributions.Distribution.set_default_validate_args(False)
env = Corridor(agents=64)
obs = env.observe()
net = ActorCritic(obs.shape[1])
optimizer = torch.optim.RMSprop(net.parameters(), lr=7e-4, foreach=True)
times, start = [], time.perf_counter()
for update in range(120):
    obs, seen = collect(env, net, obs, steps=16)
    with torch.no_grad():
        _, last = net(obs)
    target = returns_of(seen, last)
    logits, value = net(seen["obs"].flatten(0, 1))
    advantage = (target - seen["value"]).flatten()
    pick = Categorical(logits=logits)
    loss = (
        -(pick.log_prob(seen["action"].flatten()) * advantage).mean()
        + 0.5 * (value - target.flatten()).pow(2).mean()
        - 0.01 * pick.entropy().mean()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    now = time.perf_counter()
    times.append(now - start)
    start = now
    if update % 40 == 0:
        print(f"update {update}: reward {seen['reward'].mean():.4f}")
print(f"median step {median(times[10:]) * 1e3:.2f} ms")
