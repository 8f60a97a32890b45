"""Advice about waits of the CPU for the GPU, and copies between them: PD102, PD105, PD106."""

from __future__ import annotations

from perfdoctor.rules.advice.advice_row import When
from perfdoctor.rules.advice.programs import ANY, ENGINES, FORWARD, TORCHREC, rows_of

_TUNING = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
_AVOID_SYNC = f"{_TUNING}#avoid-unnecessary-cpu-gpu-synchronization"
_PINNING = "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html"
_STREAMS = "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams"
_EVENT = "https://docs.pytorch.org/docs/stable/generated/torch.cuda.Event.html"
_WHERE = "https://docs.pytorch.org/docs/stable/generated/torch.where.html"
_UNIQUE = "https://docs.pytorch.org/docs/stable/generated/torch.unique.html"
_REPEAT = "https://docs.pytorch.org/docs/stable/generated/torch.repeat_interleave.html"
_CLIP = "https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html"
_AMP = "https://docs.pytorch.org/docs/stable/amp.html"
_TORCHREC = "https://docs.pytorch.org/torchrec/torchrec.distributed.html"
_VLLM = "https://docs.vllm.ai/en/v0.10.2/configuration/optimization.html"

_COPY_BACK = "host.copy_(x, non_blocking=True); ...; event.synchronize()   # host in pinned memory"
_NOT_BLOCKING = "x = x.to(device, non_blocking=True)"
_WITH_LOADER = "x = x.to(device, non_blocking=True)        # with DataLoader(..., pin_memory=True)"
_ENGINES_OWN = (
    When(uses=ENGINES),
    "The engine waits here for what it has to know on the CPU (the tokens that it sampled, the sizes of a batch): let "
    "it schedule the next step meanwhile, or serve more requests at a time.",
    None,
    "",
    _VLLM,
)
_TORCHREC_COPIES = (
    When(uses=TORCHREC),
    "TrainPipelineSparseDist copies the next batch on a stream of its own while this one runs; pin what it copies.",
    "pipeline = TrainPipelineSparseDist(model, optimizer, device)",
    "",
    _TORCHREC,
)
_TORCHREC_SIZES = (
    When(uses=TORCHREC),
    "The CPU has to know the sizes of the exchange before it can issue it: TrainPipelineSparseDist does that for the "
    "next batch while this one runs.",
    "pipeline = TrainPipelineSparseDist(model, optimizer, device)",
    "",
    _TORCHREC,
)

