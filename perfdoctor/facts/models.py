"""What is captured of models, their optimizers and their wrappers for parallel training."""

from __future__ import annotations

from typing import Annotated, Literal

from perfdoctor.facts.part import CapturedLine, CapturedPart, Later, OrNull, Written
from perfdoctor.value_limits import Amount, Positive


class OptimizerFacts(CapturedPart):
    """An optimizer: its settings, and how often it made a step.

    Attributes:
        created: Where it was made.
        location: Where it was made.
    """

    class_: Written[str] = None
    steps: Written[int] = None
    groups: Written[int] = None
    tensors: Written[int] = None
    foreach: bool | None = None
    fused: bool | None = None
    capturable: bool | None = None
    parameters: Later[Written[int]] = None
    created: Later[OrNull[CapturedLine]] = CapturedLine()
    location: Later[OrNull[CapturedLine]] = CapturedLine()
    own_ns: Later[int | None] = None
    closure_ns: Later[int | None] = None


class ModuleCall(CapturedLine):
    """A line that calls a module, and whether a tensor that it passes has a graph, through which gradients go on."""

    input_has_graph: Written[bool] = None


class NeededRows(CapturedPart):
    """A call of a module in the evidence window that computes rows in vain.

    Attributes:
        call: The number in the name of the range around it.
        kind: equal where rows are copies of others, used where the gradient of rows is zero.
        share: The share (0 to 1) of rows that differ, or whose gradient is not zero.
    """

    call: Written[int] = None
    kind: Literal["equal", "used"] | None = None
    share: Amount | None = None


class UnusedGradients(CapturedPart):
    """Gradients that were made and dropped in the evidence window.

    Attributes:
        optimizer: The class of the optimizer or module whose gradients were cleared; null where no optimizer has them.
        times: How often.
        passes: The lines of the backward passes that may have made them.
        calls: The lines that call modules of which all gradients were dropped.
    """

    optimizer: str | None = None
    tensors: Written[int] = None
    parameters: Written[int] = None
    times: Written[int] = None
    passes: tuple[CapturedLine, ...] = ()
    calls: tuple[ModuleCall, ...] = ()


class BiasBeforeNorm(CapturedPart):
    """A layer with a bias that the norm right behind it subtracts again, by the statistics of the batch.

    Attributes:
        created: Where it was made.
    """

    name: Written[str] = None
    class_: Written[str] = None
    norm_class: Written[str] = None
    channels: int | None = None
    created: OrNull[CapturedLine] = CapturedLine()


class EmbeddingTable(CapturedPart):
    """A table of embeddings.

    Attributes:
        sparse: Whether its gradient is sparse.
        tied: Whether another module uses the same weight.
        created: Where it was made.
    """

    name: Written[str] = None
    class_: Written[str] = None
    num_embeddings: Written[int] = None
    embedding_dim: Written[int] = None
    sparse: Written[bool] = None
    tied: Written[bool] = None
    trained: Written[bool] = None
    created: OrNull[CapturedLine] = CapturedLine()


class MixedPrecision(CapturedPart):
    """A policy of mixed precision."""

    param_dtype: str | None = None
    reduce_dtype: str | None = None


class DdpSettings(CapturedPart):
    """Settings of DistributedDataParallel.

    Attributes:
        comm_hooks: Names of the registered communication hooks, such as bf16_compress_hook.
        mixed_precision: Its own policy of mixed precision; null without one.
        unused_elements: Elements of parameters without a gradient in the last step that the reducer looked at; null
            where it does not say.
        has_rebuilt_buckets: Whether the buckets follow the order in which gradients become ready; null where the
            reducer does not say.
        created: Where it was made.
    """

    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool | None = None
    bucket_bytes_cap: int | None = None
    broadcast_buffers: bool | None = None
    comm_hooks: Later[Written[Annotated[tuple[str, ...], ("maxItems", 4)]]] = None
    mixed_precision: Later[OrNull[MixedPrecision]] = MixedPrecision()
    unused_elements: Later[int | None] = None
    has_rebuilt_buckets: Later[bool | None] = None
    created: Later[OrNull[CapturedLine]] = CapturedLine()


class FsdpSettings(CapturedPart):
    """Settings of FSDP.

    Attributes:
        version: 1: FullyShardedDataParallel; 2: fully_shard.
        units: Modules that are sharded one by one, the root included.
        sharding: FSDP1's sharding strategy, such as FULL_SHARD; null for FSDP2.
        forward_prefetch: Whether parameters of later units are gathered ahead in the forward pass: FSDP1's flag;
            whether modules to prefetch were set in FSDP2.
        backward_prefetch: FSDP1's setting; explicit where modules to prefetch were set in FSDP2; null without.
        limit_all_gathers: FSDP1's flag.
        reshard_after_forward: Whether units other than the root give their parameters back after the forward pass; null
            for FSDP1, whose strategy says it.
        offloads_to_cpu: Whether parameters stay in the host's memory.
        param_dtype: Element type of gathered parameters by its policy; null where it leaves them.
        reduce_dtype: Element type of reduced gradients by its policy; null where it is that of the parameters.
    """

    version: Written[Literal[1, 2]] = None
    units: Written[Positive] = None
    sharding: str | None = None
    forward_prefetch: bool | None = None
    backward_prefetch: str | None = None
    limit_all_gathers: bool | None = None
    reshard_after_forward: bool | None = None
    offloads_to_cpu: bool | None = None
    param_dtype: str | None = None
    reduce_dtype: str | None = None


class ModelFacts(CapturedPart):
    """A model: its sizes, layers and wrappers.

    Attributes:
        bias_before_norm: Layers with a bias that the norm right behind them subtracts again, by the statistics of the
            batch.
        embeddings: Tables of embeddings, the largest first.
        fsdp: Settings of FSDP; null for another model.
    """

    class_: Written[str] = None
    parameters: Written[int] = None
    tensors: Written[int] = None
    modules: Written[int] = None
    training: Written[bool] = None
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    conv_bias_before_norm: Written[Annotated[tuple[str, ...], ("maxItems", 10)]] = None
    bias_before_norm: Later[Annotated[tuple[BiasBeforeNorm, ...], ("maxItems", 10)]] = ()
    embeddings: Later[Annotated[tuple[EmbeddingTable, ...], ("maxItems", 10)]] = ()
    recurrent_cells: Written[int] = None
    data_parallel: Written[bool] = None
    ddp: OrNull[DdpSettings] = DdpSettings()
    fsdp: Later[OrNull[FsdpSettings]] = FsdpSettings()


class TensorChecksum(CapturedPart):
    """The checksum of one parameter."""

    name: Written[str] = None
    checksum: Written[int] = None


class ModelChecksums(CapturedPart):
    """Checksums of the parameters of one model.

    Attributes:
        ddp: Whether DistributedDataParallel wraps it.
        group: The ranks of its process group.
        reduces_each_step: Whether DistributedDataParallel averages gradients in each step.
        sharded: Whether ranks hold parts of it.
    """

    class_: Written[str] = None
    ddp: Written[bool] = None
    group: OrNull[Annotated[tuple[int, ...], ("maxItems", 64)]] = ()
    reduces_each_step: Written[bool] = None
    sharded: Written[bool] = None
    tensors: Annotated[tuple[TensorChecksum, ...], ("maxItems", 400)] = ()


class ParameterChecksums(CapturedPart):
    """Checksums of the parameters before one step."""

    step: Written[int] = None
    models: tuple[ModelChecksums, ...] = ()
