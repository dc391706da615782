//! Cards that were shown a moment ago, for a showcase that may be a little old.
//!
//! A process shows its own changes at once: whoever changes a card puts it here, or takes it away where the outcome is not
//! known. Changes of other processes are seen when a card's time is over. Nobody waits for anybody else's read, so a slow
//! node makes none slower but its own.

use std::fmt;
use std::time::{Duration, Instant};

use mw_domain::{Product, ProductId};
use mw_store::Result;
use mw_store::products::Card;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, EntryAction, EntryResult};

/// About what a card takes; how many to make room for at first.
const CARD_BYTES: u64 = 1_024;
/// About what is kept of one that was deleted.
const DELETED_BYTES: u64 = 160;

#[derive(Clone)]
struct Shown {
    /// `None` where this process has deleted it.
    card: Option<Card>,
    until: Instant,
}

pub(crate) struct Window {
    cards: Cache<ProductId, Shown, Weight>,
    keep: Duration,
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("keep", &self.keep).finish_non_exhaustive()
    }
}

impl Window {
    /// Shows a card for `keep` after it was read; with nothing to keep every card is read.
    pub(crate) fn new(keep: Duration, bytes: u64) -> Self {
        let cards = usize::try_from(bytes / CARD_BYTES).unwrap_or(usize::MAX);
        Self { cards: Cache::with_weighter(cards, bytes, Weight), keep }
    }

    /// The card as it is shown `now`, or as `read` finds it.
    pub(crate) async fn card(
        &self,
        product_id: &ProductId,
        now: Instant,
        read: impl Future<Output = Result<Option<Card>>>,
    ) -> Result<Option<Card>> {
        if self.keep.is_zero() {
            return read.await;
        }
        if let Some(shown) = self.cards.get(product_id).filter(|shown| now < shown.until) {
            return Ok(shown.card);
        }
        let entry = self.cards.entry(product_id, Some(Duration::ZERO), |_, shown| {
            if now < shown.until {
                EntryAction::Retain(shown.card.clone())
            } else {
                EntryAction::ReplaceWithGuard
            }
        });
        let mark = match entry {
            EntryResult::Retained(card) => return Ok(card),
            EntryResult::Vacant(mark) | EntryResult::Replaced(mark, _) => mark,
            EntryResult::Removed(..) | EntryResult::Timeout => return read.await,
        };
        let card = read.await?;
        if card.is_some() {
            // A change takes the mark away: what was read before it is shown to nobody else.
            let _ = mark.insert(Shown { card: card.clone(), until: now + self.keep });
        }
        Ok(card)
    }

    /// For a change of a card that begins `now`.
    pub(crate) fn change<'a>(&'a self, product_id: &'a ProductId, now: Instant) -> Changing<'a> {
        Changing { window: self, product_id, until: now + self.keep }
    }
}

/// A change under way: unless it is known to be done, nobody is shown what was before it.
pub(crate) struct Changing<'a> {
    window: &'a Window,
    product_id: &'a ProductId,
    until: Instant,
}