SYNC_ROWS = (
    *rows_of(
        "sync: item",
        (
            When(phases=FORWARD),
            "Keep values on the GPU, and read all results of a batch at once, at its end.",
            "results = torch.stack(values).tolist()     # one wait instead of one a value",
            "",
            _AVOID_SYNC,
        ),
        (
            When(phases=("training",)),
            "Keep the value on the GPU: add up tensors and call .item() once every N steps.",
            "running_loss += loss.detach()              # instead of loss.item()",
            "",
            _AVOID_SYNC,
        ),
        (
            ANY,
            "Keep the value on the GPU: add up tensors and call .item() once every N steps.",
            "total += value.detach()                    # instead of value.item()",
            "",
            _AVOID_SYNC,
        ),
    ),
    *rows_of(
        "sync: if",
        (
            When(phases=FORWARD),
            "`if tensor:` and `while tensor:` copy the value to the CPU: use torch.where, or decide once for a batch.",
            "x = torch.where(condition, a, b)           # instead of `if condition:`",
            "",
            _WHERE,
        ),
        (
            ANY,
            "`if tensor:` and `while tensor:` copy the value to the CPU: use torch.where, or decide every N steps.",
            "x = torch.where(condition, a, b)           # instead of `if condition:`",
            "",
            _WHERE,
        ),
    ),
    *rows_of(
        "sync: nonzero",
        (
            When(phases=("training",)),
            "The CPU needs the size of the result: multiply by the mask, or use torch.where with three arguments.",
            "loss = (loss * mask).sum() / mask.sum()    # instead of loss[mask.nonzero()].mean()",
            "",
            _WHERE,
        ),
        (
            ANY,
            "The CPU needs the size of the result: multiply by the mask, use torch.where with three arguments, or take "
            "a fixed number of best by topk.",
            "x = torch.where(mask, x, 0)                # instead of x[mask.nonzero()]",
            "",
            _WHERE,
        ),
    ),
    *rows_of(
        "sync: mask",
        (
            When(phases=FORWARD),
            "For a boolean index the CPU needs the number of hits: multiply by the mask, use torch.where, take a fixed "
            "number of best by topk, or filter once, on the CPU, at the end.",
            "x = torch.where(mask, x, 0)                # instead of x[mask]",
            "",
            _WHERE,
        ),
        (
            ANY,
            "For a boolean index the CPU needs the number of hits: multiply by the mask, or use torch.where.",
            "x = torch.where(mask, x, 0)                # instead of x[mask]",
            "",
            _WHERE,
        ),
    ),
    *rows_of(
        "sync: unique",
        (
            ANY,
            "The CPU needs the number of different values: count them in the data set, or every N steps.",
            "counts = torch.zeros(num_classes, device=x.device).scatter_add_(0, x, ones)",
            "",
            _UNIQUE,
        ),
    ),
    *rows_of(
        "sync: repeat",
        (
            ANY,
            "Without output_size the size of the result is read from the GPU.",
            "x.repeat_interleave(n, output_size=total)",
            "",
            _REPEAT,
        ),
    ),
    *rows_of(
        "sync: compare",
        (
            When(phases=("training",)),
            "They answer on the CPU. Leave the check out of training, or keep its result on the GPU.",
            "same = (a == b).all()                      # stays on the GPU",
            "",
            _AVOID_SYNC,
        ),
        (
            ANY,
            "They answer on the CPU. Leave the check out of the loop, or keep its result on the GPU.",
            "same = (a == b).all()                      # stays on the GPU",
            "",
            _AVOID_SYNC,
        ),
    ),
    *rows_of(
        "sync: print",
        (
            When(phases=FORWARD),
            "Printing picks out the finite values and reads each. Print a copy that is on the CPU, after the batch.",
            None,
            "",
            _AVOID_SYNC,
        ),
        (
            ANY,
            "Printing picks out the finite values and reads each. Print every N steps, a copy that is on the CPU.",
            "if step % 100 == 0: print(x.cpu())",
            "",
            _AVOID_SYNC,
        ),
    ),
    *rows_of(
        "sync: clip",
        (
            ANY,
            "The check reads the norm on the CPU before it clips. Leave it off; a norm that is not finite shows in the "
            "loss.",
            "torch.nn.utils.clip_grad_norm_(parameters, max_norm)   # error_if_nonfinite=False, foreach=True",
            "",
            _CLIP,
        ),
    ),
    *rows_of(
        "sync: scaler",
        (
            ANY,
            "It reads whether a gradient overflowed. Fused Adam and AdamW decide that on the GPU; bfloat16 needs no "
            "scaler.",
            "optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
            "PyTorch 2.0",
            _AMP,
        ),
    ),
    *rows_of(
        "sync: to-cpu",
        _ENGINES_OWN,
        _TORCHREC_SIZES,
        (
            When(phases=FORWARD),
            "Copy without blocking, and read the results of this batch after the next one was launched.",
            _COPY_BACK,
            "",
            _PINNING,
        ),
        (
            ANY,
            "Leave it on the GPU, or copy without blocking and read it after the next step was launched.",
            _COPY_BACK,
            "",
            _PINNING,
        ),
    ),
    *rows_of(
        "sync: pinned",
        (
            ANY,
            "The memory is pinned already: without non_blocking the CPU waits for the copy all the same.",
            _NOT_BLOCKING,
            "",
            _PINNING,
        ),
    ),
    *rows_of(
        "sync: pageable",
        _TORCHREC_COPIES,
        (
            ANY,
            "Copy from pinned memory without blocking: a buffer that is pinned once, or pinned where the input is "
            "prepared.",
            "buffer.copy_(x); y = buffer.to(device, non_blocking=True)   # buffer pinned once",
            "",
            _PINNING,
        ),
    ),
    *rows_of(
        "sync: pageable, beside a DataLoader",
        (
            When(uses=("Hugging Face Trainer",)),
            "Copy from pinned memory without blocking.",
            "TrainingArguments(..., dataloader_pin_memory=True)",
            "",
            "https://huggingface.co/docs/transformers/main_classes/trainer",
        ),
        (ANY, "Copy from pinned memory without blocking.", _WITH_LOADER, "", _PINNING),
    ),
    *rows_of(
        "sync: copy",
        _ENGINES_OWN,
        (
            ANY,
            "Copy from pinned memory without blocking; a copy back belongs after the next step's launch.",
            _NOT_BLOCKING,
            "",
            _PINNING,
        ),
    ),
    *rows_of(
        "sync: synchronize",
        (
            When(phases=FORWARD),
            "A forward pass needs none: PyTorch keeps the order of streams, and reading a result waits for it. For "
            "timing use events.",
            "start = torch.cuda.Event(enable_timing=True)",
            "",
            _EVENT,
        ),
        (
            ANY,
            "The loop needs none: PyTorch keeps the order of streams. For timing use events, every N steps.",
            "start = torch.cuda.Event(enable_timing=True)",
            "",
            _EVENT,
        ),
    ),
    *rows_of(
        "sync: event",
        _ENGINES_OWN,
        (
            ANY,
            "Let the GPU's stream wait instead of the CPU, or ask for the event a step later.",
            "torch.cuda.current_stream().wait_event(event)",
            "",
            _STREAMS,
        ),
    ),
    *rows_of(
        "sync: stream",
        _ENGINES_OWN,
        (
            ANY,
            "Let the GPU's stream wait instead of the CPU.",
            "torch.cuda.current_stream().wait_stream(stream)",
            "",
            _STREAMS,
        ),
    ),
    *rows_of("sync: other", (ANY, "Remove the wait from the step, or do it every N steps.", None, "", _AVOID_SYNC)),
)
"""What to do about calls in which the CPU waits for the GPU."""

