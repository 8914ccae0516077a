"""The C++ engine as Python sees it. Arrays: anything with the buffer or DLPack protocol (NumPy, CPU torch)."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# Structs of the engine. Attributes are copies: a change inside a list or a struct takes effect when it is assigned.

@dataclass(kw_only=True)
class OpenOptions:
    """Where a run begins; by default anew."""

    reopen: bool = False  # keep what the volumes hold, and go on from the newest durable step if there is one
    if_found: bool = False  # when nothing is found, change nothing and do not start
    at_least: int = 0  # a durable step before this one does not count
    known_step: int = 0  # a step of this run that was durable once; 0: none
    at_most: int = ...  # the last step that every process has, -1: none has any; what this one has beyond it is cut off
    line: int = 0  # number of the run's line, the same in all processes; 0 in a world of one
    checkpoint: Path | None = None  # go back to the manifest.bin in this directory

@dataclass(kw_only=True)
class RecoveryPhases:
    """Seconds: parts of those of a recovery."""

    memory: float = 0.0
    opening: float = 0.0
    records: float = 0.0
    reading: float = 0.0
    replay: float = 0.0

@dataclass(kw_only=True)
class Recovery:
    """State that the paths held."""

    has_step: bool = False  # weights and state are those of `step`; else the caller loads them
    step: int = 0  # steps done, skipped ones included
    updates: int = 0  # of them, those that were not skipped
    payload: str = ""  # as given to commit()
    chunks: int = 0
    replayed: int = 0  # chunks updated again
    replayed_steps: int = 0  # most updates of one chunk done again
    seconds: float = 0.0
    phases: RecoveryPhases = field(default_factory=RecoveryPhases)
    damage: list[str] = field(default_factory=list)  # records that were not whole
    lost_until: int | None = None  # steps up to this one had been durable, and the paths have lost them
    @property
    def words(self) -> str:
        """A sentence for a person, "" when nothing was recovered."""

@dataclass(kw_only=True)
class Damage:
    """Bytes that are not those that were written."""

    path: str = ""  # "path:0"
    file: Path = ...
    offset: int = 0  # in the file
    bytes: int = 0
    what: str = ""  # chunk and tensor

@dataclass(kw_only=True)
class Verification:
    bytes: int = 0  # read
    step: int | None = None  # the newest durable one
    damage: list[Damage] = field(default_factory=list)

@dataclass(kw_only=True)
class DurableStep:
    step: int = -1  # -1: none is durable
    line: int = 0  # of the run

class Training(enum.Enum):
    """How a tensor takes part in learning."""

    full = 0
    reduced = 1  # a matrix that has gradient and state in a smaller shape alone
    frozen = 2  # its weight is read and never written

class BlockRole(enum.Enum):
    """How a block takes part in a step."""

    embedding = 0
    layer = 1
    head = 2

class Form(enum.Enum):
    """How the weights of a tensor are stored in a run."""

    as_run = 0  # in the run's type of weights
    fp32 = 1  # beside a narrower type; gradients, too
    nf4 = 2  # packed: of what is frozen inside layers, passes find its values
    int8 = 3
    nf4_nested = 4
    bf16_master = 5  # of reduced matrices in a run of bf16: updates round the weight stochastically
    @property
    def is_packed(self) -> bool: ...

@dataclass(kw_only=True)
class TensorSpec:
    name: str = ""  # as in the checkpoint
    shape: list[int] = field(default_factory=list)
    decay: bool = False  # weight decay applies
    training: Training = Training.full
    rank: int = 0  # of what is reduced
    nonzeros: int = 0  # the same
    form: Form = Form.as_run
    table: bool = False  # of two dimensions in a layer, and no matrix of a product
    pieces: int = 0  # parts that passes convert it in, by convert_pieces(); 0: it is converted before they begin
    apart: bool = False  # with `pieces`: each is placed by itself
    asked: float = 1.0  # with `apart`: share of the pieces that an average step asks for; 1: all come before a pass
    asked_by_piece: list[float] = field(default_factory=list)  # share of the steps that ask for each; empty: `asked`

@dataclass(kw_only=True)
class BlockSpec:
    name: str = ""
    role: BlockRole = BlockRole.layer
    tensors: list[TensorSpec] = field(default_factory=list)

@dataclass(kw_only=True)
class World:
    """The processes of a run, and which of them this one is."""

    size: int = 1
    rank: int = 0
    local: int = 1  # processes of each machine

@dataclass(kw_only=True)
class RefitRule:
    """When what reduces tensors is made anew."""

    every: int = 100  # updates between two looks at what the reduction misses
    threshold: float = 0.9  # of that error
    rotate: int = 0  # updates after which each matrix's is made anew whatever is missed; 0: never

@dataclass(kw_only=True)
class Description:
    """The model and the largest step it will be asked for. At most one embedding first, layers (final norm and the like
    are a last block of role layer), at most one head last; a tied head has no block."""

    compute_dtype: str = "bf16"  # what passes multiply in: the compute type
    weight_dtype: str = "bf16"  # the same or narrower: what weights and gradients are kept in
    optimizer: str = "adamw"  # a name of one of optimizers()
    state_format: str = "exact"  # "exact", "bf16" or "int8"
    seed: int = 0  # of the run
    blocks: list[BlockSpec] = field(default_factory=list)  # in order of execution
    tied_head: bool = False
    hidden_size: int = 0
    tokens: int = 0  # most per step that this process computes
    micro_batches: int = 1  # most parts per step by which gradients are summed
    accumulation: int = 0  # most micro-batches per step; 0: one for each part
    virtual_ranks: int = 1  # groups of parts that are summed by themselves; gradients come group by group
    shard_frozen: bool = False  # one process keeps each frozen chunk, too, and sends it for every pass
    world: World = field(default_factory=World)
    step_tokens: int = 0  # most per step that all processes compute; 0: tokens
    chunk_elements: int = ...
    refits: RefitRule = field(default_factory=RefitRule)
    @staticmethod
    def parse(text: str) -> Description:
        """From the file that a run keeps. ValueError names the key."""
    def to_json(self) -> str: ...

@dataclass(kw_only=True)
class KeptLine:
    """A line of a run, and the number of the shards that keep it."""

    number: int = 0  # 0: of a world of one
    world: int = 1

@dataclass(kw_only=True)
class RunLines:
    """The lines that run.json names."""

    now: KeptLine = field(default_factory=KeptLine)
    before: KeptLine | None = None  # the line whose last step is the first one of `now`

@dataclass(kw_only=True)
class FoundShard:
    """A shard of which one process reaches the volumes of all paths."""

    world: int = 1
    shard: int = 0
    newest: DurableStep = field(default_factory=DurableStep)

class WayKind(enum.Enum):
    """How a world of processes goes on (journal/lines.h)."""

    open = 0  # with volumes of its own
    redeal = 1  # with the step of another line, whose volumes it reads, on a new line
    nothing = 2  # no step is durable
    missing = 3  # the step needs shards that nobody reaches

@dataclass(kw_only=True)
class WayOn:
    kind: WayKind = WayKind.open
    line: KeptLine = field(default_factory=KeptLine)  # that the kind is about
    step: int = -1  # the last that all shards of `line` have, where all are found
    missing: list[int] = field(default_factory=list)  # numbers of shards

@dataclass(kw_only=True)
class Superblock:
    """The volume's own words about itself."""

    run: str = ""
    shard: int = 0
    world: int = 1  # shards of the run
    number: int = 0  # of its path among the run's
    paths: int = 1  # of the run
    set: int = 0  # the same in all volumes of a shard that were made together
    ready: bool = True  # false: it is being prepared

