"""Whether a difference holds for other text as well as for other seeds."""

import math

import numpy as np
from scipy import stats

from transformer_jax.studies.inference.power import ALPHA


def beyond_this_text(differences: np.ndarray, level: float = ALPHA) -> tuple[float, float]:
    """Returns the interval of the mean difference for new text as well as new seeds.

    Seeds and sequences are crossed: V = (MS_seed + MS_seq - MS_res) / (n q), with Satterthwaite's
    degrees of freedom (Satterthwaite 1946, Biometrics Bulletin 2, 110-114). Where one of both is
    not above MS_res its variance is taken for 0 and V is of the other's square: the difference of
    squares would lose its degrees of freedom.

    Args:
      differences: [n, q], of each seed and each sequence (a document or a block, never a token),
        weighted so that their mean is the difference of the metric. Sequences have to be
        exchangeable: neighbours of one text are put together first, see by_cluster.
      level: 1 minus the coverage.
    """
    n, q = differences.shape
    mean = float(differences.mean())
    by_seed, by_sequence = differences.mean(1), differences.mean(0)
    ms_seed = q * by_seed.var(ddof=1)
    ms_sequence = n * by_sequence.var(ddof=1)
    residual = differences - by_seed[:, None] - by_sequence[None] + mean
    freedom = ((n - 1), (q - 1), (n - 1) * (q - 1))
    ms_residual = (residual**2).sum() / freedom[2]
    if min(ms_seed, ms_sequence) > ms_residual:
        total = ms_seed + ms_sequence - ms_residual
        squares = (ms_seed**2, ms_sequence**2, ms_residual**2)
        degrees = total**2 / sum(ms / nu for ms, nu in zip(squares, freedom, strict=True))
    else:
        total, degrees = max(zip((ms_seed, ms_sequence, ms_residual), freedom, strict=True))
    half = float(stats.t.ppf(1 - level / 2, degrees)) * math.sqrt(total / (n * q))
    return mean - half, mean + half


def by_cluster(differences: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Returns the sums over clusters, scaled so that their mean is that of the differences.

    Args:
      differences: [n, q].
      clusters: [q], which of them belong together.
    Returns:
      [n, number of clusters].
    """
    names, members = np.unique(clusters, return_inverse=True)
    sums = differences @ (members[:, None] == np.arange(len(names)))
    return sums * len(names) / len(clusters)
