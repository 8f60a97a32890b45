"""Advice about what autograd does for nothing, switches for debugging, and graph breaks: PD308 and PD503 to PD518."""

from __future__ import annotations

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.framework_settings import spell
from perfdoctor.rules.advice.programs import ANY, rows_of

_DEBUG_OFF = (Action("debug-off"),)
_NO_GRAPH = (Action("no-grad-evaluation"),)
_NOT_DETERMINISTIC = (Action("deterministic-off"),)
_ANOMALY = "https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection"
_GRADCHECK = "https://docs.pytorch.org/docs/stable/notes/gradcheck.html"
_CUDA_VARIABLES = "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html"
_DISTRIBUTED = "https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug"
_NO_GRAD = "https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation"
_MEMORY = "https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory"
_DETERMINISTIC = "https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html"
_FILL = "https://docs.pytorch.org/docs/stable/deterministic.html"
_BREAKS = "https://docs.pytorch.org/docs/stable/compile/programming_model.common_graph_breaks.html"
_ALLOW_OTHERS = "Turn deterministic algorithms off where runs need not be equal to the bit: {why}."

AUTOGRAD_ROWS = (
    *rows_of(
        "anomaly detection",
        *spell(
            "anomaly detection",
            "Turn anomaly detection off unless you are looking for a NaN: it formats the Python stack for each node of "
            "the graph, and checks each gradient.",
            actions=_DEBUG_OFF,
        ),
        Row(
            ANY,
            "Turn anomaly detection off unless you are looking for a NaN: it formats the Python stack for each node of "
            "the graph, and checks each gradient. Where a trainer turns it on, it has an option for that.",
            "torch.autograd.set_detect_anomaly(False)   # in Lightning: Trainer(..., detect_anomaly=False)",
            _ANOMALY,
            actions=_DEBUG_OFF,
        ),
    ),
    *rows_of(
        "gradcheck in the step",
        (
            ANY,
            "Move gradcheck into a test: it computes each gradient by finite differences.",
            "# in a test: assert torch.autograd.gradcheck(function, inputs)",
            _GRADCHECK,
        ),
    ),
    *rows_of(
        "launches block",
        (
            ANY,
            "Leave the variable unset: with it each launch waits until its kernel has ended, to find one that fails.",
            "unset CUDA_LAUNCH_BLOCKING",
            _CUDA_VARIABLES,
        ),
    ),
    *rows_of(
        "collectives are checked",
        (
            ANY,
            "Leave the variable unset unless you are looking for ranks that call different collectives.",
            "unset TORCH_DISTRIBUTED_DEBUG",
            _DISTRIBUTED,
        ),
    ),
    *rows_of(
        "evaluation with gradients",
        Row(
            ANY,
            "Run the evaluation without gradients: no graph is recorded then, and activations are freed early.",
            "with torch.no_grad(): ...   # around the evaluation",
            _NO_GRAD,
            actions=_NO_GRAPH,
        ),
    ),
    *rows_of(
        "inference with gradients",
        Row(
            When(uses=("Hugging Face pipeline",)),
            "Run the model in inference mode: no graph is recorded then, and activations are freed as soon as they are "
            "used.",
            "with torch.inference_mode(): pipeline(...)",
            _NO_GRAD,
            actions=_NO_GRAPH,
        ),
        Row(
            ANY,
            "Run the model in inference mode: no graph is recorded then, and activations are freed as soon as they are "
            "used.",
            "with torch.inference_mode(): ...   # around the loop",
            _NO_GRAD,
            actions=_NO_GRAPH,
        ),
    ),
    *rows_of(
        "gradients: losses keep their graph",
        (
            ANY,
            "Keep the value, not the loss: with the loss the whole graph of its step stays in memory. `detach()` does "
            "not wait for a GPU, `item()` does.",
            "running_loss += loss.detach()   # losses.append(loss.detach())",
            _MEMORY,
        ),
    ),
    *rows_of(
        "deterministic algorithms",
        *spell("deterministic algorithms", _ALLOW_OTHERS, actions=_NOT_DETERMINISTIC),
        Row(
            ANY, _ALLOW_OTHERS, "torch.use_deterministic_algorithms(False)", _DETERMINISTIC, actions=_NOT_DETERMINISTIC
        ),
    ),
    *rows_of(
        "new tensors are filled",
        Row(
            ANY,
            "Keep deterministic algorithms, but do not fill each new tensor: only a program that reads memory which it "
            "never wrote needs it.",
            "torch.utils.deterministic.fill_uninitialized_memory = False",
            _FILL,
            since="PyTorch 2.2",
            actions=_NOT_DETERMINISTIC,
        ),
    ),
    *rows_of(
        "graph breaks",
        (
            ANY,
            "Move what breaks the graph out of the compiled code: return values, and print or read them outside.",
            "TORCH_LOGS=graph_breaks python ...   # names each break; fullgraph=True raises an error at the first",
            _BREAKS,
        ),
    ),
)