@dataclass(kw_only=True)
class ListedVolume:
    file: Path = ...
    superblock: Superblock = field(default_factory=Superblock)

@dataclass(kw_only=True)
class Silence:
    """A path, or a lane of a device with memory of its own."""

    volume: str = ""  # of a path: the file
    device: str = ""  # of a lane: the name of its device
    under_way: int = 0  # requests that it has not answered
    silent_seconds: float = 0.0  # since its last answer; 0 when nothing is under way
    task: str = ""  # of a lane: what it waits for
    bytes: int = 0  # of that task

@dataclass(kw_only=True)
class Delay:
    """Work of this process that others wait for."""

    task: str = ""  # that they wait for: "backward of layers.7"
    waits_for: str = ""  # what has to end first
    seconds: float = 0.0  # since others may wait for it

@dataclass(kw_only=True)
class PathProfile:
    """Rates of one storage path through the engine, checksums included. 0 = unknown."""

    name: str = "0"  # shown as path:NAME
    read_bytes_per_second: float = 0.0  # reads alone
    write_bytes_per_second: float = 0.0  # writes alone
    mixed_bytes_per_second: float = 0.0  # half reads, half writes at once: the sum of both directions
    cores_at_full_speed: float = 0.0  # CPUs that compute on all of them loses while both directions run
    capacity: int = 0  # for what a run keeps there; 0 = unknown

@dataclass(kw_only=True)
class NodeProfile:
    """A NUMA node. 0 = unknown, and of the transfers: bounded by the links alone."""

    id: int = 0  # shown as numa:ID
    cxl: bool = False  # a card without CPUs; else DRAM
    capacity: int = 0  # bytes
    update_elements_per_second: float = 0.0  # AdamW of exact states that lie there, as many threads as saturate it
    to_gpus_bytes_per_second: float = 0.0  # all transfers from it to GPUs together
    from_gpus_bytes_per_second: float = 0.0  # and the other way
    available: int = 0  # what could be taken when it was measured
    cpus: str = ""  # its CPUs, as "0-3,8"
    read_bytes_per_second: float = 0.0
    write_bytes_per_second: float = 0.0
    copy_bytes_per_second: float = 0.0  # bytes copied within it
    update_elements_per_second_thread: float = 0.0  # of one thread
    update_threads: int = 0  # that saturate it
    tier: int = 0  # the kernel's memory tier: a smaller number is faster memory
    promised_read_bytes_per_second: float = 0.0  # the firmware's table of attributes (HMAT)
    promised_write_bytes_per_second: float = 0.0
    promised_latency_seconds: float = 0.0  # of a read

@dataclass(kw_only=True)
class Saturation:
    """How a rate grows with threads, in any unit a second. 0 = unknown."""

    thread: float = 0.0  # of one thread
    most: float = 0.0  # of as many as it takes
    threads: int = 0  # that many: more are not 5 % faster

@dataclass(kw_only=True)
class NodeAccess:
    """What CPUs of one NUMA node reach on the memory of another. Bytes a second; of `update` elements a second."""

    cpus: int = 0  # the node whose CPUs work
    memory: int = 0  # the node whose memory they work on
    distance: int = 0  # as the firmware says, 10 on one node; 0 = unknown
    read: Saturation = field(default_factory=Saturation)
    write: Saturation = field(default_factory=Saturation)
    copy: Saturation = field(default_factory=Saturation)  # bytes copied, within that memory
    update: Saturation = field(default_factory=Saturation)  # of the kind that was asked for

@dataclass(kw_only=True)
class LayerProfile:
    """Products of a layer of that shape, on the compute device."""

    hidden: int = 0
    intermediate: int = 0
    tokens: int = 0  # of a micro-batch
    flops_per_second: float = 0.0  # of the product [tokens, hidden] x [hidden, intermediate] in bf16
    fp32_flops_per_second: float = 0.0  # the same in fp32; 0 = unknown

@dataclass(kw_only=True)
class ProductRate:
    """The three products of a linear layer with a weight of [outer, inner] and so many tokens, on all CPUs."""

    tokens: int = 0
    inner: int = 0
    outer: int = 0
    forward_flops_per_second: float = 0.0  # [tokens, inner] x [inner, outer]
    input_flops_per_second: float = 0.0  # [tokens, outer] x [outer, inner], the gradient of the input
    weight_flops_per_second: float = 0.0  # [outer, tokens] x [tokens, inner], that of the weight

@dataclass(kw_only=True)
class AttentionRate:
    """Causal attention over rows of so many tokens, on all CPUs. Operations are those of the pairs that the mask
    leaves: half of all."""

    tokens: int = 0
    forward_flops_per_second: float = 0.0
    backward_flops_per_second: float = 0.0  # of twice the operations of forward
    head_size: int = 0  # channels of a head; 0 = unknown

@dataclass(kw_only=True)
class OperationRate:
    """An operation of PyTorch that is bound by memory, named as in ATen: `mul`, `silu_backward`, `copy`. Bytes are
    those of all tensors that it reads or writes."""

    operation: str = ""
    strided: bool = False  # a tensor of it has gaps, or another order than its elements in memory
    bytes: int = 0  # of the call that was measured
    bytes_per_second: float = 0.0

