"""Double DQN for a fleet of point landers, with an own replay memory."""
import copy
import time

import numpy as np
import torch
import torch.nn as nn

N_ENVS, OBS, ACTIONS = 16, 24, 4
CAPACITY = 60_000


class Landers:
    """Landers side by side: thrust left, right, up or nothing."""

    PUSH = np.array([[0, 0], [-0.3, 0], [0.3, 0], [0, 0.6]], dtype=np.float32)

    def __init__(self, rng, n):
        self.rng = rng
        self.pos = np.zeros((n, 2), np.float32)
        self.vel = np.zeros((n, 2), np.float32)
        self.reset(np.ones(n, bool))
        self.mix = np.random.default_rng(1).standard_normal((4, OBS)).astype(np.float32)

    def reset(self, which):
        n = int(which.sum())
        self.pos[which] = self.rng.uniform(-1, 1, (n, 2)) + [0, 4]
        self.vel[which] = 0

    def observe(self):
        return np.tanh(np.concatenate([self.pos, self.vel], 1) @ self.mix)

    def step(self, action):
        self.vel += 0.1 * (self.PUSH[action] - np.array([0, 0.25], np.float32))
        self.pos += 0.1 * self.vel
        down = self.pos[:, 1] <= 0
        reward = np.where(down, 1 - np.abs(self.vel).sum(1), -0.01 * np.abs(self.pos[:, 0])).astype(np.float32)
        self.reset(down)
        return self.observe(), reward, down


class ReplayMemory:
    def __init__(self):
        self.states = np.zeros((0, OBS), np.float32)
        self.next_states = np.zeros((0, OBS), np.float32)
        self.actions = np.zeros(0, np.int64)
        self.rewards = np.zeros(0, np.float32)
        self.dones = np.zeros(0, np.float32)

    def push(self, s, a, r, s2, d):
        self.states = np.append(self.states, s, axis=0)[-CAPACITY:]
        self.next_states = np.append(self.next_states, s2, axis=0)[-CAPACITY:]
        self.actions = np.append(self.actions, a)[-CAPACITY:]
        self.rewards = np.append(self.rewards, r)[-CAPACITY:]
        self.dones = np.append(self.dones, d.astype(np.float32))[-CAPACITY:]

    def sample(self, rng, n):
        i = rng.integers(0, len(self.actions), n)
        arrays = (self.states[i], self.actions[i], self.rewards[i], self.next_states[i], self.dones[i])
        return [torch.from_numpy(a) for a in arrays]


def q_network():
    return nn.Sequential(nn.Linear(OBS, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, ACTIONS))


def demonstrate(memory, rng):
    """Fill the memory with what 4,000 landers do at random."""
    env = Landers(rng, 4000)
    state = env.observe()
    for _ in range(CAPACITY // 4000):
        action = rng.integers(0, ACTIONS, 4000)
        following, reward, down = env.step(action)
        memory.push(state, action, reward, following, down)
        state = following


def main(updates=500, batch=256, gamma=0.99):
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    env, memory = Landers(rng, N_ENVS), ReplayMemory()
    online = q_network()
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=5e-4, fused=True)
    state = env.observe()

    def act(eps):
        nonlocal state
        with torch.no_grad():
            action = online(torch.from_numpy(state)).argmax(1).numpy()
        explore = rng.random(N_ENVS) < eps
        action = np.where(explore, rng.integers(0, ACTIONS, N_ENVS), action)
        following, reward, done = env.step(action)
        memory.push(state, action, reward, following, done)
        state = following
        return reward.mean()

    demonstrate(memory, rng)
    times, cpu = [], time.process_time()
    for update in range(updates):
        tick = time.perf_counter()
        for _ in range(4):
            reward = act(eps=max(0.05, 1 - update / 400))
        s, a, r, s2, d = memory.sample(rng, batch)
        with torch.no_grad():
            best = online(s2).argmax(1, keepdim=True)
            goal = r + gamma * (1 - d) * target(s2).gather(1, best).squeeze(1)
        loss = nn.functional.smooth_l1_loss(online(s).gather(1, a[:, None]).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 200 == 0:
            target.load_state_dict(online.state_dict())
            print(f"update {update} loss {loss.item():.4f} reward {reward:.3f}")
        times.append(time.perf_counter() - tick)
    print(f"median step {np.median(times) * 1e3:.2f} ms, cpu {time.process_time() - cpu:.2f} s")


if __name__ == "__main__":
    main()
