//! How plain writes of lines and decisions about a cart agree, without a lightweight transaction per line. Pure: no IO, no clock.
//! `protocol/model.rs` checks these functions exhaustively.
//!
//! An owner's partition has a static header, changed by LWTs only, and cells of lines, written plainly with explicit write
//! timestamps. The header names the open cart and holds a snapshot of its lines; cells above the snapshot's `base` count over it,
//! cells at or below it count no more. So the cart is the snapshot and the later cells, and one quorum read shows it.
//!
//! - A *blind write* reads the partition, writes its cell above every stamp that it read, and reads the partition back.
//!   [`next_step`] says from that read whether the write counts, must wait for a decision, or must be done again. Without the first
//!   read a write by a clock that is behind would be lost below an older one; writing it again above that one afterwards would be
//!   wrong as well, since a reader may have seen the two in the other order.
//! - A *decision* (checkout, merge, abandon, `If-Match`, renewal) claims the header by an LWT, reads the partition after that, and
//!   replaces the header by another LWT on the same revision: the new snapshot, a new base above every cell that it read, and which
//!   cells it read. Before the second LWT nothing has happened: any process may revoke the claim, after which the second LWT fails
//!   and the decision starts again.
//!
//! Why a decision misses no acknowledged write: a blind write that read back no claim was on a quorum before the claim was, so the
//! read after the claim shows it. One that reads back a claim waits. One that the decision did not read is at or below the new base,
//! or in a cart that is closed now: no reader shows it, and its writer does it again. A reader waits for a claim as well: a cell that
//! it showed might otherwise not be in the cart that is closed.
//!
//! A version is the snapshot's version plus, for every later cell, its distance from the base in microseconds: every visible change
//! makes it grow, also one that was written by a clock that is behind.
//!
//! The model takes a quorum read for one instant. In a cluster a read that runs while a write arrives and a claim is made may show
//! that write in a cart that is closed without it; the write is not acknowledged yet and is done again in the next cart.

#[cfg(test)]
mod model;

use std::collections::BTreeMap;

use mw_codec::carts::header::{Absorbed, CartHeader, OpenCart};
use mw_domain::{Cart, CartId, CartLine, CartStatus, Owner, ProductId, Timestamp};
use uuid::Uuid;

use super::rows::{CartKey, cart_key};

/// A write timestamp: microseconds since 1970, with the lane of the writing process in the low bits.
pub(crate) type Stamp = i64;

/// The low bits of a stamp. Two processes with different lanes never write the same stamp.
const LANE_MASK: Stamp = 63;
/// Decisions of which the header keeps the cells that they read.
const ABSORBED_MAX: usize = 8;

/// What a blind write stores of a line. Quantity 0 is a removal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LineCell {
    pub(crate) stamp: Stamp,
    pub(crate) quantity: u32,
    pub(crate) updated_at: Timestamp,
    /// When the cart expires by this change.
    pub(crate) expires_at: Timestamp,
}

/// An owner's partition as one quorum read shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct View {
    pub(crate) header: CartHeader,
    /// The cells of the open cart, also those that count no more.
    pub(crate) cells: BTreeMap<ProductId, LineCell>,
}

/// A blind write that is on a quorum. Its stamp is above every cell that an earlier read of its request showed, so a cell of the
/// line with a higher stamp is of a concurrent request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BlindWrite {
    pub(crate) cart: CartKey,
    pub(crate) product_id: ProductId,
    pub(crate) stamp: Stamp,
}

/// What a blind write does after it was read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlindStep {
    /// It counts, or a concurrent write of the line counts as the later one.
    Done,
    /// A decision is under way: read again, or revoke its claim.
    Wait,
    /// It does not count, and no reader has shown it: start again from this view.
    Redo,
    /// It counts no more, and which cells the decisions since have read is forgotten.
    Unknown,
}

