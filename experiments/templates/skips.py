"""A component of my own: which earlier streams a block reads beside its own."""

import dataclasses

from transformer_jax.options import InitialNumber


@dataclasses.dataclass(frozen=True)
class Mine:
    """Every second block reads what the block before it read.

    Attributes:
      initial: what the stream is multiplied with at the start; an option, for me to set.
    """

    initial: InitialNumber = 0.5

    def reads(self, block: int) -> tuple[int, ...]:
        """Returns streams: 0 is what is embedded, n that behind block n - 1; n < block."""
        return (block - 1,) if block % 2 else ()
