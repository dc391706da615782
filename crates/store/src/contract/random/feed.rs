//! The change feed of a run in comparable form: what the contract promises about each subject.

use std::collections::{BTreeMap, HashSet};

use mw_domain::Timestamp;

use super::step::without_cart_versions;
use crate::Store;
use crate::changes::{ChangeEvent, Changed, FeedStart, ReadChanges, Topics};

/// The feed from its oldest change on, in pages of `limit`.
pub(super) async fn read(
    store: &dyn Store,
    topics: Topics,
    now: Timestamp,
    limit: usize,
) -> Vec<ChangeEvent> {
    let mut request = ReadChanges { start: FeedStart::Oldest, topics, limit, now };
    let mut changes = Vec::new();
    loop {
        let page = store.changes(request.clone()).await.unwrap();
        let is_end = page.items.is_empty() && request.start == FeedStart::After(page.next.clone());
        changes.extend(page.items);
        if is_end {
            return changes;
        }
        request.start = FeedStart::After(page.next);
    }
}

/// The changes without those that a reader gets again: how often it does depends on the pages.
pub(super) fn distinct(changes: &[ChangeEvent]) -> Vec<(&str, Timestamp, &Changed)> {
    let mut seen = HashSet::new();
    let first_times = changes.iter().filter(|change| seen.insert(change.id.as_str()));
    first_times.map(|change| (change.id.as_str(), change.at, &change.changed)).collect()
}

/// What must agree for each subject: every step of orders, products and sessions; the last state and every end of a cart;
/// the units on hand at last. Units of ended holds leave `reserved` when the engine settles them.
pub(super) fn by_subject(changes: &[ChangeEvent]) -> BTreeMap<(&'static str, String), String> {
    let mut subjects: BTreeMap<(&'static str, String), Vec<String>> = BTreeMap::new();
    for (_, at, changed) in distinct(changes) {
        let steps = subjects.entry((changed.topic().name(), changed.subject())).or_default();
        match changed {
            Changed::Stock(stock) => *steps = vec![format!("{} on hand", stock.level.on_hand)],
            Changed::Cart(_) | Changed::CartClosed(_) => {
                steps.retain(|step| !step.starts_with("cart.changed"));
                steps.push(format!("{} at {at}: {changed:?}", changed.kind()));
            }
            _ => steps.push(format!("{} at {at}: {changed:?}", changed.kind())),
        }
    }
    let text = |steps: Vec<String>| without_cart_versions(&steps.join("; "));
    subjects.into_iter().map(|(subject, steps)| (subject, text(steps))).collect()
}