@dataclass(kw_only=True)
class ComputeProfile:
    """What PyTorch reaches on the CPUs in one type, by class of operation."""

    dtype: str = "fp32"  # bf16, fp16 or fp32
    products: list[ProductRate] = field(default_factory=list)  # at least one
    attention: list[AttentionRate] = field(default_factory=list)  # none: as products
    elementwise_bytes_per_second: float = 0.0  # read and written by operations on each element; 0 = they take nothing
    # the same by operation and size; none: at the one rate
    operations: list[OperationRate] = field(default_factory=list)
    call_seconds: float = 0.0  # of an operation on next to nothing; 0 = unknown
    libraries_bytes: int = 0  # in memory once layers have computed, beside tensors: code, caches of products

@dataclass(kw_only=True)
class LinkProfile:
    """Copies between a NUMA node and a GPU, as measured: each direction alone, and both at once. Bytes a second."""

    node: int = 0  # the NUMA node's number
    to_gpu_bytes_per_second: float = 0.0
    from_gpu_bytes_per_second: float = 0.0
    to_gpu_bytes_per_second_together: float = 0.0
    from_gpu_bytes_per_second_together: float = 0.0

@dataclass(kw_only=True)
class GpuProfile:
    """A GPU and its link. 0 = unknown; update and peer: there is none."""

    name: str = "0"  # shown as gpu:NAME
    memory: int = 0  # bytes, of which
    reserved: int = 0  # for context, libraries and the allocator
    flops_per_second: float = 0.0  # of bf16 products, as training reaches them
    update_elements_per_second: float = 0.0  # AdamW of exact states in its own memory
    to_gpu_bytes_per_second: float = 0.0  # of its link
    from_gpu_bytes_per_second: float = 0.0  # and the other way; both at once
    peer_bytes_per_second: float = 0.0  # from and to the other GPUs, each way
    links: list[LinkProfile] = field(default_factory=list)  # by NUMA node; nodes differ; empty: not measured
    elementwise_bytes_per_second: float = 0.0  # read and written by operations on each element; 0 = in `flops`
    attention_forward_flops_per_second: float = 0.0  # of the pairs that a causal mask leaves; 0 = as products
    attention_backward_flops_per_second: float = 0.0  # the same, deterministic, of twice as many; 0 = as products
    call_seconds: float = 0.0  # of the host, for each operation that it asks of the GPU; 0 = unknown
    shares_dram: bool = False  # its memory is the machine's DRAM

@dataclass(kw_only=True)
class Profile:
    machine: str = ""  # its name when it is another machine, described and not measured here
    comment: list[str] = field(default_factory=list)  # where the numbers come from
    cores: int = 0  # CPUs this process may run on; 0 = unknown
    dram_total: int = 0  # of the machine, or of the cgroup where that is less
    dram_available: int = 0  # what could be taken when it was measured
    nodes: list[NodeProfile] = field(default_factory=list)  # ids differ; empty: one DRAM node
    gpus: list[GpuProfile] = field(default_factory=list)  # names differ
    paths: list[PathProfile] = field(default_factory=list)  # names differ
    update_elements_per_second: float = 0.0  # update on one thread, of the kind that was asked for; 0 = unknown
    update_elements_per_second_all_cores: float = 0.0  # the same on every CPU at once; 0 = unknown
    update_elements_per_second_beside: float = 0.0  # the same on one thread beside compute on all; 0 = unknown
    compute_share_beside_update: float = 0.0  # of its speed that compute keeps meanwhile; 0 = unknown
    copy_bytes_per_second: float = 0.0  # bytes copied from DRAM to DRAM on one thread; 0 = unknown
    compute_flops_per_second: float = 0.0  # of the compute device; 0 = unknown
    machines: int = 0  # that are like this one and train one model; 0: this one alone
    network: float = 0.0  # bytes per second to and from others, each way; 0 = unknown
    network_latency: float = 0.0  # seconds that a transfer there takes beside its bytes
    access: list[NodeAccess] = field(default_factory=list)  # CPUs by memory, as measured; no pair twice
    layers: list[LayerProfile] = field(default_factory=list)  # rates of compute by layer shape
    compute: list[ComputeProfile] = field(default_factory=list)  # the same by type and class of operation; types differ
    @staticmethod
    def parse(text: str, source: str = "profile") -> Profile:
        """From a profile's file, checked and completed. ValueError names the key, and the file as `source`."""
    def to_json(self) -> str: ...
    def save(self, path: str) -> None:
        """Writes the file under a temporary name and renames it."""

@dataclass(kw_only=True)
class SavedActivations:
    """The layers that can keep what autograd saves of them, and what that takes: the caller's memory, beside the
    arena."""

    blocks: list[int] = field(default_factory=list)  # numbers of their blocks, ascending; none: every layer recomputes
    token_bytes: float = 0.0  # that one of them keeps of each token of a step
    on_device: bool = False  # in the memory of the budget's device; else in DRAM
    layers: int = 0  # of the model, those that cannot keep included
    keep: int | None = None  # layers that are to keep; None: as many as is fastest by simulation
    why: str = ""  # why there are none that can, or not all, in words; empty: nobody said
    spill: str = "never"  # "never", "auto" or "all"
    spilled_token_bytes: float = 0.0  # that move of each token where one of them spills; 0: none can
    graph_token_bytes: float = 0.0  # that one which spills keeps in memory of each token all the same

@dataclass(kw_only=True)
class Saving:
    """Files that a run writes to output_dir, as far as its caller knows."""

    saves: int = 0  # checkpoints that will be written, the last one included
    limit: int | None = None  # most of them that are kept; None: all
    # bytes that removing each one that is there would free, oldest first
    there: list[int] = field(default_factory=list)
    freed: int = 0  # bytes of what is removed before the first one is written
    small: int = 0  # of each: configuration, tokenizer, log
    beside: int = 0  # of the run: metrics, timeline, page
    model_only: bool = False  # checkpoints without state
    copies: bool = False  # the final model is a copy of the last checkpoint's, not links to its files
    adapters: bool = False  # what is saved of weights are those that are trained, as fp32
    converted: bool = False  # weights are written a second time while a checkpoint is made

@dataclass(kw_only=True)
class FileSystem:
    """A file system that storage directories or output_dir lie on."""

    name: str = ""
    free: int = 0  # the run's own volumes count as free
    paths: list[int] = field(default_factory=list)  # numbers of the paths that lie there
    output: bool = False  # output_dir does

@dataclass(kw_only=True)
class PathSettings:
    """A storage path: a directory, or a block device that is taken whole."""

    directory: str = ""  # one of them is given
    device: str = ""  # or this one is
    capacity: int = 0  # for the run
    endurance: int | None = None  # bytes that may be written to it in its life; None: a usual drive's
    remote: bool = False  # its drive is by another NUMA node than the compute device
    node: int | None = None  # that node

