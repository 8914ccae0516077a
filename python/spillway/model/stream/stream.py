"""A step in the engine's order: the engine says which block runs its forward or backward pass next and where its bytes
lie, and this computes it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spillway._engine import StepResult, StepUpdate
from spillway.machine.place import HOST, Place
from spillway.model.batches.microbatch import ALL, Share, Work
from spillway.model.head.head import HeadCode, HeadPass, Scratch, Watch
from spillway.model.head.objective import Choice, CrossEntropy, Objective, Told
from spillway.model.layers.digests import Digests, NoDigests
from spillway.model.layers.router import Balance
from spillway.model.layers.saved import RECOMPUTE_ALL, SavedChoice, SavedStep
from spillway.model.layers.token_tiles import ALL_AT_ONCE, Parts, TokenTiles
from spillway.model.layers.weight_sums import AddProduct, WeightSums, choose_product
from spillway.model.meta.after_layers import transformed_logits
from spillway.model.meta.factors import project
from spillway.model.meta.image_tower import Tower, list_features
from spillway.model.meta.layer_arguments import Answering, LayerArguments, Recording
from spillway.model.meta.meta_model import MetaModel, Space
from spillway.model.stream.base_rows import BaseRows, find_unreferred, make_room
from spillway.model.stream.dropout import Dropout
from spillway.model.stream.layer import Stage, slots_of
from spillway.model.stream.passage import Passage
from spillway.model.stream.regions import Regions
from spillway.model.stream.shared import Kept

if TYPE_CHECKING:
    from spillway._engine import BlockPass, Engine
    from spillway.model.stream.plain_engine import PlainEngine, PlainPass


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step or an evaluation."""

    loss_sum: float
    label_tokens: int  # or pairs of rows
    auxiliary: float  # what of loss_sum is the routers'


