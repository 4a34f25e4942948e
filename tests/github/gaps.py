"""What the emulators of others cannot do, by the tests of the contract that it keeps from running there.

Every one of these tests runs on the stub, whose answers are held against GitHub's own description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Gaps = Mapping[str, Sequence[str]]
"""What it cannot do → names of tests, as functions."""

GAPS: Mapping[str, Gaps] = {
    "emulate": {
        "it takes a second open pull request for a branch": [
            "test_publishers_of_the_same_inputs_make_one_pull_request",
            "test_publishers_of_different_inputs_share_one_pull_request",
        ],
        "the head of a pull request stays where it was opened, so a newer one cannot be merged": [
            "test_a_pull_request_can_be_merged_after_an_update",
        ],
        "a push to the base does not merge the pull request whose head it brings": [
            "test_a_merge_with_git_alone_is_noticed",
        ],
        "a pull request cannot be read as an issue, which says who closed it": [
            "test_who_closed_a_pull_request_is_told",
        ],
        "the events of an issue do not say who put a label on": [
            "test_the_label_to_regenerate_unblocks_once",
            "test_the_label_is_taken_off_although_the_same_came_out",
        ],
    },
    "myworld": {
        "a push to the base does not merge the pull request whose head it brings": [
            "test_a_merge_with_git_alone_is_noticed",
        ],
        "an issue does not say who closed it": [
            "test_who_closed_a_pull_request_is_told",
        ],
        "the labels of an issue cannot be listed": [
            "test_a_label_stays_through_updates_and_until_it_is_taken_off",
            "test_a_label_twice_is_a_label_once_and_writes_nothing",
            "test_the_label_to_regenerate_unblocks_once",
            "test_the_label_is_taken_off_although_the_same_came_out",
        ],
        "it has no releases": [
            "test_a_release_is_shown_with_all_its_files",
            "test_a_release_that_is_there_is_left_alone",
            "test_a_release_goes_on_where_the_last_run_stopped",
            "test_a_release_with_other_files_is_a_conflict",
            "test_two_releases_of_a_tag_at_once_are_one",
        ],
    },
}


def gap_of(place: str, test: str) -> str:
    """Why a test does not run at a place; empty if it does."""
    return next((f"{place}: {reason}" for reason, tests in GAPS.get(place, {}).items() if test in tests), "")
