"""Questions about where time goes, overhead, and the CPU that rows of the guide ask: 32 to 37, 41 to 49."""

from __future__ import annotations

from perfdoctor.field_guide.guide_row import FindingTest, Subject
from perfdoctor.field_guide.program_traits import ProgramTraits
from perfdoctor.field_guide.subjects import all_of, gpu, kernels, only_cpu, processes
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.report.finding import Finding
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.units import format_share

_MIN_SHARE_OF_FLOPS_KNOWN = 0.1


def anything(traits: ProgramTraits) -> Subject:
    """Any program whose account is known."""
    if traits.device_kind == "gpu_not_recorded":
        return Subject(None, REQUIREMENTS["gpu_items"])
    if not traits.account or not traits.time_share:
        return Subject(None, REQUIREMENTS["kernels" if traits.device_kind == "gpu" else "cpu"])
    return Subject(True, "its account is known")


def what_binds(traits: ProgramTraits) -> str | None:
    """The account's buckets as shares, with the largest named."""
    if anything(traits).is_present is not True:
        return None
    buckets = {name: traits.account[name] for name in ("compute", "bandwidth", "communication", "overhead")}
    largest = max(buckets, key=lambda name: buckets[name])
    said = ", ".join(f"{name} {format_share(share)}" for name, share in buckets.items() if share)
    return f"{largest} binds: {said} of the {traits.unit}"


def flops_beside_time(traits: ProgramTraits) -> str | None:
    """The share of the FLOPs that matrix work has, and its share of the time."""
    if traits.flops_share is None or traits.flops_known < _MIN_SHARE_OF_FLOPS_KNOWN:
        return None
    time = sum(traits.time_share.get(name, 0.0) for name in MATRIX_CATEGORIES)
    known = "" if traits.flops_known > 0.9 else f" (of the {format_share(traits.flops_known)} of time with known FLOPs)"
    return (
        f"matrix work is {format_share(traits.flops_share)} of the FLOPs{known} and {format_share(time)} of the kernel "
        "time"
    )


def with_shapes(traits: ProgramTraits) -> Subject:
    """Kernels of which it is known how many FLOPs they compute."""
    found = kernels(traits)
    if found.is_present and flops_beside_time(traits) is None:
        return Subject(None, REQUIREMENTS["shapes"])
    return found


def balance(traits: ProgramTraits) -> str | None:
    """How many FLOPs the device computes in the time of a byte."""
    if traits.balance is None:
        return None
    return (
        f"{traits.device} computes {traits.balance:,.0f} float32 FLOPs in the time of a byte: up to some "
        f"{8 * traits.balance:,.0f} operations on a value cost as much as one"
    )


def known_device(traits: ProgramTraits) -> Subject:
    """A GPU whose rates are known."""
    found = gpu(traits)
    if found.is_present and traits.balance is None:
        return Subject(None, "the device's rates are not known: name it with --device, or run `perfdoctor calibrate`")
    return found


def launches(traits: ProgramTraits) -> Subject:
    """Ops that are launched one by one."""
    found = anything(traits) if traits.device_kind == "cpu" else calls(traits)
    if not found.is_present:
        return found
    share = traits.account.get("idle_launch", 0.0)
    if traits.device_kind == "cpu":
        overhead = traits.account["overhead"] - traits.account["idle_dataloader"]
        return Subject(True, f"{format_share(overhead)} of the {traits.unit} is overhead of Python and the framework")
    return Subject(True, f"the GPU waits {format_share(share)} of the {traits.unit} for launches")


def without_gradients(traits: ProgramTraits) -> Subject:
    """Forward passes that no backward pass follows."""
    if traits.is_forward_only:
        return Subject(True, f"it is {traits.phase}")
    if traits.facts:
        return Subject(True, "it trains")
    return Subject(None, REQUIREMENTS["facts"])


def numa(traits: ProgramTraits) -> Subject:
    """A program on the CPU of a machine with several NUMA nodes."""
    found = only_cpu(traits)
    if not found.is_present:
        return found
    nodes = traits.facts.cpu.numa_nodes
    if nodes is None:
        return Subject(None, "the number of NUMA nodes is not known: record with `perfdoctor run`")
    return Subject(nodes > 1, f"there are {nodes} NUMA nodes" if nodes > 1 else "there is one NUMA node")


def threads(traits: ProgramTraits) -> Subject:
    """A program on the CPU, and how many of its cores PyTorch uses."""
    found = only_cpu(traits)
    if found.is_present and not traits.facts.cpu:
        return Subject(None, REQUIREMENTS["facts"])
    threads, cores = traits.facts.cpu.torch_threads, traits.facts.cores.available
    if found.is_present and threads is not None and cores is not None:
        return Subject(True, f"PyTorch uses {threads} of {cores:.3g} cores")
    return found


def libraries(traits: ProgramTraits) -> Subject:
    """A program on the CPU whose loaded libraries were captured."""
    found = only_cpu(traits)
    if found.is_present and not traits.facts.libraries:
        return Subject(None, REQUIREMENTS["facts"])
    return found


def is_about(topic: str) -> FindingTest:
    """Whether a finding has a topic."""

    def test(traits: ProgramTraits, finding: Finding) -> bool:
        del traits
        return topic in finding.topics

    return test


def is_of_threads(traits: ProgramTraits, finding: Finding) -> bool:
    """Whether a finding is about the number of threads, not about NUMA nodes."""
    del traits
    return "numa" not in finding.topics


def calls(traits: ProgramTraits) -> Subject:
    """A GPU whose launches were recorded."""
    found = gpu(traits)
    if found.is_present and "launches" not in traits.available:
        return Subject(None, REQUIREMENTS["launches"])
    return found


def syncs(traits: ProgramTraits) -> Subject:
    """Calls that wait for the GPU."""
    found, share = calls(traits), traits.account.get("idle_sync", 0.0)
    text = f"the GPU idles {format_share(share)} of the {traits.unit} because of calls that wait for it"
    return Subject(True, text) if found.is_present else found


def collectives_on_cpu(traits: ProgramTraits) -> Subject:
    """Several processes that compute on the CPU."""
    return all_of(only_cpu, processes)(traits)