class Stream:
    """Runs a meta model on a started engine. One step at a time."""

    def __init__(
        self,
        meta_model: MetaModel,
        engine: Engine | PlainEngine,
        seed: int,
        unneeded: Collection[str] = (),
        after_pass: Callable[[], None] = lambda: None,
        place: Place = HOST,
        objective: Choice = CrossEntropy,
        kept_logits: int = 0,
        saved: SavedChoice = RECOMPUTE_ALL,
        tiles: TokenTiles = ALL_AT_ONCE,
        share: Share = ALL,
        fused: bool = False,
        product: AddProduct | None = None,
        before_passes: Callable[[], None] = lambda: None,
        tower: Tower | None = None,
        base: float | None = None,
    ) -> None:
        """`seed`: of dropout, drawn anew for every (step, micro-batch, layer). `unneeded`: linear layers that backward
        need not compute again (`verify_equivalence`). `before_passes` is called before a step or evaluation,
        `after_pass` between passes, when PyTorch holds no temporaries. `place`: of the engine's device memory.
        `kept_logits`: slices of the head whose logits stay for its gradient, as plan.json has it. `saved`: what becomes
        of what autograd saves, the same. `tiles`: what runs in tiles of tokens. `share`: this process's micro-batches
        of a step, of the work of all. `fused`: the engine's kernels replace norms, SwiGLU and rotary embedding.
        `product`: adds weight gradients to the engine's sums; None: that of `place`. `tower`: makes features of images.
        `base`: the temperature of log-probabilities that micro-batches without a reference get from the base of the
        adapters; None: they need none.
        """
        self.saved = saved
        self.last_saved = SavedStep()  # of the last step
        self.most = MostKept()
        self._objective, self._tower, self._base = objective, tower, base
        self.share, self._kept_logits = share, kept_logits
        # Figures of the objective for the last step or evaluation, by micro-batch; all of a run's processes ask.
        self.tell: Callable[[], list[Told]] = list
        # Terms of that step's or evaluation's loss, by place in the data's order.
        self.losses: dict[int, float] = {}
        self.auxiliaries: dict[int, float] = {}  # the routers' part of that, where there are routers
        self.meta_model = meta_model
        self._engine = engine
        self._kernels: Any = engine if fused else None
        self._place = place
        self._arena = view_as_tensor(engine.device_memory())
        self._typed = self._arena.view(meta_model.dtype)
        self._regions = Regions(meta_model, self._typed)
        self._host = view_as_tensor(engine.memory()).view(meta_model.dtype)
        with place.in_pass_stream():
            place.take_buffers(meta_model.model)
            self._layer_arguments = LayerArguments(meta_model, place.device)
            self._scratch = Scratch(place.device)
        self._parts = Parts(tiles)  # and whose gradients are being handed over
        self._auxiliary = 0.0  # of the loss of what ran last
        self._kept: dict[int, Kept] = {}  # by the engine's number: what other blocks than its own use, too
        self._spaces: dict[int, Space] = {}  # by the engine's number: what is reduced
        product = product or choose_product(place, meta_model.dtype)
        self._weight_sums = WeightSums(engine, self._parts, product, self._kept)
        self._stack = self._stages(unneeded)
        entry = [meta_model.embedding.weight, *meta_model.stages[0].parameters]
        self._reaches_entry = any(parameter.requires_grad for parameter in entry)
        transform = None if meta_model.simple_head else self._transformed
        self._head = HeadCode(self._head_bias(), transform, meta_model.head.weight.requires_grad)
        self._dropout = Dropout(seed, place)
        self._before_passes, self._after_pass = before_passes, after_pass
        self._digests = NoDigests()  # digests of the passes under way

    @property
    def tiles(self) -> TokenTiles:
        """May be given others of the same modules between steps."""
        return self._parts.tiles

    @tiles.setter
    def tiles(self, tiles: TokenTiles) -> None:
        self._parts.tiles = tiles

    def step(self, work: Work, update: StepUpdate | None = None, step: int = 0) -> Outcome:
        """One optimizer step, number `step` (for dropout alone). `update`: values of the update; None: an engine that
        updates nothing needs none."""
        update = update or StepUpdate()
        loss_sum = self.gradients(work, update, step)
        self.update(update)
        return Outcome(loss_sum, work.units, self._auxiliary)

    def gradients(self, work: Work, update: StepUpdate, step: int) -> float:
        """The first part of a step, up to its gradients: the summed loss. `update`: a guess at what `update` gets."""
        return self._run(work, True, update, step)

    def compute(self, work: Work, step: int, digests: Digests) -> float:
        """Computes a step as `gradients` does, and adds digests of all values. No update runs during backward."""
        self._digests = self._weight_sums.digests = digests
        try:
            return self._run(work, True, None, step)
        finally:
            self._digests = self._weight_sums.digests = NoDigests()

    def update(self, update: StepUpdate) -> StepResult:
        """The last part of a step."""
        return self._engine.end_step(update)

    def evaluate(self, work: Work, watch: Watch | None = None, objective: Choice | None = None) -> Outcome:
        """The loss alone; nothing changes. `watch` sees the logits of labelled tokens, slice by slice; `objective`:
        another one than training has."""
        loss_sum = self._run(work, False, None, 0, watch, objective)
        self._engine.end_step(StepUpdate())
        return Outcome(loss_sum, work.units, self._auxiliary)

    def close(self) -> None:
        """Lets go of the engine's memory, which may be unmapped from here on."""
        for stage in self._stack:
            stage.release()
        del self._arena, self._typed, self._host, self._regions

    def _run(self, *given: Any) -> float:
        """Runs `_run_passes` where passes run, whatever stream and settings the caller has."""
        with self._place.current():
            return self._run_passes(*given)

    def _run_passes(
        self,
        work: Work,
        training: bool,
        update: StepUpdate | None,
        step: int,
        watch: Watch | None = None,
        objective: Choice | None = None,
    ) -> float:
        self._before_passes()
        self.meta_model.train(training)
        self._parts.begin(work.micro_batches)
        counts = self._parts.sizes if training else work.counts
        self._engine.begin_step(work.ids, counts, training, update, **self._digests.flags)
        self._weight_sums.begin(training)
        self._engine.embedding_forward(None)
        self._digests.end_pass()
        share = self.share.take(len(work.micro_batches))
        if self.share.world > 1:
            work = work.part(share)
            self._parts.begin(work.micro_batches, share.start)
        work = work.to(self._place.device)
        missing = find_unreferred(work) if self._base is not None and objective is None and watch is None else []
        work = make_room(work, missing)
        judge = (objective or self._objective)(work, training)
        keep = self._kept_logits if training else 0
        head = HeadPass(self._engine, work.micro_batches, judge, self._scratch, self._head, watch, keep, self._parts)
        base = self._refer(work, missing) if missing else None
        saved = SavedStep(self.saved if training else RECOMPUTE_ALL)
        turn = Turn(work, self._passages(work), head, saved, base, not training or not self._reaches_entry)
        try:
            with self._dropout.step(step, training):
                while (block_pass := self._engine.next_pass()).kind != "end":
                    self._pass(block_pass, turn)
                    self._engine.end_pass()
                    self._digests.end_pass()
                    self._after_pass()
        finally:
            turn.saved.release()
            self.last_saved = turn.saved if training else self.last_saved
            self.most.note(turn)
        turn.fill_reference()
        numbers = [batch.number for batch in work.micro_batches]
        gathered = self.share.gather((numbers, head.losses(), turn.auxiliaries(training)))
        self.losses, self.auxiliaries = (
            {number: value for part in gathered for number, value in zip(part[0], part[which], strict=False)}
            for which in (1, 2)
        )
        self._auxiliary = math.fsum(self.auxiliaries.values())
        balances = [passage.balance for passage in turn.passages]
        self.tell = functools.partial(join_figures, head, balances, numbers, self.share.gather)
        return math.fsum(self.losses.values()) + self._auxiliary

    def _refer(self, work: Work, missing: list[int]) -> BaseRows:
        """The rows of `work` through the base, for the reference of the micro-batches `missing`."""
        meta_model, batches, parts = self.meta_model, work.micro_batches, self._parts
        assert self._base is not None
        hidden = self._scratch.matrix("base", work.tokens, meta_model.width, meta_model.dtype).view(-1)

        def make_head(objective: Objective) -> HeadPass:
            return HeadPass(self._engine, batches, objective, self._scratch, self._head, parts=parts, name=" of base")

        passages = self._passages(work, balanced=False)
        return BaseRows(meta_model, work, passages, hidden, parts, make_head, self._base, missing)

    def _passages(self, work: Work, balanced: bool = True) -> list[Passage]:
        """`balanced`: the routers' loss is watched, where there are routers."""
        meta_model, batches = self.meta_model, work.micro_batches
        balances: list[Balance | None] = [None] * len(batches)
        if meta_model.routers is not None and balanced:
            scale = self._engine.loss_scale()[0] * work.routers_weight
            balances = [Balance(meta_model.routers, batch, scale, self._place.device) for batch in batches]
        recordings: list[Recording | None] = [None] * len(batches)
        features = list_features(self._tower, batches)
        if meta_model.simple_entry:
            recordings = list(self._layer_arguments.record(batches))
        return [Passage(*each) for each in zip(recordings, balances, features, strict=True)]

    def _pass(self, block_pass: BlockPass | PlainPass, turn: Turn) -> None:
        if block_pass.kind == "forward":
            self._forward(block_pass, turn)
        elif block_pass.kind == "head_loss":
            table = self._regions.table(block_pass.weights, block_pass.rows)
            if turn.base is not None:
                turn.base.add_loss(table, block_pass.first_row)
            last = self._regions.head_input(block_pass.input, turn.work.tokens)
            turn.head.add_loss(last, table, block_pass.first_row)
        elif block_pass.kind == "head_gradient":
            turn.fill_reference()
            self._digests.add_losses([batch.number for batch in turn.work.micro_batches], turn.head.losses)
            sums = self._regions.sums(block_pass.accumulator, turn.work.tokens)
            last = self._regions.head_input(block_pass.input, turn.work.tokens)
            table = self._regions.table(block_pass.weights, block_pass.rows)
            turn.head.add_gradient(last, table, block_pass.first_row, sums)
        elif block_pass.kind == "backward":
            self._backward(block_pass, turn)
        else:
            self._embedding_backward(block_pass, turn)

    def _forward(self, block_pass: BlockPass | PlainPass, turn: Turn) -> None:
        place = block_pass.block - 1
        stage = self._bound(block_pass)
        for kept in self._owned[place]:
            kept.refresh(stage.bound(kept.number), turn.work.ranks)
        for batch in turn.work.micro_batches:
            passage = turn.passages[batch.index]
            self._parts.open(batch)
            self._dropout.seed(batch.number, place)
            source = self._regions.source(block_pass.input, place, batch, passage)
            if place == 0:
                self._digests.add_output(-1, batch.number, source)
            if turn.keeps(place, stage, passage):
                output, saved = stage.forward_kept(source, passage, turn.saved.spills(place))
                turn.saved.add(place, batch.index, saved, self._room(block_pass, turn))
            else:
                output = stage.forward(source, batch, turn.work.ids_of(batch), passage)
            passage.shapes[place] = output.shape
            target = self._regions.output(block_pass.output, place, batch, passage)
            target.copy_(output)
            self._digests.add_output(place, batch.number, target)
            if place == 0 and passage.features is not None:
                turn.keep_features(passage.features, self._feature_room(block_pass))
        if turn.base is not None:
            turn.base.forward(stage, place, lambda *each: self._regions.source(block_pass.input, 0, *each))

    def _backward(self, block_pass: BlockPass | PlainPass, turn: Turn) -> None:
        place = block_pass.block - 1
        stage = self._bound(block_pass)
        if place == len(self._stack) - 1:
            sums = self._regions.sums(block_pass.accumulator, turn.work.tokens)
            turn.head.spread(sums, self._regions.head_input(block_pass.hidden_gradient, turn.work.tokens))
        for batch in turn.work.micro_batches:
            self._parts.open(batch)
            for kept in self._kept.values():
                kept.rank = batch.rank
            self._dropout.seed(batch.number, place)
            passage = turn.passages[batch.index]
            source = self._regions.source(block_pass.input, place, batch, passage)
            gradient = self._regions.output(block_pass.hidden_gradient, place, batch, passage)
            if place == 0 and passage.features is not None and block_pass.feature_bytes:
                passage.features.come_back(self._feature_room(block_pass))
            if (saved := turn.saved.take(place, batch.index)) is not None:
                result = stage.backward_kept(saved, source, gradient, self._room(block_pass, turn))
            else:
                result = stage.backward(source, gradient, batch, turn.work.ids_of(batch), passage)
            target = self._regions.input(block_pass.hidden_gradient, place, batch, passage)
            target.copy_(result)
            if place == 0 and passage.features is not None:
                passage.features.come_back(None)
            self._digests.add_input_gradient(place, batch.number, target)
            for kept in self._owned[place] if batch.ends_rank else ():  # what this block's own pass found none for
                kept.hand_over(self._give)

    def _embedding_backward(self, block_pass: BlockPass | PlainPass, turn: Turn) -> None:
        columns, width = self.meta_model.columns, self.meta_model.width
        first = block_pass.hidden_gradient // self._host.element_size()
        flat = self._host[first : first + turn.work.tokens * width]
        if columns == width or not turn.work.tokens:
            gradient = flat.view(turn.work.tokens, columns)
        else:
            parts = [flat[b.first * width :][: b.tokens * columns] for b in turn.work.micro_batches]
            gradient = torch.cat(parts).view(-1, columns)
        padding = self.meta_model.embedding.padding_idx
        if padding is not None:  # as nn.Embedding does: this row learns nothing from being read
            gradient[turn.work.ids == padding] = 0
        self._engine.embedding_backward(gradient)

    def _stages(self, unneeded: Collection[str]) -> list[Stage]:
        meta_model = self.meta_model
        plans, first = meta_model.stages, 1  # tensor 0 is the embedding's table
        others = {id(p) for plan in plans for p in plan.shared}
        self._owned: list[list[Kept]] = []
        by_parameter: dict[int, Kept] = {}
        stages = []
        for plan in plans:
            slots = slots_of(meta_model, plan.parameters, first, self._engine.tensor_offset)
            kept = [Kept(slot.tensor, slot.meta.shape, slot.meta.dtype, slot.meta.requires_grad, self._place.device)
                    for slot in slots if id(slot.meta) in others or slot.meta is meta_model.head.bias]  # fmt: skip
            self._owned.append(kept)
            self._kept |= {k.number: k for k in kept}
            self._spaces |= {s.tensor: meta_model.spaces[id(s.meta)] for s in slots if id(s.meta) in meta_model.spaces}
            by_parameter |= {id(s.meta): self._kept[s.tensor] for s in slots if s.tensor in self._kept}
            borrowed = [(meta_model.places[id(p)], by_parameter[id(p)].leaf, p) for p in plan.shared]
            sinks = (self._hand_over, self._project)
            pieces = (getattr(self._engine, name, None) for name in ("convert_pieces", "ask_pieces"))
            computing = (self._place.device, self._kernels, self._weight_sums, *pieces)
            stages.append(Stage(meta_model, plan, slots, borrowed, *sinks, unneeded, self._parts, *computing))
            first += len(slots)
        return stages

    def _head_bias(self) -> Kept | None:
        bias, stages = self.meta_model.head.bias, zip(self._stack, self._owned, strict=True)
        return next((kept for stage, owned in stages for kept in owned if bias is stage.meta_of(kept.number)), None)

    def _transformed(self, logits: torch.Tensor) -> torch.Tensor:
        return transformed_logits(self.meta_model, logits)

    def _hand_over(self, tensor: int, gradient: torch.Tensor) -> None:
        kept = self._kept.get(tensor)
        if kept is not None and self._parts.last:
            kept.hand_over(self._give, gradient)
        else:
            self._give(tensor, gradient)

    def _project(self, tensor: int, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        return project(self._engine, tensor, self._parts.now, self._spaces[tensor], x, dy, self._parts.must_refit)

    def _give(self, tensor: int, gradient: torch.Tensor) -> None:
        self._digests.add_gradient(tensor, self._parts.now, gradient)
        self._engine.gradient(tensor, gradient, self._parts.now)

    def _bound(self, block_pass: BlockPass | PlainPass) -> Stage:
        stage = self._stack[block_pass.block - 1]
        stage.bind(self._typed, block_pass.weights // self._typed.element_size())
        return stage

    def _room(self, block_pass: BlockPass | PlainPass, turn: Turn) -> torch.Tensor | None:
        """The bytes through which a spilled stage's saved activations leave and return."""
        if not turn.saved.spills(block_pass.block - 1):
            return None
        return self._arena[block_pass.spilled : block_pass.spilled + block_pass.spilled_bytes]

    def _feature_room(self, block_pass: BlockPass | PlainPass) -> torch.Tensor:
        """The bytes in which features of images wait for backward."""
        return self._arena[block_pass.features : block_pass.features + block_pass.feature_bytes]


@dataclass
class Turn:
    """Data that the passes of one step share."""

    work: Work
    passages: list[Passage]  # by micro-batch
    head: HeadPass
    saved: SavedStep
    base: BaseRows | None = None  # that makes the reference; None: there is none, or the micro-batches have it
    ends_above: bool = False  # the first layer has no backward pass
    kept_features: int = 0  # bytes

    def keep_features(self, features: Answering, room: torch.Tensor) -> None:
        """After the first layer's forward pass of a micro-batch: its features go to `room`, behind those before. Where
        it is too small they stay as they are; where no backward pass asks for them, nobody has them."""
        if self.ends_above:
            features.come_back(None)
        else:
            self.kept_features += features.leave(room, self.kept_features)

    def fill_reference(self) -> None:
        if self.base is not None:
            self.base.fill()

    def keeps(self, place: int, stage: Stage, passage: Passage) -> bool:
        """True if what autograd saves of a micro-batch's pass is kept, where that is asked for and can be."""
        layer = stage.plan.layer
        return self.saved.keeps(place) and stage.can_keep and layer is not None and passage.is_closed(layer)

    def auxiliaries(self, training: bool) -> list[float]:
        """The routers' part of the summed loss, by micro-batch. A step has their loss for each label token, as
        transformers' Trainer adds it. An evaluation has each micro-batch's own for its tokens."""
        balances = [(p.balance, b) for p, b in zip(self.passages, self.work.micro_batches, strict=True)]
        return [
            balance.loss() * (self.work.units * self.work.routers_weight if training else batch.units)
            for balance, batch in balances
            if balance is not None
        ]


@dataclass
class MostKept:
    """The most bytes that any step kept from forward to backward."""

    saved: int = 0  # of what autograd saves, at once
    spilled: int = 0  # of that, what was spilled
    features: int = 0  # of images, which the engine had

    def note(self, turn: Turn) -> None:
        """After a step."""
        self.saved = max(self.saved, turn.saved.most)
        self.spilled = max(self.spilled, sum(turn.saved.spilled.values()))
        self.features = max(self.features, turn.kept_features)

    def summarise(self) -> dict[str, Any]:
        """For the summary of a run."""
        features = {"image_features": self.features} if self.features else {}
        return {"saved_activations": {"most": self.saved, "spilled": self.spilled}, **features}


def join_figures(
    head: HeadPass,
    balances: list[Balance | None],
    numbers: list[int],
    gather: Callable[[Any], list[Any]] = lambda value: [value],
) -> list[Told]:
    """Figures of the objective, and the routers' loss if there is one, by micro-batch in the data's order. `numbers`:
    that order, of micro-batches in the step's. `gather`: as Share has it."""
    routers = [{} if balance is None else {"aux_loss": balance.mean()} for balance in balances]
    every = [figures | more for figures, more in zip(head.list_figures(), routers, strict=True)]
    numbered = [each for part in gather(list(zip(numbers, every, strict=True))) for each in part]
    return [figures for _, figures in sorted(numbered, key=lambda each: each[0])]


def view_as_tensor(array: Any) -> torch.Tensor:
    """Shares the bytes that the engine hands out: an array in host memory, a tensor in a GPU's."""
    return array if isinstance(array, torch.Tensor) else torch.from_dlpack(array)
