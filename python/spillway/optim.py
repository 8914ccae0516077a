"""Optimizers for a plain PyTorch loop whose model stays where it is; their state is smaller, or elsewhere.

    optimizer = spillway.optim.AdamW(model.parameters(), lr=1e-5, format="bf16")
    optimizer = spillway.optim.AdamW(model.parameters(), lr=1e-5, tier="path:/mnt/nvme")

They take the place of `torch.optim.AdamW` and the others as they are: parameter groups, schedulers, closures,
`zero_grad`, `state_dict`, gradient scalers. Bytes of state per parameter, AdamW: `exact` 8, `bf16` 4, `int8` 2; of a
bf16 parameter 2 more, which make it an exact fp32 master (PyTorch has none then, and loses updates below 1/256 of a
weight). With fp32 parameters `exact` gives the bits of `torch.optim.AdamW(fused=True)`.

`tier`: `dram`, or `path:DIRECTORY` (a list: several at once), whose state streams through `staging` bytes of memory in
every step and does not outlive the process: keep `state_dict()`, which reads all of it into memory. A parameter that
something else wrote to is seen by its version counter, and is its own master again.

`widen(model)`: bf16 parameters that are multiplied in fp32 where that is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from spillway import _engine
from spillway.base.calls import translated
from spillway.config.optimizers import OPTIMIZERS
from spillway.config.values import parse_size
from spillway.errors import InputError
from spillway.widening import Widened, widen

__all__ = ["SGD", "Adam", "AdamW", "Lion", "Widened", "widen"]

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
ITEMS = {4: torch.float32, 2: torch.bfloat16, 1: torch.uint8}


class Where(TypedDict, total=False):
    """Keywords of every optimizer here."""

    maximize: bool
    tier: str | Sequence[str]
    format: str
    seed: int  # of the stochastic rounding of bf16 moments
    threads: int | None  # that update; none: as many as PyTorch computes with
    staging: int | str  # memory for states on their way to and from storage
    overwrite: bool  # a volume that another run has left on the path


class Offloaded(torch.optim.Optimizer):
    """What the optimizers have in common: tensors and addresses for the engine, its arrays for `state_dict`."""

    rule = ""
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        maximize: bool = False,
        tier: str | Sequence[str] = "dram",
        format: str = "exact",
        seed: int = 0,
        threads: int | None = None,
        staging: int | str = "256MiB",
        overwrite: bool = False,
    ) -> None:
        check_defaults(defaults)
        if format not in (known := OPTIMIZERS[self.rule].formats):
            raise InputError(f"format is {format!r}; known: {', '.join(known)}")
        self.format, self.seed = format, seed
        self.storage = storage_of(tier)
        self.threads = threads or torch.get_num_threads()
        self.staging, self.overwrite = parse_size(staging), overwrite
        self._places: dict[torch.Tensor, tuple[Any, int]] = {}
        self._versions: dict[torch.Tensor, int] = {}
        super().__init__(params, defaults | {"maximize": maximize})

    # ---- one step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return loss
        grad_scale = getattr(self, "grad_scale", None)
        scale = 1.0 if grad_scale is None else 1.0 / grad_scale.item()
        with_grad = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        self._place([p for _, p in with_grad])
        self._see_changes([p for _, p in with_grad])
        self._update(with_grad, scale)
        return loss

    def _update(self, with_grad: list[tuple[dict[str, Any], torch.Tensor]], scale: float) -> None:
        updates: dict[Any, list[tuple[Any, ...]]] = {}  # by engine
        kept: list[torch.Tensor] = []  # what the addresses are of
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for group, p in with_grad:
            engine, number = self._places[p]
            weight = p.detach()
            if not weight.is_contiguous():
                weight = weight.contiguous()
                copies.append((p, weight))
            grad = self._gradient(p)
            kept += [weight, grad]
            self.state[p].setdefault("step", torch.tensor(0.0)).add_(1)
            applied = (scale * (-1 if group.get("maximize") else 1), int(self.state[p]["step"].item()))
            update = (number, weight.data_ptr(), grad.data_ptr(), hyperparameters(self.rule, group), *applied)
            updates.setdefault(engine, []).append(update)
        with translated():
            for engine, of_engine in updates.items():
                engine.step(sorted(of_engine))
        for p, weight in copies:
            p.copy_(weight)
        torch.autograd.graph.increment_version([p for _, p in with_grad])
        self._versions |= {p: p._version for _, p in with_grad}

    @staticmethod
    def _gradient(p: torch.Tensor) -> torch.Tensor:
        assert p.grad is not None
        if p.grad.is_sparse:
            raise InputError("a gradient is sparse, and spillway.optim takes dense ones: use sparse=False there")
        return p.grad.to(p.dtype).contiguous()

    # ---- where the state is

    def _place(self, params: Iterable[torch.Tensor]) -> None:
        """Makes room for parameters that have none yet; all that may come along get theirs at once."""
        if all(p in self._places for p in params):
            return
        named = self._named()
        new = [(name, p) for name, p in named if p.requires_grad and p not in self._places]
        if self._places and self.storage:
            names = ", ".join(name for name, _ in new)
            raise InputError(
                f"{names}: parameters that come after the first step have no room on the storage path; "
                "let them require gradients before it, or use tier='dram'"
            )
        for name, p in new:
            check(name, p)
        with translated():
            tensors = [(name, p.numel(), TYPES[p.dtype]) for name, p in new]
            engine = _engine.Optimizer(
                tensors, self.rule, self.format, self.seed, self.threads, self.storage, self.staging, self.overwrite
            )
        for number, (_, p) in enumerate(new):
            self._places[p] = engine, number
            self._versions[p] = p._version

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        out = []
        for number, group in enumerate(self.param_groups):
            names = group.get("param_names") or [
                f"parameter {i} of group {number}" for i in range(len(group["params"]))
            ]
            out += list(zip(names, group["params"], strict=True))
        return out

    def _see_changes(self, params: Iterable[torch.Tensor]) -> None:
        """A bf16 parameter that was written to since the last step is no longer its master, rounded."""
        for p in params:
            if p.dtype != torch.float32 and p._version != self._versions[p]:
                engine, number = self._places[p]
                engine.set_master(number, p.data_ptr())

    # ---- state in and out

    def _arrays(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        engine, number = self._places[p]
        out = {}
        for name, entries, item in engine.arrays(number):
            kind = torch.int16 if name == "residual" else torch.float32 if name.endswith("_scale") else ITEMS[item]
            flat = torch.empty(entries, dtype=kind)
            out[name] = flat if name.endswith("_scale") else flat.view(p.shape)
        with translated():
            engine.fetch(number, [bytes_of(array) for array in out.values()])
        return out

    def state_dict(self) -> dict[str, Any]:
        """The state as torch.optim gives it: `step` and the moments as they are kept (`int8`: codes of 8 bits and,
        `..._scale`, a factor for every 256 of them), the `residual` of a bf16 parameter, and in `spillway` the
        format."""
        slim = self.state  # type: ignore[has-type]
        self.state = type(slim)(
            dict, {p: {**s, **self._arrays(p)} if p in self._places else s for p, s in slim.items()}
        )
        try:
            return {**super().state_dict(), "spillway": {"format": self.format, "optimizer": self.rule}}
        finally:
            self.state = slim

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of this optimizer in any format, or of its namesake in torch.optim; moments are converted."""
        states = state_dict["state"]
        steps = {number: {"step": torch.as_tensor(s.get("step", 1.0)).float()} for number, s in states.items()}
        super().load_state_dict({**state_dict, "state": steps})
        params = [p for group in self.param_groups for p in group["params"]]
        loaded = [(params[number], s) for number, s in states.items()]
        self._place([p for p, _ in loaded])
        for p, s in loaded:
            self._store(p, s)

    def _store(self, p: torch.Tensor, state: dict[str, Any]) -> None:
        engine, number = self._places[p]
        arrays: dict[str, torch.Tensor] = {}
        shapes = engine.arrays(number)
        for name, _, item in shapes:
            if name == "residual":
                arrays[name] = of_size(p, name, state.get(name, torch.zeros(p.shape, dtype=torch.int16)))
            elif not name.endswith("_scale"):
                arrays |= moment(p, name, ITEMS[item], state)
        with translated():
            engine.store(number, [bytes_of(arrays[name].contiguous()) for name, _, _ in shapes])
        self._versions[p] = p._version

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("an optimizer of spillway.optim cannot be pickled or copied; keep its state_dict()")


