"""PPO with a Gaussian policy on a pendulum (numpy), in the single-file style."""
import argparse
import time
from statistics import median

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Normal


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=96, help="number of minibatch updates")
    p.add_argument("--num-steps", type=int, default=256)
    p.add_argument("--minibatch", type=int, default=64)
    p.add_argument("--epochs", type=int, default=4)
    return p.parse_args()


class Pendulum:
    def reset(self):
        self.th, self.w, self.t = np.random.uniform(-np.pi, np.pi), np.random.uniform(-1, 1), 0
        return self.obs()

    def obs(self):
        return np.array([np.cos(self.th), np.sin(self.th), self.w], dtype=np.float32)

    def step(self, u):
        u = float(np.clip(u, -2, 2))
        cost = ((self.th + np.pi) % (2 * np.pi) - np.pi) ** 2 + 0.1 * self.w**2 + 0.001 * u**2
        self.w = np.clip(self.w + (15 * np.sin(self.th) + 3 * u) * 0.05, -8, 8)
        self.th += self.w * 0.05
        self.t += 1
        return self.obs(), -cost, self.t >= 200


def layer_init(layer, std=np.sqrt(2)):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(3, 256)), nn.Tanh(), layer_init(nn.Linear(256, 256)), nn.Tanh(), layer_init(nn.Linear(256, 1), 1.0)
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(3, 256)), nn.Tanh(), layer_init(nn.Linear(256, 256)), nn.Tanh(), layer_init(nn.Linear(256, 1), 0.01)
        )
        self.logstd = nn.Parameter(torch.zeros(1, 1))

    def act(self, x, action=None):
        mean = self.actor(x)
        dist = Normal(mean, self.logstd.expand_as(mean).exp())
        action = dist.sample() if action is None else action
        return action, dist.log_prob(action).sum(1), dist.entropy().sum(1), self.critic(x).squeeze(-1)


args = parse_args()
np.random.seed(0)
torch.manual_seed(0)
env, agent = Pendulum(), Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
obs, updates, times, begin = env.reset(), 0, [], time.perf_counter()
while updates < args.steps:
    # collect a rollout
    O, A, L, R, D, V = [], [], [], [], [], []
    for _ in range(args.num_steps):
        x = torch.tensor(obs).unsqueeze(0)
        with torch.no_grad():
            action, logp, _, value = agent.act(x)
        O.append(x)
        A.append(action)
        L.append(logp)
        V.append(value)
        obs, reward, done = env.step(action.item())
        R.append(reward)
        D.append(float(done))
        if done:
            obs = env.reset()
    O, A, L, V = torch.cat(O), torch.cat(A), torch.cat(L), torch.cat(V)
    adv, last = torch.zeros(args.num_steps), 0.0
    for t in reversed(range(args.num_steps - 1)):
        delta = R[t] + 0.99 * V[t + 1] * (1 - D[t]) - V[t]
        adv[t] = last = delta + 0.99 * 0.95 * (1 - D[t]) * last
    returns = adv + V
    # update
    for _ in range(args.epochs):
        for idx in torch.randperm(args.num_steps).split(args.minibatch):
            _, logp, entropy, value = agent.act(O[idx], A[idx])
            ratio = (logp - L[idx]).exp()
            a = (adv[idx] - adv[idx].mean()) / (adv[idx].std() + 1e-8)
            policy_loss = torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.2)).mean()
            loss = policy_loss + 0.5 * ((value - returns[idx]) ** 2).mean() - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            updates += 1
    now = time.perf_counter()
    times.append((now - begin) / (args.epochs * args.num_steps // args.minibatch))
    begin = now
print(f"mean reward {np.mean(R):.2f}")
print(f"median step {median(times[1:]) * 1e3:.2f} ms")