/// What follows from reading a blind write back.
pub(crate) fn next_step(view: &View, write: &BlindWrite) -> BlindStep {
    if view.header.claim.is_some() {
        return BlindStep::Wait;
    }
    let open = view.header.open.as_ref();
    if open.is_some_and(|open| cart_key(&open.cart) == write.cart && write.stamp > open.base) {
        return BlindStep::Done;
    }
    let absorbed = &view.header.absorbed;
    let is_read = |absorbed: &Absorbed| {
        let covers = |(product_id, stamp): &(ProductId, Stamp)| {
            *product_id == write.product_id && *stamp >= write.stamp
        };
        absorbed.cart == write.cart && absorbed.cells.iter().any(covers)
    };
    if absorbed.iter().any(is_read) {
        return BlindStep::Done;
    }
    let may_be_forgotten =
        absorbed.len() == ABSORBED_MAX && absorbed.last().is_some_and(|oldest| oldest.base >= write.stamp);
    if may_be_forgotten { BlindStep::Unknown } else { BlindStep::Redo }
}

/// The stamp of a blind write: by the clock of its process, but above `above`.
pub(crate) fn stamp_above(above: Stamp, clock_micros: i64, lane: u8) -> Stamp {
    let tick = (clock_micros | LANE_MASK).max(above | LANE_MASK);
    // One below the mask is the highest lane: the mask itself is for bases.
    (tick + 1) | (Stamp::from(lane) % LANE_MASK)
}

impl View {
    /// The cells that count over the snapshot.
    fn later_cells(&self) -> impl Iterator<Item = (&ProductId, &LineCell)> {
        let base = self.header.open.as_ref().map_or(Stamp::MAX, |open| open.base);
        self.cells.iter().filter(move |(_, cell)| cell.stamp > base)
    }

    /// The highest stamp that counts in the open cart.
    pub(crate) fn newest_stamp(&self) -> Stamp {
        let base = self.header.open.as_ref().map_or(0, |open| open.base);
        self.cells.values().map(|cell| cell.stamp).fold(base, Stamp::max)
    }

    /// An empty cart, to be opened by its first change. Its versions are above those of all earlier carts of the owner.
    pub(crate) fn new_cart(&self, cart_id: CartId, owner: Owner, now: Timestamp) -> Cart {
        let last_version = self.cart().map_or(0, |cart| cart.version).max(self.header.last_version);
        Cart::open(cart_id, owner, now, last_version)
    }

    /// The open cart, also an expired one.
    pub(crate) fn cart(&self) -> Option<Cart> {
        let OpenCart { cart, base } = self.header.open.as_ref()?;
        let mut cart = cart.clone();
        let mut newest: Option<&LineCell> = None;
        for (product_id, cell) in self.later_cells() {
            let at = cart.lines.binary_search_by(|line| line.product_id.cmp(product_id));
            let line = CartLine {
                product_id: product_id.clone(),
                quantity: cell.quantity,
                updated_at: cell.updated_at,
            };
            match (at, cell.quantity) {
                (Ok(at), 0) => drop(cart.lines.remove(at)),
                (Ok(at), _) => {
                    if let Some(known) = cart.lines.get_mut(at) {
                        *known = line;
                    }
                }
                (Err(_), 0) => {}
                (Err(at), _) => cart.lines.insert(at, line),
            }
            cart.version += (cell.stamp - base).unsigned_abs();
            cart.updated_at = cart.updated_at.max(cell.updated_at);
            newest = newest.filter(|newest| newest.stamp > cell.stamp).or(Some(cell));
        }
        if let Some(newest) = newest {
            // The last change says how long a cart lives after a change.
            let life_ms = newest.expires_at.as_millis() - newest.updated_at.as_millis();
            cart.expires_at = cart.updated_at.plus_millis(life_ms);
        }
        Some(cart)
    }
}

/// The header with the claim of a decision.
pub(crate) fn claimed(header: &CartHeader, claim: Uuid) -> CartHeader {
    CartHeader { claim: Some(claim), ..header.clone() }
}

/// The header without the claim of a decision: its second LWT can no longer apply.
pub(crate) fn revoked(header: &CartHeader) -> CartHeader {
    CartHeader { claim: None, ..header.clone() }
}

