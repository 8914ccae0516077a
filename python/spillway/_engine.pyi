"""The C++ engine as Python sees it. `make stubs` writes this file from the bindings.

Arrays (`Any`) have the buffer or DLPack protocol: NumPy, PyTorch. Attributes of structs are copies: a change inside a
list or a struct takes effect when it is assigned.
"""

import enum
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

def digests_of(file: str) -> str:
    """The digests of a safetensors file as it is, read as a whole. JSON of one file in spillway/files.json. ValueError
    that names the file where it is not a safetensors file."""

def find_damage(file: str, digests: str, most_pieces: int | None = None) -> list[tuple[str, int, int]] | None:
    """(tensor, first byte, end) of each range that is not as `digests` (JSON as of digests_of) say. The tensor is ""
    where header or length differ. `most_pieces`: pieces of the file that are read, evenly; None: all. The result is
    None for digests of another kind, which a later release makes."""

class SafetensorsReader:
    """Reads one file, or a directory's model.safetensors or the shards of its index. ValueError that names file and
    tensor where anything is wrong with them."""

    def __init__(self, place: str) -> None:
        """ValueError that names file and tensor where anything is wrong with them."""

    def tensors(self) -> dict[str, tuple[str, list[int]]]:
        """Type as in the header and shape, by name."""

    def decoded(self) -> set[str]:
        """Names of weights that are codes in the files, and fp32 tensors here."""

    def read(self, name: str, out: Any, first: int = 0) -> None:
        """Bytes (uint8) of whole elements of a tensor, from element `first` on, as many as `out` takes. OSError where a
        file has become shorter since it was opened."""

class SafetensorsWriter:
    """Writes a checkpoint's files as save_pretrained does, tensors in any order; nothing stays when finish() is not
    reached."""

    def __init__(
        self, directory: str, base: str, tensors: Sequence[tuple[str, str, Sequence[int]]], max_shard: int
    ) -> None:
        """`tensors`: (name, type as in the header, shape) each, in the order in which they go to shards."""

    def write(self, tensor: int, first: int, values: Any) -> None:
        """Bytes (uint8) of whole elements from element `first` of a tensor on."""

    def finish(self) -> None:
        """Checks that every byte was written once, and gives the files their names."""

def parse_coding(settings: str, file: str) -> tuple[str, str]:
    """The name of a kind of quantised weights, and the form that packs them into the same codes, or "". `settings`:
    quantization_config as JSON. ValueError that names a method that is not read."""

def find_coding(directory: str) -> tuple[str, str] | None:
    """The same of the config.json in a directory; None where its weights are not quantised."""

def decoded_names(directory: str, names: Set[str]) -> set[str]:
    """The names of a checkpoint's tensors as SafetensorsReader has them."""

class Training(enum.Enum):
    """How a tensor takes part in learning."""

    full = 0
    reduced = 1
    frozen = 2

class BlockRole(enum.Enum):
    """How a block takes part in a step."""

    embedding = 0
    layer = 1
    head = 2

class Form(enum.Enum):
    """How the weights of a tensor are stored in a run."""

    as_run = 0
    fp32 = 1
    nf4 = 2
    int8 = 3
    nf4_nested = 4
    bf16_master = 5

    @property
    def is_packed(self) -> bool: ...

class TensorSpec:
    """A tensor of a model."""

    def __init__(
        self,
        *,
        name: str | None = None,
        shape: Sequence[int] | None = None,
        decay: bool | None = None,
        training: Training | None = None,
        rank: int | None = None,
        nonzeros: int | None = None,
        reduction: str | None = None,
        form: Form | None = None,
        table: bool | None = None,
        pieces: int | None = None,
        apart: bool | None = None,
        asked: float | None = None,
        asked_by_piece: Sequence[float] | None = None,
    ) -> None: ...
    name: str  # as in the checkpoint
    shape: list[int]
    decay: bool  # weight decay applies
    training: Training
    rank: int  # of what is reduced
    nonzeros: int  # the same
    reduction: str  # by which it is reduced: "subspace" or "published subspace"
    form: Form
    table: bool  # of two dimensions in a layer, and no matrix of a product
    pieces: int  # parts that passes convert it in, by convert_pieces(); 0: it is converted before they begin
    apart: bool  # with `pieces`: each is placed by itself
    asked: float  # with `apart`: share of the pieces that an average step asks for; 1: all come before a pass
    asked_by_piece: list[float]  # share of the steps that ask for each; empty: `asked`

class BlockSpec:
    """Tensors that execute together."""

    def __init__(
        self, *, name: str | None = None, role: BlockRole | None = None, tensors: Sequence[TensorSpec] | None = None
    ) -> None: ...
    name: str
    role: BlockRole
    tensors: list[TensorSpec]

class World:
    """The processes of a run, and which of them this one is."""

    def __init__(self, *, size: int | None = None, rank: int | None = None, local: int | None = None) -> None: ...
    size: int
    rank: int
    local: int  # processes of each machine

class RefitRule:
    """When what reduces tensors is made anew."""

    def __init__(
        self, *, check_every: int | None = None, threshold: float | None = None, rotate_every: int | None = None
    ) -> None: ...
    check_every: int  # updates between two checks of what the reduction misses
    threshold: float  # of that error
    rotate_every: int  # updates after which each matrix's is made anew whatever is missed; 0: never

class Description:
    """The model and the largest step it will be asked for. At most one embedding first, layers (final norm and the like
    are a last block of role layer), at most one head last; a tied head has no block."""

    def __init__(
        self,
        *,
        compute_dtype: str | None = None,
        weight_dtype: str | None = None,
        optimizer: str | None = None,
        state_format: str | None = None,
        seed: int | None = None,
        blocks: Sequence[BlockSpec] | None = None,
        tied_head: bool | None = None,
        hidden_size: int | None = None,
        tokens: int | None = None,
        feature_bytes: int | None = None,
        micro_batches: int | None = None,
        accumulation: int | None = None,
        virtual_ranks: int | None = None,
        shard_frozen: bool | None = None,
        world: World | None = None,
        step_tokens: int | None = None,
        chunk_elements: int | None = None,
        refits: RefitRule | None = None,
    ) -> None: ...
    compute_dtype: str  # what passes multiply in: the compute type
    weight_dtype: str  # the same or narrower: what weights and gradients are kept in
    optimizer: str  # a name of one of optimizers()
    state_format: str  # "exact", "bf16" or "int8"
    seed: int  # of the run
    blocks: list[BlockSpec]  # in order of execution
    tied_head: bool
    hidden_size: int
    tokens: int  # most per step that this process computes
    feature_bytes: int
    micro_batches: int  # most parts per step by which gradients are summed
    accumulation: int  # most micro-batches per step; 0: one for each part
    virtual_ranks: int  # groups of parts that are summed by themselves; gradients come group by group
    shard_frozen: bool  # one process keeps each frozen chunk, too, and sends it for every pass
    world: World
    step_tokens: int  # most per step that all processes compute; 0: tokens
    chunk_elements: int
    refits: RefitRule

    @staticmethod
    def parse(text: str) -> Description:
        """From the file that a run keeps. ValueError names the key."""

    def to_json(self) -> str: ...

class PathProfile:
    """Rates of one storage path through the engine, checksums included. 0 = unknown."""

    def __init__(
        self,
        *,
        name: str | None = None,
        read_bytes_per_second: float | None = None,
        write_bytes_per_second: float | None = None,
        mixed_bytes_per_second: float | None = None,
        cores_at_full_speed: float | None = None,
        capacity: int | None = None,
    ) -> None: ...
    name: str  # shown as path:NAME
    read_bytes_per_second: float  # reads alone
    write_bytes_per_second: float  # writes alone
    mixed_bytes_per_second: float  # half reads, half writes at once: the sum of both directions
    cores_at_full_speed: float  # CPUs that compute on all of them loses while both directions run
    capacity: int  # for what a run keeps there; 0 = unknown

class NodeProfile:
    """A NUMA node. 0 = unknown, and of the transfers: bounded by the links alone."""

    def __init__(
        self,
        *,
        id: int | None = None,
        kind: str | None = None,
        capacity: int | None = None,
        update_elements_per_second: float | None = None,
        to_gpus_bytes_per_second: float | None = None,
        from_gpus_bytes_per_second: float | None = None,
        available: int | None = None,
        cpus: str | None = None,
        read_bytes_per_second: float | None = None,
        write_bytes_per_second: float | None = None,
        copy_bytes_per_second: float | None = None,
        update_elements_per_second_thread: float | None = None,
        update_threads: int | None = None,
        tier: int | None = None,
        promised_read_bytes_per_second: float | None = None,
        promised_write_bytes_per_second: float | None = None,
        promised_latency_seconds: float | None = None,
    ) -> None: ...
    id: int  # shown as numa:ID
    kind: str  # "dram", or "cxl": a card without CPUs
    capacity: int  # bytes
    update_elements_per_second: float  # AdamW of exact states that lie there, as many threads as saturate it
    to_gpus_bytes_per_second: float  # all transfers from it to GPUs together
    from_gpus_bytes_per_second: float  # and the other way
    available: int  # what could be taken when it was measured
    cpus: str  # its CPUs, as "0-3,8"
    read_bytes_per_second: float
    write_bytes_per_second: float
    copy_bytes_per_second: float  # bytes copied within it
    update_elements_per_second_thread: float  # of one thread
    update_threads: int  # that saturate it
    tier: int  # the kernel's memory tier: a smaller number is faster memory
    promised_read_bytes_per_second: float  # the firmware's table of attributes (HMAT)
    promised_write_bytes_per_second: float
    promised_latency_seconds: float  # of a read

class Saturation:
    """How a rate grows with threads, in any unit a second. 0 = unknown."""

    def __init__(
        self, *, thread: float | None = None, most: float | None = None, threads: int | None = None
    ) -> None: ...
    thread: float  # of one thread
    most: float  # of as many as it takes
    threads: int  # that many: more are not 5 % faster

class NodeAccess:
    """What CPUs of one NUMA node reach on the memory of another. Bytes a second; of `update` elements a second."""

    def __init__(
        self,
        *,
        cpus: int | None = None,
        memory: int | None = None,
        distance: int | None = None,
        read: Saturation | None = None,
        write: Saturation | None = None,
        copy: Saturation | None = None,
        update: Saturation | None = None,
    ) -> None: ...
    cpus: int  # the node whose CPUs work
    memory: int  # the node whose memory they work on
    distance: int  # as the firmware says, 10 on one node; 0 = unknown
    read: Saturation
    write: Saturation
    copy: Saturation  # bytes copied, within that memory
    update: Saturation  # of the kind that was asked for

class LayerProfile:
    """Products of a layer of that shape, on the compute device."""

    def __init__(
        self,
        *,
        hidden: int | None = None,
        intermediate: int | None = None,
        tokens: int | None = None,
        flops_per_second: float | None = None,
        fp32_flops_per_second: float | None = None,
    ) -> None: ...
    hidden: int
    intermediate: int
    tokens: int  # of a micro-batch
    flops_per_second: float  # of the product [tokens, hidden] x [hidden, intermediate] in bf16
    fp32_flops_per_second: float  # the same in fp32; 0 = unknown