COPY_ROWS = (
    *rows_of(
        "pageable copies to the device",
        _TORCHREC_COPIES,
        (
            ANY,
            "Copy from memory that is pinned once, or pinned by the thread that prepares the next input; pinning each "
            "tensor anew right before its copy can take longer than it saves.",
            "buffer = torch.empty_like(x, pin_memory=True); buffer.copy_(x); y = buffer.to(device, non_blocking=True)",
            "",
            _PINNING,
        ),
    ),
    *rows_of(
        "pageable copies to the device, beside a DataLoader",
        (
            When(uses=("Hugging Face Trainer",)),
            "Pin the batches and copy them without blocking: the CPU goes on launching while the copy runs.",
            "TrainingArguments(..., dataloader_pin_memory=True)",
            "",
            "https://huggingface.co/docs/transformers/main_classes/trainer",
        ),
        (
            ANY,
            "Pin the batches and copy them without blocking: the CPU goes on launching while the copy runs.",
            "DataLoader(..., pin_memory=True); x = x.to(device, non_blocking=True)",
            "",
            _PINNING,
        ),
    ),
    *rows_of(
        "pageable copies to the device, beside a DataLoader that pins",
        (
            ANY,
            "The DataLoader pins its batches, but these tensors are not: give a batch of your own type a pin_memory() "
            "method, or pin what is built after the loader; then copy with non_blocking=True.",
            "x = x.to(device, non_blocking=True)",
            "",
            "https://docs.pytorch.org/docs/stable/data.html#memory-pinning",
        ),
    ),
    *rows_of(
        "pageable copies to the host",
        (
            ANY,
            "Copy into a pinned buffer without blocking, and read it once an event says that it is there.",
            "buffer = torch.empty_like(x, device='cpu', pin_memory=True); buffer.copy_(x, non_blocking=True)",
            "",
            _PINNING,
        ),
    ),
    *rows_of(
        "tensor filled on the host",
        (
            ANY,
            "Make it where it is used, with device=: nothing has to be copied, and the CPU does not wait.",
            "torch.{maker}(..., device=x.device)",
            "",
            f"{_TUNING}#create-tensors-directly-on-the-target-device",
        ),
    ),
    *rows_of(
        "tensor of values from the host",
        (
            ANY,
            "Make it once, before the loop, or use an op that takes numbers. torch.tensor(..., device=...) does not "
            "help: it makes the tensor on the CPU and copies it, too.",
            None,
            "",
            f"{_TUNING}#create-tensors-directly-on-the-target-device",
        ),
    ),
)
"""What to do about copies between CPU and GPU."""
