import argparse
import time
from statistics import median

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=80)
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--latent_dim", type=int, default=100)
opt = parser.parse_args()


class Generator(nn.Module):
    def __init__(self):
        super().__init__()

        def block(n_in, n_out):
            return [nn.Linear(n_in, n_out), nn.BatchNorm1d(n_out, 0.8), nn.LeakyReLU(0.2, inplace=True)]

        self.model = nn.Sequential(
            *block(opt.latent_dim, 256), *block(256, 512), *block(512, 1024), nn.Linear(1024, 784), nn.Tanh()
        )

    def forward(self, z):
        return self.model(z).view(-1, 1, 28, 28)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(784, 1024), nn.LeakyReLU(0.2), nn.Dropout(0.3),
            nn.Linear(1024, 512), nn.LeakyReLU(0.2), nn.Dropout(0.3),
            nn.Linear(512, 1), nn.Sigmoid(),
        )

    def forward(self, img):
        return self.model(img.flatten(1))


torch.manual_seed(0)
images = torch.rand(opt.steps * opt.batch_size, 1, 28, 28) * 2 - 1
dataloader = DataLoader(TensorDataset(images), batch_size=opt.batch_size, shuffle=True)

generator, discriminator = Generator(), Discriminator()
adversarial_loss = nn.BCELoss()
optimizer_G = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))

times, before = [], time.perf_counter()
for i, (imgs,) in enumerate(dataloader):
    valid = torch.ones(imgs.size(0), 1)
    fake = torch.zeros(imgs.size(0), 1)

    # generator
    optimizer_G.zero_grad()
    z = torch.randn(imgs.size(0), opt.latent_dim)
    gen_imgs = generator(z)
    g_loss = adversarial_loss(discriminator(gen_imgs), valid)
    g_loss.backward()
    optimizer_G.step()

    # discriminator
    optimizer_D.zero_grad()
    real_loss = adversarial_loss(discriminator(imgs), valid)
    fake_loss = adversarial_loss(discriminator(gen_imgs.detach()), fake)
    d_loss = (real_loss + fake_loss) / 2
    d_loss.backward()
    optimizer_D.step()

    if i % 25 == 0:
        print("[Batch %d/%d] [D loss: %f] [G loss: %f]" % (i, len(dataloader), d_loss.item(), g_loss.item()))
    after = time.perf_counter()
    times.append(after - before)
    before = after
print("median step %.2f ms" % (median(times[8:]) * 1e3))
