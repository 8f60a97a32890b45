"""Advice about what autograd does for nothing, switches for debugging, and graph breaks: PD503 to PD519."""

from __future__ import annotations

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.framework_settings import spell
from perfdoctor.rules.advice.programs import ANY, any_program, rows_of

_EVAL_PAGE = "https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval"
_DROPOUT = "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html"
_EVAL = (
    "Call eval() {}, once before it infers: dropout then does nothing, and batch norm uses its running statistics, so "
    "that no result depends on chance or on the rest of its batch. If the dropout is meant (Monte Carlo dropout), keep "
    "it."
)
_DEBUG_OFF = (Action("debug-off"),)
_NO_GRAPH = (Action("no-grad-evaluation"),)
_NOT_DETERMINISTIC = (Action("deterministic-off"),)
_ANOMALY = "https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection"
_NO_GRAD = "https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation"
_DETERMINISTIC = "https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html"
_FILL = "https://docs.pytorch.org/docs/stable/deterministic.html"
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
        "training mode without a training",
        Row(
            When(uses=("Hugging Face pipeline",)),
            _EVAL.replace("{}", "on the pipeline's model"),
            "pipe.model.eval()   # once, before the loop",
            _EVAL_PAGE,
        ),
        Row(
            ANY,
            _EVAL.replace("{}", "on the model"),
            "model.eval()   # once, before the loop",
            _EVAL_PAGE,
            actions=(Action("eval-mode"),),
        ),
    ),
    any_program(
        "dropout draws in evaluation mode",
        "Pass training=self.training to F.dropout, which draws whatever mode the model is in. If the dropout is meant "
        "(Monte Carlo dropout), keep it.",
        "x = F.dropout(x, p, training=self.training)",
        _DROPOUT,
    ),
    *rows_of(
        "deterministic algorithms",
        *spell("deterministic algorithms", _ALLOW_OTHERS, actions=_NOT_DETERMINISTIC),
        Row(
            ANY, _ALLOW_OTHERS, "torch.use_deterministic_algorithms(False)", _DETERMINISTIC, actions=_NOT_DETERMINISTIC
        ),
    ),
    any_program(
        "new tensors are filled",
        "Keep deterministic algorithms, but do not fill each new tensor: only a program that reads memory which it "
        "never wrote needs it.",
        "torch.utils.deterministic.fill_uninitialized_memory = False",
        _FILL,
        since="PyTorch 2.2",
        actions=_NOT_DETERMINISTIC,
    ),
)