class ProductRate:
    """The three products of a linear layer with a weight of [outer, inner] and so many tokens, on all CPUs."""

    def __init__(
        self,
        *,
        tokens: int | None = None,
        inner: int | None = None,
        outer: int | None = None,
        forward_flops_per_second: float | None = None,
        input_flops_per_second: float | None = None,
        weight_flops_per_second: float | None = None,
    ) -> None: ...
    tokens: int
    inner: int
    outer: int
    forward_flops_per_second: float  # [tokens, inner] x [inner, outer]
    input_flops_per_second: float  # [tokens, outer] x [outer, inner], the gradient of the input
    weight_flops_per_second: float  # [outer, tokens] x [tokens, inner], that of the weight

class AttentionRate:
    """Causal attention over rows of so many tokens, on all CPUs. Operations are those of the pairs that the mask
    leaves: half of all."""

    def __init__(
        self,
        *,
        tokens: int | None = None,
        head_size: int | None = None,
        forward_flops_per_second: float | None = None,
        backward_flops_per_second: float | None = None,
    ) -> None: ...
    tokens: int
    head_size: int  # channels of a head; 0 = unknown
    forward_flops_per_second: float
    backward_flops_per_second: float  # of twice the operations of forward

class OperationRate:
    """An operation of PyTorch that is bound by memory, named as in ATen: `mul`, `silu_backward`, `copy`. Bytes are
    those of all tensors that it reads or writes."""

    def __init__(
        self,
        *,
        operation: str | None = None,
        strided: bool | None = None,
        bytes: int | None = None,
        bytes_per_second: float | None = None,
    ) -> None: ...
    operation: str
    strided: bool  # a tensor of it has gaps, or another order than its elements in memory
    bytes: int  # of the call that was measured
    bytes_per_second: float

class ComputeProfile:
    """What PyTorch reaches on the CPUs in one type, by class of operation."""

    def __init__(
        self,
        *,
        dtype: str | None = None,
        products: Sequence[ProductRate] | None = None,
        attention: Sequence[AttentionRate] | None = None,
        elementwise_bytes_per_second: float | None = None,
        operations: Sequence[OperationRate] | None = None,
        call_seconds: float | None = None,
        libraries_bytes: int | None = None,
    ) -> None: ...
    dtype: str  # bf16, fp16 or fp32
    products: list[ProductRate]  # at least one
    attention: list[AttentionRate]  # none: as products
    elementwise_bytes_per_second: float  # read and written by operations on each element; 0 = they take nothing
    operations: list[OperationRate]
    call_seconds: float  # of an operation on next to nothing; 0 = unknown
    libraries_bytes: int  # in memory once layers have computed, beside tensors: code, caches of products

class LinkProfile:
    """Copies between a NUMA node and a GPU, as measured: each direction alone, and both at once. Bytes a second."""

    def __init__(
        self,
        *,
        node: int | None = None,
        to_gpu_bytes_per_second: float | None = None,
        from_gpu_bytes_per_second: float | None = None,
        to_gpu_bytes_per_second_together: float | None = None,
        from_gpu_bytes_per_second_together: float | None = None,
    ) -> None: ...
    node: int  # the NUMA node's number
    to_gpu_bytes_per_second: float
    from_gpu_bytes_per_second: float
    to_gpu_bytes_per_second_together: float
    from_gpu_bytes_per_second_together: float

class GpuProfile:
    """A GPU and its link. 0 = unknown; update and peer: there is none."""

    def __init__(
        self,
        *,
        name: str | None = None,
        memory: int | None = None,
        reserved: int | None = None,
        flops_per_second: float | None = None,
        update_elements_per_second: float | None = None,
        to_gpu_bytes_per_second: float | None = None,
        from_gpu_bytes_per_second: float | None = None,
        peer_bytes_per_second: float | None = None,
        elementwise_bytes_per_second: float | None = None,
        attention_forward_flops_per_second: float | None = None,
        attention_backward_flops_per_second: float | None = None,
        call_seconds: float | None = None,
        shares_dram: bool | None = None,
        links: Sequence[LinkProfile] | None = None,
    ) -> None: ...
    name: str  # shown as gpu:NAME
    memory: int  # bytes, of which
    reserved: int  # for context, libraries and the allocator
    flops_per_second: float  # of bf16 products, as training reaches them
    update_elements_per_second: float  # AdamW of exact states in its own memory
    to_gpu_bytes_per_second: float  # of its link
    from_gpu_bytes_per_second: float  # and the other way; both at once
    peer_bytes_per_second: float  # from and to the other GPUs, each way
    elementwise_bytes_per_second: float  # read and written by operations on each element; 0 = in `flops`
    attention_forward_flops_per_second: float  # of the pairs that a causal mask leaves; 0 = as products
    attention_backward_flops_per_second: float  # the same, deterministic, of twice as many; 0 = as products
    call_seconds: float  # of the host, for each operation that it asks of the GPU; 0 = unknown
    shares_dram: bool  # its memory is the machine's DRAM
    links: list[LinkProfile]  # by NUMA node; nodes differ; empty: not measured

class Profile:
    """Rates and capacities of a machine."""

    def __init__(
        self,
        *,
        machine: str | None = None,
        comment: Sequence[str] | None = None,
        cores: int | None = None,
        dram_total: int | None = None,
        dram_available: int | None = None,
        nodes: Sequence[NodeProfile] | None = None,
        gpus: Sequence[GpuProfile] | None = None,
        paths: Sequence[PathProfile] | None = None,
        update_elements_per_second: float | None = None,
        update_elements_per_second_all_cores: float | None = None,
        update_elements_per_second_beside: float | None = None,
        compute_share_beside_update: float | None = None,
        copy_bytes_per_second: float | None = None,
        compute_flops_per_second: float | None = None,
        machines: int | None = None,
        network: float | None = None,
        network_latency: float | None = None,
        access: Sequence[NodeAccess] | None = None,
        layers: Sequence[LayerProfile] | None = None,
        compute: Sequence[ComputeProfile] | None = None,
    ) -> None: ...
    machine: str  # its name when it is another machine, described and not measured here
    comment: list[str]  # where the numbers come from
    cores: int  # CPUs this process may run on; 0 = unknown
    dram_total: int  # of the machine, or of the cgroup where that is less
    dram_available: int  # what could be taken when it was measured
    nodes: list[NodeProfile]  # ids differ; empty: one DRAM node
    gpus: list[GpuProfile]  # names differ
    paths: list[PathProfile]  # names differ
    update_elements_per_second: float  # update on one thread, of the kind that was asked for; 0 = unknown
    update_elements_per_second_all_cores: float  # the same on every CPU at once; 0 = unknown
    update_elements_per_second_beside: float  # the same on one thread beside compute on all; 0 = unknown
    compute_share_beside_update: float  # of its speed that compute keeps meanwhile; 0 = unknown
    copy_bytes_per_second: float  # bytes copied from DRAM to DRAM on one thread; 0 = unknown
    compute_flops_per_second: float  # of the compute device; 0 = unknown
    machines: int  # that are like this one and train one model; 0: this one alone
    network: float  # bytes per second to and from others, each way; 0 = unknown
    network_latency: float  # seconds that a transfer there takes beside its bytes
    access: list[NodeAccess]  # CPUs by memory, as measured; no pair twice
    layers: list[LayerProfile]  # rates of compute by layer shape
    compute: list[ComputeProfile]  # the same by type and class of operation; types differ

    @staticmethod
    def parse(text: str, source: str = "profile") -> Profile:
        """From a profile's file, checked and completed. ValueError names the key, and the file as `source`."""

    def to_json(self) -> str: ...
    def save(self, path: str) -> None:
        """Writes the file under a temporary name and renames it."""

class SavedActivations:
    """The layers that can keep what autograd saves of them, and what that takes: the caller's memory, beside the
    arena."""

    def __init__(
        self,
        *,
        blocks: Sequence[int] | None = None,
        token_bytes: float | None = None,
        on_device: bool | None = None,
        layers: int | None = None,
        keep: int | None = None,
        why: str | None = None,
        spill: str | None = None,
        spilled_token_bytes: float | None = None,
        graph_token_bytes: float | None = None,
    ) -> None: ...
    blocks: list[int]  # numbers of their blocks, ascending; none: every layer recomputes
    token_bytes: float  # that one of them keeps of each token of a step
    on_device: bool  # in the memory of the budget's device; else in DRAM
    layers: int  # of the model, those that cannot keep included
    keep: int | None  # layers that are to keep; None: as many as is fastest by simulation
    why: str  # why there are none that can, or not all, in words; empty: nobody said
    spill: str  # "never", "auto" or "all"
    spilled_token_bytes: float  # that move of each token where one of them spills; 0: none can
    graph_token_bytes: float  # that one which spills keeps in memory of each token all the same

class Saving:
    """Files that a run writes to output_dir, as far as its caller knows."""

    def __init__(
        self,
        *,
        saves: int | None = None,
        limit: int | None = None,
        there: Sequence[int] | None = None,
        whole: Sequence[int] | None = None,
        freed: int | None = None,
        small: int | None = None,
        beside: int | None = None,
        model_only: bool | None = None,
        copies: bool | None = None,
        adapters: bool | None = None,
        converted: bool | None = None,
    ) -> None: ...
    saves: int  # checkpoints that will be written, the last one included
    limit: int | None  # most of them that are kept; None: all
    there: list[int]
    whole: list[int]
    freed: int  # bytes of what is removed before the first one is written
    small: int  # of each: configuration, tokenizer, log
    beside: int  # of the run: metrics, timeline, page
    model_only: bool  # checkpoints without state
    copies: bool  # the final model is a copy of the last checkpoint's, not links to its files
    adapters: bool  # what is saved of weights are those that are trained, as fp32
    converted: bool  # weights are written a second time while a checkpoint is made

class FileSystem:
    """A file system that storage directories or output_dir lie on."""

    def __init__(
        self,
        *,
        name: str | None = None,
        free: int | None = None,
        paths: Sequence[int] | None = None,
        output: bool | None = None,
    ) -> None: ...
    name: str
    free: int  # the run's own volumes count as free
    paths: list[int]  # numbers of the paths that lie there
    output: bool  # output_dir does

class PathSettings:
    """A storage path: a directory, or a block device that is taken whole."""

    def __init__(
        self,
        *,
        directory: str | None = None,
        device: str | None = None,
        capacity: int | None = None,
        endurance: int | None = None,
        remote: bool | None = None,
        node: int | None = None,
    ) -> None: ...
    directory: str  # one of them is given
    device: str  # or this one is
    capacity: int  # for the run
    endurance: int | None  # bytes that may be written to it in its life; None: a usual drive's
    remote: bool  # its drive is by another NUMA node than the compute device
    node: int | None  # that node

