"""The plain loop's optimizer of matrices that are reduced, for a comparison with a streamed run."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING

from spillway.config import Config
from spillway.config.methods import rotation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from spillway import subspace


def optimizer_of(model: PreTrainedModel, config: Config) -> tuple[subspace.AdamW | None, set[str]]:
    """The optimizer of the matrices that are trained in subspaces with method lsp, and their names."""
    from spillway import subspace
    from spillway.model.checkpoint.freeze import freeze_like, frozen_names
    from spillway.model.meta.building import build
    from spillway.model.meta.factors import choose
    from spillway.model.source.source import DTYPES

    if config.method != "lsp":
        return None, set()
    meta_model = build(copy.deepcopy(model.config), DTYPES[config.compute_dtype], DTYPES[config.weight_dtype])
    freeze_like(meta_model, frozen_names(model))
    choose(meta_model, config)
    names = {meta_model.names[key] for key in meta_model.spaces}
    modules = "|".join(f"^{re.escape(name.removesuffix('.weight'))}$" for name in names)
    optimizer = subspace.AdamW(
        model,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
        modules=modules,
        rank=config.lsp_rank or 0,
        nonzeros=config.lsp_nonzeros,
        projectors=config.lsp_projectors,
        check_every=config.lsp_check_every,
        threshold=config.lsp_threshold,
        rotate_every=rotation(config),
        seed=config.seed,
    )
    return optimizer, names