@dataclass(kw_only=True)
class NodeSettings:
    """A tier of host memory. The first is the compute device's, files are last."""

    kind: str = "numa"  # "numa", "dram" or "file"
    id: int = 0  # of a node the kernel's number, of a file that among the files
    capacity: int = 0  # of `dram` it is what the budget leaves
    directory: str = ""  # of a file
    anywhere: bool = False  # its memory is not bound to a node, as tests have it
    limit: float = 0.0  # elements per second that its update lane is held down to; 0: none
    update: float = 0.0  # elements per second
    update_thread: float = 0.0  # elements per second of one thread
    read: float = 0.0  # bytes per second

@dataclass(kw_only=True)
class DeviceSettings:
    """A compute device with memory of its own."""

    name: str = "simulated"  # or "cuda:N"
    stream: int = 0  # handle of the caller's CUstream
    memory: int = 0  # that may be used there
    work: int = 0  # of it, PyTorch's working set
    in_dram: bool = False  # its memory counts in DRAM, too
    to_device: float = 0.0  # bytes per second of its link, both at once
    from_device: float = 0.0  # the same
    links: list[LinkProfile] = field(default_factory=list)  # the same by NUMA node
    latency: float = 0.0  # seconds that a copy takes beside its bytes
    update: float = 0.0  # elements per second that it updates; 0: unknown, and it updates none unless asked
    bounded: bool = False  # copies and updates of a simulated device take at least as long as these rates say
    weight: float | None = None  # shares; None: the planner decides: that stay there,
    activation: float | None = None  # the same,
    state: float | None = None  # of the blocks that live there,
    device_updated: float | None = None  # of the others whose states come for their updates,
    grad: float | None = None  # of these whose gradients stay
    applies_changes: bool | None = None  # copies of matrices in subspaces take changes; None: the planner decides

@dataclass(kw_only=True)
class PlacementSettings:
    """Empty: the planner decides."""

    weight: float | None = None
    state: float | None = None
    grad: float | str | None = None  # a share, or the name of a tier of host memory
    activation: float | str | None = None  # the same

@dataclass(kw_only=True)
class PassSeconds:
    """Seconds of the passes of the largest step, by kind. 0: unknown."""

    forward: float = 0.0
    backward: float = 0.0
    kept_forward: float | None = None  # of a layer that keeps what autograd saves; None: as forward
    kept_backward: float | None = None  # None: a forward pass less than backward
    head_loss: float = 0.0
    head_gradient: float = 0.0
    tail_forward: float = 0.0  # of the last layer block when a head follows
    tail_backward: float = 0.0  # the same
    between: float = 0.0  # once a step, beside its passes
    def scaled(self, factor: float) -> PassSeconds:
        """The same of passes that take so many times as long."""

@dataclass(kw_only=True)
class EngineSettings:
    """Values that an engine plans and opens a run with."""

    dram_budget: int = 0  # for the whole process
    process_bytes: int = 0  # that the process holds before the arena
    work_bytes: int = 0  # of PyTorch's working set
    keeps_logits: bool = False  # the caller keeps logits of slices of the head, as many as the plan says
    saved_activations: SavedActivations = field(default_factory=SavedActivations)
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    window: int = 0  # blocks in flight in backward; 0: the planner decides
    storage: list[PathSettings] = field(default_factory=list)
    near: int | None = None  # NUMA node of the compute device
    nodes: list[NodeSettings] = field(default_factory=list)  # none: DRAM is one tier
    profile: Profile = field(default_factory=Profile)  # rates of the machine
    seconds: PassSeconds = field(default_factory=PassSeconds)
    durability: str | None = None  # "none", "checkpoint" or "step"; None: step when anything is on storage
    checkpoints: int = 0  # that stay on the paths at once while the run goes on
    resumes: bool = False  # the paths hold steps of the run
    update_schedule: str = "auto"  # "auto", "deferred" or "early"
    speculative_updates: bool = False
    clipping: bool = True  # steps clip
    update_cores: int = 0  # that only updates use
    threads: int = 1  # of compute kernels, the caller included
    run: str = "spillway"  # identity of the run
    overwrite: bool = False  # volumes of another run
    erase: bool = False  # of block devices: remove what else they hold
    keep: bool = False  # the volumes stay when the engine closes
    device: DeviceSettings | None = None  # None: passes compute in host memory
    network_inside: float = 0.0  # bytes per second between processes of this machine
    saving: Saving | None = None  # None: nothing is saved, or nobody knows what
    file_systems: list[FileSystem] = field(default_factory=list)  # none: nothing is known of them
    @staticmethod
    def parse(text: str) -> EngineSettings:
        """From the file that a run keeps; missing keys have their defaults. ValueError names the key."""
    def to_json(self) -> str: ...
    def agree(self, every: list[EngineSettings]) -> EngineSettings:
        """With, for each number of bytes and each rate, the least of all processes', and of times and bytes that are
        taken the largest. ValueError where they have not as many paths."""

@dataclass(kw_only=True)
class ProductCalls:
    """Products of that shape, as a linear layer has them."""

    product: str = "forward"  # "forward", "input" or "weight"
    tokens: float = 0.0
    inner: float = 0.0
    outer: float = 0.0
    calls: float = 1.0

@dataclass(kw_only=True)
class AttentionCalls:
    """Calls of attention over rows of so many tokens."""

    tokens: float = 0.0
    head_size: float = 0.0
    operations: float = 0.0  # floating point operations of one, those that a mask leaves
    backward: bool = False
    calls: float = 1.0

@dataclass(kw_only=True)
class ElementCalls:
    """Calls of an operation that is bound by memory."""

    operation: str = ""  # as OperationRate has it
    strided: bool = False
    bytes: float = 0.0  # of one
    calls: float = 1.0

@dataclass(kw_only=True)
class PassOperations:
    """One pass."""

    products: list[ProductCalls] = field(default_factory=list)
    attention: list[AttentionCalls] = field(default_factory=list)
    elements: list[ElementCalls] = field(default_factory=list)
    calls: float = 0.0  # of all operations, those that make views among them

@dataclass(kw_only=True)
class TracedPass:
    """The operations of a kind of pass ("forward", "kept_backward", "between", ...)."""

    each: PassOperations = field(default_factory=PassOperations)  # for each micro-batch
    # for all of them together: packed or narrower weights are converted
    once: PassOperations = field(default_factory=PassOperations)

@dataclass(kw_only=True)
class FewTokens:
    """A trace of fewer tokens than a micro-batch has."""

    tokens: float = 1.0
    passes: dict[str, TracedPass] = field(default_factory=dict)
    most_seconds: float = 0.0  # of all tokens at this speed, from which on brief_slack of the trace does not hold