class NodeSettings:
    """A tier of host memory. The first is the compute device's, files are last."""

    def __init__(
        self,
        *,
        kind: str | None = None,
        id: int | None = None,
        capacity: int | None = None,
        directory: str | None = None,
        anywhere: bool | None = None,
        limit: float | None = None,
        update: float | None = None,
        update_thread: float | None = None,
        read: float | None = None,
    ) -> None: ...
    kind: str  # "numa", "dram" or "file"
    id: int  # of a node the kernel's number, of a file that among the files
    capacity: int  # of `dram` it is what the budget leaves
    directory: str  # of a file
    anywhere: bool  # its memory is not bound to a node, as tests have it
    limit: float  # elements per second that its update lane is held down to; 0: none
    update: float  # elements per second
    update_thread: float  # elements per second of one thread
    read: float  # bytes per second

class DeviceSettings:
    """A compute device with memory of its own."""

    def __init__(
        self,
        *,
        name: str | None = None,
        stream: int | None = None,
        memory: int | None = None,
        work: int | None = None,
        in_dram: bool | None = None,
        to_device: float | None = None,
        from_device: float | None = None,
        links: Sequence[LinkProfile] | None = None,
        latency: float | None = None,
        update: float | None = None,
        bounded: bool | None = None,
        weight: float | None = None,
        activation: float | None = None,
        state: float | None = None,
        device_updated: float | None = None,
        grad: float | None = None,
        applies_changes: bool | None = None,
    ) -> None: ...
    name: str  # or "cuda:N"
    stream: int  # handle of the caller's CUstream
    memory: int  # that may be used there
    work: int  # of it, PyTorch's working set
    in_dram: bool  # its memory counts in DRAM, too
    to_device: float  # bytes per second of its link, both at once
    from_device: float  # the same
    links: list[LinkProfile]  # the same by NUMA node
    latency: float  # seconds that a copy takes beside its bytes
    update: float  # elements per second that it updates; 0: unknown, and it updates none unless asked
    bounded: bool  # copies and updates of a simulated device take at least as long as these rates say
    weight: float | None  # shares; None: the planner decides: that stay there,
    activation: float | None  # the same,
    state: float | None  # of the blocks that live there,
    device_updated: float | None  # of the others whose states come for their updates,
    grad: float | None  # of these whose gradients stay
    applies_changes: bool | None  # copies of matrices in subspaces take changes; None: the planner decides

class PlacementSettings:
    """Empty: the planner decides."""

    def __init__(
        self,
        *,
        weight: float | None = None,
        state: float | None = None,
        grad: float | str | None = None,
        activation: float | str | None = None,
    ) -> None: ...
    weight: float | None
    state: float | None
    grad: float | str | None  # a share, or the name of a tier of host memory
    activation: float | str | None  # the same

class PassSeconds:
    """Seconds of the passes of the largest step, by kind. 0: unknown."""

    def __init__(
        self,
        *,
        forward: float | None = None,
        backward: float | None = None,
        kept_forward: float | None = None,
        kept_backward: float | None = None,
        head_loss: float | None = None,
        head_gradient: float | None = None,
        tail_forward: float | None = None,
        tail_backward: float | None = None,
        between: float | None = None,
        entry_forward: float | None = None,
        entry_backward: float | None = None,
    ) -> None: ...
    forward: float
    backward: float
    kept_forward: float | None  # of a layer that keeps what autograd saves; None: as forward
    kept_backward: float | None  # None: a forward pass less than backward
    head_loss: float
    head_gradient: float
    tail_forward: float  # of the last layer block when a head follows
    tail_backward: float  # the same
    between: float  # once a step, beside its passes
    entry_forward: float
    entry_backward: float

    def scaled(self, factor: float) -> PassSeconds:
        """The same of passes that take so many times as long."""

class EngineSettings:
    """Values that an engine plans and opens a run with."""

    def __init__(
        self,
        *,
        dram_budget: int | None = None,
        process_bytes: int | None = None,
        work_bytes: int | None = None,
        keeps_logits: bool | None = None,
        saved_activations: SavedActivations | None = None,
        placement: PlacementSettings | None = None,
        window: int | None = None,
        storage: Sequence[PathSettings] | None = None,
        near: int | None = None,
        nodes: Sequence[NodeSettings] | None = None,
        profile: Profile | None = None,
        seconds: PassSeconds | None = None,
        durability: str | None = None,
        checkpoints: int | None = None,
        resumes: bool | None = None,
        update_schedule: str | None = None,
        speculative_updates: bool | None = None,
        clipping: bool | None = None,
        piece_period: int | None = None,
        update_cores: int | None = None,
        threads: int | None = None,
        run: str | None = None,
        overwrite: bool | None = None,
        erase: bool | None = None,
        keep: bool | None = None,
        device: DeviceSettings | None = None,
        network_inside: float | None = None,
        saving: Saving | None = None,
        file_systems: Sequence[FileSystem] | None = None,
    ) -> None: ...
    dram_budget: int  # for the whole process
    process_bytes: int  # that the process holds before the arena
    work_bytes: int  # of PyTorch's working set
    keeps_logits: bool  # the caller keeps logits of slices of the head, as many as the plan says
    saved_activations: SavedActivations
    placement: PlacementSettings
    window: int  # blocks in flight in backward; 0: the planner decides
    storage: list[PathSettings]
    near: int | None  # NUMA node of the compute device
    nodes: list[NodeSettings]  # none: DRAM is one tier
    profile: Profile  # rates of the machine
    seconds: PassSeconds
    durability: str | None  # "none", "checkpoint" or "step"; None: step when anything is on storage
    checkpoints: int  # that stay on the paths at once while the run goes on
    resumes: bool  # the paths hold steps of the run
    update_schedule: str  # "auto", "deferred" or "early"
    speculative_updates: bool
    clipping: bool  # steps clip
    piece_period: int
    update_cores: int  # that only updates use
    threads: int  # of compute kernels, the caller included
    run: str  # identity of the run
    overwrite: bool  # volumes of another run
    erase: bool  # of block devices: remove what else they hold
    keep: bool  # the volumes stay when the engine closes
    device: DeviceSettings | None  # None: passes compute in host memory
    network_inside: float  # bytes per second between processes of this machine
    saving: Saving | None  # None: nothing is saved, or nobody knows what
    file_systems: list[FileSystem]  # none: nothing is known of them

    @staticmethod
    def parse(text: str) -> EngineSettings:
        """From the file that a run keeps; missing keys have their defaults. ValueError names the key."""

    def to_json(self) -> str: ...
    def agree(self, every: Sequence[EngineSettings]) -> EngineSettings:
        """With, for each number of bytes and each rate, the least of all processes', and of times and bytes that are
        taken the largest. ValueError where they have not as many paths."""

class ProductCalls:
    """Products of that shape, as a linear layer has them."""

    def __init__(
        self,
        *,
        product: str | None = None,
        tokens: float | None = None,
        inner: float | None = None,
        outer: float | None = None,
        calls: float | None = None,
    ) -> None: ...
    product: str  # "forward", "input" or "weight"
    tokens: float
    inner: float
    outer: float
    calls: float

class AttentionCalls:
    """Calls of attention over rows of so many tokens."""

    def __init__(
        self,
        *,
        tokens: float | None = None,
        head_size: float | None = None,
        operations: float | None = None,
        backward: bool | None = None,
        calls: float | None = None,
    ) -> None: ...
    tokens: float
    head_size: float
    operations: float  # floating point operations of one, those that a mask leaves
    backward: bool
    calls: float

class ElementCalls:
    """Calls of an operation that is bound by memory."""

    def __init__(
        self,
        *,
        operation: str | None = None,
        strided: bool | None = None,
        bytes: float | None = None,
        calls: float | None = None,
    ) -> None: ...
    operation: str  # as OperationRate has it
    strided: bool
    bytes: float  # of one
    calls: float

class PassOperations:
    """One pass."""

    def __init__(
        self,
        *,
        products: Sequence[ProductCalls] | None = None,
        attention: Sequence[AttentionCalls] | None = None,
        elements: Sequence[ElementCalls] | None = None,
        calls: float | None = None,
    ) -> None: ...
    products: list[ProductCalls]
    attention: list[AttentionCalls]
    elements: list[ElementCalls]
    calls: float  # of all operations, those that make views among them

class TracedPass:
    """The operations of a kind of pass ("forward", "kept_backward", "between", ...)."""

    def __init__(self, *, each: PassOperations | None = None, once: PassOperations | None = None) -> None: ...
    each: PassOperations  # for each micro-batch
    once: PassOperations

class FewTokens:
    """A trace of fewer tokens than a micro-batch has."""

    def __init__(
        self,
        *,
        tokens: float | None = None,
        passes: Mapping[str, TracedPass] | None = None,
        most_seconds: float | None = None,
    ) -> None: ...
    tokens: float
    passes: dict[str, TracedPass]
    most_seconds: float  # of all tokens at this speed, from which on brief_slack of the trace does not hold

class Trace:
    """A trace of the model's own code."""

    def __init__(
        self,
        *,
        passes: Mapping[str, TracedPass] | None = None,
        bytes: float | None = None,
        per_token: float | None = None,
        slack: float | None = None,
        brief_slack: float | None = None,
        few: FewTokens | None = None,
    ) -> None: ...
    passes: dict[str, TracedPass]
    bytes: float  # of tensors at their peak
    per_token: float  # by which they grow
    slack: float  # by which they are multiplied
    brief_slack: float  # by which they are where a plan on the machine itself would measure briefly
    few: FewTokens

class StepWork:
    """Work of one micro-batch."""

    def __init__(
        self,
        *,
        sequence: int | None = None,
        batch: int | None = None,
        query: int | None = None,
        key: int | None = None,
        feed_forward: int | None = None,
        trace: Trace | None = None,
        host_bytes: int | None = None,
        device_bytes: int | None = None,
    ) -> None: ...
    sequence: int  # tokens of a row
    batch: int  # rows
    query: int  # widths of attention
    key: int  # the same
    feed_forward: int  # width
    trace: Trace | None  # None: work is derived from shapes
    host_bytes: int
    device_bytes: int

class MachineRequest:
    """The request to a described machine."""

    def __init__(
        self,
        *,
        settings: EngineSettings | None = None,
        work: StepWork | None = None,
        gpu_memory: int | None = None,
        gpu: bool | None = None,
        simulated: float | None = None,
    ) -> None: ...
    settings: EngineSettings
    work: StepWork
    gpu_memory: int  # 0: the profile's
    gpu: bool  # false: the CPUs compute although there is a GPU
    simulated: float  # share of "dram_budget" that a simulated device has, unless `gpu_memory` says it; 0: none

class DescribedMachine:
    """Inputs of an engine's planner, and what follows from them."""

    def __init__(
        self,
        *,
        settings: EngineSettings | None = None,
        work_per_token: float | None = None,
        attention_seconds: float | None = None,
    ) -> None: ...
    settings: EngineSettings
    work_per_token: float  # bytes by which the working set grows
    attention_seconds: float  # of a step; 0 without a trace

def describe_machine(description: Description, request: MachineRequest, profile: Profile) -> DescribedMachine:
    """Settings of an Engine for the machine of a profile. MemoryError: more of a node is asked for than there is."""

class PlannedTier:
    """A tier, its budget and its planned peak."""

    def __init__(
        self, *, name: str | None = None, capacity: int | None = None, planned_peak: int | None = None
    ) -> None: ...
    name: str  # "dram", "numa:N", "file:N", "device", "path:N"
    capacity: int
    planned_peak: int

