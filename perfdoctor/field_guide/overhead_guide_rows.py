"""Rows of the field guide about where time goes, overhead, and the CPU: 32 to 37, 41 to 49."""

from __future__ import annotations

from perfdoctor.field_guide.guide_row import FindingTest, GuideRow, Subject, memory_is_short
from perfdoctor.field_guide.program_traits import ProgramTraits
from perfdoctor.field_guide.subjects import all_of, gpu, kernels, only_cpu, pointwise, processes
from perfdoctor.field_guide.training_guide_rows import copies_to_gpu
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.report.finding import Finding
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.units import format_share

_MIN_SHARE_OF_FLOPS_KNOWN = 0.1


def _anything(traits: ProgramTraits) -> Subject:
    """Any program whose account is known."""
    if traits.device_kind == "gpu_not_recorded":
        return Subject(None, REQUIREMENTS["gpu_items"])
    if not traits.account or not traits.time_share:
        return Subject(None, REQUIREMENTS["kernels" if traits.device_kind == "gpu" else "cpu"])
    return Subject(True, "its account is known")


def _what_binds(traits: ProgramTraits) -> str | None:
    """The account's buckets as shares, with the largest named."""
    if _anything(traits).is_present is not True:
        return None
    buckets = {name: traits.account[name] for name in ("compute", "bandwidth", "communication", "overhead")}
    largest = max(buckets, key=lambda name: buckets[name])
    said = ", ".join(f"{name} {format_share(share)}" for name, share in buckets.items() if share)
    return f"{largest} binds: {said} of the {traits.unit}"


def _flops_beside_time(traits: ProgramTraits) -> str | None:
    if traits.flops_share is None or traits.flops_known < _MIN_SHARE_OF_FLOPS_KNOWN:
        return None
    time = sum(traits.time_share.get(name, 0.0) for name in MATRIX_CATEGORIES)
    known = "" if traits.flops_known > 0.9 else f" (of the {format_share(traits.flops_known)} of time with known FLOPs)"
    return (
        f"matrix work is {format_share(traits.flops_share)} of the FLOPs{known} and {format_share(time)} of the kernel "
        "time"
    )


def _with_shapes(traits: ProgramTraits) -> Subject:
    found = kernels(traits)
    if found.is_present and _flops_beside_time(traits) is None:
        return Subject(None, REQUIREMENTS["shapes"])
    return found


def _balance(traits: ProgramTraits) -> str | None:
    if traits.balance is None:
        return None
    return (
        f"{traits.device} computes {traits.balance:,.0f} float32 FLOPs in the time of a byte: up to some "
        f"{8 * traits.balance:,.0f} operations on a value cost as much as one"
    )


def _known_device(traits: ProgramTraits) -> Subject:
    found = gpu(traits)
    if found.is_present and traits.balance is None:
        return Subject(None, "the device's rates are not known: name it with --device, or run `perfdoctor calibrate`")
    return found


def _launches(traits: ProgramTraits) -> Subject:
    """Ops that are launched one by one."""
    found = _anything(traits) if traits.device_kind == "cpu" else _calls(traits)
    if not found.is_present:
        return found
    share = traits.account.get("idle_launch", 0.0)
    if traits.device_kind == "cpu":
        overhead = traits.account["overhead"] - traits.account["idle_dataloader"]
        return Subject(True, f"{format_share(overhead)} of the {traits.unit} is overhead of Python and the framework")
    return Subject(True, f"the GPU waits {format_share(share)} of the {traits.unit} for launches")


def _without_gradients(traits: ProgramTraits) -> Subject:
    """Forward passes that no backward pass follows."""
    if traits.is_forward_only:
        return Subject(True, f"it is {traits.phase}")
    if traits.facts:
        return Subject(True, "it trains")
    return Subject(None, REQUIREMENTS["facts"])


def _numa(traits: ProgramTraits) -> Subject:
    found = only_cpu(traits)
    if not found.is_present:
        return found
    nodes = traits.facts.cpu.numa_nodes
    if nodes is None:
        return Subject(None, "the number of NUMA nodes is not known: record with `perfdoctor run`")
    return Subject(nodes > 1, f"there are {nodes} NUMA nodes" if nodes > 1 else "there is one NUMA node")


def _threads(traits: ProgramTraits) -> Subject:
    found = only_cpu(traits)
    if found.is_present and not traits.facts.cpu:
        return Subject(None, REQUIREMENTS["facts"])
    threads, cores = traits.facts.cpu.torch_threads, traits.facts.cores.available
    if found.is_present and threads is not None and cores is not None:
        return Subject(True, f"PyTorch uses {threads} of {cores:.3g} cores")
    return found


def _libraries(traits: ProgramTraits) -> Subject:
    found = only_cpu(traits)
    if found.is_present and not traits.facts.libraries:
        return Subject(None, REQUIREMENTS["facts"])
    return found


def _is_about(topic: str) -> FindingTest:
    """Whether a finding has a topic."""

    def test(traits: ProgramTraits, finding: Finding) -> bool:
        del traits
        return topic in finding.topics

    return test