/// The header after a decision: `after` is the active cart, if there is one. `view` was read after the claim, or had no open cart;
/// `clock_micros` is the base of a cart that is opened.
pub(crate) fn decided(view: &View, after: Option<&Cart>, clock_micros: i64) -> CartHeader {
    let header = &view.header;
    let closed_version = view.cart().map_or(0, |cart| cart.version + 1);
    let mut last_version = header.last_version;
    let mut absorbed = header.absorbed.clone();
    let is_same = |open: &OpenCart| after.is_some_and(|after| after.cart_id == open.cart.cart_id);
    let mut base = clock_micros | LANE_MASK;
    if let Some(open) = &header.open {
        let cells = view.later_cells().map(|(product_id, cell)| (product_id.clone(), cell.stamp)).collect();
        let read_base = view.newest_stamp() | LANE_MASK;
        absorbed.insert(0, Absorbed { cart: cart_key(&open.cart), base: read_base, cells });
        absorbed.truncate(ABSORBED_MAX);
        if is_same(open) {
            base = read_base;
        } else {
            last_version = last_version.max(closed_version);
        }
    }
    // The bases of an owner only grow. A cart that is opened again after a refused merge has cells of its own and a range tombstone
    // above them: by a clock that is behind, later writes would be lost below it.
    base = absorbed.first().map_or(base, |last| last.base.max(base));
    let open = after.map(|cart| OpenCart { cart: cart.clone(), base });
    let last_merge = header.last_merge;
    let (outbox, last_stamp, closed_buckets) = (Vec::new(), header.last_stamp, header.closed_buckets.clone());
    CartHeader { open, last_version, claim: None, absorbed, last_merge, outbox, last_stamp, closed_buckets }
}

/// The active cart: an owner without one, or with an expired one, has version 0.
pub(crate) fn active_cart_of(view: &View, now: Timestamp) -> Option<Cart> {
    view.cart().filter(|cart| cart.status == CartStatus::Active && !cart.is_expired(now))
}

#[cfg(test)]
mod tests {
    use mw_domain::carts::CartLifetime;

    use super::*;

    /// A cell of the only line, with this stamp.
    fn written(view: &View, stamp: Stamp) -> View {
        let cell = LineCell {
            stamp,
            quantity: 2,
            updated_at: Timestamp::EPOCH,
            expires_at: Timestamp::from_millis(1),
        };
        let cells = [(ProductId::parse("a").unwrap(), cell)].into();
        View { header: view.header.clone(), cells }
    }

    #[test]
    fn a_cart_that_is_opened_again_counts_no_write_of_its_earlier_life() {
        let owner = Owner::User(mw_domain::UserId::parse("u").unwrap());
        let mut cart = View::default().new_cart(CartId::new(Uuid::nil()), owner, Timestamp::EPOCH);
        let lifetime = CartLifetime { user_ms: 1_000, guest_ms: 1_000 };
        cart.set_line(ProductId::parse("a").unwrap(), 1, Timestamp::EPOCH, &lifetime).unwrap();
        let header = decided(&View::default(), Some(&cart), 100);
        let ahead = written(&View { header, cells: BTreeMap::new() }, 5_000_000);
        let closed = View { header: decided(&ahead, None, 200), cells: BTreeMap::new() };
        // Another cart is opened and closed by a clock that is behind, and then the first one is opened again by it.
        let mut other = cart.clone();
        other.cart_id = CartId::new(Uuid::max());
        let between = View { header: decided(&closed, Some(&other), 300), cells: BTreeMap::new() };
        let closed = View { header: decided(&between, None, 400), cells: BTreeMap::new() };
        let again = decided(&closed, Some(&cart), 500);
        let base = again.open.as_ref().map(|open| open.base).unwrap_or_default();
        assert!(base > 5_000_000, "{base}");
        let late = written(&View { header: again, cells: BTreeMap::new() }, 5_000_000);
        assert_eq!(late.cart().map(|cart| cart.lines), Some(cart.lines));
    }
}
