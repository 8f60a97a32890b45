"""Advice about waits of the CPU for the GPU, and copies between them: PD102, PD105, PD106."""

from __future__ import annotations

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.framework_settings import spell
from perfdoctor.rules.advice.programs import (
    ANY,
    ENGINES,
    FORWARD,
    TORCHREC_UNPIPELINED,
    WITHOUT_BFLOAT16,
    any_program,
    rows_of,
)

_ITEM = (Action("what-if-item"),)
_AVOID_SYNC = f"{pages.TUNING_GUIDE}#avoid-unnecessary-cpu-gpu-synchronization"
_EVENT = "https://docs.pytorch.org/docs/stable/generated/torch.cuda.Event.html"
_WHERE = "https://docs.pytorch.org/docs/stable/generated/torch.where.html"
_UNIQUE = "https://docs.pytorch.org/docs/stable/generated/torch.unique.html"
_REPEAT = "https://docs.pytorch.org/docs/stable/generated/torch.repeat_interleave.html"
_CLIP = "https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html"

_COPY_BACK = "host.copy_(x, non_blocking=True); ...; event.synchronize()   # host in pinned memory"
_NOT_BLOCKING = "x = x.to(device, non_blocking=True)"
_WITH_LOADER = "x = x.to(device, non_blocking=True)        # with DataLoader(..., pin_memory=True)"
_PIPELINE = "pipeline = TrainPipelineSparseDist(model, optimizer, device)"
_ENGINES_OWN = (
    When(uses=ENGINES),
    "Let the engine schedule the next step meanwhile, or serve more requests at a time. It waits here for what it "
    "has to know on the CPU: the tokens that it sampled, the sizes of a batch.",
    None,
    pages.VLLM_TUNING,
)
_TORCHREC_COPIES = (
    TORCHREC_UNPIPELINED,
    "Use TrainPipelineSparseDist, which copies the next batch on a stream of its own while this one runs, and pin "
    "what it copies.",
    _PIPELINE,
    pages.TORCHREC,
)
_TORCHREC_SIZES = (
    TORCHREC_UNPIPELINED,
    "Use TrainPipelineSparseDist, which exchanges sizes for the next batch while this one runs. The CPU has to know "
    "them before it can issue the exchange.",
    _PIPELINE,
    pages.TORCHREC,
)
_PIN_BATCHES = "Pin the batches and copy them without blocking: the CPU goes on launching while the copy runs."