def _is_of_threads(traits: ProgramTraits, finding: Finding) -> bool:
    del traits
    return "numa" not in finding.topics


def _calls(traits: ProgramTraits) -> Subject:
    found = gpu(traits)
    if found.is_present and "launches" not in traits.available:
        return Subject(None, REQUIREMENTS["launches"])
    return found


def _syncs(traits: ProgramTraits) -> Subject:
    """Calls that wait for the GPU."""
    found, share = _calls(traits), traits.account.get("idle_sync", 0.0)
    text = f"the GPU idles {format_share(share)} of the {traits.unit} because of calls that wait for it"
    return Subject(True, text) if found.is_present else found


def _collectives_on_cpu(traits: ProgramTraits) -> Subject:
    return all_of(only_cpu, processes)(traits)


ROWS = (
    GuideRow(
        32,
        "C",
        "Which of compute, bandwidth and overhead binds decides what helps.",
        (),
        "kernels; on a CPU its ops",
        _anything,
        _what_binds,
        checked_by="the account and the ladder of the report",
    ),
    GuideRow(
        33,
        "C",
        "Matrix products are 99.8 % of BERT's FLOPs and 61 % of its time: the rest is element-wise work and norms.",
        (),
        "kernels and input shapes",
        _with_shapes,
        _flops_beside_time,
        checked_by="the account",
    ),
    GuideRow(
        34,
        "C",
        "Fuse: x.cos().cos() reads and writes once.",
        ("PD301",),
        "kernels; input shapes for bytes",
        all_of(kernels, pointwise),
        since="torch.compile does it.",
    ),
    GuideRow(
        35,
        "C",
        "A fused chain of 16 operations on a million elements costs as much as one; compute binds from some 64.",
        (),
        "the name of the device",
        _known_device,
        _balance,
        checked_by="`perfdoctor calibrate`, which draws it",
        since="64 was an A100's: each device has its own balance of FLOPs and bytes.",
    ),
    GuideRow(
        36,
        "C",
        "Overhead: the framework makes some 280,000 small ops a second, in which an A100 could make 312 TFLOP/s.",
        ("PD104",),
        "launches",
        _launches,
        checked_by="`perfdoctor calibrate`, which measures the ops a second",
    ),
    GuideRow(
        37,
        "C",
        "Overhead goes away with graphs and compilers, and with less Python.",
        ("PD104", "PD517"),
        "launches; facts for graph breaks",
        _launches,
        since='CUDA graphs come with torch.compile(mode="reduce-overhead").',
    ),
    GuideRow(
        41,
        "E",
        "no_grad where no backward pass follows.",
        ("PD507", "PD518", "PD519"),
        "facts",
        _without_gradients,
        since="torch.inference_mode, where the results meet no autograd later; dropout and batch norm have a switch of "
        "their own, model.eval().",
    ),
    GuideRow(
        42,
        "E",
        "CPU: the program stays on one NUMA node.",
        ("PD512",),
        "facts",
        _numa,
        concerns=_is_about("numa"),
        since="torchrun and torch.backends.xeon.run_cpu bind processes to nodes.",
    ),
    GuideRow(
        43,
        "E",
        "CPU: OpenMP has as many threads as there are cores, and each stays on its core.",
        ("PD512", "PD114", "PD115"),
        "facts",
        _threads,
        checked_by="`perfdoctor try --only threads`",
        concerns=_is_of_threads,
    ),
    GuideRow(
        44,
        "E",
        "CPU: Intel's OpenMP instead of GNU's on Intel's processors.",
        ("PD513",),
        "facts",
        _libraries,
        concerns=_is_about("openmp"),
    ),
    GuideRow(
        45,
        "E",
        "CPU: jemalloc or tcmalloc instead of the C library's allocator.",
        ("PD513",),
        "facts",
        _libraries,
        concerns=_is_about("allocator"),
        checked_by="`perfdoctor try --only allocator`",
    ),
    GuideRow(
        46,
        "E",
        "CPU: oneCCL for the collectives of several sockets.",
        ("PD513",),
        "facts",
        _collectives_on_cpu,
        concerns=_is_about("ccl"),
        since="Gloo is what PyTorch brings along; oneCCL is a package of its own.",
    ),
    GuideRow(
        47,
        "E",
        "No synchronisation of host and device: print, item, copies, nonzero, if on a tensor.",
        ("PD102",),
        "launches; source lines",
        _syncs,
    ),
    GuideRow(
        48,
        "E",
        "Tensors are made on the GPU instead of made on the CPU and copied.",
        ("PD106",),
        "launches; source lines",
        all_of(_calls, copies_to_gpu),
        since="torch.zeros(..., device=device).",
    ),
    GuideRow(
        49,
        "E",
        "Memory is allocated once: warm up with the longest input.",
        ("PD107",),
        "launches",
        _calls,
        concerns=memory_is_short,
        memory_rules=("PD706",),
        since="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True makes changing sizes cheaper.",
    ),
)
