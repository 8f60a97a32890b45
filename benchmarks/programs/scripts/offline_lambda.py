# Offline actor-critic with lambda returns over logged episodes (no simulator: the log is drawn at random).
import copy
import time
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

OBS, ACT, GAMMA, LAM = 24, 4, 0.99, 0.95


class Episode(NamedTuple):
    obs: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    done: torch.Tensor


class Log:
    def __init__(self, episodes=64, length=400):
        g = torch.Generator().manual_seed(11)
        self.episodes = []
        for _ in range(episodes):
            done = torch.rand(length, generator=g) < 0.01
            self.episodes.append(Episode(
                torch.randn(length + 1, OBS, generator=g), torch.randint(ACT, (length,), generator=g),
                torch.randn(length, generator=g), done.float()))

    def sample(self):
        return self.episodes[int(torch.randint(len(self.episodes), ()))]


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Agent:
    def __init__(self):
        self.actor = mlp(OBS, 256, 256, ACT)
        self.critic = mlp(OBS, 256, 256, 1)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.optim = torch.optim.RMSprop([*self.actor.parameters(), *self.critic.parameters()], lr=3e-4)
        self.updates = 0

    @torch.no_grad()
    def lambda_returns(self, ep):
        values = self.target(ep.obs).squeeze(-1)
        returns = torch.zeros_like(ep.reward)
        last = values[-1]
        for t in reversed(range(len(ep.reward))):
            bootstrap = (1 - LAM) * values[t + 1] + LAM * last
            last = ep.reward[t] + GAMMA * (1 - ep.done[t]) * bootstrap
            returns[t] = last
        return returns

    def update(self, ep):
        returns = self.lambda_returns(ep)
        value = self.critic(ep.obs[:-1]).squeeze(-1)
        logp = F.log_softmax(self.actor(ep.obs[:-1]), -1)
        adv = (returns - value).detach()
        weight = (adv / adv.std()).exp().clamp(max=20.0)
        actor_loss = -(weight * logp.gather(1, ep.action[:, None]).squeeze(1)).mean()
        critic_loss = F.mse_loss(value, returns)
        self.optim.zero_grad(set_to_none=True)
        (actor_loss + critic_loss).backward()
        nn.utils.clip_grad_norm_(self.critic.parameters(), 10.0)
        self.optim.step()
        self.updates += 1
        if self.updates % 20 == 0:
            self.target.load_state_dict(self.critic.state_dict())
        return {"actor": actor_loss.item(), "critic": critic_loss.item()}


def train(total=100):
    log, agent, timing = Log(), Agent(), []
    while agent.updates < total:
        start = time.perf_counter()
        info = agent.update(log.sample())
        timing.append(time.perf_counter() - start)
        if agent.updates % 25 == 0:
            print(agent.updates, {k: round(v, 3) for k, v in info.items()})
    timing.sort()
    print(f"median step {timing[total // 2] * 1000:.2f} ms")


train()
