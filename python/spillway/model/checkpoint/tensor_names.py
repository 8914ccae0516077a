"""Names of a model's tensors in files, both ways, and the tensors that each is made of."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from spillway.model.meta.meta_model import stored_names
from spillway.model.source import library
from spillway.model.source.own import OwnModel
from spillway.model.source.source import is_classifier
from spillway.model.source.tensor_files import Stored, Tensors, Unit, copied, pieces

if TYPE_CHECKING:
    from spillway.model.meta.meta_model import MetaModel


# Ends of the names of older releases' buffers.
OTHER_HEAD = r"(^|\.)(lm_head|embed_out)\."  # of the model that predicts tokens, beside a head of labels
COMPUTED = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$", r"\.masked_bias$")


@dataclass
class Group:
    """Tensors of one side that become tensors of the other together."""

    transform: Any = None  # the library's; None: as they are
    members: list[tuple[str, str]] = field(default_factory=list)  # name, pattern that it matched
    target: str = ""  # the first one


class Bound:
    """A model whose parameters may be views of the engine's memory, for code that asks for them by name."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def get_parameter(self, name: str) -> torch.Tensor:
        owner, _, own = name.rpartition(".")
        return self._model.get_submodule(owner)._parameters[own]  # type: ignore[no-any-return]


class Names:
    """Names of one model's tensors in files, both ways."""

    def __init__(self, meta_model: MetaModel) -> None:
        self._model = model = meta_model.stored
        self._own = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        buffers = set(model.state_dict().keys()) - self._own  # saved, and no parameters
        apart = {name for name in buffers if meta_model.is_apart(name)}
        self.buffers = buffers - apart
        self.towers = meta_model.carried_names | apart  # of other modalities: carried along
        first = stored_names(model)
        named = model.named_parameters(remove_duplicate=False)
        several = {name: first[id(parameter)] for name, parameter in named if name != first[id(parameter)]}
        # Further names of tied parameters, and the saved name of each.
        self.aliases = {alias: name for alias, name in several.items() if name not in self.towers}

    def know(self, keys: set[str]) -> None:
        """The checkpoint that the model began with has tensors of these names: a save is to have its names."""
        if keys and getattr(self._model, "_weight_conversions", None) is None:
            self.loading(keys)

    def renamed(self, names: set[str]) -> dict[str, str] | None:
        """The file names of the model's tensors `names`; None where their form is another, too."""
        groups = self.saving(names).values()
        if any(group.transform for group in groups):
            return None
        return {group.members[0][0]: group.target for group in groups}

    def stored(self, names: set[str], keys: set[str]) -> dict[str, str] | None:
        """The names that the model's tensors `names` have in a file that holds `keys`. None where their form is
        another, or one is missing."""
        groups = [group for group in self.loading(keys) if group.target in names]
        if any(group.transform for group in groups) or {group.target for group in groups} != names:
            return None
        return {group.target: group.members[0][0] for group in groups}

    def loading(self, names: set[str]) -> list[Group]:
        """Groups of a file's tensors by the tensor of the model that they become; those it lacks are left out."""
        mapping = self._conversions(legacy=True)
        renamings, converters = library.parted(mapping)
        by_pattern = {pattern: entry for entry in converters for pattern in entry.source_patterns}
        held, prefix = self._model.state_dict(), self._model.base_model_prefix
        groups: dict[str, Group] = {}
        for name in sorted(names, key=library.natural_order):
            target, pattern = library.loaded_name(name, renamings, converters, prefix, held)
            if target not in held and name in held:
                target, pattern = library.loaded_name(name, [], [], prefix, held)
            if target in held:
                group = groups.setdefault(target, Group(by_pattern.get(pattern or ""), [], target))
                group.members.append((name, pattern or name))
        self._model._weight_conversions = [entry for entry in mapping if entry.was_used()]
        for alias, own in self.aliases.items():  # a tied parameter under another of its names
            if alias in groups and own not in groups and groups[alias].transform is None:
                groups[own] = replace(groups.pop(alias), target=own)
        return list(groups.values())

    def saving(self, names: set[str]) -> dict[str, Group]:
        """Groups of the model's tensors by the first of the tensors in files that they become."""
        used = getattr(self._model, "_weight_conversions", None)
        if used is None:
            used = library.without_prefixes(self._conversions(legacy=False))
        self._renamings, converters = library.parted(entry.reverse_transform() for entry in used[::-1])
        by_pattern = {pattern: entry for entry in converters for pattern in entry.source_patterns}
        groups: dict[str, Group] = {}
        for name in sorted(names, key=library.natural_order):
            target, pattern = library.converted_name(name, converters)
            if pattern is None:
                target = library.renamed(name, self._renamings)
            group = groups.setdefault(target, Group(by_pattern.get(pattern or ""), [], target))
            group.members.append((name, pattern or name))
        return groups

    def converted(self, group: Group, read: Callable[[str], torch.Tensor], saving: bool) -> Tensors:
        """The tensors that a group becomes."""
        if group.transform is None:
            return {group.target: read(group.members[0][0])}
        transform = copy.deepcopy(group.transform)
        for name, pattern in group.members:
            transform.add_tensor(group.target, name, pattern, read(name))
        made = transform.convert(group.target, model=Bound(self._model), config=self._model.config)
        tensors = {name: value[0] if isinstance(value, list) else value for name, value in made.items()}
        return {library.renamed(n, self._renamings): v for n, v in tensors.items()} if saving else tensors

    def others(self, stored: Stored) -> Iterator[Unit]:
        """The checkpoint's content besides what is trained, as a save is to hold it: of other modalities, and what no
        model has a place for. Content that has its file name already is copied as it is."""
        groups = {
            name: group
            for group in self.loading(stored.names())
            if group.target in self.towers
            for name in self.list_made(group, stored)
        }

        def make_reader(read: Callable[[str], torch.Tensor]) -> Callable[[str], torch.Tensor]:
            return lambda name: self.converted(groups[name], read, saving=False)[name]

        for group in self.saving(set(groups)).values():
            listed = list(self.converted(group, make_reader(stored.meta), saving=True).items())
            known = {name for name, _ in listed} <= stored.names()
            for name, _ in listed if known else ():
                yield copied(stored, name, name)
            plain = not group.transform and not groups[group.members[0][0]].transform
            if not known and plain:
                yield copied(stored, groups[group.members[0][0]].members[0][0], group.target)
            elif not known:
                yield self.unit(group, listed, make_reader(stored.tensor))
        for name in sorted(self.passed_over(stored.names())):
            yield copied(stored, name, name)

    def unit(self, group: Group, listed: list[tuple[str, torch.Tensor]], read: Callable[[str], torch.Tensor]) -> Unit:
        def read_pieces() -> Iterator[Iterator[torch.Tensor]]:
            tensors = self.converted(group, read, saving=True)
            yield from (pieces(tensors[name]) for name, _ in listed)

        return Unit(listed, read_pieces)

    def list_made(self, group: Group, stored: Stored) -> list[str]:
        """Names of the model's tensors that a group of a file's becomes: several where one tensor holds them."""
        if group.transform is None or len(group.transform.target_patterns) == 1:
            return [group.target]
        return list(self.converted(group, stored.meta, saving=False))

    def missing(self, stored: Stored) -> str | None:
        """A parameter of another modality that files lack under all of its names."""
        groups = [group for group in self.loading(stored.names()) if group.target in self.towers]
        names_made = {name for group in groups for name in self.list_made(group, stored)}
        several: dict[int, list[str]] = {}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            if name in self.towers:
                several.setdefault(id(parameter), []).append(name)
        return next((names[0] for names in several.values() if not names_made & set(names)), None)

    def passed_over(self, names: set[str]) -> set[str]:
        """Tensors of a file that the model has no place for, such as layers that predict further tokens. The values
        that a class computes by itself, and old checkpoints hold, are none of them."""
        used = {name for group in self.loading(names) for name, _ in group.members}
        patterns = [*(self._model._keys_to_ignore_on_load_unexpected or [])]
        computed = [*COMPUTED, *(each for each in patterns if "inv_freq" in each or "bias" in each)]
        if is_classifier(getattr(self._model, "config", None)):  # a module of the caller has none
            computed.append(OTHER_HEAD)
        return {name for name in names - used if not any(re.search(each, name) for each in computed)}

    def carried(self, names: set[str]) -> set[str]:
        """Tensors of a file that a save holds and that are not trained."""
        groups = [group for group in self.loading(names) if group.target in self.towers]
        return self.passed_over(names) | {name for group in groups for name, _ in group.members}

    def _conversions(self, legacy: bool) -> list[Any]:
        return [] if isinstance(self._model, OwnModel) else library.conversions(self._model, legacy)