def hyperparameters(optimizer: str, group: dict[str, Any]) -> dict[str, float]:
    """The hyperparameters of a group of parameters, by the engine's names instead of PyTorch's."""
    beta1, beta2 = group.get("betas", (0.0, 0.0))
    names = {"learning_rate": group["lr"], "epsilon": group.get("eps"), "beta1": beta1, "beta2": beta2}
    known = OPTIMIZERS[optimizer].hyperparameters
    return {each.name: float(names[each.name] if each.name in names else group[each.name]) for each in known}


def storage_of(tier: str | Sequence[str]) -> list[tuple[str, bool]]:
    """Directories and raw devices: (place, whether it is a device) each; none: DRAM."""
    tiers = [tier] if isinstance(tier, str) else list(tier)
    if tiers == ["dram"]:
        return []
    out = []
    for one in tiers:
        kind, _, place = one.partition(":")
        if kind not in ("path", "device") or not place:
            raise InputError(f"tier is {one!r}; known: dram, path:DIRECTORY, device:BLOCK_DEVICE, or a list of paths")
        if kind == "path" and not Path(place).is_dir():
            raise InputError(f"tier {one}: there is no directory {place}")
        out.append((place, kind == "device"))
    return out


def check(name: str, p: torch.Tensor) -> None:
    if p.device.type != "cpu":
        raise InputError(f"{name} is on {p.device}; spillway.optim updates parameters in host memory: keep them on cpu")
    if p.dtype not in TYPES:
        raise InputError(f"{name} is {p.dtype}; spillway.optim takes torch.float32 and torch.bfloat16")
    if p.numel() == 0:
        raise InputError(f"{name} has no elements")


