"""The Lightning quick start, on random images, with a convolutional autoencoder."""
import os
import time
import warnings
from statistics import median

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
STEPS = int(os.environ.get("STEPS", "60"))


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1), nn.GELU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.GELU(),
            nn.Flatten(), nn.Linear(64 * 49, 128),
        )
        self.decoder = nn.Sequential(
            nn.Linear(128, 64 * 49), nn.Unflatten(1, (64, 7, 7)),
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1), nn.GELU(),
            nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1), nn.Sigmoid(),
        )

    def training_step(self, batch, batch_idx):
        (x,) = batch
        x_hat = self.decoder(self.encoder(x))
        loss = nn.functional.mse_loss(x_hat, x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Stopwatch(L.Callback):
    def __init__(self):
        self.ends = []

    def on_train_batch_end(self, *args):
        self.ends.append(time.perf_counter())


def main():
    L.seed_everything(7, verbose=False)
    images = torch.rand(64 * STEPS, 1, 28, 28)
    loader = DataLoader(TensorDataset(images), batch_size=64, shuffle=True)
    watch = Stopwatch()
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[watch], enable_progress_bar=False,
        logger=False, enable_checkpointing=False, enable_model_summary=False,
    )
    trainer.fit(LitAutoEncoder(), loader)
    print("loss", float(trainer.callback_metrics["train_loss"]))
    times = [b - a for a, b in zip(watch.ends, watch.ends[1:])]
    print(f"median step {median(times[8:]) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
