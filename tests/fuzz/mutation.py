"""Sound bytes that hypothesis breaks, in the ways of `fedgate.firmware_sim.mutation`."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from fedgate.firmware_sim.mutation import KINDS, NASTY, SCALE, VALUES, changed


def broken(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return sound bytes with some edits, or bytes of no origin."""
    edits = st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, SCALE),
        st.integers(0, 40),
        st.sampled_from(NASTY) | st.binary(max_size=8),
    )
    values = st.tuples(st.just("token"), st.integers(0, SCALE), st.just(0), st.sampled_from(VALUES))
    return st.binary(max_size=300) | st.builds(changed, st.sampled_from(seeds), st.lists(values | edits, max_size=3))
