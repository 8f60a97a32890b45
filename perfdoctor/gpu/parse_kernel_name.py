"""What the name of a matrix kernel says beside its verdict: instruction, types, architecture, alignment.

What the name does not say is None. Sources: CUTLASS `procedural_name` (library/gemm_operation.py), cuBLAS and cuDNN
kernels in recorded traces, Tensile's kernel naming.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from perfdoctor.gpu.kernel_rules import Rule, compile_pattern
from perfdoctor.gpu.word_table import words

_ARCH_OF_NAME = {
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
_ARCH_OF_GTC = {"gtcx3": "gfx942", "gtcx2": "gfx90a", "gtcx_": "gfx908"}

_ALIGN = r"(?<![a-z])align[ab]?(\d{1,3})(?!\d)"
_LDG = r"_ldg(\d{1,2})(?!\d)"
# The part of the output that a block computes: Tensile "MT64x16x256", xmma "tilesize128x128x32", TensorRT-LLM
# "t128x8x128", else the first "_128x256": instruction shapes ("_s64x128x16gemm") have a letter before them, and stages
# ("_64x4") and clusters ("_2x1x1") stand behind the tile.
_TILE = r"_(?:mt|tilesize|t)?(\d{1,3})x(\d{1,3})(?=[x_u]|$)"
# Attention that can only decode, token by token.
_DECODES = (
    r"decode|paged_attention|masked_multihead_attention|mmha_|xqa|forgen|pa_fwd|unified_attention_3d|"
    r"_fwd_(?:grouped_)?kernel_stage1"
)

# Narrowest type first. A type, needles of which one must occur, and the pattern that must be found then.
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

# Tensile: the types of A and B behind the indices, `Cijk_Alik_Bljk_HHS_BH_...`.
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
# nvjet: see `_parse_nvjet_types`.
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
# TensorRT-LLM: operation, types of output and operands, accumulator: `bmm_Bfloat16_E4m3E4m3_Fp32_...`.
_TENSORRT_LLM = r"^(?:bmm|gemm)_[a-z0-9]+_(?:mx|nv)?(e\dm\d|bfloat16|fp16)\w*?_(fp32|fp16)_"
_TENSORRT_LLM_TYPES = {"bfloat16": "bf16", "fp16": "fp16", "e4m3": "fp8", "e5m2": "fp8", "e2m1": "fp4"}

# Types in mangled names, and "S8_", which repeats a part of the name and is not a signed integer of 8 bits.
_MANGLED = r"(DF16b|DF16_|[IE]t{3,}f)"
_SUBSTITUTION = re.compile(r"S[0-9A-Z]*_")

# xmma: two pairs of types, the second one of operand and accumulator, `..._bf16bf16_bf16f32_f32_...`; the instruction
# shape, `tensor16x8x16`.
_XMMA_TYPE = r"(?:tf32|bf16|f16|f32|f64|e4m3|e5m2|i8|u8|s8|i32|i4)"
_XMMA = rf"_{_XMMA_TYPE}{{2}}_({_XMMA_TYPE})({_XMMA_TYPE})_"
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

# CUTLASS, cuBLAS, cuDNN: the letter of the accumulator before the instruction shape, `s16816gemm`, `h64x128x16gemm`;
# on CUDA cores without a shape, `sgemm`, `hcudnn`.
_LETTER_SHAPE = r"(?<![a-z0-9])([hsidcz])(884|1688|16816|161616|8816|8832|16832|16864|168128|\d+x\d+x\d+)(?=[a-z_])"
_BARE_LETTER = r"(?<![a-z0-9])([hsdcz])(?:gemm|cudnn)"
_ACCUMULATE_TYPE = {"h": "fp16", "s": "fp32", "i": "int32", "d": "fp64", "c": "fp32", "z": "fp64"}
_VECTOR_INSTRUCTION = {"fp64": "DFMA", "fp16": "HFMA2"}


class NameFields(NamedTuple):
    """What the name of a matrix kernel says beside its verdict; see `KernelClass`. None where it does not say."""

    instruction: str | None
    operand: str | None
    accumulate: str | None
    arch: str | None
    alignment: int | None
    tile: tuple[int, int] | None


def decodes_tokens(text: str) -> bool:
    """Whether the name of an attention kernel, in lower case, is one of those that decode token by token."""
    return _search(_DECODES, text) is not None


def parse_kernel_name(name: str, text: str, rule: Rule) -> NameFields:
    """Return what the name of a matrix kernel says beside its verdict.

    `name` is as recorded (Tensile's type letters are capitals), `text` the same in lower case. An instruction or
    operand type that the matching rule implies wins over the name; what nothing names is None.
    """
    arch = _parse_arch(text)
    operand, accumulate = _parse_types(name, text)
    operand = rule.operand or operand
    if rule.tensor_core == "no":
        instruction = rule.instruction or _vector_instruction(operand, accumulate)
    else:
        instruction = rule.instruction or _matrix_instruction(text, arch, operand)
    return NameFields(instruction, operand, accumulate, arch, _parse_alignment(text, rule), _parse_tile(text))


def _search(pattern: str, text: str, *needles: str) -> re.Match[str] | None:
    """Search a text for a pattern whose matches contain one of the needles, if any are given.

    Looking for the needles first costs a small part of the regular expression.
    """
    if needles and not any(needle in text for needle in needles):
        return None
    return compile_pattern(pattern).search(text)


def _parse_arch(text: str) -> str | None:
    if _TORCH_SM10 in text:
        return "sm100"
    if match := _search(_AMD_ISA, text, "_isa", "gfx"):
        return "gfx" + (match[1] or match[2])
    for word, arch in _ARCH_OF_GTC.items():
        if word in text:
            return arch
    if match := _search(_NVIDIA_ARCH, text, "sm", "cutlass_"):
        return "sm" + match[1]
    for word, arch in _ARCH_OF_NAME.items():
        if word in text:
            return arch
    return None


def _parse_alignment(text: str, rule: Rule) -> int | None:
    if match := _search(_ALIGN, text, "align"):
        return int(match[1])
    # ldgN on CUDA cores is the width of a load, not a demand on the shapes.
    if rule.tensor_core == "yes" and (match := _search(_LDG, text, "_ldg")):
        return int(match[1])
    return None


def _parse_tile(text: str) -> tuple[int, int] | None:
    match = _search(_TILE, text, *(f"{digit}x" for digit in "02468"))
    return None if match is None else (int(match[1]), int(match[2]))


def _parse_types(name: str, text: str) -> tuple[str | None, str | None]:
    """Return the types of operands and accumulator by the naming scheme that the name follows, else by single words."""
    if "nvjet_" in text:
        return _parse_nvjet_types(text)
    if text.startswith(("bmm_", "gemm_")) and (match := _search(_TENSORRT_LLM, text)):
        return _TENSORRT_LLM_TYPES.get(match[1]), match[2]
    if match := _search(_TENSILE, name, "_B"):
        return _TENSILE_TYPES.get(match[1]), None
    if match := _search(_XMMA, text, "xmma"):
        return _XMMA_TYPES[match[1]], _XMMA_TYPES[match[2]]
    if match := _search(_LETTER_SHAPE, text):
        accumulate = _ACCUMULATE_TYPE[match[1]]
        return _find_type_word(text, narrow_only=True) or _implied_operand(match[1], match[2]), accumulate
    if match := _search(_BARE_LETTER, text, "gemm", "cudnn"):
        accumulate = _ACCUMULATE_TYPE[match[1]]
        return _find_type_word(text, narrow_only=True) or accumulate, accumulate
    if name.startswith("_Z"):
        return _parse_mangled_type(name) or _find_type_word(_SUBSTITUTION.sub("", name).lower()), None
    return _find_type_word(text), None


def _parse_mangled_type(name: str) -> str | None:
    """Return the type of the operands in a name that a C++ compiler mangled, where it is one of those without a word.

    Composable Kernel has bfloat16 as an unsigned short in older versions: operands come before the accumulator, "tttf".
    """
    match = _search(_MANGLED, name, "DF16", "ttt")
    return None if match is None else "fp16" if match[1] == "DF16_" else "bf16"


def _find_type_word(text: str, *, narrow_only: bool = False) -> str | None:
    """Return the narrowest type that the name contains: accumulators and scales are wider than operands.

    With `narrow_only` float32 and float64 do not count: beside a letter they name the accumulator.
    """
    for operand, needles, pattern in _TYPE_WORDS:
        if narrow_only and operand in ("fp32", "fp64"):
            return None
        for needle in needles:
            if needle in text:
                if pattern is None or _search(pattern, text):
                    return operand
                break
    return None


def _implied_operand(letter: str, shape: str) -> str | None:
    """Return the operand type of a CUTLASS or cuBLAS name without a type word: TF32 for s1688, half for h."""
    if letter == "d" or letter == "z":
        return "fp64"
    if letter == "h" or shape == "884":
        return "fp16"
    if letter == "i":
        return "int8"
    return "tf32" if shape == "1688" else None


def _parse_nvjet_types(text: str) -> tuple[str | None, str | None]:
    """Return the types of operands and accumulator by the letters of nvjet.

    Five letters are A, B, C, compute type, D (`qqtst`); three are operands, compute type, D (`tst`).
    """
    match = _search(_NVJET, text)
    if match is None:
        return None, None
    letters = match[1]
    operand = "tf32" if "tf32" in text else _NVJET_TYPES.get(letters[0])
    return operand, _NVJET_TYPES.get(letters[-2])


def _vector_instruction(operand: str | None, accumulate: str | None) -> str | None:
    deciding = accumulate or operand
    if deciding is None:
        return None
    return _VECTOR_INSTRUCTION.get(deciding, "FFMA")


def _matrix_instruction(text: str, arch: str | None, operand: str | None) -> str | None:
    if "nvjet_" in text:
        return _nvjet_instruction(text, arch)
    if match := _search(_XMMA_SHAPE, text, "tensor"):
        return _mma_instruction(match[1] + match[2] + match[3], operand)
    if "wmma_tensorop" in text or "161616" in text:
        return "wmma"
    if (match := _search(_LETTER_SHAPE, text)) and "x" not in match[2]:
        return _mma_instruction(match[2], operand)
    return _find_instruction_word(text) or _instruction_of_arch(text, arch)


def _find_instruction_word(text: str) -> str | None:
    """Return the instruction that the name spells out, as names of cuDNN's generated attention do."""
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


def _mma_instruction(shape: str, operand: str | None) -> str:
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
