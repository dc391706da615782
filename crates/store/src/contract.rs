//! The contract suite that every engine passes, and random operations compared with the model.
//!
//! An engine's tests call [`contract_tests!`](crate::contract_tests) with an expression that opens a fresh store; each
//! case becomes one test. Time and ids are part of the cases, so every run of a case is the same.
#![cfg(feature = "contract")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test suite: a failed step is a failed test"
)]

mod carts;
mod changes;
mod concurrency;
mod export;
mod fixtures;
mod idempotency;
mod listings;
mod maintenance;
mod merge;
mod order_lists;
mod orders;
mod products;
pub mod random;
mod reservations;
mod sessions;
mod statuses;
mod stock;

use crate::SharedStore;

/// A fresh store for the suite: the store alone, or with a guard that must outlive it, such as its folder.
pub trait Opened {
    fn store(&self) -> SharedStore;
}

impl Opened for SharedStore {
    fn store(&self) -> SharedStore {
        Self::clone(self)
    }
}

impl<G> Opened for (SharedStore, G) {
    fn store(&self) -> SharedStore {
        SharedStore::clone(&self.0)
    }
}

/// Lists every case once: as a public function, and as a test in `contract_tests!`. A case that is not listed is dead
/// code, which the compiler reports.
macro_rules! suite {
    (
        $dollar:tt
        one store: { $($noun:ident { $($case:ident)* })* }
        two stores: { $($pair_noun:ident { $($pair:ident)* })* }
    ) => {
        /// The cases as functions.
        pub mod cases {
            $(pub mod $noun {
                $(pub async fn $case(store: crate::SharedStore) {
                    crate::contract::$noun::$case(crate::contract::fixtures::Fixture::new(store)).await;
                })*
            })*
            /// The cases that need two stores of the same engine.
            pub mod pairs {
                $(pub mod $pair_noun {
                    $(pub async fn $pair(from: crate::SharedStore, to: crate::SharedStore) {
                        let fixture = crate::contract::fixtures::Fixture::new;
                        crate::contract::$pair_noun::$pair(fixture(from), fixture(to)).await;
                    })*
                })*
            }
        }

        /// Makes a test of every case. The expression opens a fresh store, a value of a type that implements
        /// [`Opened`](crate::contract::Opened); it may await. The calling crate needs `tokio`.
        #[macro_export]
        macro_rules! contract_tests {
            ($dollar fresh:expr) => {
                async fn fresh_store() -> impl $dollar crate::contract::Opened {
                    $dollar fresh
                }

                $(mod $noun {
                    $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        let opened = super::fresh_store().await;
                        let store = $dollar crate::contract::Opened::store(&opened);
                        $dollar crate::contract::cases::$noun::$case(store).await;
                    })*
                })*

                mod pairs {
                    $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $pair() {
                        let (from, to) = (super::fresh_store().await, super::fresh_store().await);
                        let from_store = $dollar crate::contract::Opened::store(&from);
                        let to_store = $dollar crate::contract::Opened::store(&to);
                        $dollar crate::contract::cases::pairs::$pair_noun::$pair(from_store, to_store).await;
                    })*)*
                }
            };
        }
    };
}

