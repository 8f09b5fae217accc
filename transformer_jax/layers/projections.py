"""Where queries, keys and values come from: which maps of attention are learned.

A row names the map of queries, that of keys and that of values. The same name twice is one map;
None cuts the inputs into heads as they are.
"""

Projections = tuple[str | None, str | None, str | None]

SEPARATE: Projections = ("query", "key", "value")
"""A map each for queries, keys and values (Vaswani et al. 2017, section 3.2.2)."""

SHARED_QUERY_KEY: Projections = ("query", "query", "value")
"""One map for queries and keys (Kitaev et al. 2020, arXiv:2001.04451, section 2).

Scores of two places are then symmetric, but for positions. The keys keep their length here.
"""

NO_VALUE: Projections = ("query", "key", None)
"""Values are the inputs themselves, cut into heads; only the output matrix follows."""

IDENTITY: Projections = (None, None, None)
"""Queries, keys and values are the inputs, cut into heads; only the output matrix is left."""

PROJECTIONS = {
    "separate": SEPARATE,
    "shared_query_key": SHARED_QUERY_KEY,
    "no_value": NO_VALUE,
    "identity": IDENTITY,
}
