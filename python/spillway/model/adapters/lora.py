"""LoRA: adapters of PEFT in the layers of a meta model whose base is frozen but for a head of labels, and their files.

PEFT itself puts them in and draws their first values, so a run begins as one in memory does after
`torch.manual_seed(seed); get_peft_model(model, LoraConfig(...))`. The base keeps the names that its checkpoint has; the
adapters' tensors are the engine's like any other.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from spillway._engine import Description
from spillway.base.documents import read_json
from spillway.config import checks
from spillway.errors import InputError, first_line
from spillway.model.adapters.adapter_pass import replace_forwards
from spillway.model.adapters.lora_targets import (
    check_parameters,
    choose_targets,
    find_linears,
    join_names,
    name_in_layer,
)
from spillway.model.checkpoint.files import tensor_numbers
from spillway.model.meta.building import build
from spillway.model.meta.meta_model import bare_name, pattern
from spillway.model.meta.score_head import HEAD
from spillway.model.meta.text_tower import tower_name
from spillway.model.source.model_code import call_model
from spillway.model.source.own import OwnConfig, OwnModel
from spillway.model.source.source import is_classifier, is_multimodal
from spillway.model.source.tensor_files import Stored
from spillway.model.source.tiny_copy import LENGTH, tiny_copy

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from spillway._engine import Engine
    from spillway.config import Config
    from spillway.model.meta.meta_model import MetaModel

ADAPTER = checks.ADAPTER
ADAPTER_CONFIG = "adapter_config.json"
WEIGHTS = "adapter"  # under a checkpoint's state: the adapters' compute weights, as the engine names them
NAME = "default"  # of the adapter in the modules; files do not have it
Drawn = dict[int, dict[str, torch.Tensor]]  # by identity of an adapted layer: values by name within it
MAGNITUDE = ".lora_magnitude_vector"  # of DoRA, in the name of a parameter
PREFIX = "base_model.model."  # of names in PEFT's files
FACTORS = {  # keys that give an adapter's product its factor, and PEFT's names
    "lora_alpha": "lora_alpha",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
    "lora_rank_pattern": "rank_pattern",
    "lora_alpha_pattern": "alpha_pattern",
}
MERGE_FIRST = (
    "the base is frozen but for a head of labels. Merge the adapters into their base (`spillway merge DIR --to NEW`), "
    "and train new ones on that"
)
HEADS = ("classifier", HEAD)  # PEFT's names of modules that such a task saves whole


@dataclass
class Adapters:
    """A configuration's adapters, and their state on one meta model."""

    asked: dict[str, Any]  # arguments of LoraConfig
    seed: int
    source: Path | None = None  # a directory of adapters that a run begins with; None: PEFT's first values
    names: list[str] = field(default_factory=list)  # of the adapters' parameters, in the model's order
    head: list[str] = field(default_factory=list)  # of a head of labels, which is trained whole and saved beside them
    tower: list[str] = field(default_factory=list)  # of parts that make features of images, the same
    modules: list[str] = field(default_factory=list)  # that hold exactly these parameters, by PEFT's names
    begun: dict[str, torch.Tensor] = field(default_factory=dict)  # fp32, by name: PEFT's first values
    transposed: set[str] = field(default_factory=set)  # parameters of adapters whose base has its inputs as rows
    kept: torch.dtype = torch.float32  # the type of the base
    config: Any = None  # PEFT's, with the modules that were found
    notice: str = ""  # the notice of layers without adapters

    @property
    def whole(self) -> list[str]:
        """The parameters that are trained without adapters."""
        return [*self.head, *self.tower]

    def absent(self, description: Description, adapters: bool) -> dict[str, str]:
        """The engine's words for files that hold the base alone, with its head (`adapters`: these and the head)."""
        own = {*self.names, *(self.whole if adapters else ())}
        tensors = (tensor.name for block in description.blocks for tensor in block.tensors)
        return {name: "" for name in tensors if (name in own) != adapters}

    def like(self, meta_model: MetaModel) -> None:
        """Adapters of the same kind for another meta model; their values do not matter."""
        made = Adapters(self.asked, self.seed)
        made.adapt(meta_model)
        made.begun = {}

    def like_largest(self, small: MetaModel, model: nn.Module) -> None:
        """Adapters for a copy with fewer layers than the adapted `model`: the largest rank among layers of a kind."""
        ranks: dict[str, int] = {}
        for name, module in list_adapted(model).items():
            kind = re.escape(name_in_layer(name))
            ranks[kind] = max(ranks.get(kind, 0), module.r[NAME])
        by_length = dict(sorted(ranks.items(), key=lambda item: -len(item[0])))  # PEFT takes the first that matches
        made = Adapters({**self.asked, "rank_pattern": by_length, "alpha_pattern": {}}, self.seed)
        made.put(small)
        made.begun = {}

    def adapt(self, meta_model: MetaModel) -> None:
        """`put`. InputError where a pattern of ranks or factors names no adapter."""
        self.put(meta_model)
        check_patterns(meta_model.model, self.config)

    def put(self, meta_model: MetaModel) -> None:
        """Puts adapters into the meta model's layers; everything else is frozen from here on."""
        peft = required()
        model = meta_model.model
        trained = [parameter for parameter in meta_model.tower if parameter.requires_grad]
        meta_model.remember_original()
        try:
            with drawn_values() as drawn, torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                made = insert_adapters(model, self.wanted(peft, model))
        except InputError:
            raise
        except ValueError as error:  # PEFT knows no such module
            words = find_linears(peft, model).words()
            raise InputError(f"lora_target_modules: {first_line(error)}; {words}") from error
        self.config = made.peft_config[NAME]
        meta_model.adapters = self
        refuse_elsewhere(meta_model, model)
        replace_forwards(model.modules(), NAME)
        self.take_values(model, drawn, meta_model.dtype, meta_model.kept)
        self.head = unfreeze_head(model)
        for parameter in trained:
            parameter.requires_grad_(True)
        meta_model.look_again()
        self.tower = [meta_model.names[id(parameter)] for parameter in trained]
        self.modules = find_whole_modules(model, {id(parameter) for parameter in trained})
        model.train()

    def unused(self, config: PreTrainedConfig | OwnConfig) -> frozenset[str]:
        """Patterns of adapters that no gradient reaches, in a small model of this configuration: the model's code reads
        the layer's weight itself, or never. PyTorch's optimizers leave such a parameter alone, decay included.
        InputError where the library's code cannot compute with these adapters."""
        from spillway.model.verify.equivalence import one_thread, plain_model

        peft = required()
        fewer = config.smaller() if isinstance(config, OwnConfig) else tiny_copy(config)
        carried = build(copy.deepcopy(fewer), torch.float32).carried_names if is_multimodal(fewer) else frozenset()
        small = plain_model(fewer, carried).train()
        try:
            with torch.random.fork_rng(devices=[]):
                insert_adapters(small, self.wanted(peft, small))
        except ValueError:  # what is adapted lies in layers that a small model does not have
            return frozenset()
        ids = torch.arange(LENGTH)[None] % small.get_input_embeddings().num_embeddings
        try:
            with one_thread():
                call_model(small, ids).logits.sum().backward()
        except Exception as error:  # a linear layer of its own kind, whose forward PEFT does not know
            raise InputError(
                f"lora_target_modules: {config.model_type} cannot be computed with these adapters, by PEFT and its own "
                f"code: {first_line(error)}; name other layers: {find_linears(peft, small).words()}"
            ) from error
        learning = {pattern(bare_name(name)): p for name, p in small.named_parameters() if p.requires_grad}
        used = {pattern(bare_name(name)) for name, p in small.named_parameters() if p.grad is not None}
        return frozenset(learning.keys() - used)

    def wanted(self, peft: Any, model: nn.Module) -> Any:
        """PEFT knows what a task asks of transformers' models only. Of a multimodal one the text tower is adapted."""
        without_task = isinstance(model, OwnModel) or is_classifier(model.config)  # else PEFT would wrap the head
        task: dict[str, Any] = {} if without_task else {"task_type": "CAUSAL_LM"}
        if is_multimodal(getattr(model, "config", None)) and (tower := tower_name(model)):
            task["exclude_modules"] = rf"(?!{re.escape(tower)}\.).*"
        parameters = self.asked.get("target_parameters") or []
        check_parameters(model, parameters)
        targets = choose_targets(peft, model, self.asked.get("target_modules"), parameters)
        self.notice = targets.notice
        asked = copy.deepcopy(self.asked)  # PEFT adds to its patterns
        return peft.LoraConfig(**{**asked, **task, "target_modules": targets.modules})

    def take_values(self, model: nn.Module, drawn: Drawn, dtype: torch.dtype, kept: torch.dtype) -> None:
        """The adapters' first values, until the engine has them; the parameters are of the base's type."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        values: dict[int, torch.Tensor] = {}
        self.kept = kept
        for place, layer in list(model.named_modules()):
            if not isinstance(layer, BaseTunerLayer):
                continue
            for name in list_adapter_names(layer, NAME):
                value = drawn[id(layer)].get(name)
                value = model.get_parameter(f"{place}.{name}") if value is None else value  # `measure_rows` has it
                owner, _, own = name.rpartition(".")
                meta = nn.Parameter(torch.empty_like(value, dtype=dtype, device="meta"))
                model.get_submodule(f"{place}.{owner}")._parameters[own] = meta
                values[id(meta)] = value.to(kept).float()  # as PEFT rounds them where the base is not of fp32
                if getattr(layer, "fan_in_fan_out", False):
                    self.transposed.add(f"{place}.{name}")
        self.begun = {name: values[id(p)] for name, p in model.named_parameters() if id(p) in values}
        self.names = list(self.begun)

    def begin(self, engine: Engine, description: Description, saved: Path | None = None) -> None:
        """Stores the first values, which are not kept any longer: PEFT's, or those of a directory that `save` wrote."""
        numbers = tensor_numbers(description)
        if saved is not None:
            self.take_saved(saved, {name: numbers[name][1] for name in self.whole})
        for name, value in self.begun.items():
            values = self.measure_rows(engine, numbers, name) if value.is_meta else value
            try:
                engine.store_tensor(numbers[name][0], 0, values.view(-1))
            except ValueError as error:
                raise InputError(f"{saved or 'the adapters'}: {error}") from error
        self.begun = {}

    def measure_rows(self, engine: Engine, numbers: dict[str, Any], name: str) -> torch.Tensor:
        """The first magnitudes of DoRA: the lengths of the rows of the base's weight."""
        number, shape = numbers[f"{name.partition(MAGNITUDE)[0]}.weight"]
        weight = fetched(engine, number, shape).view(*shape)
        return torch.linalg.norm(weight, dim=0 if name in self.transposed else 1).to(self.kept).float()

    def take_saved(self, directory: Path, head: dict[str, list[int]]) -> None:
        """First values from PEFT's file. InputError where it is missing or holds other adapters. `head`: shapes of the
        head's parameters, which the file may lack."""
        path = directory / ADAPTER
        if not path.is_file():
            raise InputError(f"lora_adapter: there is no {path}; expects a directory of adapters, as PEFT saves them")
        self.check_settings(directory / ADAPTER_CONFIG)
        stored_file = Stored(path)
        tensors = {name: stored_file.tensor(name) for name in stored_file.names()}
        shapes = {name: self.begun[name].shape for name in self.names}
        shapes |= {name: torch.Size(shape) for name, shape in head.items() if file_name(name) in tensors}
        for name, shape in shapes.items():
            stored = tensors.pop(file_name(name), None)
            if stored is None or stored.shape != shape:
                there = "nothing" if stored is None else list(stored.shape)
                raise InputError(f"lora_r, lora_target_modules: {path} has {there} for {name}, which is {list(shape)}")
            self.begun[name] = stored.float()
        if whole := sorted(name for name in tensors if ".lora_" not in name):
            raise InputError(f"lora_adapter: {path} holds {whole[0]} whole; {MERGE_FIRST}")
        if tensors:
            raise InputError(f"lora_target_modules: {path} has {min(tensors)} besides, which this run has no place for")

    def check_settings(self, path: Path) -> None:
        """InputError where PEFT's configuration of saved adapters gives their product another factor than this run."""
        saved = read_json(path) if path.is_file() else {}
        whole = set(saved.get("modules_to_save") or ()) - ({*HEADS} if self.head else set()) - {*self.modules}
        if whole:
            raise InputError(f"lora_adapter: {path}: modules_to_save is {saved['modules_to_save']}; {MERGE_FIRST}")
        for key, name in FACTORS.items() if saved else ():
            before, now = saved.get(name), getattr(self.config, name)
            if (before or None) != (now or None):
                raise InputError(f"{key}: it is {now}, and {path} has {before}; give that")

    def save(self, engine: Engine, description: Description, base: str, to: Path) -> None:
        """Saves the files that `PeftModel.from_pretrained` reads: the adapters' masters in fp32, and their
        configuration."""
        from spillway._engine import SafetensorsWriter

        numbers = tensor_numbers(description)
        names = [*self.names, *self.whole]
        listed = [(file_name(name), "F32", numbers[name][1]) for name in names]
        writer = SafetensorsWriter(str(to), Path(ADAPTER).stem, listed, 1 << 62)
        for place, name in enumerate(names):
            writer.write(place, 0, fetched(engine, *numbers[name]).view(torch.uint8).numpy())
        writer.finish()
        saved = copy.deepcopy(self.config)
        saved.base_model_name_or_path, saved.inference_mode = base, True
        if isinstance(saved.target_modules, set):  # which has another order in each process
            saved.target_modules = sorted(saved.target_modules)
        if self.head:
            saved.task_type = "TOKEN_CLS" if f"{HEAD}.bias" in self.head else "SEQ_CLS"
        if self.whole:
            saved.modules_to_save = [*(HEADS if self.head else ()), *self.modules]
        saved.save_pretrained(str(to))

    def give(self, engine: Engine, description: Description) -> None:
        """`save` of a process that does not write: what it has goes to the one that does."""
        numbers = tensor_numbers(description)
        for name in (*self.names, *self.whole):
            fetched(engine, *numbers[name])

    def save_weights(self, engine: Engine, description: Description, state: Path, writes: bool = True) -> None:
        """Beside the optimizer's state: what `load` needs to go on bit by bit. `writes`: this process does."""
        if writes:
            (state / WEIGHTS).mkdir(mode=0o700, exist_ok=True)
        engine.save_weights(str(state / WEIGHTS), 1 << 62, self.absent(description, adapters=True))

    def load(self, engine: Engine, description: Description, state: Path, steps: int) -> str:
        """The adapters, the head and their state; the base has been loaded. Returns the state format that was found."""
        self.begun = {}
        return engine.load_state(str(state), str(state / WEIGHTS), steps, self.absent(description, adapters=True))


