"""Callbacks for trainers that run the loop themselves; each imports its framework when it is first used.

    from perfdoctor.integrations import LightningCallback
    trainer = lightning.Trainer(callbacks=[LightningCallback("capture")])

    from perfdoctor.integrations import TransformersCallback
    trainer = transformers.Trainer(..., callbacks=[TransformersCallback("capture")])

Both print the report when training has ended, unless `print_report=False`.

`perfdoctor run` needs none of them: it finds the steps of both trainers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.integrations.lightning import LightningCallback
    from perfdoctor.integrations.transformers import TransformersCallback

__all__ = ["LightningCallback", "TransformersCallback"]

_MODULES = {
    "LightningCallback": "perfdoctor.integrations.lightning",
    "TransformersCallback": "perfdoctor.integrations.transformers",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'perfdoctor.integrations' has no attribute '{name}'")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
