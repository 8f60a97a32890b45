"""Advice about what keeps the CPU from its work: collections of garbage, checkpoints, logs and copies.

PD110, PD113 and PD515 ask for them.
"""

from __future__ import annotations

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.programs import ANY, rows_of

_FREEZE = (Action("gc"),)
_NO_FSYNC = (Action("no-fsync"),)
_SELDOM = (Action("less-often", "{steps}"),)
_GC = "https://docs.python.org/3/library/gc.html#gc.freeze"
_ASYNC = "https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html"
_LIGHTNING = "https://lightning.ai/docs/pytorch/stable/common/checkpointing_expert.html"
_SEVERAL_RANKS = When(uses=("DDP", "FSDP", "ZeRO", "DeepSpeed", "Megatron", "tensor parallel", "pipeline parallel"))
_SHARDED = When(uses=("FSDP", "DDP", "tensor parallel"), lacks=("DeepSpeed", "Megatron"), torch_from="2.3")
_LESS_OFTEN = "Save less often"

HOST_PAUSE_ROWS = (
    *rows_of(
        "garbage is collected in the step",
        Row(
            _SEVERAL_RANKS,
            "Leave gc.collect() out of the loop, or call it every so many steps, on all ranks in the same one: ranks "
            "that collect at different times wait for each other. Freeze what lives long once it is made, so that it "
            "is scanned no more.",
            "gc.collect(); gc.freeze()   # once, before the loop",
            _GC,
            actions=_FREEZE,
        ),
        Row(
            ANY,
            "Leave gc.collect() out of the loop: Python collects by itself, and tensors are freed without it. Freeze "
            "what lives long once it is made, so that it is scanned no more; where memory runs out collect every so "
            "many steps.",
            "gc.collect(); gc.freeze()   # once, before the loop",
            _GC,
            actions=_FREEZE,
        ),
    ),
    *rows_of(
        "Python collects garbage by itself",
        Row(
            _SEVERAL_RANKS,
            "Freeze what lives long (data, model) once it is made: it is scanned no more. Else collect between steps, "
            "on all ranks in the same step: ranks that collect at different times wait for each other.",
            "gc.collect(); gc.freeze()   # once, before the loop; or gc.disable(), and gc.collect() every 100 steps",
            _GC,
            actions=_FREEZE,
        ),
        Row(
            ANY,
            "Freeze what lives long (data, model) once it is made: it is scanned no more. Data in arrays or tensors, "
            "not in lists and dictionaries, is not scanned either.",
            "gc.collect(); gc.freeze()   # once, before the loop",
            _GC,
            actions=_FREEZE,
        ),
    ),
    *rows_of(
        "the step waits until a file is on disk",
        Row(
            When(uses=("Hugging Face Trainer",)),
            "Log every so many steps (control.should_log, logging_steps), and leave os.fsync out of the steps: each "
            "call waits for the disk.",
            None,
            pages.TRAINER,
            actions=_NO_FSYNC,
        ),
        Row(
            ANY,
            "Log every so many steps, or once at the end, and leave os.fsync out of the steps: each call waits for the "
            "disk.",
            None,
            "https://docs.python.org/3/library/os.html#os.fsync",
            actions=_NO_FSYNC,
        ),
    ),
    *rows_of(
        "the step saves a checkpoint",
        (
            When(uses=("Lightning",)),
            f"{_LESS_OFTEN} (ModelCheckpoint's every_n_train_steps), or in the background.",
            "Trainer(plugins=[AsyncCheckpointIO()])",
            _LIGHTNING,
        ),
        (
            When(uses=("Hugging Face Trainer",)),
            f"{_LESS_OFTEN}: the training waits until all is written.",
            'TrainingArguments(save_strategy="steps", save_steps=...)',
            pages.TRAINER,
        ),
        Row(
            _SHARDED,
            f"{_LESS_OFTEN}, or write while the training goes on: async_save copies the state and returns.",
            "torch.distributed.checkpoint.async_save(state_dict, checkpoint_id=path)",
            _ASYNC,
            since="PyTorch 2.3",
            actions=_SELDOM,
        ),
        Row(
            ANY,
            f"{_LESS_OFTEN}, or write on a thread of its own: copy all of it first, as the next step changes it.",
            "if step % save_every == 0:   # at most so many steps are lost\n    torch.save(state, path)",
            pages.CHECKPOINT,
            actions=_SELDOM,
        ),
    ),
    *rows_of(
        "the step copies objects",
        Row(
            ANY,
            "Copy what is changed, and no more: copy.deepcopy makes all anew that an object holds, element by element. "
            "A shallow copy has the same values under its own keys; what is changed in place needs a copy of its own.",
            "record = dict(record)   # in place of copy.deepcopy(record)",
            "https://docs.python.org/3/library/copy.html",
        ),
    ),
    *rows_of(
        "the step copies a model",
        Row(
            ANY,
            "Copy less often (look for a better model every so many steps), or into tensors that exist already "
            "(Tensor.copy_): copy.deepcopy makes each of them anew.",
            None,
            "https://docs.python.org/3/library/copy.html",
            actions=_SELDOM,
        ),
    ),
    *rows_of(
        "the step evaluates",
        Row(
            ANY,
            "Evaluate every so many steps, once an epoch, or on fewer batches: the steps between go without.",
            "if step % evaluate_every == 0:\n    validate()",
            pages.TUNING_GUIDE,
            actions=(Action("less-often", 10),),
        ),
    ),
    *rows_of(
        "the step prints",
        Row(
            ANY,
            "Print every so many steps, or collect what is to be printed and print it once.",
            None,
            pages.TUNING_GUIDE,
            actions=_SELDOM,
        ),
    ),
)