class PlannedBytes:
    """Bytes of one class on one tier."""

    def __init__(self, *, class_: str | None = None, tier: str | None = None, bytes: int | None = None) -> None: ...
    class_: str  # "weight", "state", "grad", "activation", "working set", ...
    tier: str  # PlannedTier::name
    bytes: int

class LinkBytes:
    """Bytes over the link of a device."""

    def __init__(self, *, to_device: int | None = None, from_device: int | None = None) -> None: ...
    to_device: int
    from_device: int

class PathBytes:
    """Bytes of a storage path."""

    def __init__(self, *, read: int | None = None, written: int | None = None) -> None: ...
    read: int
    written: int

class NetworkBytes:
    """Bytes to and from other processes."""

    def __init__(self, *, sent: int | None = None, received: int | None = None) -> None: ...
    sent: int
    received: int

class SpillSeconds:
    """Seconds of a step by which spilling a layer is decided."""

    def __init__(
        self, *, paths: float | None = None, copy: float | None = None, recompute: float | None = None
    ) -> None: ...
    paths: float  # of all paths, both ways
    copy: float  # of compute
    recompute: float  # of compute, where the layer recomputes instead

class PlannedActivations:
    """Activations that autograd saves of layers."""

    def __init__(
        self,
        *,
        layers: int | None = None,
        keep: int | None = None,
        blocks: Sequence[int] | None = None,
        bytes: int | None = None,
        tier: str | None = None,
        asked: int | None = None,
        why: str | None = None,
        spill: int | None = None,
        spilled_blocks: Sequence[int] | None = None,
        spilled_bytes: int | None = None,
        spill_tier: str | None = None,
        spill_why: str | None = None,
        seconds_of_a_layer: SpillSeconds | None = None,
    ) -> None: ...
    layers: int  # of the model
    keep: int  # layers that keep them
    blocks: list[int]  # of these layers
    bytes: int  # at most, of all
    tier: str  # where they lie
    asked: int | None  # layers that the caller asked to keep; None: the planner chose
    why: str  # for people
    spill: int  # layers that spill them
    spilled_blocks: list[int]  # of these layers
    spilled_bytes: int  # of all these layers, one way
    spill_tier: str | None  # where they go; None: no layer spills
    spill_why: str | None  # for people
    seconds_of_a_layer: SpillSeconds | None

class PlannedFeatures:
    """Features of images."""

    def __init__(self, *, bytes: int | None = None, tier: str | None = None) -> None: ...
    bytes: int
    tier: str

class PlannedBlocks:
    """Blocks of layers, and slices of a head, by the work of the device with them."""

    def __init__(
        self,
        *,
        state_and_update: int | None = None,
        streamed_state_and_update: int | None = None,
        weight: int | None = None,
        streamed: int | None = None,
        durable_bytes_per_step: int | None = None,
        why: str | None = None,
        matrices_that_take_changes: int | None = None,
    ) -> None: ...
    state_and_update: int  # device-resident
    streamed_state_and_update: int  # device-updated
    weight: int  # a copy of the weights stays there
    streamed: int  # weights come for every pass
    durable_bytes_per_step: int
    why: str  # for people
    matrices_that_take_changes: int | None

class PlannedPieces:
    """Experts that passes ask for, by their first places."""

    def __init__(
        self, *, pieces: int | None = None, in_memory: int | None = None, on_device: int | None = None
    ) -> None: ...
    pieces: int
    in_memory: int
    on_device: int

class PlannedValue:
    """One value of an axis, and the plan with it."""

    def __init__(
        self,
        *,
        value: str | None = None,
        fits: bool | None = None,
        chosen: bool | None = None,
        predicted_step_seconds: float | None = None,
        bytes_per_step: int | None = None,
    ) -> None: ...
    value: str  # in words
    fits: bool
    chosen: bool
    predicted_step_seconds: float | None  # None: it does not fit
    bytes_per_step: int | None  # moved; None: it does not fit

class PlannedDecision:
    """An axis of which values were compared (axes.h)."""

    def __init__(
        self,
        *,
        name: str | None = None,
        title: str | None = None,
        reason: str | None = None,
        compared: Sequence[PlannedValue] | None = None,
    ) -> None: ...
    name: str
    title: str  # for people
    reason: str  # the tradeoff that makes it an axis
    compared: list[PlannedValue]

class RemotePath:
    """A path whose drive is by another NUMA node."""

    def __init__(self, *, name: str | None = None, node: int | None = None) -> None: ...
    name: str
    node: int | None  # of the drive

class RemotePaths:
    """Paths whose drives are by another NUMA node than the compute device."""

    def __init__(
        self, *, paths: Sequence[RemotePath] | None = None, seconds: float | None = None, why: str | None = None
    ) -> None: ...
    paths: list[RemotePath]
    seconds: float | None  # of a step; None: unknown
    why: str  # for people

class DriveLife:
    """Wear of a drive."""

    def __init__(
        self,
        *,
        rated: int | None = None,
        assumed: bool | None = None,
        written_per_day: int | None = None,
        days: float | None = None,
    ) -> None: ...
    rated: int  # that may be written in its life
    assumed: bool  # nobody said it: a usual drive's
    written_per_day: int  # of training
    days: float  # of training until `rated`

class PlannedSaving:
    """The file system of output_dir."""

    def __init__(
        self,
        *,
        file_system: str | None = None,
        free: int | None = None,
        volumes: int | None = None,
        checkpoint_bytes: int | None = None,
        weights: int | None = None,
        checkpoints_at_once: int | None = None,
        bytes: int | None = None,
    ) -> None: ...
    file_system: str
    free: int
    volumes: int  # of the paths there
    checkpoint_bytes: int  # of one
    weights: int  # of one: files of weights
    checkpoints_at_once: int
    bytes: int  # most that saving takes

class FullPlan:
    """The same plan with every matrix trained in full."""

    def __init__(
        self,
        *,
        predicted_step_seconds: float | None = None,
        without_products_seconds: float | None = None,
        path_bytes_per_step: int | None = None,
        device_bytes_per_step: int | None = None,
    ) -> None: ...
    predicted_step_seconds: float
    without_products_seconds: float  # the same, were the products of whole gradients free
    path_bytes_per_step: int
    device_bytes_per_step: int

class PlannedReduction:
    """Matrices whose gradients are reduced."""

    def __init__(
        self,
        *,
        matrices: int | None = None,
        elements: int | None = None,
        gradient_bytes: int | None = None,
        gradient_bytes_in_full: int | None = None,
        helps: bool | None = None,
        in_full: FullPlan | None = None,
    ) -> None: ...
    matrices: int
    elements: int
    gradient_bytes: int
    gradient_bytes_in_full: int  # a step
    helps: bool  # a step is faster than in full
    in_full: FullPlan | None  # None: it does not fit

class DurabilityCost:
    """Share of durability in a step."""

    def __init__(self, *, written: int | None = None, seconds: float | None = None) -> None: ...
    written: int
    seconds: float

class PlannedUpdates:
    """Order of updates."""

    def __init__(
        self,
        *,
        asked: str | None = None,
        schedule: str | None = None,
        early_chunks: int | None = None,
        chunks: int | None = None,
        undo_bytes: int | None = None,
        seconds_saved: float | None = None,
        speculative: bool | None = None,
    ) -> None: ...
    asked: str  # "auto", "deferred" or "early"
    schedule: str  # "deferred" or "early"
    early_chunks: int
    chunks: int
    undo_bytes: int
    seconds_saved: float
    speculative: bool

class PlannedSeconds:
    """Seconds of a step by resource."""

    def __init__(
        self,
        *,
        compute: float | None = None,
        transfer: float | None = None,
        update: float | None = None,
        stall: float | None = None,
        to_device: float | None = None,
        from_device: float | None = None,
        device_update: float | None = None,
        network: float | None = None,
    ) -> None: ...
    compute: float
    transfer: float
    update: float
    stall: float
    to_device: float | None
    from_device: float | None
    device_update: float | None  # None: there is no device
    network: float | None  # None: a world of one

class PlannedLookahead:
    """Lookahead as plan.json has it."""

    def __init__(
        self,
        *,
        state_read: int | None = None,
        write: int | None = None,
        weight_read: int | None = None,
        backward: int | None = None,
        grad_write: int | None = None,
        head: int | None = None,
        device: int | None = None,
    ) -> None: ...
    state_read: int
    write: int
    weight_read: int
    backward: int
    grad_write: int
    head: int
    device: int | None  # None: there is no device

class PlanSummary:
    """plan.json."""

    def __init__(
        self,
        *,
        fits: bool | None = None,
        parameters: int | None = None,
        learning_parameters: int | None = None,
        weight_dtype: str | None = None,
        compute_dtype: str | None = None,
        optimizer: str | None = None,
        state_format: str | None = None,
        bytes_per_parameter: float | None = None,
        kept_logits: int | None = None,
        tiers: Sequence[PlannedTier] | None = None,
        bytes: Sequence[PlannedBytes] | None = None,
        device_bytes_per_step: LinkBytes | None = None,
        boundary_activations: Mapping[str, int] | None = None,
        saved_activations: PlannedActivations | None = None,
        image_features: PlannedFeatures | None = None,
        device_blocks: PlannedBlocks | None = None,
        pieces: PlannedPieces | None = None,
        decisions: Sequence[PlannedDecision] | None = None,
        path_bytes_per_step: Mapping[str, PathBytes] | None = None,
        drive_life: Mapping[str, DriveLife] | None = None,
        far_drives: RemotePaths | None = None,
        saving: PlannedSaving | None = None,
        subspaces: PlannedReduction | None = None,
        durability: str | None = None,
        durability_per_step: DurabilityCost | None = None,
        updates: PlannedUpdates | None = None,
        predicted_step_seconds: float | None = None,
        tokens_per_second: float | None = None,
        world: int | None = None,
        rank: int | None = None,
        machines: int | None = None,
        network_sent: int | None = None,
        network_received: int | None = None,
        between_machines: NetworkBytes | None = None,
        own_weights: bool | None = None,
        bottleneck: str | None = None,
        seconds: PlannedSeconds | None = None,
        lookahead: PlannedLookahead | None = None,
    ) -> None: ...
    fits: bool
    parameters: int
    learning_parameters: int
    weight_dtype: str
    compute_dtype: str
    optimizer: str
    state_format: str
    bytes_per_parameter: float  # of weight and state
    kept_logits: int  # slices of the head
    tiers: list[PlannedTier]
    bytes: list[PlannedBytes]
    device_bytes_per_step: LinkBytes | None  # None: there is no device
    boundary_activations: dict[str, int] | None  # number by tier
    saved_activations: PlannedActivations | None  # None: the caller did not describe them
    image_features: PlannedFeatures | None
    device_blocks: PlannedBlocks | None  # None: there is no device
    pieces: PlannedPieces | None
    decisions: list[PlannedDecision]
    path_bytes_per_step: dict[str, PathBytes]  # by path
    drive_life: dict[str, DriveLife]  # by path that is written
    far_drives: RemotePaths | None  # None: there are none
    saving: PlannedSaving | None  # None: nobody knows what is saved
    subspaces: PlannedReduction | None  # None: nothing is reduced
    durability: str  # "none", "checkpoint" or "step"
    durability_per_step: DurabilityCost | None  # None: steps are not durable
    updates: PlannedUpdates
    predicted_step_seconds: float
    tokens_per_second: float | None
    world: int | None
    rank: int | None
    machines: int | None  # None: a world of one. So below
    network_sent: int | None
    network_received: int | None  # of this process, a step
    between_machines: NetworkBytes | None  # of these
    own_weights: bool | None  # each process keeps in memory its own weights alone
    bottleneck: str
    seconds: PlannedSeconds
    lookahead: PlannedLookahead

    def to_json(self) -> str:
        """The text that files hold."""