def unfreeze_head(model: Any) -> list[str]:
    """Makes a head of labels trainable. Returns the names of its parameters; none for a model that predicts tokens."""
    if not is_classifier(getattr(model, "config", None)):
        return []
    parameters = dict(model.get_submodule(HEAD).named_parameters())
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    return [f"{HEAD}.{name}" for name in parameters]


def find_whole_modules(model: nn.Module, trained: set[int]) -> list[str]:
    """The largest modules whose parameters are all `trained`, given by identity."""
    names: list[str] = []
    for name, module in model.named_modules():
        own = {id(parameter) for parameter in module.parameters()}
        if name and own and own <= trained and not any(name.startswith(f"{other}.") for other in names):
            names.append(name)
    return names


def fetched(engine: Engine, number: int, shape: Sequence[int]) -> torch.Tensor:
    """The masters of a tensor, fp32, flat."""
    values = torch.empty(torch.Size(shape).numel())
    engine.fetch_tensor(number, 0, values)
    return values


def file_name(name: str) -> str:
    """The name that an adapter's parameter has in PEFT's files."""
    return PREFIX + name.replace(f"{MAGNITUDE}.{NAME}.weight", MAGNITUDE).replace(f".{NAME}", "")


def adapters_of(config: Config) -> Adapters | None:
    """None where the method is another."""
    if config.method != "lora":
        return None
    targets: Any = list(config.lora_target_modules) or None
    asked = {
        "r": config.lora_r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "target_modules": "all-linear" if targets == ["all-linear"] else targets,
        "target_parameters": list(config.lora_target_parameters) or None,
        "use_rslora": config.use_rslora,
        "use_dora": config.use_dora,
        "rank_pattern": dict(config.lora_rank_pattern or {}),
        "alpha_pattern": dict(config.lora_alpha_pattern or {}),
    }
    return Adapters(asked, config.seed, Path(config.lora_adapter) if config.lora_adapter else None)