@dataclass(kw_only=True)
class Trace:
    """A trace of the model's own code."""

    passes: dict[str, TracedPass] = field(default_factory=dict)
    bytes: float = 0.0  # of tensors at their peak
    per_token: float = 0.0  # by which they grow
    slack: float = 1.0  # by which they are multiplied
    brief_slack: float = 1.0  # by which they are where a plan on the machine itself would measure briefly
    few: FewTokens = field(default_factory=FewTokens)

@dataclass(kw_only=True)
class StepWork:
    """Work of one micro-batch."""

    sequence: int = 1  # tokens of a row
    batch: int = 1  # rows
    query: int = 1  # widths of attention
    key: int = 1  # the same
    feed_forward: int = 1  # width
    trace: Trace | None = None  # None: work is derived from shapes

@dataclass(kw_only=True)
class MachineRequest:
    """The request to a described machine."""

    settings: EngineSettings = field(default_factory=EngineSettings)
    work: StepWork = field(default_factory=StepWork)
    gpu_memory: int = 0  # 0: the profile's
    gpu: bool = True  # false: the CPUs compute although there is a GPU
    simulated: float = 0.0  # share of "dram_budget" that a simulated device has, unless `gpu_memory` says it; 0: none

@dataclass(kw_only=True)
class DescribedMachine:
    """Inputs of an engine's planner, and what follows from them."""

    # its profile has what other entries say of what it lacks
    settings: EngineSettings = field(default_factory=EngineSettings)
    work_per_token: float = 0.0  # bytes by which the working set grows
    attention_seconds: float = 0.0  # of a step; 0 without a trace

class StepDigest:
    """The digest of bytes that a pass has read or made."""

    name: str  # once in a step
    is_weight: bool
    value: int

class BlockPass:
    """One block's turn on the compute device. Offsets are bytes from the start of `Engine.device_memory()`; those of
    embedding_backward, which is on the host, from that of `Engine.memory()`."""

    kind: Literal["forward", "head_loss", "head_gradient", "backward", "embedding_backward", "end"]
    block: int  # index into the description's blocks
    slice: int  # head passes: index of the slice; else 0
    first_row: int  # head passes: first vocabulary row of the slice; else 0
    rows: int  # head passes: rows of the slice; else 0
    weights: int  # compute type: the block's weights (forward, backward) or the slice's rows (head passes)
    input: int  # [tokens, hidden] compute type: input of the block; head passes: the output of the last layer block
    output: int  # forward: [tokens, hidden], written by the caller; else 0
    hidden_gradient: int  # backward: [tokens, hidden] compute type: d loss / d output on entry, d input on exit;
    # embedding_backward: d loss / d output
    accumulator: int  # head_gradient and the first backward: [tokens, hidden] fp32 scratch; else 0
    spilled: int  # of a layer that spills: forward: where what autograd saves is put; backward: where it lies again
    spilled_bytes: int  # there are so many; 0: the layer does not spill