class FitTable:
    """Tokens per second of plans; 0: it does not fit."""

    def __init__(
        self,
        *,
        dram_budgets: Sequence[int] | None = None,
        sequences: Sequence[int] | None = None,
        batches: Sequence[int] | None = None,
        tokens_per_second: Sequence[float] | None = None,
    ) -> None: ...
    dram_budgets: list[int]  # a half of the budget, the budget, twice as much
    sequences: list[int]  # from a half to four times
    batches: list[int]  # from a half to twice
    tokens_per_second: list[float]  # by budget, then sequence, then batch

class LongerStep:
    """A step that accumulates one micro-batch more in each process."""

    def __init__(
        self,
        *,
        fits: bool | None = None,
        predicted_step_seconds: float | None = None,
        tokens_per_second: float | None = None,
    ) -> None: ...
    fits: bool
    predicted_step_seconds: float | None
    tokens_per_second: float | None  # None: it does not fit

class LargerMemory:
    """The plan with a GiB more for layers to keep what autograd saves of them."""

    def __init__(
        self,
        *,
        tier: str | None = None,
        keep: int | None = None,
        spill: int | None = None,
        predicted_step_seconds: float | None = None,
    ) -> None: ...
    tier: str  # that has the GiB: "device" or "dram"
    keep: int
    spill: int
    predicted_step_seconds: float

class Fits:
    """Plans that fit: the model at other budgets, sequences and batches."""

    def __init__(
        self,
        *,
        longest_sequence: int | None = None,
        fit_table: FitTable | None = None,
        a_micro_batch_more: LongerStep | None = None,
        a_gib_more: LargerMemory | None = None,
    ) -> None: ...
    longest_sequence: int
    fit_table: FitTable
    a_micro_batch_more: LongerStep
    a_gib_more: LargerMemory | None  # None: no layer can keep what autograd saves of it

    def to_json(self) -> str:
        """The text that files hold."""

class PathCounters:
    """Work of a storage path so far."""

    def __init__(
        self,
        *,
        read: int | None = None,
        written: int | None = None,
        busy_seconds: float | None = None,
        read_seconds: float | None = None,
        write_seconds: float | None = None,
        syncs: int | None = None,
        sync_seconds: float | None = None,
        direct: bool | None = None,
        notice: str | None = None,
        volume: str | None = None,
        read_rate: float | None = None,
        write_rate: float | None = None,
        used: int | None = None,
    ) -> None: ...
    read: int
    written: int
    busy_seconds: float  # with anything in flight
    read_seconds: float
    write_seconds: float  # with anything of that direction in flight
    syncs: int  # flushes
    sync_seconds: float
    direct: bool  # O_DIRECT
    notice: str  # for people; "": none
    volume: str  # its file
    read_rate: float | None
    write_rate: float | None  # bytes per second, as striping has them
    used: int | None  # of the volume

class PassCounters:
    """Passes of one kind on a device."""

    def __init__(self, *, passes: int | None = None, seconds: float | None = None) -> None: ...
    passes: int
    seconds: float

class DeviceCounters:
    """Work of a device so far."""

    def __init__(
        self,
        *,
        name: str | None = None,
        memory: int | None = None,
        to_device: int | None = None,
        from_device: int | None = None,
        notice: str | None = None,
        passes: Mapping[str, PassCounters] | None = None,
    ) -> None: ...
    name: str
    memory: int  # of the arena there
    to_device: int
    from_device: int  # copied
    notice: str  # for people; "": none
    passes: dict[str, PassCounters]  # by kind

class UpdateCounters:
    """Updates of one tier of host memory."""

    def __init__(self, *, elements: int | None = None, seconds: float | None = None) -> None: ...
    elements: int
    seconds: float

class PieceCounters:
    """Experts that steps asked for, of a layer."""

    def __init__(
        self,
        *,
        block: str | None = None,
        asked: int | None = None,
        resident: int | None = None,
        planned: int | None = None,
        swaps: int | None = None,
        pieces: int | None = None,
    ) -> None: ...
    block: str
    asked: int
    resident: int
    planned: int
    swaps: int
    pieces: int

class NetworkCounters:
    """Bytes to and from other processes."""

    def __init__(
        self, *, sent: int | None = None, received: int | None = None, between_machines: NetworkBytes | None = None
    ) -> None: ...
    sent: int
    received: int
    between_machines: NetworkBytes  # of these

class Outage:
    """A path that was retired."""

    def __init__(self, *, path: str | None = None, reason: str | None = None) -> None: ...
    path: str
    reason: str

class Counters:
    """Counts of a run so far."""

    def __init__(
        self,
        *,
        arena_bytes: int | None = None,
        stall_seconds: Mapping[str, float] | None = None,
        waits: Mapping[str, Mapping[str, float]] | None = None,
        updates: Mapping[str, UpdateCounters] | None = None,
        paths: Mapping[str, PathCounters] | None = None,
        device: DeviceCounters | None = None,
        network: NetworkCounters | None = None,
        outages: Sequence[Outage] | None = None,
        pieces: Sequence[PieceCounters] | None = None,
    ) -> None: ...
    arena_bytes: int
    stall_seconds: dict[str, float]  # by what was waited for
    waits: dict[str, dict[str, float]]  # the same by tier, then cause
    updates: dict[str, UpdateCounters]  # by tier of host memory
    paths: dict[str, PathCounters]  # by path
    device: DeviceCounters | None  # None: passes compute in host memory
    network: NetworkCounters | None  # None: a world of one
    outages: list[Outage] | None  # None: nothing lies on paths
    pieces: list[PieceCounters] | None

    def to_json(self) -> str:
        """The text that files hold."""

class TierMemory:
    """Bytes of the arena on a tier of host memory."""

    def __init__(
        self, *, planned: int | None = None, there: int | None = None, in_memory: int | None = None
    ) -> None: ...
    planned: int
    there: int  # as the kernel says page by page
    in_memory: int  # of those, what the kernel counts in this process's memory

class BuffersAside:
    """Buffers of one class that are planned for later tiers."""

    def __init__(self, *, buffers: int | None = None, elsewhere: int | None = None) -> None: ...
    buffers: int
    elsewhere: int  # of them

class MemoryPlaces:
    """Places of the arena, planned and as the kernel says."""

    def __init__(
        self,
        *,
        nodes: Mapping[str, TierMemory] | None = None,
        chunks: int | None = None,
        elsewhere: Sequence[int] | None = None,
        aside: Mapping[str, BuffersAside] | None = None,
    ) -> None: ...
    nodes: dict[str, TierMemory]  # by tier of host memory
    chunks: int  # of the model
    elsewhere: list[int]  # chunks that lie on another tier than planned
    aside: dict[str, BuffersAside]  # by class

    def to_json(self) -> str:
        """The text that files hold."""

