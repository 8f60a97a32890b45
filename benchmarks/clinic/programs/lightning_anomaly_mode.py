"""A residual network in Lightning; the search for a NaN is over, but anomaly detection is still on."""

import argparse
import time
import warnings

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
STEPS = 45


class Residual(pl.LightningModule):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


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
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()

    pl.seed_everything(0, verbose=False)
    width = int(256 * args.scale)
    data = TensorDataset(torch.randn(64 * STEPS, width), torch.randint(0, 10, (64 * STEPS,)))
    trainer = pl.Trainer(
        max_epochs=1, accelerator="gpu" if args.device == "cuda" else "cpu", devices=1,
        detect_anomaly=not args.fixed,  # planted
        callbacks=[Stopwatch()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Residual(width, 8), DataLoader(data, batch_size=64, shuffle=True))  # planted: it turns the mode on


if __name__ == "__main__":
    main()
