"""Rematerialisation: what a training step keeps of a block for its backward pass.

What is not kept is computed again, which saves memory and costs time; the numbers are the same but
for rounding. Each row gives a policy of `jax.checkpoint`, which says of each value inside a block
whether it is kept; what a block reads is kept always.
"""

from collections.abc import Callable
from typing import Any

import jax

from transformer_jax.options import SitesOfBlock

Policy = Callable[..., Any]


def keep_all() -> None:
    """Keeps everything: no block is computed twice."""
    return


def keep_nothing() -> Policy:
    """Keeps nothing inside a block (Chen et al. 2016, arXiv:1604.06174, section 4)."""
    return jax.checkpoint_policies.nothing_saveable


def keep_products() -> Policy:
    """Keeps what the learned maps give; attention's scores and all else are computed again.

    The selective recomputation of Korthikanti et al. 2022, arXiv:2205.05198, section 5.
    """
    return jax.checkpoint_policies.dots_with_no_batch_dims_saveable


def keep_sites(sites: SitesOfBlock = ("attention.out", "feed_forward.hidden")) -> Policy:
    """Keeps the values at some sites: a choice by cost and size (Korthikanti et al. 2022).

    Args:
      sites: their names inside a block, see docs/catalogue.md.
    """
    return jax.checkpoint_policies.save_only_these_names(*sites)


def offload_sites(sites: SitesOfBlock = ("attention.out", "feed_forward.hidden")) -> Policy:
    """Keeps the values at some sites in the host's memory, from where they are fetched.

    Rhu et al. 2016, arXiv:1602.08124.

    Args:
      sites: their names inside a block, see docs/catalogue.md.
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