class Engine:
    """One run's state on its tiers and the schedule that moves it.

    Construction plans and allocates nothing; MemoryError with a message when it does not fit."""

    def __init__(self, description: Description, settings: EngineSettings, network: Network | None = None) -> None:
        """`network`: to the other processes of the description's world; where there are any, it is to be served from
        before start() until after close(), and closed first after an error."""

    def begin_step(
        self,
        ids: Any,
        counts: Sequence[int],
        training: bool,
        update: StepUpdate | None = None,
        digests: bool = False,
        trial: bool = False,
    ) -> None:
        """ids: int64, token ids of all micro-batches, one after the other, with padding; counts: tokens of each, or of
        each part of them by which gradients are handed over, of which the description's micro_batches are the most.
        update: values that end_step is expected to get, for updates during backward; they are undone if it gets others.
        digests: for take_digests. trial: gradients are written to no path, for abandon_step."""

    def embedding_forward(self, output: Any | None = None) -> None:
        """Gathers the rows of all ids into output [tokens, hidden] (compute type); None: into the first layer's input.
        First call after begin_step, when the description has an embedding."""

    def next_pass(self) -> BlockPass:
        """Blocks until the next pass's bytes are in memory. Kind "end" when the step has no more."""

    def end_pass(self) -> None: ...
    def memory(self) -> Any:
        """The arena as one uint8 array (shared, not copied); after start()."""

    def device_memory(self) -> Any:
        """Where passes compute: the arena of a device with memory of its own (of a GPU a tensor), else `memory()`."""

    def tensor_offset(self, tensor: int) -> int:
        """Where tensor number `tensor` (counted over all blocks, in description order) begins in its passes' weights,
        in elements of the compute type; of one in fp32, too; of one with "pieces" where convert_pieces() puts these."""

    def ask_pieces(self, tensor: int, first: int, count: int) -> None:
        """Begins to bring pieces that come on demand, so that convert_pieces() waits less. A backward pass may convert
        what the forward pass of its layer has asked for or converted."""

    def convert_pieces(self, tensor: int, first: int, count: int) -> None:
        """In a pass of its block: `count` pieces of a tensor from number `first` on, one after the other, in the order
        of the passes' stream. They are there until the next pieces of any tensor; four at most."""

    def gradient(self, tensor: int, values: Any, micro_batch: int) -> None:
        """In a backward pass: one micro-batch's gradient of a tensor of the block (compute type, tensor's shape,
        contiguous), or that of a part, as begin_step counted them. In rising order, each number once at most; a tensor
        that got none has gradient zero."""

    def can_lend_sums(self) -> bool:
        """Whether backward passes of this step may call lend_sum(): it has more micro-batches than virtual ranks."""

    def lend_sum(self, tensor: int, micro_batch: int) -> tuple[Any, bool]:
        """In a backward pass, instead of gradient(): the fp32 sum of a tensor's gradient, flat, where passes compute,
        and whether the caller overwrites it; else the caller adds one micro-batch's gradient. Then end_sum()."""

    def end_sum(self, tensor: int, micro_batch: int) -> None: ...
    def head_gradient(self, values: Any, micro_batch: int) -> None:
        """In a head_gradient pass: one micro-batch's gradient [rows, hidden] of the slice (compute type)."""

    def embedding_backward(self, values: Any) -> None:
        """In the embedding_backward pass: d loss / d embedding output, [tokens, hidden] (compute type)."""

    def wants_whole_gradient(self, tensor: int, micro_batch: int) -> bool:
        """Whether projectors are to be refitted from this micro-batch's whole gradient before S is made."""

    def whole_gradient(self, tensor: int, gradient: Any) -> None:
        """From a gradient [rows * columns], fp32; of what is not finite nothing is learned, and the step is skipped."""

    def compress(self, tensor: int, side: int, tokens: Any, out: Any) -> None:
        """tokens [n, rows] by P (side 0), or [n, columns] by Q (1), to out [d, n]; both of the compute type."""

    def signs(self, tensor: int, out: Any) -> None:
        """This step's signs z [columns], fp32."""

    def sample(self, tensor: int, values: Any, micro_batch: int) -> None:
        """A micro-batch's G z [rows], fp32: for the estimate of what the projectors miss."""

    def loss_stats(self, logits: Any, first_row: int, labels: Any, maximum: Any, sum: Any, gold: Any) -> None:
        """logits [tokens, rows] (compute type); labels int64 [tokens] in the whole vocabulary; fp32 [tokens] running
        maximum (start -inf), sum of exponentials (start 0), label's logit (start 0)."""

    def loss_gradient(self, logits: Any, first_row: int, labels: Any, maximum: Any, log_sum: Any, scale: float) -> None:
        """In place: d loss / d logits of the slice, times scale."""

    def loss_scale(self) -> tuple[float, int]:
        """What the loss of the next step is to be multiplied by before backward (1 unless weight_dtype is fp16), and
        the finite steps since it changed; grad_norm and the update divide by it."""

    def set_loss_scale(self, scale: float, good: int) -> None:
        """Takes up the scale that loss_scale() told in the run that this one continues."""

    def rms_norm(
        self,
        values: Any,
        weight: Any,
        out: Any,
        epsilon: float,
        offset: float,
        rounds_early: bool,
        addend: Any | None = None,
        sum: Any | None = None,
    ) -> None:
        """values [..., columns] over the root of their mean square + epsilon, times offset + weight [columns];
        `rounds_early`: rounded before that. `addend`: the norm is of sum = values + addend, which is written."""

    def rms_norm_backward(
        self,
        values: Any,
        weight: Any,
        gradient: Any,
        scales: Any,
        out: Any,
        sums: Any | None,
        to_weight: Any | None,
        epsilon: float,
        offset: float,
        rounds_early: bool,
        skip_gradient: Any | None = None,
    ) -> None:
        """out: d loss / d values; `scales` fp32 [rows, 2] is overwritten. `sums` fp32 [rows / 16, columns] (rounded up)
        and `to_weight` take the weight's gradient; None: not wanted. `skip_gradient` is added to out."""

    def swiglu(self, gate: Any, up: Any, out: Any) -> None:
        """out = silu(gate) * up."""

    def swiglu_backward(
        self, gate: Any, up: Any, gradient: Any, to_gate: Any, to_up: Any, product: Any | None = None
    ) -> None: ...
    def rotate(self, heads: Any, cosines: Any, sines: Any, out: Any, backward: bool) -> None:
        """heads, out [sequences, heads, tokens, size], tables [sequences or 1, tokens, size], each with its elements
        side by side: transformers' apply_rotary_pos_emb, or its transpose."""

    def norm(self) -> float:
        """After the last pass: the sum of squares of the gradient; all processes call it. abandon_step or end_step
        follows."""

    def abandon_step(self) -> None:
        """After norm: the step is as if it had not begun, and may be begun again. A durable step's gradients are
        written once: of its computations one is no trial."""

    def end_step(self, update: StepUpdate) -> StepResult:
        """Ends a step or an evaluation. The rest of the update runs behind the next step."""

    def take_digests(self) -> list[StepDigest]:
        """Of the passes that have ended since the last call; those of other processes' parts are there after norm."""

    def digest(self, values: Any) -> int:
        """XXH3-64 over the checksums of each MiB of an array in host memory."""

    def start(
        self, opening: OpenOptions | None = None, list_pinned: Callable[[], Sequence[str]] | None = None
    ) -> Recovery:
        """Maps the arena, opens the volumes, starts the lanes. `list_pinned` returns every directory with a
        manifest.bin that exists, whose places are kept; it is called when the volumes are this process's.

        With a step, weights and state are in place. Without, it is a fresh start: the caller loads weights, or a
        checkpoint that stands alone."""

    def read_back(self, checkpoint: str | None = None, at_most: int = 9223372036854775807) -> Recovery:
        """Instead of start(): opens the volumes for reading only; the newest durable step, replayed in memory, or the
        manifest in the directory `checkpoint`. Then save_weights, save_state and fetch_tensor work. `at_most` as in
        OpenOptions."""

    def verify(self, pinned: Sequence[str]) -> Verification:
        """Instead of start(): reads every byte that counts."""

    def durable_step(self) -> DurableStep:
        """Before start(), of this process's volumes."""

    def durable_step_of(self, world: int, shard: int, places: Sequence[str]) -> DurableStep:
        """The same of volumes that another number of processes has left. `places`: by path."""

    def redeal(self, step: int, readers: Sequence[int], places: Sequence[Sequence[str]]) -> Recovery:
        """After start() anew, in place of loading, by all processes alike: brings in the step that another number of
        processes has left. `step`: the last that all of their shards have; `readers`: by shard the rank that reads it;
        `places`: by shard the directories of its paths, where this process is that rank. The same step and payload in
        all."""

    def next_vote(self) -> int | None:
        """Where processes share a run: the step that is durable here (-1: none), once for each; waits for one without
        the GIL. None after close(). A thread takes votes from before start(), which takes the first one."""

    def end_vote(self, step: int, minimum: int, error: str = "") -> None:
        """The smallest of what next_vote() gave in all processes, or why it is not known: then the last step that all
        have stands, and what waits for a later one raises the error."""

    def close(self) -> None:
        """Waits until what was committed is durable; votes are taken until next_vote() returns None."""

    def give_up_volumes(self) -> None:
        """Before close(): volumes that are kept otherwise are removed by it, while it still has their locks."""

    def load_weights(self, checkpoint: str, stored_names: Mapping[str, str]) -> None:
        """`stored_names`: names in the checkpoint that differ; "" for a tensor that it does not hold, which is zero."""

    def store_tensor(self, tensor: int, first: int, values: Any) -> None:
        """fp32 values of elements [first, first + len) of one tensor: random initialisation."""

    def measure_tensor(self, tensor: int, first: int, values: Any) -> None:
        """Before a tensor of nf4_nested is stored in pieces: all of its values, in order."""

    def fetch_tensor(self, tensor: int, first: int, values: Any) -> None:
        """The reverse: the fp32 master into `values`."""

    def save_weights(self, directory: str, max_shard: int, stored_names: Mapping[str, str] = {}) -> None:
        """`stored_names`: as for load_weights; tensors named "" are left out."""

    def save_state(self, directory: str, step: int) -> None:
        """A state that stands alone."""

    def load_state(self, directory: str, weights: str, step: int, stored_names: Mapping[str, str] = {}) -> str:
        """From the directory of save_state and the checkpoint's weights, after `step` updates. Returns the state format
        found there; moments of another one are converted. Frozen tensors whose stored name is "" stay as they are."""

    def flush(self) -> None:
        """Waits until every pending update is done and on its tier."""

    def commit(self, payload: str) -> None:
        """After loading (unless start() found a durable step) and after each end_step: the step becomes durable, with
        this payload of at most 48 KiB, as soon as everything it needs is on the drives. Does not wait for that; a later
        call waits while more than one step is not durable yet. Does nothing when durability is none."""

    def set_step(self, step: int) -> None:
        """Before the first commit of a run that was loaded from a checkpoint that stands alone: steps done, skipped
        ones included. Commits count from there."""

    def save_manifest(self, directory: str) -> None:
        """The state of the last step as directory/manifest.bin; its places on the paths are pinned."""

    def release_manifest(self, content: bytes) -> None:
        """Its places may be used again. After its directory is durably gone."""

    def leave(self, payload: str) -> bytes:
        """What was reached stays on the paths, with the volumes, because it cannot be saved where it should be: of a
        durable run as its newest step, b"" is returned; of another one a manifest, which read_back() takes in a
        directory's manifest.bin. ValueError where nothing is on a path, MemoryError where the rest has no room."""

    def take_back(self) -> None:
        """It was saved after all: volumes of a run that is not durable go at the end."""

    def plan(self) -> PlanSummary:
        """ "durability" is what holds for this plan: none when nothing is on storage and nothing was asked for. Unless
        none, the bytes have a class "durability", and path_bytes_per_step counts what it writes."""

    def what_fits(self, sequence: int, batch: int, work_per_token: float, device_per_token: float = 0.0) -> Fits:
        """Micro-batches are `batch` rows of `sequence` tokens now, and each token more takes so many bytes of PyTorch's
        working set, on the host and on the device."""

    def counters(self) -> Counters:
        """Each read and write of `waits` counts for the path whose piece came last."""

    def count_asked_pieces(self) -> list[tuple[str, list[int]]]: ...
    def displaced_volumes(self) -> list[str]:
        """Volumes whose file was removed or replaced since the engine opened them. Between start() and close()."""

    def silence(self) -> dict[str, Silence]:
        """By path, and by lane of a device ("device:to_device"). Any thread may ask."""

    def lateness(self) -> Delay | None:
        """None: other processes do not wait for this one. Any thread may ask."""

    def where(self) -> MemoryPlaces | None:
        """As the kernel says page by page; None when DRAM is one tier."""

    def timeline(self) -> str:
        """JSON: the last step's tasks in Chrome's trace event format (opens in Perfetto), predicted and, once it was
        made, measured."""

    def graph(self, format: str) -> str:
        """The order of the planned step as a picture, for a file that ends in "svg" or "dot"."""

    def refits(self) -> list[tuple[str, int, float]]:
        """After a step, of each reduced tensor its name, the times learned and the running estimate of
        |G - P P' G Q Q'| / |G|, which is 0 before the first sample after a fit."""

