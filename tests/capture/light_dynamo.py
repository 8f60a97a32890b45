"""What programs of tests have in place of torch._dynamo: half of their start, which they need for nothing.

An optimizer imports torch._dynamo to keep itself out of compiled code, and that takes as long as torch itself. Where
nothing is compiled this stand-in says the same at once; whoever asks it for anything else gets the real module.
"""

import importlib
import sys
import types

import torch


class LightDynamo(types.ModuleType):
    __file__ = "light_dynamo"

    def disable(self, fn, *_, **__):
        return fn

    def graph_break(self):
        pass

    def __getattr__(self, name):
        if sys.modules["torch._dynamo"] is self:
            del sys.modules["torch._dynamo"]
        return getattr(importlib.import_module("torch._dynamo"), name)


if "torch._dynamo" not in sys.modules:
    sys.modules["torch._dynamo"] = torch._dynamo = LightDynamo("torch._dynamo")
