"""Calls of modules: who hears of them, and that dynamo compiles what it would compile without anybody listening."""

from __future__ import annotations

import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from perfdoctor.capture.inject._perfdoctor_inject.module_calls import ModuleCalls  # noqa: E402


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.inner(x)


@pytest.fixture
def calls() -> ModuleCalls:
    return ModuleCalls(lambda: True)


def test_only_outermost_calls_are_heard_in_order_and_end_in_reverse(calls: ModuleCalls) -> None:
    plain = nn.Module.__call__
    heard: list[Any] = []

    def listen(name: str) -> Any:
        def on_call(module: Any, frame: Any, args: Any, kwargs: Any) -> Any:
            heard.append((name, type(module).__name__, frame.f_code.co_name, len(args), list(kwargs)))
            return lambda result: heard.append((name, result.shape))

        return on_call

    second, first = listen("second"), listen("first")
    calls.add(second)
    calls.add(first, before_others=True)
    Outer()(x=torch.ones(2))
    calls.remove(second)
    calls.remove(first)
    Outer()(torch.ones(2))
    call = ("Outer", "test_only_outermost_calls_are_heard_in_order_and_end_in_reverse", 0, ["x"])
    assert heard == [("first", *call), ("second", *call), ("second", (2,)), ("first", (2,))]
    assert nn.Module.__call__ is plain


def test_modules_of_one_class_are_heard_alone_and_call_what_others_have_wrapped(calls: ModuleCalls) -> None:
    heard: list[str] = []

    def listen(module: Any, *_: Any) -> None:
        heard.append(type(module).__name__)

    narrow = ModuleCalls(lambda: True, Outer)
    narrow.add(listen)
    calls.add(listen)
    Outer()(torch.ones(2))
    calls.remove(listen)
    nn.Linear(2, 2)(torch.ones(2))
    Outer()(torch.ones(2))
    narrow.remove(listen)
    assert heard == ["Outer", "Outer", "Outer"]
    assert "__call__" not in vars(Outer)


def test_a_call_that_raises_ends_and_shows_nothing_of_ours(calls: ModuleCalls) -> None:
    ends: list[Any] = []
    listener: Any = lambda *_: ends.append  # noqa: E731
    calls.add(listener)
    for _ in range(2):
        with pytest.raises(RuntimeError) as raised:
            Outer()(torch.ones(3))
        assert not any("_perfdoctor_inject" in str(entry.path) for entry in raised.traceback)
    calls.remove(listener)
    assert ends == [None, None]


def test_a_wrapper_of_the_users_stays(calls: ModuleCalls) -> None:
    plain = nn.Module.__call__
    heard: list[int] = []

    def listener(*_: Any) -> None:
        heard.append(1)

    calls.add(listener)
    ours = nn.Module.__call__
    try:
        nn.Module.__call__ = wrapper = lambda *args: ours(*args)  # type: ignore[method-assign]
        calls.remove(listener)
        assert nn.Module.__call__ is wrapper
        Outer()(torch.ones(2))
        assert heard == []
    finally:
        nn.Module.__call__ = ours  # type: ignore[method-assign]
    calls.add(listener)
    calls.remove(listener)
    assert nn.Module.__call__ is plain


def compile_modules() -> tuple[dict[str, int], int]:
    """Compile modules of ten classes with code of their own; returns dynamo's counters, and the guards of the last."""
    import torch._dynamo
    from torch._dynamo import testing
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    backend = testing.CompileCounter()
    for number in range(10):
        forward = types.FunctionType(Outer.forward.__code__.replace(co_name=f"forward{number}"), globals())
        module = type(f"Class{number}", (Outer,), {"forward": forward})()
        compiled: Any = torch.compile(module, backend=backend, fullgraph=True)
        compiled(torch.ones(2))
        compiled(torch.ones(2))
    entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list(forward.__code__)
    return {**counters["stats"], "frames": backend.frame_count}, str(entries[0].guard_manager).count("+-")


def test_dynamo_compiles_the_same_while_somebody_listens_and_after(calls: ModuleCalls) -> None:
    import torch._dynamo.utils

    plain = compile_modules()
    assert plain[0]["frames"] == 10

    def listener(*_: Any) -> None:
        pass

    calls.add(listener)
    try:
        listening = compile_modules()
    finally:
        calls.remove(listener)
    assert listening == plain
    assert torch._dynamo.utils.unpatched_nn_module_call is nn.Module.__call__
    assert compile_modules() == plain