class Engine:
    """One run's state on its tiers and the schedule that moves it.

    Construction plans and allocates nothing; MemoryError with a message when it does not fit.
    """

    def __init__(self, description: Description, settings: EngineSettings, network: Network | None = None) -> None:
        """`network`: to the other processes of the description's world; where there are any, it is to be served from
        before start() until after close(), and closed first after an error."""

    def plan(self) -> str:
        """plan.json as text. "durability" is what holds for this plan: none when nothing is on storage and nothing was
        asked for. Unless none, the bytes have a class "durability", and path_bytes_per_step counts what it writes."""
    def what_fits(self, sequence: int, batch: int, work_per_token: float, device_per_token: float = ...) -> str:
        """{"longest_sequence", "fit_table"} as text, and "a_gib_more" where layers can keep what autograd saves;
        micro-batches are `batch` rows of `sequence` tokens now and each token more takes so many bytes of PyTorch's
        working set, on the host and on the device."""
    def start(self, opening: OpenOptions | None = None, list_pinned: Callable[[], list[str]] | None = None) -> Recovery:
        """Maps the arena, opens the volumes, starts the lanes. `list_pinned` returns every directory with a
        manifest.bin that exists, whose places are kept; it is called when the volumes are this process's.

        With a step, weights and state are in place. Without, it is a fresh start: the caller loads weights, or a
        checkpoint that stands alone."""
    def commit(self, payload: str) -> None:
        """After loading (unless start() found a durable step) and after each end_step: the step becomes durable, with
        this payload of at most 48 KiB, as soon as everything it needs is on the drives. Does not wait for that; a later
        call waits while more than one step is not durable yet. Does nothing when durability is none."""
    def set_step(self, step: int) -> None:
        """Before the first commit of a run that was loaded from a checkpoint that stands alone: steps done, skipped
        ones included. Commits count from there."""
    def verify(self, pinned: list[str]) -> Verification:
        """Instead of start(): reads every byte that counts."""
    def read_back(self, checkpoint: str | None = None, at_most: int = ...) -> Recovery:
        """Instead of start(): opens the volumes for reading only; the newest durable step, replayed in memory, or the
        manifest in the directory `checkpoint`. Then save_weights, save_state and fetch_tensor work. `at_most` as in
        OpenOptions."""
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

    # State in and out. All of these first wait for pending updates.
    def load_weights(self, checkpoint: str, stored_names: dict[str, str]) -> None:
        """`stored_names`: names in the checkpoint that differ; "" for a tensor that it does not hold, which is zero."""
    def store_tensor(self, tensor: int, first: int, values: Any) -> None:
        """fp32 values of elements [first, first + len) of one tensor: random initialisation."""
    def measure_tensor(self, tensor: int, first: int, values: Any) -> None:
        """Before a tensor of nf4_nested is stored in pieces: all of its values, in order."""
    def fetch_tensor(self, tensor: int, first: int, values: Any) -> None:
        """The reverse: the fp32 master into `values`."""
    def save_weights(self, directory: str, max_shard: int, stored_names: dict[str, str] = ...) -> None:
        """`stored_names`: as for load_weights; tensors named "" are left out."""
    def save_state(self, directory: str, step: int) -> None:
        """A state that stands alone."""
    def load_state(self, directory: str, weights: str, step: int, stored_names: dict[str, str] = ...) -> str:
        """From the directory of save_state and the checkpoint's weights, after `step` updates. Returns the state format
        found there; moments of another one are converted. Frozen tensors whose stored name is "" stay as they are."""
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

    # One step: begin, passes in order, end.
    def begin_step(
        self,
        ids: Any,
        counts: list[int],
        training: bool,
        update: dict[str, float] | None = None,
        digests: bool = False,
        trial: bool = False,
    ) -> None:
        """ids: int64, token ids of all micro-batches, one after the other, with padding; counts: tokens of each, or of
        each part of them by which gradients are handed over, of which the description's micro_batches are the most.
        update: what end_step will be given, for updates during backward; where it was another, they are put back.
        digests: for take_digests. trial: gradients are written to no path, for abandon_step."""
    def embedding_forward(self, output: Any | None = None) -> None:
        """Gathers the rows of all ids into output [tokens, hidden] (compute type); None: into the first layer's input.
        First call after begin_step, when the description has an embedding."""
    def next_pass(self) -> BlockPass:
        """Blocks until the next pass's bytes are in memory. Kind "end" when the step has no more."""
    def end_pass(self) -> None: ...
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
    # In a backward pass, of a tensor with "subspace" (d = its rank); gradient() then takes S [d, d].
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
    def refits(self) -> list[tuple[str, int, float]]:
        """After a step, of each reduced tensor its name, the times learned and the running estimate of
        |G - P P' G Q Q'| / |G|, which is 0 before the first sample after a fit."""
    def head_gradient(self, values: Any, micro_batch: int) -> None:
        """In a head_gradient pass: one micro-batch's gradient [rows, hidden] of the slice (compute type)."""
    def embedding_backward(self, values: Any) -> None:
        """In the embedding_backward pass: d loss / d embedding output, [tokens, hidden] (compute type)."""
    def norm(self) -> float:
        """After the last pass: the sum of squares of the gradient; all processes call it. abandon_step or end_step
        follows."""
    def abandon_step(self) -> None:
        """After norm: the step is as if it had not begun, and may be begun again. A durable step's gradients are
        written once: of its computations one is no trial."""
    def take_digests(self) -> list[StepDigest]:
        """Of the passes that have ended since the last call; those of other processes' parts are there after norm."""
    def digest(self, values: Any) -> int:
        """XXH3-64 over the checksums of each MiB of an array in host memory."""
    def end_step(self, update: dict[str, float]) -> dict[str, float]:
        """training: {"learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "max_grad_norm" (0 = off), "skip":
        1: there is no update} ->
        {"grad_norm", "clip", "loss_scale", "skipped", "step", "seconds", "stall_seconds", "early": chunks that were
        updated during backward, "undone": of these put back}; the rest of the update runs behind the next step."""
    def flush(self) -> None:
        """Waits until every pending update is done and on its tier."""

    # Kernels for the loss, over the engine's compute threads.
    def loss_stats(self, logits: Any, first_row: int, labels: Any, maximum: Any, sum: Any, gold: Any) -> None:
        """logits [tokens, rows] (compute type); labels int64 [tokens] in the whole vocabulary; fp32 [tokens] running
        maximum (start -inf), sum of exponentials (start 0), label's logit (start 0)."""
    def loss_gradient(self, logits: Any, first_row: int, labels: Any, maximum: Any, log_sum: Any, scale: float) -> None:
        """In place: d loss / d logits of the slice, times scale."""

    # Kernels between a layer's products (device/fused.h), where passes compute: bf16, fp16 or fp32, contiguous but for
    # heads; all of one call of one type. `out` and gradients are written.
    def rms_norm(
        self,
        values: Any,
        weight: Any,
        out: Any,
        epsilon: float,
        offset: float,
        rounds_early: bool,
        addend: Any = None,
        sum: Any = None,
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
        sums: Any,
        to_weight: Any,
        epsilon: float,
        offset: float,
        rounds_early: bool,
        skip_gradient: Any = None,
    ) -> None:
        """out: d loss / d values; `scales` fp32 [rows, 2] is overwritten. `sums` fp32 [rows / 16, columns] (rounded up)
        and `to_weight` take the weight's gradient; None: not wanted. `skip_gradient` is added to out."""
    def swiglu(self, gate: Any, up: Any, out: Any) -> None:
        """out = silu(gate) * up."""
    def swiglu_backward(
        self, gate: Any, up: Any, gradient: Any, to_gate: Any, to_up: Any, product: Any = None
    ) -> None: ...
    def rotate(self, heads: Any, cosines: Any, sines: Any, out: Any, backward: bool) -> None:
        """heads, out [sequences, heads, tokens, size], tables [sequences or 1, tokens, size], each with its elements
        side by side: transformers' apply_rotary_pos_emb, or its transpose."""

    def loss_scale(self) -> tuple[float, int]:
        """What the loss of the next step is to be multiplied by before backward (1 unless weight_dtype is fp16), and
        the finite steps since it changed; grad_norm and the update divide by it."""
    def set_loss_scale(self, scale: float, good: int) -> None:
        """Takes up the scale that loss_scale() told in the run that this one continues."""
    def counters(self) -> str:
        """JSON: bytes per path and direction, busy seconds, peaks per tier, stall seconds by cause, and
        "waits": {tier: {cause: seconds}}: each read and write by the path whose piece came last; and "updates": by
        NUMA node (or "dram") {"elements", "seconds"} of its update lane; of several processes "network": bytes
        {"sent", "received", "between_machines": {"sent", "received"}}, the last of these among the others; with pieces
        that are apart "pieces": by block {"asked", "resident", "pieces"}, summed over training steps."""
    def count_asked_pieces(self) -> list[tuple[str, list[int]]]:
        """By tensor whose pieces are apart: the training steps since start() that asked for each piece. Between start()
        and close()."""
    def displaced_volumes(self) -> list[str]:
        """Volumes whose file was removed or replaced since the engine opened them. Between start() and close()."""
    def silence(self) -> dict[str, Silence]:
        """By path, and by lane of a device ("device:to_device"). Any thread may ask."""
    def lateness(self) -> Delay | None:
        """None: other processes do not wait for this one. Any thread may ask."""
    def where(self) -> str:
        """JSON {"nodes": {name: {"planned", "there": bytes of the arena, "in_memory": of those, what counts in this
        process's memory}}, "chunks": n, "elsewhere": [chunks], "aside": {class: {"buffers": on later tiers,
        "elsewhere": of them}}}: asked of the kernel page by page; {} when DRAM is one tier."""
    def timeline(self) -> str:
        """JSON: the last step's tasks in Chrome's trace event format (opens in Perfetto), predicted and, once it was
        made, measured."""
    def graph(self, format: str) -> str:
        """The order of the planned step as a picture, for a file that ends in "svg" or "dot"."""

def list_volumes(place: str) -> list[ListedVolume]:
    """The volumes in a storage directory or on a device, whoever they belong to."""