SYNC_ROWS = (
    *rows_of(
        "sync: item",
        (
            When(phases=FORWARD),
            "Keep values on the GPU, and read all results of a batch at once, at its end.",
            "results = torch.stack(values).tolist()     # one wait instead of one a value",
            _AVOID_SYNC,
        ),
        Row(
            When(phases=("training",)),
            "Keep the value on the GPU: add up tensors and call .item() once every N steps.",
            "running_loss += loss.detach()              # instead of loss.item()",
            _AVOID_SYNC,
            actions=_ITEM,
        ),
        Row(
            ANY,
            "Keep the value on the GPU: add up tensors and call .item() once every N steps.",
            "total += value.detach()                    # instead of value.item()",
            _AVOID_SYNC,
            actions=_ITEM,
        ),
    ),
    *rows_of(
        "sync: if",
        (
            When(phases=FORWARD),
            "Use torch.where, or decide once for a batch: `if tensor:` and `while tensor:` copy the value to the CPU.",
            "x = torch.where(condition, a, b)           # instead of `if condition:`",
            _WHERE,
        ),
        (
            ANY,
            "Use torch.where, or decide every N steps: `if tensor:` and `while tensor:` copy the value to the CPU.",
            "x = torch.where(condition, a, b)           # instead of `if condition:`",
            _WHERE,
        ),
    ),
    *rows_of(
        "sync: nonzero",
        (
            When(phases=("training",)),
            "Multiply by the mask, or use torch.where with three arguments: the CPU needs the size of what nonzero "
            "returns.",
            "loss = (loss * mask).sum() / mask.sum()    # instead of loss[mask.nonzero()].mean()",
            _WHERE,
        ),
        (
            ANY,
            "Multiply by the mask, use torch.where with three arguments, or take a fixed number of best by topk: the "
            "CPU needs the size of what nonzero returns.",
            "x = torch.where(mask, x, 0)                # instead of x[mask.nonzero()]",
            _WHERE,
        ),
    ),
    *rows_of(
        "sync: mask",
        (
            When(phases=FORWARD),
            "Multiply by the mask, use torch.where, take a fixed number of best by topk, or filter once, on the CPU, "
            "at the end. Indexing with a mask makes the CPU wait for the number of hits.",
            "x = torch.where(mask, x, 0)                # instead of x[mask]",
            _WHERE,
        ),
        (
            ANY,
            "Multiply by the mask, or use torch.where: indexing with a mask makes the CPU wait for the number of hits.",
            "x = torch.where(mask, x, 0)                # instead of x[mask]",
            _WHERE,
        ),
    ),
    any_program(
        "sync: unique",
        "Count the values in the data set, or every N steps: the CPU needs the number of different ones.",
        "counts = torch.zeros(num_classes, device=x.device).scatter_add_(0, x, ones)",
        _UNIQUE,
    ),
    any_program(
        "sync: repeat",
        "Give output_size: without it the size of the result is read from the GPU.",
        "x.repeat_interleave(n, output_size=total)",
        _REPEAT,
    ),
    *rows_of(
        "sync: compare",
        (
            When(phases=("training",)),
            "Leave the check out of training, or keep its result on the GPU: torch.equal and allclose answer on the "
            "CPU.",
            "same = (a == b).all()                      # stays on the GPU",
            _AVOID_SYNC,
        ),
        (
            ANY,
            "Leave the check out of the loop, or keep its result on the GPU: torch.equal and allclose answer on the "
            "CPU.",
            "same = (a == b).all()                      # stays on the GPU",
            _AVOID_SYNC,
        ),
    ),
    *rows_of(
        "sync: print",
        (
            When(phases=FORWARD),
            "Print a copy that is on the CPU, after the batch: printing picks out the finite values and reads each.",
            None,
            _AVOID_SYNC,
        ),
        (
            ANY,
            "Print every N steps, a copy that is on the CPU: printing picks out the finite values and reads each.",
            "if step % 100 == 0: print(x.cpu())",
            _AVOID_SYNC,
        ),
    ),
    any_program(
        "sync: clip",
        "Leave error_if_nonfinite off: the check reads the norm on the CPU before it clips, and a norm that is "
        "not finite shows in the loss.",
        "torch.nn.utils.clip_grad_norm_(parameters, max_norm)   # error_if_nonfinite=False, foreach=True",
        _CLIP,
    ),
    *rows_of(
        "sync: scaler",
        Row(
            WITHOUT_BFLOAT16,
            "Use fused Adam or AdamW, which decides on the GPU whether a gradient overflowed.",
            "optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
            pages.AMP,
            since="PyTorch 2.0",
        ),
        Row(
            ANY,
            "Use fused Adam or AdamW, which decides on the GPU whether a gradient overflowed. Bfloat16, which "
            "devices from Ampere on have, needs no scaler.",
            "optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
            pages.AMP,
            since="PyTorch 2.0",
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
            pages.PINNED_MEMORY,
        ),
        (
            ANY,
            "Leave the result on the GPU, or copy without blocking and read it after the next step was launched.",
            _COPY_BACK,
            pages.PINNED_MEMORY,
        ),
    ),
    any_program(
        "sync: pinned",
        "Copy with non_blocking=True: the memory is pinned already, but without it the CPU waits for the copy "
        "all the same.",
        _NOT_BLOCKING,
        pages.PINNED_MEMORY,
    ),
    *rows_of(
        "sync: pageable",
        _TORCHREC_COPIES,
        (
            ANY,
            "Copy from pinned memory without blocking: a buffer that is pinned once, or pinned where the input is "
            "prepared.",
            "buffer.copy_(x); y = buffer.to(device, non_blocking=True)   # buffer pinned once",
            pages.PINNED_MEMORY,
        ),
    ),
    *rows_of(
        "sync: pageable, beside a DataLoader",
        *spell("argument of the loader", "Copy from pinned memory without blocking.", "pin_memory=True"),
        (ANY, "Copy from pinned memory without blocking.", _WITH_LOADER, pages.PINNED_MEMORY),
    ),
    *rows_of(
        "sync: copy",
        _ENGINES_OWN,
        (
            ANY,
            "Copy from pinned memory without blocking; copy back after the next step's launch.",
            _NOT_BLOCKING,
            pages.PINNED_MEMORY,
        ),
    ),
    *rows_of(
        "sync: synchronize",
        (
            When(phases=FORWARD),
            "Remove the synchronize: PyTorch keeps the order of streams, and reading a result waits for it. For "
            "timing use events.",
            "start = torch.cuda.Event(enable_timing=True)",
            _EVENT,
        ),
        (
            ANY,
            "Remove the synchronize: PyTorch keeps the order of streams. For timing use events, every N steps.",
            "start = torch.cuda.Event(enable_timing=True)",
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
            pages.STREAMS,
        ),
    ),
    *rows_of(
        "sync: stream",
        _ENGINES_OWN,
        (
            ANY,
            "Let the GPU's stream wait instead of the CPU.",
            "torch.cuda.current_stream().wait_stream(stream)",
            pages.STREAMS,
        ),
    ),
    any_program("sync: other", "Remove the wait from the step, or do it every N steps.", None, _AVOID_SYNC),
)

COPY_ROWS = (
    *rows_of(
        "pageable copies to the device",
        _TORCHREC_COPIES,
        (
            ANY,
            "Copy from memory that is pinned once, or pinned by the thread that prepares the next input; pinning each "
            "tensor anew right before its copy can take longer than it saves.",
            "buffer = torch.empty_like(x, pin_memory=True); buffer.copy_(x); y = buffer.to(device, non_blocking=True)",
            pages.PINNED_MEMORY,
        ),
    ),
    *rows_of(
        "pageable copies to the device, beside a DataLoader",
        *spell("argument of the loader", _PIN_BATCHES, "pin_memory=True", actions=(Action("pin-memory", "on"),)),
        Row(
            ANY,
            _PIN_BATCHES,
            "DataLoader(..., pin_memory=True); x = x.to(device, non_blocking=True)",
            pages.PINNED_MEMORY,
            actions=(Action("pin-memory", "non-blocking"),),
        ),
    ),
    any_program(
        "pageable copies to the device, beside a DataLoader that pins",
        "Pin these tensors, too: the DataLoader pins its batches, but a batch of your own type needs a "
        "pin_memory() method, and what is built after the loader is not pinned. Then copy with "
        "non_blocking=True.",
        "x = x.to(device, non_blocking=True)",
        "https://docs.pytorch.org/docs/stable/data.html#memory-pinning",
    ),
)