suite! {
    $
    one store: {
        carts {
            a_line_is_added_replaced_and_removed
            a_removed_line_does_not_come_back
            removing_what_is_not_there_changes_nothing
            an_emptied_cart_stays_active
            a_user_and_a_guest_of_one_name_have_their_own_carts
            an_expected_version_guards_a_line
            an_expected_version_of_no_cart_is_0
            a_cart_holds_a_hundred_lines
            a_cart_expires_to_the_second
            a_change_moves_the_expiry
            a_change_after_expiry_opens_a_new_cart
            time_never_runs_backwards_in_a_cart
            an_abandoned_cart_makes_way_for_a_new_one
            there_must_be_a_cart_to_abandon
            versions_grow_from_cart_to_cart
            the_version_of_an_earlier_cart_matches_no_later_one
            carts_are_listed_newest_first_until_they_expire
            every_change_of_a_line_is_in_the_history
            two_carts_of_one_instant_each_have_their_history
            history_goes_back_thirty_days
            idle_carts_are_active_or_abandoned_and_not_merged
            many_idle_carts_are_read_page_by_page
            a_lifetime_comes_with_the_command
            bad_positions_in_carts_are_refused
        }
        merge {
            each_mode_decides_what_is_in_both
            a_merge_closes_the_guests_cart
            a_merge_opens_a_cart_for_a_user_without_one
            a_repeated_merge_changes_nothing
            a_later_cart_of_the_guest_is_merged_again
            without_guest_lines_nothing_is_merged
            an_expired_cart_is_neither_merged_nor_merged_into
            a_merge_that_changes_no_line_closes_the_guests_cart
            the_version_of_a_merge_is_the_users
            a_sum_is_capped
            at_a_hundred_lines_the_guests_oldest_are_dropped
            a_merge_is_in_the_users_history
        }
        sessions {
            a_session_reads_back
            a_live_id_is_refused
            a_session_expires_to_the_second
            bare_activity_is_written_once_a_minute
            data_is_merged_at_once_and_none_removes
            too_much_data_is_refused_whole
            a_login_binds_the_user_and_merges_the_cart
            a_login_merges_in_the_requested_mode_or_opens_the_cart
            a_login_again_is_fine_and_of_another_user_is_not
            a_cart_outlives_its_session
            a_deleted_session_is_gone
            a_users_sessions_are_listed_newest_first
            revoking_ends_all_sessions_of_the_user_alone
            bad_positions_in_sessions_are_refused
        }
        products {
            a_product_is_created_and_replaced_whole
            a_patch_replaces_what_it_names
            a_bad_patch_is_refused_whole
            a_deleted_product_leaves_its_stock
            categories_appear_and_disappear_with_their_products
            an_import_brings_a_product_with_its_stock
            imports_of_one_instant_are_each_in_the_ledger
            an_import_below_what_is_reserved_is_refused_whole
            bad_positions_in_categories_are_refused
        }
        listings {
            a_category_is_listed_by_price_then_id
            descending_is_the_exact_reverse
            price_bounds_are_inclusive
            a_changed_product_moves_in_the_listing
            with_a_zone_each_item_says_what_is_available
            an_expired_hold_is_available_in_a_listing
            a_long_category_with_little_in_stock_is_read_to_its_end
            bad_positions_in_a_category_are_refused
        }
        stock {
            a_level_is_set_and_read_by_zone
            an_expected_level_guards_a_setting
            a_level_is_never_below_what_is_reserved
            an_expired_hold_does_not_keep_a_level_up
            stock_is_of_known_products_only
            an_adjustment_adds_and_removes
            an_adjustment_stays_within_the_limits
            an_audit_counts_levels_and_reports_its_progress
        }
        reservations {
            a_hold_promises_its_units
            all_lines_are_held_or_none
            confirmed_units_leave
            released_units_are_available_again
            an_unknown_hold_is_not_found
            a_hold_is_over_to_the_second
            an_expired_hold_can_be_neither_confirmed_nor_released
            expired_units_can_be_sold_before_expiry_has_run
            expiring_gives_units_back_once
            holds_that_end_together_free_all_their_units
            a_closed_hold_is_over_for_every_product_of_it
            a_hold_ends_at_the_instant_of_its_command
            a_product_out_of_the_catalogue_has_nothing_to_hold
            a_reservation_is_forgotten_thirty_days_after_its_time
        }
        orders {
            an_order_is_whole_in_every_view
            an_order_keeps_the_prices_of_its_moment
            an_unknown_order_is_none
            a_refused_order_leaves_nothing_behind
            refusals_come_in_their_order
            a_checkout_orders_exactly_the_cart
            a_checkout_needs_a_cart_with_lines
            a_refused_checkout_leaves_the_cart
            an_order_takes_the_units_of_expired_holds
            an_order_of_a_hundred_lines_is_whole
        }
        statuses {
            units_move_with_every_step
            cancelling_gives_back_what_is_held_or_taken
            every_other_step_is_refused
            events_are_listed_newest_first
            an_expected_version_guards_a_step
            another_users_order_is_not_found
            an_order_goes_on_after_its_product_is_deleted
            orders_not_paid_in_time_are_cancelled
            unpaid_orders_are_cancelled_a_few_at_a_time
            an_order_can_be_paid_until_it_is_cancelled
        }
        order_lists {
            lists_are_newest_first_over_many_days
            a_period_has_its_start_and_not_its_end
            lists_show_orders_as_they_are_now
            sales_count_what_was_paid_and_stayed_so
            sales_are_by_date_then_zone
            sales_of_a_part_of_a_day_count_that_part
            bad_positions_in_orders_are_refused
        }
        idempotency {
            a_keyed_order_is_placed_once
            a_keyed_checkout_is_done_once
            a_key_of_another_request_is_refused
            a_refused_request_leaves_its_key_free
            a_key_is_free_again_after_its_time
            keys_are_one_namespace
            carts_replay_a_key
            a_merge_of_nothing_is_remembered_too
            sessions_replay_a_key
            stock_replays_a_key
            a_status_replays_a_key
            an_import_line_replays_its_key
        }
        concurrency {
            changes_of_different_lines_never_lose_one_another
            of_one_line_the_last_wins
            one_of_many_writers_of_a_version_wins
            duplicate_merges_move_each_line_once
            a_guests_lines_go_to_one_of_many_users
            merges_and_line_changes_at_once_keep_every_line
            no_reader_sees_the_same_units_in_both_carts
            of_two_checkouts_one_wins
            of_two_checkouts_of_the_last_units_one_wins
            every_unit_is_sold_once
            orders_and_holds_of_two_products_never_oversell
            adjustments_add_up
            duplicate_requests_with_one_key_have_one_effect
            duplicate_merges_with_one_key_have_one_effect
            a_status_step_is_made_once
            a_hold_ends_in_one_way
            one_of_many_creators_of_a_session_wins
        }
        changes {
            every_step_of_an_order_is_in_the_feed_as_it_was
            stock_in_the_feed_ends_as_it_is_stored
            a_product_in_the_feed_ends_as_it_is_stored
            a_cart_is_in_the_feed_until_it_is_closed
            a_merge_is_in_the_feed_of_both_carts
            a_session_is_in_the_feed_until_it_ends
            refused_and_repeated_requests_leave_no_change
            what_ends_by_time_is_reported_when_it_is_settled
            every_page_size_and_every_position_read_the_same_changes
            a_reader_gets_the_topics_it_asks_for
            a_reader_that_starts_now_gets_what_comes_after
            a_waiting_reader_is_woken_by_a_change
            a_position_before_what_is_kept_has_expired
            bad_positions_in_the_feed_are_refused
            changes_of_many_writers_are_all_in_the_feed
        }
        export {
            an_export_has_every_kind_of_record
            an_export_is_unmoved_by_later_writes
            an_imported_record_replaces_what_was_there
            a_ledger_in_parts_is_one_ledger
            a_whole_shop_of_another_engine_moves_in
        }
        maintenance {
            a_fresh_store_is_ready
            purging_changes_nothing_a_reader_sees
            purging_never_loses_the_units_of_a_hold
            carts_of_one_owner_are_purged_a_page_at_a_time
        }
    }
    two stores: {
        export {
            an_import_gives_the_same_store
            an_imported_store_goes_on
            the_order_of_records_does_not_matter
            importing_twice_is_harmless
            an_import_resumes_from_its_checkpoint
        }
    }
}
