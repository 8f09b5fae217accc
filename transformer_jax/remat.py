"""Rematerialisation: the values of a block that a training step keeps for its backward pass.

Other values are computed again, which saves memory and costs time; results are equal up to
rounding. Each entry of REMATS returns a policy for `jax.checkpoint`, which decides whether a value
in a block is kept; the input of a block is always kept.
"""

from collections.abc import Callable
from typing import Annotated, Any

import jax
from annotated_types import Predicate

from transformer_jax.options import Form
from transformer_jax.sites import SITES

_SITES = tuple(name.removeprefix("block_*.") for name in SITES if name.startswith("block_*."))
_KEPT = tuple(name for name in _SITES if name != "residual")  # a block ends with it anyway
SitesOfBlock = Annotated[
    tuple[str, ...],
    Predicate(lambda sites: all(site in _KEPT for site in sites)),
    Form(f"some of: {', '.join(_KEPT)}", ",".join(_KEPT[:2]), _KEPT),
]
Policy = Callable[..., Any]


def keep_all() -> None:
    """Keeps everything: no block is computed twice."""


def keep_nothing() -> Policy:
    """Keeps nothing inside a block (Chen et al. 2016, arXiv:1604.06174, section 4)."""
    return jax.checkpoint_policies.nothing_saveable


def keep_products() -> Policy:
    """Keeps the outputs of dense layers; attention scores and everything else are recomputed.

    This is the selective recomputation of Korthikanti et al. 2022, arXiv:2205.05198, section 5.
    """
    return jax.checkpoint_policies.dots_with_no_batch_dims_saveable


def keep_sites(sites: SitesOfBlock = ("attention.out", "feed_forward.hidden")) -> Policy:
    """Keeps the values at some sites, chosen by cost and size (Korthikanti et al. 2022).

    Args:
      sites: Names of the sites inside a block; see docs/catalogue.md.
    """
    return jax.checkpoint_policies.save_only_these_names(*sites)


def offload_sites(sites: SitesOfBlock = ("attention.out", "feed_forward.hidden")) -> Policy:
    """Keeps the values at some sites in host memory.

    Rhu et al. 2016, arXiv:1602.08124.

    Args:
      sites: Names of the sites inside a block; see docs/catalogue.md.
    """
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(sites),
        offload_src="device",
        offload_dst="pinned_host",
    )


REMATS = {
    "none": keep_all,
    "block": keep_nothing,
    "products": keep_products,
    "sites": keep_sites,
    "offload": offload_sites,
}