def check_defaults(defaults: dict[str, Any]) -> None:
    for name in ("lr", "eps", "weight_decay"):
        if not float(value := defaults.get(name, 0.0)) >= 0:
            raise InputError(f"{name} is {value}; it must be at least 0")
    for value in defaults.get("betas", (defaults.get("momentum"),)):
        if not 0 <= value < 1:
            raise InputError(f"a beta or momentum is {value}; it must be at least 0 and below 1")


def of_size(p: torch.Tensor, name: str, array: torch.Tensor) -> torch.Tensor:
    if array.numel() != p.numel():
        raise InputError(f"{name} has {array.numel()} elements, and its parameter {p.numel()}: another model's state")
    return array.detach().cpu()


def moment(p: torch.Tensor, name: str, kind: torch.dtype, state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A moment as this optimizer keeps it, with its scale if it has one; converted where it was kept otherwise."""
    scale, second = f"{name}_scale", name == "exp_avg_sq"
    found = state.get(name)
    array = of_size(p, name, torch.zeros(p.shape) if found is None else found)
    if array.dtype == torch.uint8:
        if kind == torch.uint8:
            return {name: array, scale: state[scale]}
        array = torch.from_numpy(_engine.decode_moment(array.reshape(-1).numpy(), state[scale].numpy(), second))
    if kind != torch.uint8:
        return {name: array.to(kind)}
    codes, scales = _engine.encode_moment(array.float().reshape(-1).contiguous().numpy(), second)
    return {name: torch.from_numpy(codes), scale: torch.from_numpy(scales)}


def bytes_of(array: torch.Tensor) -> Any:
    return array.view(-1).view(torch.uint8).numpy()


class AdamW(Offloaded):
    """Decoupled weight decay (Loshchilov & Hutter, ICLR 2019); arguments as of torch.optim.AdamW."""

    rule = "adamw"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **where: Unpack[Where],
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, **where)


class Adam(AdamW):
    """Weight decay is added to the gradient (Kingma & Ba, ICLR 2015); arguments as of torch.optim.Adam."""

    rule = "adam"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **where: Unpack[Where],
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, **where)


class Lion(Offloaded):
    """The sign of an interpolation of gradient and momentum (Chen et al., arXiv 2302.06675); one moment."""

    rule = "lion"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **where: Unpack[Where],
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, **where)


class SGD(Offloaded):
    """With momentum, neither dampened nor Nesterov's; arguments as of torch.optim.SGD."""

    rule = "sgd"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        **where: Unpack[Where],
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}, **where)