def give_back_volume(device: str, run: str) -> None:
    """A volume of this run on a block device is nobody's, as when the run that has it open gives it back. Refused while
    anybody has the device open."""

def way_on(lines: RunLines, found: Sequence[FoundShard], world: int) -> WayOn:
    """How so many processes go on with a run."""

def exchange(one: str, other: str) -> bool:
    """Two names of one file system change what they have, files or directories, at once. False, and nothing has
    changed, where the file system or the kernel cannot do that."""

def task_kinds() -> list[tuple[str, str]]:
    """What the names of tasks in a timeline begin with, and the colours that the report's page gives them."""

def lanes() -> list[tuple[str, bool]]:
    """Names of lanes in the order of their threads in a timeline, which counts from 1, and whether their tasks overlap,
    as transfers do; behind them come the update lanes of further nodes."""

def dram_available() -> int:
    """Bytes of DRAM this process can take now without swapping or being killed (cgroups included)."""

def redirect_posix_memalign(libraries: list[str]) -> int:
    """Has the loaded libraries of these file names take aligned memory so that its place serves again when it is freed;
    how many of their calls do."""

def cores() -> int:
    """CPUs this process may run on, by affinity and cgroup."""

def drop_from_caches(address: int, bytes: int) -> None:
    """Takes memory out of every cache, so that the next to read it reads memory; for measuring."""

def granule_values(form: str, weight_dtype: str) -> int:
    """Values that each piece of a packed tensor is a multiple of where pieces are placed apart (TensorSpec.apart)."""

def round_packed(form: str, values: Any) -> None:
    """fp32 values of a whole tensor, flat, become what weights of "nf4", "nf4_nested" or "int8" stand for, in place."""

def pack(form: str, values: Any) -> bytes:
    """The bytes that keep these fp32 values of a whole tensor, flat: codes, then scales (kernels/encoding.h)."""

def dram_total() -> int:
    """Bytes of DRAM of the machine, or the cgroup's limit where that is less."""

def resident() -> int: ...
def peak_resident() -> int: ...
def reset_peak_resident() -> bool:
    """Starts peak_resident() anew from the present; False where the kernel refuses."""

def measure(
    directories: list[str],
    seconds: float = 0.4,
    weight_dtype: str = "bf16",
    optimizer: str = "adamw",
    state_format: str = "exact",
    most_memory: int = ...,
) -> Profile:
    """This machine's profile; `directories` (or block devices, which are only read): where the storage paths'
    rates are measured. The rest: what the rate of updates is of, and the bytes that it may take meanwhile."""

def gpu_kernels() -> bool:
    """Whether kernels for a GPU were built in: CUDA's compiler was there and has made them."""

def load_gpu_kernels(index: int) -> tuple[bool, str]:
    """(whether the driver takes them for that GPU, in which form or why not); loads them, as a run does."""

def checkup(places: list[str]) -> list[tuple[str, str, str]]:
    """(what, "good", "lesser" or "missing", words) of each thing that the engine can use here; `places`: directories or
    block devices that may become storage paths."""

def probe(directories: list[str], seconds: float = 0.4) -> Profile:
    """What measure() measures, and in addition the NUMA nodes, the matrix of CPUs by memory, and each GPU's link from
    every node."""

@dataclass(kw_only=True)
class NodeRate:
    """Rates of a NUMA node, or of a file as memory."""

    update_elements_per_second: float = 0.0
    update_elements_per_second_thread: float = 0.0
    read_bytes_per_second: float = 0.0

@dataclass(kw_only=True)
class NodeShare:
    """Bytes of a NUMA node for a run."""

    id: int = 0
    capacity: int = 0

@dataclass(kw_only=True)
class NodeChoice:
    nodes: list[NodeShare] = field(default_factory=list)  # first the nearest to what computes; none: DRAM is one tier
    dram: int | None = None  # bytes asked of that one tier
    notice: str = ""  # why nodes are not told apart

def choose_nodes(asked: list[tuple[int, int]], held: int, near: int | None = None) -> NodeChoice:
    """NUMA nodes for a run. `asked`: (node, bytes) each, none: all that there are; `held`: bytes of the process so far;
    `near`: the node of the GPU that computes. ValueError, MemoryError."""

def near_gpu(gpu: int, places: list[str]) -> tuple[int | None, dict[str, tuple[int, str]]]:
    """The NUMA node nearest to a GPU, None: not known; and those of `places` (directories or block devices) whose
    drive is nearer to another, with that node and words about each."""

def measure_nodes(
    nodes: list[int],
    seconds: float = 0.4,
    weight_dtype: str = "bf16",
    optimizer: str = "adamw",
    state_format: str = "exact",
) -> list[NodeRate]: ...
def check_memory_files(asked: list[tuple[str, int]]) -> list[tuple[bool, str]]:
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

def parse_coding(settings: str, file: str) -> tuple[str, str]:
    """The name of a kind of quantised weights, and the form that packs them into the same codes, or "". `settings`:
    quantization_config as JSON. ValueError that names a method that is not read."""

def find_coding(directory: str) -> tuple[str, str] | None:
    """The same of the config.json in a directory; None where its weights are not quantised."""

def decoded_names(directory: str, names: set[str]) -> set[str]:
    """The names of a checkpoint's tensors as SafetensorsReader has them."""

class SafetensorsReader:
    """Reads one file, or a directory's model.safetensors or the shards of its index. ValueError that names file and
    tensor where anything is wrong with them."""

    def __init__(self, place: str) -> None: ...
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

    def __init__(self, directory: str, base: str, tensors: list[tuple[str, str, list[int]]], max_shard: int) -> None:
        """`tensors`: (name, type as in the header, shape) each, in the order in which they go to shards."""
    def write(self, tensor: int, first: int, values: Any) -> None:
        """Bytes (uint8) of whole elements from element `first` of a tensor on."""
    def finish(self) -> None: ...

def digests_of(file: str) -> str:
    """The digests of a safetensors file as it is, read as a whole. JSON of one file in spillway/files.json. ValueError
    that names the file where it is not a safetensors file."""

def find_damage(file: str, digests: str, most_pieces: int | None = None) -> list[tuple[str, int, int]] | None:
    """(tensor, first byte, end) of each range that is not as `digests` (JSON as of digests_of) say. The tensor is ""
    where header or length differ. `most_pieces`: pieces of the file that are read, evenly; None: all. The result is
    None for digests of another kind, which a later release makes."""

