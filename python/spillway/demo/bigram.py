"""The loss of a bigram model: what can be had by counting pairs of tokens, without any network."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

SMOOTHING = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


def bigram_loss(train: ArrayLike, held_out: Sequence[ArrayLike], vocabulary: int) -> float:
    """Mean nats per token over the pieces of `held_out`, each token predicted from the one before it in its piece.

    Add-k smoothing, with the k of SMOOTHING that suits the held-out text best: the bigram gets every advantage.
    """
    tokens = np.asarray(train, dtype=np.int64)
    counts = np.bincount(tokens[:-1] * vocabulary + tokens[1:], minlength=vocabulary * vocabulary)
    seen = counts.reshape(vocabulary, vocabulary).sum(axis=1)
    first = np.concatenate([np.asarray(piece, dtype=np.int64)[:-1] for piece in held_out])
    second = np.concatenate([np.asarray(piece, dtype=np.int64)[1:] for piece in held_out])
    pairs = counts[first * vocabulary + second]
    return min(float(-np.log((pairs + k) / (seen[first] + k * vocabulary)).mean()) for k in SMOOTHING)
