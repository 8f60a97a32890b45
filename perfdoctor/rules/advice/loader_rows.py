"""Advice about input and other work of the CPU: PD101, PD103."""

from __future__ import annotations

from perfdoctor.rules.advice.advice_row import When
from perfdoctor.rules.advice.programs import ANY, ENGINES, FORWARD, rows_of

_LOADER = "https://docs.pytorch.org/docs/stable/data.html"
_PIPELINE = "https://github.com/huggingface/transformers/blob/main/src/transformers/pipelines/base.py"
_TRAINER = "https://huggingface.co/docs/transformers/main_classes/trainer"
_ULTRALYTICS = "https://docs.ultralytics.com/usage/cfg/"
_VLLM_GRAPHS = "https://docs.vllm.ai/en/v0.11.1/design/debug_vllm_compile.html"
_NEXT_INPUT = (
    "Prepare the next input in another thread or process while the GPU works on this one, or on the GPU. num_workers "
    "of the pipeline's call has no effect on a single input, and chunk pipelines set it to 1."
)

LOADER_ROWS = (
    *rows_of(
        "loader too slow",
        (When(uses=("Hugging Face pipeline",)), _NEXT_INPUT, None, "", _PIPELINE),
        (
            When(uses=("Hugging Face Trainer",)),
            "Load batches in {workers} worker processes.",
            "TrainingArguments(..., dataloader_num_workers={workers}, dataloader_persistent_workers=True)",
            "",
            _TRAINER,
        ),
        (
            When(uses=("Ultralytics",)),
            "Load batches in {workers} worker processes.",
            "model.train(..., workers={workers})",
            "",
            _ULTRALYTICS,
        ),
        (
            ANY,
            "Load batches in {workers} worker processes.",
            "DataLoader(..., num_workers={workers}, persistent_workers=True{pin})",
            "",
            _LOADER,
        ),
    ),
    *rows_of(
        "loader starts its workers anew",
        (
            When(uses=("Hugging Face Trainer",)),
            "Keep the workers from one epoch to the next.",
            "TrainingArguments(..., dataloader_persistent_workers=True)",
            "",
            _TRAINER,
        ),
        (ANY, "Keep the workers from one epoch to the next.", "DataLoader(..., persistent_workers=True)", "", _LOADER),
    ),
    *rows_of(
        "input prepared on the CPU",
        (
            When(uses=ENGINES),
            "Prepare requests in other processes than the one that launches, and more of them at a time.",
            None,
            "",
            _VLLM_GRAPHS,
        ),
        (When(uses=("Hugging Face pipeline",)), _NEXT_INPUT, None, "", _PIPELINE),
        (
            When(uses=("Hugging Face Transformers",), phases=FORWARD),
            "Prepare the next input in another thread or process while the GPU works on this one; where the model has "
            "a fast image processor, it resizes on the GPU.",
            'inputs = processor(images, device="cuda")   # made with use_fast=True; from 5.0 on backend="torchvision"',
            "transformers 4.47",
            "https://huggingface.co/docs/transformers/v4.47.0/main_classes/image_processor",
        ),
        (
            ANY,
            "Prepare the next input in another thread or process while the GPU works on this one, or on the GPU.",
            None,
            "",
            "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        ),
    ),
    *rows_of(
        "input prepared on the CPU, beside a DataLoader",
        (
            When(uses=("Hugging Face Trainer",)),
            "Move this work into the data set or the collator, which the loader's workers run.",
            "TrainingArguments(..., dataloader_num_workers=...)",
            "",
            _TRAINER,
        ),
        (
            ANY,
            "Move this work into the DataLoader's workers (the data set or collate_fn), or do it on the GPU.",
            None,
            "",
            _LOADER,
        ),
    ),
    *rows_of(
        "CPU does something else",
        (
            When(uses=ENGINES),
            "Look at what the engine's process does between two steps: scheduling, sampling, detokenising, logging.",
            None,
            "",
            _VLLM_GRAPHS,
        ),
        (
            ANY,
            "Move this work out of the step: into another thread or process, before the loop, or to every N steps.",
            None,
            "",
            "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        ),
    ),
)
"""What to do about input and other work of the CPU."""