def insert_adapters(model: Any, config: Any, **options: Any) -> Any:
    """PEFT's get_peft_model, in place. Hides what transformers tells PEFT's authors of deprecated attributes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", ".*keys did not match any targeted module", RuntimeWarning)  # check_patterns
        return required().get_peft_model(model, config, **options)


def required() -> Any:
    try:
        import peft
    except ImportError:
        raise InputError("method: lora needs the package peft; install it with `pip install peft`") from None
    return peft


@contextmanager
def drawn_values() -> Iterator[Drawn]:
    """Inside, what PEFT draws for an adapter is kept before it follows its base to meta."""
    from peft.tuners.lora.layer import ParamWrapper
    from peft.tuners.tuners_utils import BaseTunerLayer

    owners: tuple[Any, ...] = (BaseTunerLayer, ParamWrapper)
    moves = [owner._move_adapter_to_device_of_base_layer for owner in owners]
    drawn: Drawn = {}

    def keep_before(move: Any) -> Any:
        def keep(layer: Any, adapter_name: str, *more: Any, **named: Any) -> None:
            learning = list_adapter_names(layer, adapter_name)
            drawn[id(layer)] = {name: layer.get_parameter(name).detach().clone() for name in learning}
            move(layer, adapter_name, *more, **named)

        return keep

    for owner, move in zip(owners, moves, strict=True):
        owner._move_adapter_to_device_of_base_layer = keep_before(move)
    try:
        yield drawn
    finally:
        for owner, move in zip(owners, moves, strict=True):
            owner._move_adapter_to_device_of_base_layer = move


def list_adapter_names(layer: Any, adapter: str) -> list[str]:
    """The parameters of a layer's adapter. The base of an adapted parameter may have another adapter."""
    names = [name for name, _ in layer.named_parameters() if not name.startswith("base_layer.")]
    return [name for name in names if f".{adapter}." in f".{name}."]


