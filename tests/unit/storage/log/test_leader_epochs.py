"""Leader epochs: where each began, and where a follower's log must be cut."""

from __future__ import annotations

from headrace.storage.log.derived_state import UNKNOWN_EPOCH, LeaderEpochCache


def cache() -> LeaderEpochCache:
    return LeaderEpochCache([(1, 0), (3, 10), (4, 25)])


def test_the_latest_epoch_ends_with_the_log() -> None:
    assert cache().end_offset_for(4, log_end_offset=40) == (4, 40)


def test_an_older_epoch_ends_where_the_next_began() -> None:
    assert cache().end_offset_for(1, 40) == (1, 10)
    assert cache().end_offset_for(3, 40) == (3, 25)


def test_an_epoch_without_batches_resolves_to_the_largest_epoch_below_it() -> None:
    assert cache().end_offset_for(2, 40) == (1, 10)
    assert cache().end_offset_for(0, 40) == (0, 0)


def test_an_epoch_from_the_future_is_unknown() -> None:
    assert cache().end_offset_for(5, 40) == UNKNOWN_EPOCH
    assert LeaderEpochCache().end_offset_for(0, 0) == UNKNOWN_EPOCH


def test_only_the_first_batch_of_an_epoch_counts() -> None:
    epochs = cache()
    epochs.assign(4, 30)
    epochs.assign(6, 35)
    assert epochs.entries() == ((1, 0), (3, 10), (4, 25), (6, 35))
    assert epochs.latest == 6


def test_a_contradicting_entry_is_dropped() -> None:
    epochs = cache()
    epochs.assign(5, 10)
    assert epochs.entries() == ((1, 0), (5, 10))


def test_truncation_forgets_epochs_that_began_behind_the_end() -> None:
    epochs = cache()
    epochs.truncate_end(25)
    assert (epochs.entries(), epochs.latest) == (((1, 0), (3, 10)), 3)
    epochs.truncate_end(0)
    assert (epochs.entries(), epochs.latest) == ((), -1)


def test_retention_moves_the_first_epoch_to_the_new_start() -> None:
    epochs = cache()
    epochs.truncate_start(12)
    assert epochs.entries() == ((3, 12), (4, 25))