class SecondSignal:
    """Until it is closed the second of `signals` ends the process at once, whatever it waits for: `words` go to
    standard error, the exit code is 128 + the signal's number. The first goes to the handler that was there. Signals
    that are ignored stay so."""

    def __init__(self, signals: list[int], words: str) -> None: ...
    def say(self, words: str) -> None: ...
    def close(self) -> None: ...

class OutOfMemoryExit:
    """Until it is closed a crash of a library that finds no memory to be had, since the process has bounded itself,
    ends the process with `code`, and `words` go to standard error. Other crashes are what they were."""

    def __init__(self, words: str, code: int) -> None: ...
    def close(self) -> None: ...

def describe_machine(description: Description, request: MachineRequest, profile: Profile) -> DescribedMachine:
    """Settings of an Engine for the machine of a profile. MemoryError: more of a node is asked for than there is."""

def place(
    bytes: int,
    nodes: list[int],
    weights: list[float],
    granularity: int,
    strict: bool,
    huge_pages: bool,
    gpu: int | None = None,
) -> Any:
    """Zeroed memory on nodes (none named: anywhere) as a uint8 array that owns it; every page is in place. `gpu`: also
    registered with that one. ValueError: the placement makes no sense here; MemoryError: a node cannot hold it."""

def where(address: int, bytes: int) -> list[tuple[int, int]]:
    """(node, bytes) each, by rising node, as the kernel says page by page; node -1: not in memory."""

def move(address: int, bytes: int, nodes: list[int], weights: list[float], granularity: int, strict: bool) -> None: ...

class Optimizer:
    """The state of tensors that stay where they are."""

    def __init__(
        self,
        tensors: list[tuple[str, int, str]],
        optimizer: str,
        format: str,
        seed: int,
        threads: int,
        storage: list[tuple[str, bool]],
        staging: int,
        overwrite: bool,
    ) -> None:
        """`tensors`: (name, elements, bf16 or fp32) each; `storage`: (directory or device, whether it is a device)
        each, none: states in DRAM."""
    def step(self, updates: list[tuple[int, int, int, dict[str, float], float, int]]) -> None:
        """(tensor, address of weight, of gradient, hyperparameters by name, gradient scale, step) each, by rising
        tensor."""
    def set_master(self, tensor: int, weight: int) -> None:
        """The masters become the weights' values."""
    def arrays(self, tensor: int) -> list[tuple[str, int, int]]:
        """(name, entries, bytes of an entry) of each array of the tensor's state."""
    def fetch(self, tensor: int, arrays: list[Any]) -> None:
        """Fills one array of bytes for each of arrays()."""
    def store(self, tensor: int, arrays: list[Any]) -> None: ...
    @property
    def state_bytes(self) -> int: ...
    @property
    def notices(self) -> list[str]: ...

def optimizers() -> list[dict[str, Any]]:
    """The descriptor of every optimizer (spillway/optim/descriptor.h); `others`: the name of the optimizer of what is
    no matrix of a layer, or ""."""

def encode_moment(values: Any, second: bool) -> tuple[Any, Any]:
    """fp32 values of a first or second moment as 8-bit codes and scales, rounded to nearest."""

def decode_moment(codes: Any, scales: Any, second: bool) -> Any:
    """The reverse of encode_moment."""

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
    def step(self, weight: int, rest: int, dtype: str, gradient: Any, optimizer: str, rates: tuple[Any, ...]) -> None:
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
    """A weight [rows, columns] that trains in a subspace as published (arXiv 2406.10181): projectors with values at
    random places, learned by descent; moments [rank, rank] that transfer matrices carry over."""

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
        """`rank` 0: half of the smaller side. `threshold`: alpha. `penalty`: beta. `number`: the weight's own in the
        run."""
    @property
    def rank(self) -> int: ...
    @property
    def fits(self) -> int:
        """Times that projectors were learned."""
    def refit(self, gradient: Any) -> None:
        """Learns the first projectors from a gradient, flat, for the next S; later ones if it is missed by more than
        `threshold`, for the steps after the next."""
    @property
    def refitted(self) -> bool:
        """Whether later projectors wait for their step."""
    @property
    def error(self) -> float:
        """|P P' G Q Q' - G| / |G| of the gradient that refit() had last, by the projectors that it left; 0 before."""
    def compress(self, side: int, source: int, stride: int, tokens: int, dtype: str, out: int) -> None: ...
    def step(
        self, weight: int, rest: int, dtype: str, gradient: Any, optimizer: str, rates: tuple[Any, ...]
    ) -> None: ...
    def values(self, side: int) -> Any:
        """A projector's values, and then their columns as numbers: [rows, nonzeros] each."""
    def moment(self, which: int) -> Any: ...
    def restore(self, p: Any, q: Any, fits: int, error: float, exp_avg: Any, exp_avg_sq: Any) -> None:
        """What values(), fits, error and moment() gave."""

def draw_signs(seed: int, matrix: int, step: int, n: int) -> Any:
    """1 or -1, n times, fp32."""

def subspace_rotates(every: int, updates: int, matrix: int) -> bool:
    """Whether this one is refitted after so many updates; `every` 0: never."""

def subspace_rank(rows: int, columns: int, rank: int, nonzeros: int) -> int:
    """What is meant: 0 is half of the smaller side, a multiple of `nonzeros`. ValueError for what cannot be."""

class Projections:
    """What `Engine` does of subspaces in passes, alone; see there. Every end_step() begins the next step."""

    def __init__(self, description: Description) -> None: ...
    def wants_whole_gradient(self, tensor: int, micro_batch: int) -> bool: ...
    def whole_gradient(self, tensor: int, gradient: Any) -> None: ...
    def compress(self, tensor: int, side: int, tokens: Any, out: Any) -> None: ...
    def signs(self, tensor: int, out: Any) -> None: ...
    def end_step(self) -> None: ...

def share_of_step(virtual_ranks: int, micro_batches: int, rank: int, world: int) -> tuple[int, int]:
    """Of the micro-batches of a step, in its order (virtual rank by virtual rank), those that a rank computes: the
    first, and one past the last."""

class Network:
    """Messages of this process to and from others, which a thread serves: it takes transfers, and says how they
    ended."""

    def __init__(self, rank: int, size: int) -> None: ...
    def next_transfer(self) -> tuple[int, list[tuple[int, bool, Any]]] | None:
        """Waits for one: its number and (peer, whether it sends, bytes) of each message; None when it is closed."""

    def end_transfer(self, id: int, error: str) -> None:
        """It has ended: well where `error` is empty."""

    def exchange(self, messages: list[tuple[int, bool, Any]]) -> None:
        """Begins a transfer and waits until it has ended; OSError where it failed."""

    def close(self) -> None: ...