def check_patterns(model: nn.Module, config: Any) -> None:
    """InputError for a name in a pattern of ranks or factors that no adapter has."""
    names = list_adapted(model)
    for key, patterns in (("lora_rank_pattern", config.rank_pattern), ("lora_alpha_pattern", config.alpha_pattern)):
        for each in patterns or ():
            if not any(re.match(rf"(.*\.)?({each})$", name) for name in names):
                shown = join_names(dict.fromkeys(map(name_in_layer, names)))
                raise InputError(f"{key}: {each} names no layer with an adapter; adapters are on {shown}")


def list_adapted(model: nn.Module) -> dict[str, Any]:
    """The layers and parameters with an adapter, by the names that PEFT's patterns match."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapted = {}
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            own = getattr(module, "parameter_name", "")
            adapted[bare_name(f"{name}.{own}").rstrip(".")] = module
    return adapted


def refuse_elsewhere(meta_model: MetaModel, model: nn.Module) -> None:
    """Adapters stream with the layer that they are in, as PEFT's linear kind or that of parameters."""
    from peft.tuners.lora import Linear
    from peft.tuners.lora.layer import ParamWrapper
    from peft.tuners.tuners_utils import BaseTunerLayer

    inside = {id(module) for layer in meta_model.layers for module in layer.modules()}
    for name, module in model.named_modules():
        if not isinstance(module, BaseTunerLayer):
            continue
        if id(module) not in inside:
            raise InputError(f"lora_target_modules: {name} lies outside the layers, where no adapter can stream")
        if type(module) not in (Linear, ParamWrapper):
            kind = type(module.get_base_layer()).__name__
            raise InputError(f"lora_target_modules: {name} is a {kind}; adapters of linear layers alone can stream")
