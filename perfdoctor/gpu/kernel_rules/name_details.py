"""The small print of a matrix kernel's name: instruction, operand and accumulator type, code architecture, alignment.

Only what stands in the name is returned; everything else is None. Sources: CUTLASS `procedural_name`
(library/gemm_operation.py), cuBLAS and cuDNN kernels in recorded traces, Tensile's kernel naming.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from perfdoctor.gpu.kernel_rules.rule import Rule, compiled, words

_FAMILY_ARCH = {
    "maxwell_": "sm50",
    "pascal_": "sm60",
    "volta_": "sm70",
    "turing_": "sm75",
    "ampere_": "sm80",
    "hopper_": "sm90",
    "blackwell_": "sm100",
}
_NVIDIA_ARCH = r"(?:sm_?|cutlass_|for_sm)(10[0137]|1[12][01]|[5-9]\d)(?!\d)"
_TORCH_SM10 = "kernel_for_sm10"  # PyTorch abbreviates sm100 in its own wrapper's name
_AMD_ISA = r"_isa(\d{2,4}[a-f]?)(?![0-9a-z])|gfx(\d{2,4}[a-f]?)"
_GTC_ARCH = {"gtcx3": "gfx942", "gtcx2": "gfx90a", "gtcx_": "gfx908"}

_ALIGN = r"(?<![a-z])align[ab]?(\d{1,3})(?!\d)"
_LDG = r"_ldg(\d{1,2})(?!\d)"

# The narrowest first: a type, texts of which it needs one, and what must be found around it.
_TYPE_WORDS: tuple[tuple[str, tuple[str, ...], str | None], ...] = (
    (
        "fp4",
        words("e2m1 fp4 f4"),
        r"(?<![a-z0-9])(?:mx|nv)?(?:e2m1|fp4|f4)(?![a-z0-9])|(?<![a-z0-9])u?e[48]m[03]xe2m1|float_e2m1",
    ),
    (
        "fp8",
        words("e4m3 e5m2 fp8 f8 float8 float_8 float_e"),
        r"(?<![a-z0-9])(?:mx)?(?:e4m3|e5m2|fp8|f8)(?![a-z0-9])|float_?8_?e|fp8_e[45]m|float_e[45]m|qkve4m3",
    ),
    ("int4", words("s4 u4"), r"(?<![a-z0-9])[su]4(?![a-z0-9])"),
    (
        "int8",
        (*words("s8 u8 i8 int8"), "signed char"),
        r"(?<![a-z0-9])(?:s8|u8|i8|int8|int8_t|signed char)(?![a-z0-9])",
    ),
    ("tf32", words("tf32 tfloat32"), None),
    ("bf16", words("bf16 bfloat16 df16b"), None),
    (
        "fp16",
        words("f16 fp16 half"),
        r"(?<![a-z0-9])(?:f16|fp16|half|half_t|__half|df16_)(?![a-z0-9])|::half|half_t|__half|df16_|fp16",
    ),
    ("fp64", words("f64 fp64 double"), r"(?<![a-z0-9])(?:f64|fp64|double)(?![a-z0-9])"),
    ("fp32", words("f32 fp32 float if"), r"(?<![a-z0-9])(?:f32|fp32|float|if{1,4})(?![a-z0-9])"),
)

_TENSILE = r"_B[a-z]{3,4}_(4xi8|F8|B8|I8|[BHSDCZXI])"
_TENSILE_TYPES = {
    "4xi8": "int8",
    "F8": "fp8",
    "B8": "fp8",
    "I8": "int8",
    "I": "int8",
    "B": "bf16",
    "H": "fp16",
    "S": "fp32",
    "D": "fp64",
    "X": "tf32",
}
_NVJET = r"nvjet_(?:sm\d+_)?([a-z]{3,5})_"
_NVJET_TYPES = {
    "t": "bf16",
    "h": "fp16",
    "s": "fp32",
    "q": "fp8",
    "r": "fp8",
    "o": "fp4",
    "b": "int8",
    "i": "int32",
    "d": "fp64",
}
_TRTLLM = r"^(?:bmm|gemm)_[a-z0-9]+_(?:mx|nv)?(e\dm\d|bfloat16|fp16)\w*?_(fp32|fp16)_"
_TRTLLM_TYPES = {"bfloat16": "bf16", "fp16": "fp16", "e4m3": "fp8", "e5m2": "fp8", "e2m1": "fp4"}

_XMMA_ATOM = r"(?:tf32|bf16|f16|f32|f64|e4m3|e5m2|i8|u8|s8|i32|i4)"
_XMMA = rf"_{_XMMA_ATOM}{{2}}_({_XMMA_ATOM})({_XMMA_ATOM})_"
_XMMA_TYPES = {
    "tf32": "tf32",
    "bf16": "bf16",
    "f16": "fp16",
    "f32": "fp32",
    "f64": "fp64",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "i8": "int8",
    "u8": "int8",
    "s8": "int8",
    "i32": "int32",
    "i4": "int4",
}
_XMMA_SHAPE = r"tensor(\d+)x(\d+)x(\d+)"

_LETTER_SHAPE = r"(?<![a-z0-9])([hsidcz])(884|1688|16816|161616|8816|8832|16832|16864|168128|\d+x\d+x\d+)(?=[a-z_])"
_BARE_LETTER = r"(?<![a-z0-9])([hsdcz])(?:gemm|cudnn)"
_ACCUMULATE = {"h": "fp16", "s": "fp32", "i": "int32", "d": "fp64", "c": "fp32", "z": "fp64"}
_VECTOR_MATHS = {"fp64": "DFMA", "fp16": "HFMA2"}


class Details(NamedTuple):
    """What the name of a matrix kernel tells beside its verdict; None where it does not."""

    instruction: str | None
    operand: str | None
    accumulate: str | None
    arch: str | None
    alignment: int | None


def describe(name: str, text: str, rule: Rule) -> Details:
    """Return the details of a matrix kernel.

    Args:
        name: The name as recorded: Tensile's type letters are capitals.
        text: The same in lower case.
        rule: The rule that matched; what it states goes before what is read here.

    Returns:
        The details.
    """
    arch = _arch(text)
    operand, accumulate = _types(name, text)
    operand = rule.operand or operand
    if rule.tensor_core == "no":
        instruction = rule.instruction or _vector_instruction(operand, accumulate)
    else:
        instruction = rule.instruction or _matrix_instruction(text, arch, operand)
    return Details(instruction, operand, accumulate, arch, _alignment(text, rule))


def _found(pattern: str, text: str, *needles: str) -> re.Match[str] | None:
    """Search a text for a pattern, unless it holds none of the texts of which the pattern needs one."""
    if needles and not any(needle in text for needle in needles):
        return None
    return compiled(pattern).search(text)


def _arch(text: str) -> str | None:
    if _TORCH_SM10 in text:
        return "sm100"
    if match := _found(_AMD_ISA, text, "_isa", "gfx"):
        return "gfx" + (match[1] or match[2])
    for word, arch in _GTC_ARCH.items():
        if word in text:
            return arch
    if match := _found(_NVIDIA_ARCH, text, "sm", "cutlass_"):
        return "sm" + match[1]
    for word, arch in _FAMILY_ARCH.items():
        if word in text:
            return arch
    return None


def _alignment(text: str, rule: Rule) -> int | None:
    if match := _found(_ALIGN, text, "align"):
        return int(match[1])
    # ldgN on CUDA cores is the width of a load, not a demand on the shapes.
    if rule.tensor_core == "yes" and (match := _found(_LDG, text, "_ldg")):
        return int(match[1])
    return None


def _types(name: str, text: str) -> tuple[str | None, str | None]:
    if "nvjet_" in text:
        return _nvjet_types(text)
    if text.startswith(("bmm_", "gemm_")) and (match := _found(_TRTLLM, text)):
        return _TRTLLM_TYPES.get(match[1]), match[2]
    if match := _found(_TENSILE, name, "_B"):
        operand = _TENSILE_TYPES.get(match[1])
        return operand, None
    if match := _found(_XMMA, text, "xmma"):
        return _XMMA_TYPES[match[1]], _XMMA_TYPES[match[2]]
    if match := _found(_LETTER_SHAPE, text):
        return _type_word(text, low_only=True) or _untagged(match[1], match[2]), _ACCUMULATE[match[1]]
    if match := _found(_BARE_LETTER, text, "gemm", "cudnn"):
        return _type_word(text, low_only=True) or _ACCUMULATE[match[1]], _ACCUMULATE[match[1]]
    return _type_word(text), None


def _type_word(text: str, *, low_only: bool = False) -> str | None:
    """Return the narrowest type named anywhere: accumulators and scales are wider than operands."""
    for operand, needles, pattern in _TYPE_WORDS:
        if low_only and operand in ("fp32", "fp64"):
            return None
        for needle in needles:
            if needle in text:
                if pattern is None or _found(pattern, text):
                    return operand
                break
    return None


def _untagged(letter: str, shape: str) -> str | None:
    """Return the operand type of a CUTLASS or cuBLAS name without a type word: TF32 for s1688, half for h."""
    if letter == "d" or letter == "z":
        return "fp64"
    if letter == "h" or shape == "884":
        return "fp16"
    if letter == "i":
        return "int8"
    return "tf32" if shape == "1688" else None


def _nvjet_types(text: str) -> tuple[str | None, str | None]:
    """Read nvjet's letters: A and B, C, compute, D; three letters when they agree (`tst`), five if not (`qqtst`)."""
    match = _found(_NVJET, text)
    if match is None:
        return None, None
    letters = match[1]
    operand = "tf32" if "tf32" in text else _NVJET_TYPES.get(letters[0])
    return operand, _NVJET_TYPES.get(letters[-2])


