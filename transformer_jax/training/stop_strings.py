"""Stop strings: a text ends before the first of them; text may arrive in pieces."""

from collections.abc import Iterable, Sequence

from transformer_jax.errors import InvalidInput


def ends_of(stop: str | Sequence[str]) -> list[str]:
    """Returns the strings that end a text.

    Raises:
      InvalidInput: One of them is empty.
    """
    ends = [stop] if isinstance(stop, str) else list(stop)
    if "" in ends:
        raise InvalidInput("stop: expected non-empty strings")
    return ends


def text_before(text: str, ends: Iterable[str]) -> str:
    """Returns the text before the first of some strings in it."""
    return text[: min([len(text), *[text.find(end) for end in ends if end in text]])]


def sure_length(text: str, ends: Iterable[str]) -> int:
    """Returns the length of the final part of a text: whole characters, no stop string."""
    whole = text.rstrip("\N{REPLACEMENT CHARACTER}")
    begun = [n for end in ends for n in range(1, len(end)) if whole.endswith(end[:n])]
    return len(whole) - max(begun, default=0)
