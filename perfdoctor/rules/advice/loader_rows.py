"""Advice about loading: PD101, PD103, PD112 and PD114."""

from __future__ import annotations

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.framework_settings import spell
from perfdoctor.rules.advice.programs import ANY, ENGINES, any_program, rows_of

_WORKERS = (Action("workers", "{workers}"),)
_PERSISTENT = (Action("persistent-workers"),)
_NO_WORKERS = (Action("workers", 0),)
_MORE_WORKERS = "Load batches in {workers} worker processes."
_KEEP_WORKERS = "Keep the workers from one epoch to the next."
_LOAD_ITSELF = (
    "Load in the program's own process: the cores are taken, so workers load no sooner than it would itself, and "
    "handing batches over costs time on top. Workers pay where loading waits for a disk or a network, or where cores "
    "idle."
)
_PIPELINE = "https://github.com/huggingface/transformers/blob/main/src/transformers/pipelines/base.py"
_NEXT_INPUT = (
    "Prepare the next input in another process while the GPU works on this one: the pipeline's one worker does so "
    "where it gets all inputs at once, as a data set or generator."
)

LOADER_ROWS = (
    *rows_of(
        "loader too slow",
        (When(uses=("Hugging Face pipeline",)), _NEXT_INPUT, None, _PIPELINE),
        *spell("workers of the loader", _MORE_WORKERS, actions=_WORKERS),
        Row(
            ANY,
            _MORE_WORKERS,
            "DataLoader(..., num_workers={workers}, persistent_workers=True{pin})",
            pages.DATA_LOADER,
            actions=_WORKERS,
        ),
    ),
    *rows_of(
        "loader starts its workers anew",
        *spell("argument of the loader", _KEEP_WORKERS, "persistent_workers=True", actions=_PERSISTENT),
        Row(ANY, _KEEP_WORKERS, "DataLoader(..., persistent_workers=True)", pages.DATA_LOADER, actions=_PERSISTENT),
    ),
    *rows_of(
        "loader takes the program's cores",
        *spell("argument of the loader", _LOAD_ITSELF, "num_workers=0", actions=_NO_WORKERS),
        Row(ANY, _LOAD_ITSELF, "DataLoader(..., num_workers=0)", pages.DATA_LOADER, actions=_NO_WORKERS),
    ),
    *rows_of(
        "input prepared on the CPU",
        (
            When(uses=ENGINES),
            "Prepare requests in other processes than the one that launches, while the GPU works.",
            None,
            pages.VLLM_TUNING,
        ),
        (When(uses=("Hugging Face pipeline",)), _NEXT_INPUT, None, _PIPELINE),
        (
            ANY,
            "Prepare the next input in another thread or process while the GPU works on this one.",
            None,
            pages.TUNING_GUIDE,
        ),
    ),
    any_program(
        "input prepared on the CPU, beside a DataLoader",
        "Prepare the input in the DataLoader's workers (in the data set or collate_fn), so that the loop finds "
        "it done.",
        None,
        pages.DATA_LOADER,
    ),
)
