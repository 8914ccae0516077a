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

    `settings` (JSON): {"dram_budget": bytes, "process_bytes": bytes, "work_bytes": bytes, "keeps_logits": bool (false;
    true: the caller keeps the logits of as many slices of the head as "kept_logits" of the plan), "saved_activations":
    {"blocks": [numbers of blocks whose layers can keep what autograd saves of them from forward to backward],
    "token_bytes": that one of them keeps of each token of a step, "on_device": bool (there; else in DRAM), "layers": of
    the model, "keep": layers that are not to recompute (null: as many as is fastest), "why": not all can, in words,
    "spill": "never", "auto" or "all" (never; of layers that do not recompute), "spilled_token_bytes",
    "graph_token_bytes": what one that spills moves of each token, and what it keeps all the same} (the caller keeps
    and spills as "saved_activations" of the plan says), "placement": {"weight", "state", "grad", "activation": the
    share that stays in memory (null: the planner decides); of the last two also the tier's name, such as "numa:2"},
    "storage": [{"directory" or "device", "capacity": bytes, "endurance": bytes that may be written to it in its life
    (absent: as a usual drive), "far": bool (false; true: its drive is by another NUMA node than the device, so that
    of equals the others come first), "node": that NUMA node}], "near": the NUMA node of the device, "nodes":
    [{"kind": "numa", "fake" (it lies anywhere), "dram" (all that is no file; without "id" and "capacity") or
    "file" (with "directory"), "id", "capacity": bytes, "update", "update_thread", "read": rates}] (the first is the
    compute device's, files are last), "profile": {...}, "seconds": {pass kind: seconds, as profiled}, "durability":
    "none", "checkpoint" or "step" (absent: step when anything is on storage), "checkpoints": most manifests that are
    held at once while the run goes on, "resumes": bool (the paths hold steps of the run, which the plan is to read
    whatever stays in memory), "update_schedule": "auto", "deferred" or "early", "speculative_updates": bool,
    "clipping": bool (steps clip), "update_cores": cores that only updates use, "run": identity, "overwrite": bool,
    "erase": bool (what the devices hold), "keep": bool (the volumes stay when the engine closes), "device": {"name":
    "simulated" or "cuda:N", "stream": handle of PyTorch's CUstream, "memory": bytes that may be used there, "work": of
    these, PyTorch's working set, "in_dram": bool (they count there, too), "to_device", "from_device": bytes per second
    of its link, "links": the same by NUMA node, as a profile's GPU has them, "latency": seconds of a copy, "update":
    elements per second that it updates (0: not known, and none are unless asked), "bounded": bool (copies and updates
    take at least as long as these say), and, where the planner is not to decide, shares: "weight" and "activation" that
    stay there, "state" of the blocks that live there, "streamed_state" of the others whose states come for their
    updates, "streamed_grad" of these whose gradients stay} ({}: passes compute in host memory)}.

    Construction plans and allocates nothing; MemoryError with a message when it does not fit.
    """

    def __init__(self, description: Description, settings: str, network: Network | None = None) -> None:
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
        {"sent", "received", "between_machines": {"sent", "received"}}, the last of these among the others."""
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
) -> str:
    """This machine's profile as JSON; `directories` (or block devices, which are only read): where the storage paths'
    rates are measured. The rest: what the rate of updates is of, and the bytes that it may take meanwhile."""

def gpu_kernels() -> bool:
    """Whether kernels for a GPU were built in: CUDA's compiler was there and has made them."""

def load_gpu_kernels(index: int) -> tuple[bool, str]:
    """(whether the driver takes them for that GPU, in which form or why not); loads them, as a run does."""

def checkup(places: list[str]) -> list[tuple[str, str, str]]:
    """(what, "good", "lesser" or "missing", words) of each thing that the engine can use here; `places`: directories or
    block devices that may become storage paths."""

def probe(directories: list[str], seconds: float = 0.4) -> str:
    """What measure() measures, and in addition the NUMA nodes, the matrix of CPUs by memory, and each GPU's link from
    every node."""

def save_profile(text: str, path: str) -> None: ...

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

def check_profile(text: str, source: str) -> str:
    """A profile checked and completed; ValueError names the key."""

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

def describe_machine(description: Description, settings: str, profile: str, source: str = ...) -> str:
    """Settings of an Engine for the machine of a profile, as JSON. `settings`: work {sequence, batch, query, key,
    feed_forward; optional, of a trace: passes, bytes, per_token, slack, brief_slack, few}, dram_budget and gpu_memory
    (0: what the profile has), gpu (whether it computes), simulated (the share of dram_budget that a simulated device
    has; 0: there is none), and what an Engine is told of this machine beside that. MemoryError: more of a node is asked
    for than there is."""

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
