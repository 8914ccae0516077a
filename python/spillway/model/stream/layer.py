"""One stage of the model: a decoder layer and what of the model's code runs in the same pass, on views of the arena.

The engine changes the arena's bytes between passes, so nothing outlives a pass but the views themselves: they are
leaves without history, made once for every place at which the block's weights have lain.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from spillway.model.batches.microbatch import MicroBatch
from spillway.model.layers.few_rows import fill_rows
from spillway.model.layers.fused import Fusions
from spillway.model.layers.fused_search import find_fusions
from spillway.model.layers.kernels import Kernels
from spillway.model.layers.linear_pass import replace_linears
from spillway.model.layers.pieces import Convert, Experts, Part, Place
from spillway.model.layers.residual import residual_forwards
from spillway.model.layers.saved import Packing, Root, SavedPass
from spillway.model.layers.token_tiles import Parts, Remaking, norm_in_tiles, tiles_in
from spillway.model.layers.weight_sums import StageSums, WeightSums
from spillway.model.meta.after_layers import head_input
from spillway.model.meta.factors import Inner, redirected, within
from spillway.model.meta.layer_arguments import record
from spillway.model.meta.meta_model import MetaModel, Places, StagePlan
from spillway.model.source.model_code import replaced_forwards
from spillway.model.stream.passage import Crossing, Passage


@dataclass(frozen=True)
class Slot:
    """The places of a parameter: its modules, and its elements in its block."""

    places: Places
    tensor: int  # the engine's number
    first: int  # counted in elements of the compute type from the block's start; of one in pieces where these lie
    meta: nn.Parameter  # what is attached there while the stage is bound to no bytes; fp32 where it is kept so

    def attach(self, tensor: torch.Tensor) -> None:
        attach(self.places, tensor)


Borrowed = tuple[Places, torch.Tensor, nn.Parameter]  # where it is attached, the leaf to attach there, what is on meta
GradientSink = Callable[[int, torch.Tensor], None]  # tensor number, its gradient
Projection = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]  # tensor number, x, dY: S


class Stage:
    """A stage that can be bound to bytes, run, and run again backward."""

    def __init__(
        self,
        meta_model: MetaModel,
        plan: StagePlan,
        slots: list[Slot],
        borrowed: list[Borrowed],
        sink: GradientSink,
        project: Projection,
        unneeded: Collection[str],
        parts: Parts,
        device: torch.device,
        kernels: Kernels | None = None,
        sums: WeightSums | None = None,
        convert: Convert | None = None,
        ask: Convert | None = None,
    ) -> None:
        """`borrowed`: parameters that belong to an earlier stage, see `shared`. `sink`, a bound method, is given every
        gradient as soon as autograd has it, and must not keep it; `project`, another, makes S for what is reduced.
        `unneeded`: linear layers of a layer, by name, that backward does not compute again. `parts`: what of a layer
        runs in tiles, and which part of a step gradients are of. `device`: where layers compute. `kernels`: run norms,
        SwiGLU and rotary embedding of a layer; None: the model's own code does. `sums`: products add weight gradients
        to these; None: every gradient goes to `sink`. `convert`: the engine's, of what it converts in pieces; None: it
        converts everything before a pass begins. `ask`: the engine's, of pieces that come on demand.
        """
        self._meta_model = meta_model
        self.plan = plan
        self._module = None if plan.layer is None else meta_model.layers[plan.layer]
        alone = self._module is not None and not plan.tail  # what follows a layer may look at every output of it
        named = self._module.named_modules() if alone and self._module is not None else ()
        # One that has an adapter is computed: the adapter's own gradients go by another way.
        left_out = [inner for name, inner in named if name in unneeded and type(inner) is nn.Linear]
        self._slots = slots
        self._borrowed = borrowed
        self._sink = sink
        self._inners = [
            self._inner(slot, project, left_out, device) for slot in slots if id(slot.meta) in meta_model.spaces
        ]
        inside = {id(it.linear) for it in self._inners}
        self._unneeded = [linear for linear in left_out if id(linear) not in inside]
        self._parts = parts
        self._device = device
        layer = self._module
        self._sums = None if sums is None or layer is None else self._sums_in(layer, sums)
        self._kernels = kernels
        self._fusions = Fusions() if kernels is None or layer is None else find_fusions(layer)
        self._fused = {} if kernels is None else self._fusions.forwards(kernels)
        self._summed = {} if layer is None else residual_forwards(layer, self._fused, self._fusions.norms)
        self._fused_norm = {}
        if kernels is not None and plan.tail and meta_model.norm is not None:
            self._fused_norm = find_fusions(meta_model.norm).forwards(kernels)
        with replaced_forwards(self._fused | self._fused_norm):
            passes = (self._unneeded, alone, self._sums, within(self._inners))
            self._tiles = [] if layer is None else tiles_in(meta_model, layer, parts, *passes)
            self._norm = norm_in_tiles(meta_model, parts) if plan.tail else None
        in_pieces = [slot for slot in slots if id(slot.meta) in meta_model.pieces]
        self._pieces: dict[int, Place] = {}
        if convert is not None:
            for slot in in_pieces:
                asks = ask if id(slot.meta) in meta_model.on_demand else None
                self._pieces[slot.tensor] = Place(slot.tensor, slot.meta, convert, device, asks)
        for place in self._pieces.values():
            same = (it for it in self._pieces.values() if it.meta.shape[0] == place.meta.shape[0])
            place.beside = [it for it in same if it is not place]
        self._leaves: dict[int, list[torch.Tensor]] = {}  # by the block's first element in the arena
        self._now: list[torch.Tensor] = []  # those that it is bound to

    def bind(self, arena: torch.Tensor, first: int) -> None:
        """Makes the elements of `arena` (flat, compute type) from `first` on the stage's parameters."""
        leaves = self._leaves.get(first)
        if leaves is None:
            leaves = self._leaves[first] = [self._leaf(arena, first, slot) for slot in self._slots]
        self._now = leaves
        for slot, leaf in zip(self._slots, leaves, strict=True):
            slot.attach(leaf)
            if slot.tensor in self._pieces:
                self._pieces[slot.tensor].bind(arena, first + slot.first)
        for places, leaf, _ in self._borrowed:
            attach(places, leaf)

    def bound(self, tensor: int) -> torch.Tensor:
        """The tensor that one of the stage's own parameters is bound to."""
        slot = next(slot for slot in self._slots if slot.tensor == tensor)
        owner, name = slot.places[0]
        return owner._parameters[name]  # type: ignore[return-value]

    def meta_of(self, tensor: int) -> nn.Parameter:
        return next(slot.meta for slot in self._slots if slot.tensor == tensor)

    def forward(self, hidden: torch.Tensor, batch: MicroBatch, ids: torch.Tensor, passage: Passage) -> torch.Tensor:
        """hidden: what the stage before gave; the embedding's rows [tokens, columns] for the way in."""
        if self.plan.entry:
            with torch.enable_grad():  # for what depends on weights, of which the history is not kept
                rows = hidden.detach().requires_grad_()
                recording = record(self._meta_model, batch, ids, rows, passage.features)
            passage.arrive(recording)
            hidden = recording.first.detach()
        with torch.no_grad():
            if self._module is not None and self.plan.layer is not None:
                call = passage.forward_call(self.plan.layer)
                with passage.watched(), self._in_tiles():
                    results = call.results(self._module, hidden)
                passage.has_run(self.plan.layer, results)
                hidden = results[0]
            return self._after(hidden, batch)

    @property
    def can_keep(self) -> bool:
        """True if the stage is a layer and nothing else, so that it can keep what autograd saves of it."""
        return self._module is not None and not self.plan.entry and not self.plan.tail

    def forward_kept(
        self, hidden: torch.Tensor, passage: Passage, spills: bool = False
    ) -> tuple[torch.Tensor, SavedPass | None]:
        """`forward`, and what autograd saved for `backward_kept`. None: it recomputes after all. For a stage that can
        keep, in a passage in which its layer is closed; `hidden` and weights lie in one storage. `spills`: whether what
        was saved is to be spilled."""
        assert self._module is not None and self.plan.layer is not None
        leaf = hidden.detach().requires_grad_()
        beside = [
            *passage.list_tensors(self.plan.layer),
            *self._module.buffers(),
            *(leaf for _, leaf, _ in self._borrowed),
        ]
        packing = Packing(hidden, [*self._now, leaf], beside, spills)
        call = passage.forward_call(self.plan.layer)
        computed = replace_linears(self._unneeded, None, self._sums), redirected(self._inners, True)
        with torch.enable_grad(), computed[0], computed[1], self._in_tiles(), packing.hooks():
            results = call.results(self._module, leaf)
        passage.has_run(self.plan.layer, results)
        output = results[0]
        if not packing.complete or not output.requires_grad:
            return output.detach(), None
        with torch.enable_grad():
            return output.detach(), SavedPass(packing, leaf, output)

    def backward_kept(
        self, saved: SavedPass, hidden: torch.Tensor, gradient: torch.Tensor, room: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`backward` by what was kept; the stage is bound, and `hidden` is the input, wherever they lie now. `room`:
        where what was spilled has come back to."""
        return saved.backward([*self._now, hidden], gradient, room)

    def backward(
        self, hidden: torch.Tensor, gradient: torch.Tensor, batch: MicroBatch, ids: torch.Tensor, passage: Passage
    ) -> torch.Tensor:
        """Recomputes the stage from its input; d loss / d output in, d loss / d input out."""
        leaf = hidden.detach().requires_grad_()
        crossing = passage.crossing()
        linears = replace_linears(self._unneeded, sums=self._sums)
        with torch.enable_grad(), linears, redirected(self._inners):
            root = Root.apply(self._again(leaf, batch, ids, crossing), [gradient])  # without the bytes of the output
        torch.autograd.backward([root, *crossing.outputs], [root.new_empty(0), *crossing.gradients])
        crossing.collect()
        return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

    def release(self) -> None:
        """Lets go of the arena: the parameters are on meta again."""
        for slot in self._slots:
            slot.attach(slot.meta)
        for places, _, meta in self._borrowed:
            attach(places, meta)
        for pieces in self._pieces.values():
            pieces.release()
        self._leaves.clear()
        self._now = []

    def _again(self, hidden: torch.Tensor, batch: MicroBatch, ids: torch.Tensor, crossing: Crossing) -> torch.Tensor:
        if self.plan.entry:
            recording = record(self._meta_model, batch, ids, hidden, crossing.features)
            crossing.arrive(recording)
            hidden = recording.first
        if self._module is not None and self.plan.layer is not None:
            call = crossing.call(self.plan.layer)
            with crossing.watched(), self._in_tiles(again=True):
                results = call.results(self._module, hidden)
            crossing.has_run(self.plan.layer, results)
            hidden = results[0]
        return self._after(hidden, batch)

    @contextmanager
    def _in_tiles(self, again: bool = False) -> Iterator[None]:
        """Inside, kernels stand for parts of the layer, where there are kernels, and what treats each token by itself
        runs in tiles, where the open micro-batch has several. `again`: what
        backward does not need is not computed, and what it makes of a norm's input is not kept."""
        tiles = self._tiles if self._parts.count > 1 else []
        remaking = Remaking() if again and tiles else None
        residuals = {} if tiles else self._summed
        forwards = (
            self._fused | residuals | {tile.module: tile.forward(0.0 if again else None, remaking) for tile in tiles}
        )
        hooks = remaking.hooks() if remaking is not None else nullcontext()
        rotating = nullcontext() if self._kernels is None else self._fusions.rotating(self._kernels)
        with replaced_forwards(forwards), rotating, hooks, fill_rows(self._device):
            yield

    def _after(self, hidden: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        """The code that follows the layers, if this stage is the last."""
        if not self.plan.tail:
            return hidden
        if self._meta_model.norm is not None:
            tiles = [self._norm] if self._norm is not None and self._parts.count > 1 else []
            with replaced_forwards(self._fused_norm | {tile.module: tile.forward() for tile in tiles}):
                return self._meta_model.norm(hidden)  # type: ignore[no-any-return]
        if self._meta_model.simple_tail:
            return hidden
        return head_input(self._meta_model, batch, hidden)

    def _leaf(self, arena: torch.Tensor, first: int, slot: Slot) -> torch.Tensor:
        begin, meta = first + slot.first, slot.meta
        places = meta.numel() * meta.element_size() // arena.element_size()  # fp32 takes two of a narrower type
        if slot.tensor in self._pieces:
            leaf: torch.Tensor = Experts(Part(self._pieces[slot.tensor]))
        else:
            leaf = arena[begin : begin + places].view(meta.dtype).view(meta.shape).detach()
        if slot.meta.requires_grad and id(slot.meta) not in self._meta_model.spaces:
            self._hand_over(slot, leaf.requires_grad_())
        return leaf

    def _sums_in(self, layer: nn.Module, sums: WeightSums) -> StageSums:
        """The sums of linear layers whose weight no other module has, and that do not run in tiles by themselves."""
        tiled = {id(inner) for name, inner in layer.named_modules() if name in self._parts.tiles.modules}
        inside = {id(inner) for inner in layer.modules() if type(inner) is nn.Linear and "forward" not in vars(inner)}
        slots: dict[nn.Module, int] = {}
        for slot in self._slots:
            owner, name = slot.places[0]
            fits = id(owner) in inside - tiled and name == "weight" and len(slot.places) == 1
            if fits and id(slot.meta) not in self._meta_model.spaces and sums.has_sum(slot.tensor, slot.meta):
                slots[owner] = slot.tensor
        return StageSums(sums, slots)

    def _inner(self, slot: Slot, project: Projection, left_out: Sequence[nn.Module], device: torch.device) -> Inner:
        space = self._meta_model.spaces[id(slot.meta)]
        linear = slot.places[0][0]
        made = weakref.WeakMethod(project)  # type: ignore[arg-type]

        def s_of(x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
            make = made()
            assert make is not None
            return make(slot.tensor, x, dy)

        zero = torch.zeros((), dtype=self._meta_model.dtype, device=device)
        inside = zero.expand(space.rank, space.rank).detach().requires_grad_()
        self._hand_over(slot, inside)
        return Inner(linear, inside, s_of, all(linear is not other for other in left_out))

    def _hand_over(self, slot: Slot, leaf: torch.Tensor) -> None:
        """To the sink. Autograd holds its hooks where Python's garbage collector does not look."""
        sink = weakref.WeakMethod(self._sink)

        def hand_over(parameter: torch.Tensor) -> None:
            receive = sink()
            if parameter.grad is None:  # a sum of the engine has it
                return
            assert receive is not None
            receive(slot.tensor, parameter.grad.contiguous())
            parameter.grad = None

        leaf.register_post_accumulate_grad_hook(hand_over)


def attach(places: Places, tensor: torch.Tensor) -> None:
    for owner, name in places:
        owner._parameters[name] = tensor  # type: ignore[assignment]


def slots_of(
    meta_model: MetaModel, parameters: Sequence[nn.Parameter], first_tensor: int, tensor_offset: Callable[[int], int]
) -> list[Slot]:
    """Slots of parameters, numbered from `first_tensor` on."""
    return [
        Slot(meta_model.places[id(p)], number, tensor_offset(number), p)
        for number, p in enumerate(parameters, start=first_tensor)
    ]
