"""A small language model with the Hugging Face Trainer, with nothing wrong."""

import argparse
import tempfile
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

STEPS, BATCH, LENGTH = 45, 8, 64


class Stopwatch(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 8:
            self.start_ns = time.perf_counter_ns()

    def on_train_end(self, args, state, control, **kwargs):
        print("step_ns", (time.perf_counter_ns() - self.start_ns) // (STEPS - 8))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true", help="changes nothing: nothing is wrong")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()

    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=1000, n_positions=LENGTH, n_embd=int(128 * args.scale), n_layer=2, n_head=4,
            activation_function="gelu_pytorch_tanh",  # its default is the same function, computed op by op
        )
    )
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 1000, (BATCH * STEPS, LENGTH))]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model, train_dataset=data,
            args=TrainingArguments(
                output_dir=folder, per_device_train_batch_size=BATCH, max_steps=STEPS, optim="adamw_torch_fused",
                save_strategy="no", logging_steps=20, report_to=[], disable_tqdm=True, use_cpu=args.device == "cpu",
            ),
            callbacks=[Stopwatch()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