impl Changing<'_> {
    /// What is there now; nothing where the card was deleted.
    pub(crate) fn done(self, product: Option<&Product>) {
        let (window, product_id, until) = (self.window, self.product_id, self.until);
        drop(self);
        if !window.keep.is_zero() {
            let card = product.cloned().map(Card::from);
            window.cards.insert(product_id.clone(), Shown { card, until });
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.window.cards.remove(self.product_id);
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<ProductId, Shown> for Weight {
    fn weight(&self, _: &ProductId, shown: &Shown) -> u64 {
        shown.card.as_ref().map_or(DELETED_BYTES, Card::bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use mw_domain::{Attributes, Category, Money, Timestamp};
    use mw_store::StoreError;

    use super::*;

    const KEEP: Duration = Duration::from_secs(5);

    fn product(minor: i64) -> Product {
        Product {
            product_id: ProductId::parse("tea").unwrap(),
            name: "Tea".to_owned(),
            category: Category::parse("drinks").unwrap(),
            price: Money::from_minor(minor),
            description: String::new(),
            attributes: Attributes::default(),
            created_at: Timestamp::EPOCH,
            updated_at: Timestamp::EPOCH,
        }
    }

    fn found(minor: i64) -> impl Future<Output = Result<Option<Card>>> {
        ready(Ok(Some(product(minor).into())))
    }

    fn tea() -> ProductId {
        product(0).product_id
    }

    /// The price of the card that is shown.
    async fn price(
        window: &Window,
        now: Instant,
        read: impl Future<Output = Result<Option<Card>>>,
    ) -> Option<i64> {
        window.card(&tea(), now, read).await.unwrap().map(|card| card.price.as_minor())
    }

    #[tokio::test]
    async fn a_card_is_read_again_when_its_time_is_over() {
        let (window, start) = (Window::new(KEEP, 1 << 20), Instant::now());
        assert_eq!(price(&window, start, found(1)).await, Some(1));
        assert_eq!(price(&window, start + KEEP / 2, found(2)).await, Some(1));
        assert_eq!(price(&window, start + KEEP, found(3)).await, Some(3));
        assert_eq!(price(&window, start + KEEP, found(4)).await, Some(3));
    }

    #[tokio::test]
    async fn what_this_process_wrote_is_shown_at_once() {
        let (window, now) = (Window::new(KEEP, 1 << 20), Instant::now());
        assert_eq!(price(&window, now, found(1)).await, Some(1));
        window.change(&tea(), now).done(Some(&product(2)));
        assert_eq!(price(&window, now, found(1)).await, Some(2));
        window.change(&tea(), now).done(None);
        assert_eq!(price(&window, now, found(1)).await, None);
        assert_eq!(price(&window, now + KEEP, found(3)).await, Some(3));
    }

    #[tokio::test]
    async fn what_a_slow_change_wrote_is_shown_no_longer_than_what_was_read() {
        let (window, start) = (Window::new(KEEP, 1 << 20), Instant::now());
        let tea = tea();
        let slow = window.change(&tea, start);
        assert_eq!(price(&window, start + 2 * KEEP, found(2)).await, Some(2));
        slow.done(Some(&product(1)));
        assert_eq!(price(&window, start + 2 * KEEP, found(2)).await, Some(2));
    }

    #[tokio::test]
    async fn a_change_that_was_dropped_leaves_nothing_to_be_shown() {
        let (window, now) = (Window::new(KEEP, 1 << 20), Instant::now());
        assert_eq!(price(&window, now, found(1)).await, Some(1));
        drop(window.change(&tea(), now));
        assert_eq!(price(&window, now, found(2)).await, Some(2));
    }

    #[tokio::test]
    async fn what_was_read_before_a_change_is_not_shown_after_it() {
        let (window, now) = (Window::new(KEEP, 1 << 20), Instant::now());
        let put_meanwhile = async {
            window.change(&tea(), now).done(Some(&product(2)));
            found(1).await
        };
        assert_eq!(price(&window, now, put_meanwhile).await, Some(1));
        assert_eq!(price(&window, now, found(3)).await, Some(2));
        drop(window.change(&tea(), now));
        let taken_meanwhile = async {
            drop(window.change(&tea(), now));
            found(3).await
        };
        assert_eq!(price(&window, now, taken_meanwhile).await, Some(3));
        assert_eq!(price(&window, now, found(4)).await, Some(4));
    }

    #[tokio::test]
    async fn nobody_waits_for_the_read_of_another_and_what_failed_is_not_kept() {
        let (window, now) = (Window::new(KEEP, 1 << 20), Instant::now());
        let slow = async {
            assert_eq!(price(&window, now, found(1)).await, Some(1));
            Err(StoreError::Unavailable("two nodes are down".to_owned()))
        };
        assert!(window.card(&tea(), now, slow).await.is_err());
        assert_eq!(price(&window, now, found(2)).await, Some(2));
    }

    #[tokio::test]
    async fn with_nothing_to_keep_every_card_is_read() {
        let (window, now) = (Window::new(Duration::ZERO, 1 << 20), Instant::now());
        window.change(&tea(), now).done(Some(&product(1)));
        assert_eq!(price(&window, now, found(2)).await, Some(2));
        assert_eq!(price(&window, now, found(3)).await, Some(3));
    }
}
