"""A convolutional autoencoder in Lightning, with nothing wrong."""

import argparse
import time
import warnings

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
STEPS, BATCH = 45, 64


class Autoencoder(pl.LightningModule):
    def __init__(self, channels):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1), nn.ReLU(),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(channels, 1, 4, stride=2, padding=1),
        )

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


class Stopwatch(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == 8:
            self.start_ns = time.perf_counter_ns()

    def on_train_end(self, trainer, module):
        if module.device.type == "cuda":
            torch.cuda.synchronize()
        print("step_ns", (time.perf_counter_ns() - self.start_ns) // (STEPS - 8))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true", help="changes nothing: nothing is wrong")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()

    pl.seed_everything(0, verbose=False)
    loader = DataLoader(TensorDataset(torch.rand(BATCH * STEPS, 1, 32, 32)), batch_size=BATCH, shuffle=True)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="gpu" if args.device == "cuda" else "cpu", devices=1, callbacks=[Stopwatch()],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Autoencoder(int(32 * args.scale)), loader)


if __name__ == "__main__":
    main()
