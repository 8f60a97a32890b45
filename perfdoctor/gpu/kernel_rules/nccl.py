"""Communication between ranks: NCCL, RCCL, and what does its own collectives in shared memory or by NVSHMEM."""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules.rule import Rule, RuleFamily
from perfdoctor.gpu.word_table import words

COLLECTIVES = RuleFamily(
    any_of=(),
    rules=(
        Rule("C0", "communication", "na", words("nccl rccl"), "collective of NCCL or RCCL"),
        Rule(
            "C1",
            "communication",
            "na",
            words(
                "cross_device_reduce all_reduce allreduce all_gather allgather reduce_scatter reducescatter "
                "all_to_all alltoall all2all multimem_ lamport mscclpp nvshmem rocshmem gloo:: c10d:: deep_ep:: "
                "deepep ::ep:: internode:: intranode:: quickreduce quick_reduce symm_mem"
            ),
            "collective written for one node, or for expert parallelism, that does not go through NCCL",
        ),
    ),
)
"""Before all matrix multiplication: names of collectives hold words such as reduce and scatter."""
