"""Names of kernels for people, without what a C++ compiler wrote around the function and its template's parameters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

_NOISE = re.compile(
    r"\((?:int|bool|unsigned int|long)\)(?=-?\d)|\bvoid (?=[\w(])|\(anonymous namespace\)::|\{anonymous\}::|<unnamed>::"
)
_NAMESPACES = re.compile(r"(?<![\w:])(?:[a-zA-Z_]\w*::)+(?=[a-zA-Z_~])")
# Parameters that nearly all elementwise kernels of PyTorch have.
_USUAL_PARAMETERS = re.compile(r", (?:array|Array)<char\*, \d+(?:ul)?>|, TrivialOffsetCalculator<\d+, unsigned int>")
_TYPES = {"__nv_bfloat16": "bf16", "BFloat16": "bf16", "__half": "half", "Half": "half", "unsigned int": "uint"}
_TYPE_NAMES = re.compile("|".join(rf"\b{name}\b" for name in _TYPES))
# Lambdas of PyTorch's dispatch on types: "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda...".
_DISPATCH = re.compile(r"\((?:at::)?TensorIterator.*|::\{lambda.*|::operator\(\).*")
_LAMBDAS = 2  # of a type and of another one that it is computed with; the name repeats them
_LAMBDA_NUMBERS = re.compile(r"\{lambda\([^()]*\)#(\d+)\}")
# xmma names both inputs, operand and accumulator, and the output; how it is launched stands behind the tile.
_TYPE = r"(?:tf32|bf16|f16|f32|f64|e4m3|e5m2|i8|u8|s8|i32)"
_XMMA_TYPES = re.compile(rf"_{_TYPE}{{2}}_({_TYPE}){_TYPE}_{_TYPE}_")
_XMMA_TAIL = re.compile(r"(?:_warpgroupsize\w+?)?_execute_\w*$|_kernel__5x_\w+$")
# Templates whose only parameter is the kernel.
_WRAPPERS = re.compile(r"^(?:Kernel2?|device_kernel|kentry)<(?:\d+, )?(?P<kernel>.+)>$")
_LONGEST_NAME = 60


def name_kernels(names: Sequence[str]) -> Mapping[str, str]:
    """A short name for each name of a kernel or an op; kernels that differ in a type get names that differ.

    For example "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>,
    std::array<char*, 1ul>>(int, ...)" becomes "vectorized_elementwise_kernel<4, FillFunctor<float>>".
    """
    distinct = dict.fromkeys(names)
    short = {name: name_kernel(name) for name in distinct}
    alike = Counter(short.values())
    return {name: text if alike[text] == 1 else _with_lambdas(name, text) for name, text in short.items()}


def name_kernel(name: str) -> str:
    """The short name of a kernel; what is no C++ stays as it is."""
    if name.startswith("_Z"):
        return short_kernel_name(name)
    if "(" not in name and "<" not in name:
        return (
            _XMMA_TAIL.sub("", _XMMA_TYPES.sub(r"_\1_", name)).replace("_tilesize", "_") if "_xmma_" in name else name
        )
    text = _DISPATCH.sub("", _without_arguments(_NOISE.sub("", name)))
    text = _USUAL_PARAMETERS.sub("", _NAMESPACES.sub("", text))
    text = _TYPE_NAMES.sub(lambda found: _TYPES[found[0]], text)
    text = text.rstrip(" ,") + ">" * (text.count("<") - text.count(">"))
    text = text.replace(" >", ">")
    wrapped = _WRAPPERS.match(text)
    return wrapped["kernel"] if wrapped else text


def _without_arguments(name: str) -> str:
    """A function's name without what it takes: all up to the first parenthesis outside of its template's parameters."""
    depth = 0
    for place, char in enumerate(name):
        if char == "<":
            depth += 1
        elif char == ">" and name[place - 1] != "-":
            depth -= 1
        elif char == "(" and depth == 0 and place:
            return name[:place]
    return name


def _with_lambdas(name: str, text: str) -> str:
    """The name with the numbers of its lambdas, one for each type that the kernel was compiled for."""
    numbers = _LAMBDA_NUMBERS.findall(name)
    return f"{text} #{'.'.join(numbers[:_LAMBDAS])}" if numbers else text


def short_kernel_name(name: str) -> str:
    """A kernel's name without its return type, namespaces, arguments and most of its template's parameters.

    For example "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(...)" becomes
    "vectorized_elementwise_kernel<AddFunctor>".
    """
    text = _demangle(name.removeprefix("void ").replace("(anonymous namespace)::", ""))
    head = re.split(r"[<(]", text, maxsplit=1)[0]
    functor = re.search(r"(\w*Functor\w*|\w+_kernel_cuda|\w+_kernel_impl)", text[len(head) :])
    short = head.rpartition("::")[2] or head or name
    return cut_name(f"{short}<{functor[1]}>" if functor and functor[1] not in short else short)


def _demangle(name: str) -> str:
    """The function in a name that a C++ compiler mangled: "_ZN5aiter4normIfEEvi" is "aiter::norm"."""
    parts, rest = [], name.removeprefix("_ZN").removeprefix("_Z")
    while rest != name and (found := re.match(r"(\d{1,3})(?=[A-Za-z_])", rest)):
        end = found.end() + int(found[1])
        if end > len(rest):
            break
        parts.append(rest[found.end() : end])
        rest = rest[end:]
    return "::".join(parts) or name


def cut_name(name: str) -> str:
    """A name with dots in place of what is too long for a sentence."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."
