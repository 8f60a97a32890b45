"""How frameworks spell the settings that rows of advice name: one table, a line for each setting and framework."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When

TRAINER = When(uses=("Hugging Face Trainer",))
LIGHTNING = When(uses=("Lightning",))
ACCELERATE = When(uses=("Accelerate",))
_ULTRALYTICS = When(uses=("Ultralytics",))

_ULTRALYTICS_PAGE = "https://docs.ultralytics.com/usage/cfg/"

_DDP_STRATEGY = "Trainer(strategy=DDPStrategy({argument}))"
_DDP_KEYWORDS = "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({argument})])"
_ALGORITHMS_OFF = "torch.use_deterministic_algorithms(False)"


class _Spelling(NamedTuple):
    """A setting in a framework; `{argument}` in the code is what `spell` is given."""

    when: When
    code: str
    source: str


_SPELLINGS = {
    "argument of DDP": (
        _Spelling(TRAINER, "TrainingArguments(..., ddp_{argument})", pages.TRAINER),
        _Spelling(LIGHTNING, _DDP_STRATEGY, pages.LIGHTNING_DDP),
        _Spelling(ACCELERATE, _DDP_KEYWORDS, pages.ACCELERATE),
    ),
    # TrainingArguments has only some of the arguments: the others go to the Accelerator that the Trainer uses.
    "argument of DDP, not of the Trainer": (
        _Spelling(LIGHTNING, _DDP_STRATEGY, pages.LIGHTNING_DDP),
        _Spelling(When(uses=("Accelerate", "Hugging Face Trainer")), _DDP_KEYWORDS, pages.ACCELERATE),
    ),
    "workers of the loader": (
        _Spelling(
            TRAINER,
            "TrainingArguments(..., dataloader_num_workers={workers}, dataloader_persistent_workers=True)",
            pages.TRAINER,
        ),
        _Spelling(_ULTRALYTICS, "model.train(..., workers={workers})", _ULTRALYTICS_PAGE),
    ),
    "argument of the loader": (_Spelling(TRAINER, "TrainingArguments(..., dataloader_{argument})", pages.TRAINER),),
    "fused AdamW": (_Spelling(TRAINER, 'TrainingArguments(..., optim="adamw_torch_fused")', pages.TRAINER),),
    "fused optimizer": (
        _Spelling(
            When(uses=("Stable-Baselines3",)),
            'PPO(..., policy_kwargs={"optimizer_kwargs": {"fused": True}})   # of any algorithm alike',
            "https://stable-baselines3.readthedocs.io/en/master/guide/custom_policy.html",
        ),
    ),
    "anomaly detection": (
        _Spelling(
            LIGHTNING,
            "Trainer(..., detect_anomaly=False)   # elsewhere: torch.autograd.set_detect_anomaly(False)",
            f"{pages.LIGHTNING}#detect-anomaly",
        ),
    ),
    "deterministic algorithms": (
        _Spelling(
            LIGHTNING,
            f"Trainer(..., deterministic=False)   # elsewhere: {_ALGORITHMS_OFF}",
            f"{pages.LIGHTNING}#deterministic",
        ),
        _Spelling(
            TRAINER, f"TrainingArguments(..., full_determinism=False)   # elsewhere: {_ALGORITHMS_OFF}", pages.TRAINER
        ),
    ),
}


def spell(
    setting: str,
    sentence: str,
    argument: str = "",
    *,
    since: str = "",
    actions: tuple[Action, ...] = (),
    lightning: str | None = None,
) -> tuple[Row, ...]:
    """A row for each framework that has a setting of the table, all with one sentence.

    `argument`, such as "bucket_cap_mb=25", stands in their code; Lightning may have a sentence of its own.
    """
    return tuple(
        Row(
            each.when,
            lightning if lightning and each.when == LIGHTNING else sentence,
            each.code.replace("{argument}", argument),
            each.source,
            since,
            actions,
        )
        for each in _SPELLINGS[setting]
    )
