//! The suite detects flaws: each flaw fails a named case and the random operations.

mod flawed;

use std::future::Future;
use std::sync::Arc;

use flawed::{Flaw, Flawed};
use mw_store::SharedStore;
use mw_store::contract::{cases, random};
use tokio::task::LocalSet;

fn store(flaw: Flaw) -> SharedStore {
    Arc::new(Flawed::new(flaw))
}

/// The panic message of a task; `None` if the task succeeds.
async fn failure(task: impl Future<Output = ()> + 'static) -> Option<String> {
    let local = LocalSet::new();
    let task = local.spawn_local(task);
    let error = local.run_until(task).await.err()?;
    let panic = error.into_panic();
    panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
}

/// Runs random operations until one run fails; returns its panic message.
async fn found_by_chance(flaw: Flaw) -> Option<String> {
    const RUNS_MAX: u64 = 40;
    for seed in 0..RUNS_MAX {
        let store = store(flaw);
        let message = failure(async move { random::run(seed, 400, async || Arc::clone(&store)).await }).await;
        if message.is_some() {
            return message;
        }
    }
    None
}

macro_rules! flaws {
    ($($test:ident: $flaw:ident, $noun:ident::$case:ident;)*) => {
        $(mod $test {
            use super::*;

            #[tokio::test]
            async fn by_its_case() {
                assert_eq!(failure(cases::$noun::$case(store(Flaw::None))).await, None);
                assert!(failure(cases::$noun::$case(store(Flaw::$flaw))).await.is_some());
            }

            #[tokio::test]
            async fn by_chance() {
                let message = found_by_chance(Flaw::$flaw).await.expect("no run found the flaw");
                for part in ["MW_SEED=", " step ", "model: ", "engine: "] {
                    assert!(message.contains(part), "{part} is not in: {message}");
                }
            }
        })*
    };
}

flaws! {
    a_merge_that_loses_a_line: MergeLosesLine, merge::each_mode_decides_what_is_in_both;
    a_cart_that_expires_late: CartExpiresLate, carts::a_cart_expires_to_the_second;
    an_order_that_forgets_its_key: OrderForgetsKey, idempotency::a_keyed_order_is_placed_once;
    a_refused_hold_that_keeps_units: RefusedHoldKeepsUnits, reservations::all_lines_are_held_or_none;
    equal_prices_that_are_not_reversed: EqualPricesNotReversed, listings::descending_is_the_exact_reverse;
    a_cancelled_order_that_keeps_units: CancelKeepsUnits, statuses::cancelling_gives_back_what_is_held_or_taken;
    a_page_that_loses_an_item: PageLosesItem, order_lists::lists_are_newest_first_over_many_days;
    a_feed_that_loses_steps: FeedLosesSteps, changes::every_step_of_an_order_is_in_the_feed_as_it_was;
    a_feed_that_is_reversed: FeedIsReversed, changes::changes_of_many_writers_are_all_in_the_feed;
    a_feed_that_renames_changes: FeedRenamesChanges,
        changes::every_page_size_and_every_position_read_the_same_changes;
    a_feed_that_reports_what_was_refused: FeedReportsRefused,
        changes::refused_and_repeated_requests_leave_no_change;
}