def _vector_instruction(operand: str | None, accumulate: str | None) -> str | None:
    deciding = accumulate or operand
    if deciding is None:
        return None
    return _VECTOR_MATHS.get(deciding, "FFMA")


def _matrix_instruction(text: str, arch: str | None, operand: str | None) -> str | None:
    if "nvjet_" in text:
        return _nvjet_instruction(text, arch)
    if match := _found(_XMMA_SHAPE, text, "tensor"):
        return _mma(match[1] + match[2] + match[3], operand)
    if "wmma_tensorop" in text or "161616" in text:
        return "wmma"
    if (match := _found(_LETTER_SHAPE, text)) and "x" not in match[2]:
        return _mma(match[2], operand)
    return _instruction_word(text) or _instruction_of_arch(text, arch)


def _instruction_word(text: str) -> str | None:
    """Return the instruction that the name spells out, as that of cuDNN's generated attention does."""
    for spellings, instruction in (
        (("tcgen05", "umma"), "tcgen05"),
        (("gmma",), "wgmma"),
        (("wmma",), "wmma"),
        (("imma",), "IMMA"),
        (("hmma",), "HMMA"),
    ):
        if any(word in text for word in spellings):
            return instruction
    return None


def _mma(shape: str, operand: str | None) -> str:
    """Name an mma.sync instruction as SASS does, by operand type and shape."""
    if operand in ("int8", "int4"):
        return f"IMMA.{shape}"
    if operand == "fp64":
        return f"DMMA.{shape}"
    if operand in ("fp8", "fp4"):
        return f"QMMA.{shape}"
    return f"HMMA.{shape}"


def _nvjet_instruction(text: str, arch: str | None) -> str | None:
    if arch is not None:
        return _instruction_of_arch(text, arch)
    if "_2cta_" in text:
        return "tcgen05"
    return "wgmma" if "_coop" in text else None


def _instruction_of_arch(text: str, arch: str | None) -> str | None:
    """Return the matrix instruction that code for an architecture uses, where there is only one."""
    if arch in ("sm100", "sm101", "sm103", "sm110"):
        return "tcgen05"
    if arch == "sm90":
        return "wgmma"
    if arch in ("sm120", "sm121") or "fmha_cutlass" in text or "flash_" in text:
        return "mma.sync"
    return None