class BlockPass:
    """One block's turn on the compute device. Offsets are bytes from the start of `Engine.device_memory()`; those of
    embedding_backward, which is on the host, from that of `Engine.memory()`."""

    @property
    def kind(self) -> str: ...
    @property
    def block(self) -> int: ...
    @property
    def slice(self) -> int: ...
    @property
    def first_row(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def weights(self) -> int: ...
    @property
    def input(self) -> int: ...
    @property
    def output(self) -> int: ...
    @property
    def hidden_gradient(self) -> int: ...
    @property
    def accumulator(self) -> int: ...
    @property
    def spilled(self) -> int: ...
    @property
    def spilled_bytes(self) -> int: ...
    @property
    def features(self) -> int: ...
    @property
    def feature_bytes(self) -> int: ...

class StepUpdate:
    """Values of one update."""

    def __init__(
        self,
        *,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        max_grad_norm: float | None = None,
        skip: bool | None = None,
        hyperparameters: Mapping[str, float] | None = None,
    ) -> None: ...
    learning_rate: float
    weight_decay: float
    max_grad_norm: float  # 0: no clipping
    skip: bool  # the step ends without an update, as one whose gradient is not finite
    hyperparameters: dict[str, float]  # further ones by name; "muon.learning_rate" is that of `muon` alone

class StepResult:
    """The outcome of a step."""

    def __init__(
        self,
        *,
        grad_norm: float | None = None,
        clip: float | None = None,
        loss_scale: float | None = None,
        skipped: bool | None = None,
        step: int | None = None,
        seconds: float | None = None,
        stall_seconds: float | None = None,
        early: int | None = None,
        undone: int | None = None,
    ) -> None: ...
    grad_norm: float  # before clipping
    clip: float  # factor applied to the gradient
    loss_scale: float  # of this step
    skipped: bool  # a gradient was not finite, or the caller asked for it: no update
    step: int  # optimizer steps so far
    seconds: float  # since begin_step
    stall_seconds: float  # of these, waiting in next_pass
    early: int  # chunks that were updated during backward
    undone: int  # of these, put back

class StepDigest:
    """The digest of bytes that a pass has read or made."""

    @property
    def name(self) -> str: ...
    @property
    def is_weight(self) -> bool: ...
    @property
    def value(self) -> int: ...

class OpenOptions:
    """Where a run begins; by default anew."""

    def __init__(
        self,
        *,
        reopen: bool | None = None,
        if_found: bool | None = None,
        at_least: int | None = None,
        known_step: int | None = None,
        at_most: int | None = None,
        line: int | None = None,
        checkpoint: str | os.PathLike | None = None,
    ) -> None: ...
    reopen: bool  # keep what the volumes hold, and go on from the newest durable step if there is one
    if_found: bool  # when nothing is found, change nothing and do not start
    at_least: int  # a durable step before this one does not count
    known_step: int  # a step of this run that was durable once; 0: none
    at_most: int  # the last step that every process has, -1: none has any; what this one has beyond it is cut off
    line: int  # number of the run's line, the same in all processes; 0 in a world of one
    checkpoint: pathlib.Path | None  # go back to the manifest.bin in this directory

class RecoveryPhases:
    """Seconds: parts of those of a recovery."""

    def __init__(
        self,
        *,
        memory: float | None = None,
        opening: float | None = None,
        records: float | None = None,
        reading: float | None = None,
        replay: float | None = None,
    ) -> None: ...
    memory: float
    opening: float
    records: float
    reading: float
    replay: float

class Recovery:
    """State that the paths held."""

    def __init__(
        self,
        *,
        has_step: bool | None = None,
        step: int | None = None,
        updates: int | None = None,
        payload: str | None = None,
        chunks: int | None = None,
        replayed: int | None = None,
        replayed_steps: int | None = None,
        seconds: float | None = None,
        phases: RecoveryPhases | None = None,
        damage: Sequence[str] | None = None,
        lost_until: int | None = None,
    ) -> None: ...
    has_step: bool  # weights and state are those of `step`; else the caller loads them
    step: int  # steps done, skipped ones included
    updates: int  # of them, those that were not skipped
    payload: str  # as given to commit()
    chunks: int
    replayed: int  # chunks updated again
    replayed_steps: int  # most updates of one chunk done again
    seconds: float
    phases: RecoveryPhases
    damage: list[str]  # records that were not whole
    lost_until: int | None  # steps up to this one had been durable, and the paths have lost them

    @property
    def words(self) -> str:
        """A sentence for a person, "" when nothing was recovered."""

class Damage:
    """Bytes that are not those that were written."""

    def __init__(
        self,
        *,
        path: str | None = None,
        file: str | os.PathLike | None = None,
        offset: int | None = None,
        bytes: int | None = None,
        what: str | None = None,
    ) -> None: ...
    path: str  # "path:0"
    file: pathlib.Path
    offset: int  # in the file
    bytes: int
    what: str  # chunk and tensor

class Verification:
    """Whether every byte is the one that was written."""

    def __init__(
        self, *, bytes: int | None = None, step: int | None = None, damage: Sequence[Damage] | None = None
    ) -> None: ...
    bytes: int  # read
    step: int | None  # the newest durable one
    damage: list[Damage]

class DurableStep:
    """A step that is durable, and its line of the run."""

    def __init__(self, *, step: int | None = None, line: int | None = None) -> None: ...
    step: int  # -1: none is durable
    line: int  # of the run

class Silence:
    """A path, or a lane of a device with memory of its own."""

    def __init__(
        self,
        *,
        volume: str | None = None,
        device: str | None = None,
        under_way: int | None = None,
        silent_seconds: float | None = None,
        task: str | None = None,
        bytes: int | None = None,
    ) -> None: ...
    volume: str  # of a path: the file
    device: str  # of a lane: the name of its device
    under_way: int  # requests that it has not answered
    silent_seconds: float  # since its last answer; 0 when nothing is under way
    task: str  # of a lane: what it waits for
    bytes: int  # of that task

class Delay:
    """Work of this process that others wait for."""

    def __init__(
        self, *, task: str | None = None, waits_for: str | None = None, seconds: float | None = None
    ) -> None: ...
    task: str  # that they wait for: "backward of layers.7"
    waits_for: str  # what has to end first
    seconds: float  # since others may wait for it

class KeptLine:
    """A line of a run, and the number of the shards that keep it."""

    def __init__(self, *, number: int | None = None, world: int | None = None) -> None: ...
    number: int  # 0: of a world of one
    world: int

class RunLines:
    """The lines that run.json names."""

    def __init__(self, *, now: KeptLine | None = None, before: KeptLine | None = None) -> None: ...
    now: KeptLine
    before: KeptLine | None  # the line whose last step is the first one of `now`

class FoundShard:
    """A shard of which one process reaches the volumes of all paths."""

    def __init__(
        self, *, world: int | None = None, shard: int | None = None, newest: DurableStep | None = None
    ) -> None: ...
    world: int
    shard: int
    newest: DurableStep

class WayKind(enum.Enum):
    """How a world of processes goes on (journal/lines.h)."""

    open = 0
    redeal = 1
    nothing = 2
    missing = 3

class WayOn:
    """How a world of processes goes on."""

    def __init__(
        self,
        *,
        kind: WayKind | None = None,
        line: KeptLine | None = None,
        step: int | None = None,
        missing: Sequence[int] | None = None,
    ) -> None: ...
    kind: WayKind
    line: KeptLine  # that the kind is about
    step: int  # the last that all shards of `line` have, where all are found
    missing: list[int]  # numbers of shards

def way_on(lines: RunLines, found: Sequence[FoundShard], world: int) -> WayOn:
    """How so many processes go on with a run."""

class Superblock:
    """The volume's own words about itself."""

    def __init__(
        self,
        *,
        run: str | None = None,
        shard: int | None = None,
        world: int | None = None,
        number: int | None = None,
        paths: int | None = None,
        set: int | None = None,
        ready: bool | None = None,
    ) -> None: ...
    run: str
    shard: int
    world: int  # shards of the run
    number: int  # of its path among the run's
    paths: int  # of the run
    set: int  # the same in all volumes of a shard that were made together
    ready: bool  # false: it is being prepared

class ListedVolume:
    """A volume, whoever it belongs to."""

    def __init__(self, *, file: str | os.PathLike | None = None, superblock: Superblock | None = None) -> None: ...
    file: pathlib.Path
    superblock: Superblock

def list_volumes(place: str) -> list[ListedVolume]:
    """The volumes in a storage directory or on a device, whoever they belong to."""

def give_back_volume(device: str, run: str) -> None:
    """A volume of this run on a block device is nobody's, as when the run that has it open gives it back. Refused while
    anybody has the device open."""

class SecondSignal:
    """Until it is closed the second of `signals` ends the process at once, whatever it waits for: `words` go to
    standard error, the exit code is 128 + the signal's number. The first goes to the handler that was there. Signals
    that are ignored stay so."""

    def __init__(self, signals: Sequence[int], words: str) -> None:
        """`words` go to standard error then."""

    def say(self, words: str) -> None: ...
    def close(self) -> None:
        """Puts the handlers back. Once or more."""

class OutOfMemoryExit:
    """Until it is closed a crash of a library that finds no memory to be had, since the process has bounded itself,
    ends the process with `code`, and `words` go to standard error. Other crashes are what they were."""

    def __init__(self, words: str, code: int) -> None: ...
    def close(self) -> None:
        """Puts the handlers back. Once or more."""

class NodeRate:
    """Rates of a NUMA node, or of a file as memory."""

    def __init__(
        self,
        *,
        update_elements_per_second: float | None = None,
        update_elements_per_second_thread: float | None = None,
        read_bytes_per_second: float | None = None,
    ) -> None: ...
    update_elements_per_second: float
    update_elements_per_second_thread: float
    read_bytes_per_second: float

class NodeShare:
    """Bytes of a NUMA node for a run."""

    def __init__(self, *, id: int | None = None, capacity: int | None = None) -> None: ...
    id: int
    capacity: int

class NodeChoice:
    """NUMA nodes for a run."""

    def __init__(
        self, *, nodes: Sequence[NodeShare] | None = None, dram: int | None = None, notice: str | None = None
    ) -> None: ...
    nodes: list[NodeShare]  # first the nearest to what computes; none: DRAM is one tier
    dram: int | None  # bytes asked of that one tier
    notice: str  # why nodes are not told apart

def check_memory_files(asked: Sequence[tuple[str, int]]) -> list[tuple[bool, str]]:
    """(whether its bytes are DRAM, what a person should know or "") of each (directory, bytes) in which a run is to
    have a file as memory. ValueError, MemoryError."""

def measure_memory_file(
    directory: str,
    bytes: int,
    most: int,
    seconds: float = 0.4,
    weight_dtype: str = "bf16",
    optimizer: str = "adamw",
    state_format: str = "exact",
) -> NodeRate:
    """Measures one node as measure_nodes() does, in a file there that may have so many `bytes` and takes about `most`
    of them."""

def exchange(one: str, other: str) -> bool:
    """Two names of one file system change what they have, files or directories, at once. False, and nothing has
    changed, where the file system or the kernel cannot do that."""

def gpu_kernels() -> bool:
    """Whether kernels for a GPU were built in: CUDA's compiler was there and has made them."""

def load_gpu_kernels(index: int) -> tuple[bool, str]:
    """(whether the driver takes them for that GPU, in which form or why not); loads them, as a run does."""

def dram_available() -> int:
    """Bytes of DRAM this process can take now without swapping or being killed (cgroups included)."""

def dram_total() -> int:
    """Bytes of DRAM of the machine, or the cgroup's limit where that is less."""

def resident() -> int:
    """Resident bytes of this process now."""

def peak_resident() -> int:
    """Highest resident bytes of this process since its start or the last reset_peak_resident()."""

def reset_peak_resident() -> bool:
    """Starts peak_resident() anew from the present; False where the kernel refuses."""

def redirect_posix_memalign(libraries: Sequence[str]) -> int:
    """Has the loaded libraries of these file names take aligned memory so that its place serves again when it is freed;
    how many of their calls do."""

def cores() -> int:
    """CPUs this process may run on, by affinity and cgroup."""

def drop_from_caches(address: int, bytes: int) -> None:
    """Takes memory out of every cache, so that the next to read it reads memory; for measuring."""

def measure(
    directories: Sequence[str],
    seconds: float = 0.4,
    weight_dtype: str = "bf16",
    optimizer: str = "adamw",
    state_format: str = "exact",
    most_memory: int = 18446744073709551615,
) -> Profile:
    """This machine's profile; `directories` (or block devices, which are only read): where the storage paths'
    rates are measured. The rest: what the rate of updates is of, and the bytes that it may take meanwhile."""

def probe(directories: Sequence[str], seconds: float = 0.4) -> Profile:
    """What measure() measures, and in addition the NUMA nodes, the matrix of CPUs by memory, and each GPU's link from
    every node."""

def measure_nodes(
    nodes: Sequence[int],
    seconds: float = 0.4,
    weight_dtype: str = "bf16",
    optimizer: str = "adamw",
    state_format: str = "exact",
) -> list[NodeRate]:
    """Rates of NUMA nodes."""

def measure_device(
    name: str,
    bytes: int,
    seconds: float = 0.2,
    weight_dtype: str = "bf16",
    optimizer: str = "adamw",
    state_format: str = "exact",
) -> tuple[float, float, float]:
    """Bytes per second to and from, and elements per second that it updates (0: it has none of this
    optimizer), of "simulated" or "cuda:N"; takes so many `bytes` of the host and of the device for each direction."""

def checkup(places: Sequence[str]) -> list[tuple[str, str, str]]:
    """(what, "good", "lesser" or "missing", words) of each thing that the engine can use here; `places`: directories or
    block devices that may become storage paths."""

def choose_nodes(asked: Sequence[tuple[int, int]], held: int, near: int | None = None) -> NodeChoice:
    """NUMA nodes for a run. `asked`: (node, bytes) each, none: all that there are; `held`: bytes of the process so far;
    `near`: the node of the GPU that computes. ValueError, MemoryError."""

def near_gpu(gpu: int, places: Sequence[str]) -> tuple[int | None, dict[str, tuple[int, str]]]:
    """The NUMA node nearest to a GPU, None: not known; and those of `places` (directories or block devices) whose
    drive is nearer to another, with that node and words about each."""

def place(
    bytes: int,
    nodes: Sequence[int],
    weights: Sequence[float],
    granularity: int,
    strict: bool,
    huge_pages: bool,
    gpu: int | None = None,
) -> Any:
    """Zeroed memory on nodes (none named: anywhere) as a uint8 array that owns it; every page is in place. `gpu`: also
    registered with that one. ValueError: the placement makes no sense here; MemoryError: a node cannot hold it."""

def where(address: int, bytes: int) -> list[tuple[int, int]]:
    """(node, bytes) each, by rising node, as the kernel says page by page; node -1: not in memory."""

def move(
    address: int, bytes: int, nodes: Sequence[int], weights: Sequence[float], granularity: int, strict: bool
) -> None: ...

class Network:
    """Messages of this process to and from others, which a thread serves: it takes transfers, and says how they
    ended."""

    def __init__(self, rank: int, size: int) -> None: ...
    def next_transfer(self) -> Any:
        """Waits for one: its number and (peer, whether it sends, bytes) of each message; None when it is closed."""

    def end_transfer(self, id: int, error: str) -> None:
        """It has ended: well where `error` is empty."""

    def exchange(self, messages: Sequence[tuple[int, bool, Any]]) -> None:
        """Begins a transfer and waits until it has ended; OSError where it failed."""

    def close(self) -> None: ...

def share_of_step(virtual_ranks: int, micro_batches: int, rank: int, world: int) -> tuple[int, int]:
    """Of the micro-batches of a step, in its order (virtual rank by virtual rank), those that a rank computes: the
    first, and one past the last."""

class Hyperparameter:
    """A hyperparameter of an optimizer."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def default(self) -> float: ...
    @property
    def least(self) -> float: ...
    @property
    def below(self) -> float: ...
    @property
    def above(self) -> bool: ...
    @property
    def words(self) -> str: ...
    @property
    def choices(self) -> list[str]: ...

class OptimizerDescriptor:
    """What an optimizer declares about itself; `others`: the optimizer of what is no matrix of a layer, or ""."""

    @property
    def name(self) -> str: ...
    @property
    def words(self) -> str: ...
    @property
    def scope(self) -> str: ...
    @property
    def fields(self) -> list[str]: ...
    @property
    def hyperparameters(self) -> list[Hyperparameter]: ...
    @property
    def formats(self) -> list[str]: ...
    @property
    def decoupled_decay(self) -> bool: ...
    @property
    def on_device(self) -> bool: ...
    @property
    def others(self) -> str: ...

def optimizers() -> list[OptimizerDescriptor]:
    """The descriptor of every optimizer (spillway/optim/descriptor.h)."""

class Optimizer:
    """The state of tensors that stay where they are."""

    def __init__(
        self,
        tensors: Sequence[tuple[str, int, str]],
        optimizer: str,
        format: str,
        seed: int,
        threads: int,
        storage: Sequence[tuple[str, bool]],
        staging: int,
        overwrite: bool,
    ) -> None:
        """`tensors`: (name, elements, bf16 or fp32) each; `storage`: (directory or device, whether it is a device)
        each, none: states in DRAM."""

    def step(self, updates: Sequence[tuple[int, int, int, Mapping[str, float], float, int]]) -> None:
        """(tensor, address of weight, of gradient, hyperparameters by name, gradient scale, step) each, by rising
        tensor."""

    def set_master(self, tensor: int, weight: int) -> None:
        """The masters become the weights' values."""

    def arrays(self, tensor: int) -> list[tuple[str, int, int]]:
        """(name, entries, bytes of an entry) of each array of the tensor's state."""

    def fetch(self, tensor: int, arrays: Sequence[Any]) -> None:
        """Fills one array of bytes for each of arrays()."""

    def store(self, tensor: int, arrays: Sequence[Any]) -> None: ...
    @property
    def state_bytes(self) -> int: ...
    @property
    def notices(self) -> list[str]: ...

def encode_moment(values: Any, second: bool) -> tuple:
    """fp32 values of a first or second moment as 8-bit codes and scales, rounded to nearest."""

def decode_moment(codes: Any, scales: Any, second: bool) -> Any:
    """The reverse of encode_moment."""

def granule_values(form: str, weight_dtype: str) -> int:
    """Values that each piece of a packed tensor is a multiple of where pieces are placed apart (TensorSpec.apart)."""

def round_packed(form: str, values: Any) -> None:
    """fp32 values of a whole tensor, flat, become what weights of "nf4", "nf4_nested" or "int8" stand for, in place."""

def pack(form: str, values: Any) -> bytes:
    """The bytes that keep these fp32 values of a whole tensor, flat: codes, then scales (kernels/encoding.h)."""

class SubspaceMatrix:
    """A weight [rows, columns] that trains in a subspace of its own: projectors P and Q, moments [rank, rank]."""

    def __init__(self, rows: int, columns: int, rank: int, nonzeros: int) -> None:
        """`rank` 0: half of the smaller side."""

    @property
    def rank(self) -> int: ...
    @property
    def fits(self) -> int:
        """Times that projectors were refitted."""

    def refit(self, gradient: Any, anew: bool) -> None:
        """Refits the projectors to a gradient, flat: the first for the next S, later ones for the steps after the next,
        which carries the moments over, or begins them anew."""

    @property
    def refitted(self) -> bool:
        """Whether later projectors wait for their step."""
    begun: int  # steps before the moments began

    def compress(self, side: int, source: int, stride: int, tokens: int, dtype: str, out: int) -> None:
        """Tokens at an address, times P (side 0) or Q (1): [rank, tokens] at `out`."""

    def step(
        self,
        weight: int,
        rest: int,
        dtype: str,
        gradient: Any,
        optimizer: str,
        rates: tuple[Mapping[str, float], float, int],
    ) -> None:
        """The optimizer on S, flat fp32, and its delta onto the weight. `rates`: hyperparameters by name, gradient
        scale, step."""

    def values(self, side: int) -> Any:
        """A copy of a projector's values as they lie."""

    def moment(self, which: int) -> Any: ...
    def restore(self, p: Any, q: Any, fits: int, exp_avg: Any, exp_avg_sq: Any) -> None:
        """What values(), fits and moment() gave."""

    def add_sample(self, s: float, whole: float) -> None:
        """A step's |S|^2 and |G z|^2."""

    @property
    def error(self) -> float:
        """Running estimate of |P P' G Q Q' - G| / |G|; 0 before the first sample."""
    bias: tuple[float, float, int]  # what the estimate is made of

class PublishedMatrix:
    """A weight that trains in a subspace as published."""

    def __init__(
        self,
        rows: int,
        columns: int,
        rank: int,
        nonzeros: int,
        threshold: float,
        penalty: float,
        seed: int,
        number: int,
    ) -> None:
        """`rank` 0: half of the smaller side."""

    @property
    def rank(self) -> int: ...
    @property
    def fits(self) -> int:
        """Times that projectors were learned."""

    def refit(self, gradient: Any) -> None:
        """Learns the first projectors from a gradient, flat, and later ones where too much is missed."""

    @property
    def refitted(self) -> bool:
        """Whether a later pair waits for its step."""

    @property
    def error(self) -> float:
        """What was missed of the gradient that was last looked at."""

    def compress(self, side: int, source: int, stride: int, tokens: int, dtype: str, out: int) -> None: ...
    def step(
        self,
        weight: int,
        rest: int,
        dtype: str,
        gradient: Any,
        optimizer: str,
        rates: tuple[Mapping[str, float], float, int],
    ) -> None: ...
    def values(self, side: int) -> Any:
        """Values, and then their columns as numbers: [rows, nonzeros] each."""

    def moment(self, which: int) -> Any: ...
    def restore(self, p: Any, q: Any, fits: int, error: float, exp_avg: Any, exp_avg_sq: Any) -> None:
        """What values(), fits, error and moment() gave."""

class Projections:
    """What `Engine` does of subspaces in passes, alone; see there. Every end_step() begins the next step."""

    def __init__(self, description: Description) -> None: ...
    def wants_whole_gradient(self, tensor: int, micro_batch: int) -> bool: ...
    def whole_gradient(self, tensor: int, gradient: Any) -> None: ...
    def compress(self, tensor: int, side: int, tokens: Any, out: Any) -> None: ...
    def signs(self, tensor: int, out: Any) -> None: ...
    def end_step(self) -> None: ...

def subspace_rank(rows: int, columns: int, rank: int, nonzeros: int) -> int:
    """What is meant: 0 is half of the smaller side, a multiple of `nonzeros`. ValueError for what cannot be."""

def subspace_rotates(every: int, updates: int, matrix: int) -> bool:
    """Whether this one is refitted after so many updates; `every` 0: never."""

def draw_signs(seed: int, matrix: int, step: int, n: int) -> Any:
    """1 or -1, n times, fp32."""

def task_kinds() -> list[tuple[str, str]]:
    """What the names of tasks in a timeline begin with, and the colours that the report's page gives them."""

def lanes() -> list[tuple[str, bool]]:
    """Names of lanes in the order of their threads in a timeline, which counts from 1, and whether their tasks overlap,
    as transfers do; behind them come the update lanes of further nodes."""
