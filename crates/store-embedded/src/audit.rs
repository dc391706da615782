//! The proof of stock: every figure again from the ledger, and every reserved unit from the hold it belongs to.

use std::ops::ControlFlow;

use mw_domain::stock::Delta;
use mw_domain::{OrderId, OrderStatus, Timestamp};
use mw_store::Result;
use mw_store::stock::{Audit, Drift};

use crate::keys;
use crate::orders;
use crate::stock::{self, HeldUnits, due};
use crate::tables::Table;
use crate::view::{Look, Span};

/// How often progress is told.
const FIGURES_PER_TELLING: u64 = 1_000;

pub(crate) fn run(look: &dyn Look, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
    let mut held = all_held(look)?;
    let mut audit = Audit::default();
    look.scan(Table::Stock, &Span::prefix(Vec::new()), false, &mut |key, value| {
        let (product_id, geo_zone) = keys::read_stock(key)?;
        let (recorded, _) = mw_codec::stock::decode_level(value)?;
        let (ledger, movements) = sum_ledger(look, keys::ledger(&product_id, &geo_zone))?;
        let held = held.remove(key).unwrap_or_default();
        audit.figures += 1;
        audit.movements += movements;
        let explained = ledger.on_hand == recorded.on_hand.cast_signed()
            && ledger.reserved == recorded.reserved.cast_signed()
            && held == recorded.reserved
            && recorded.reserved <= recorded.on_hand;
        if !explained {
            audit.drifts.push(Drift { product_id, geo_zone, recorded, ledger, held });
        }
        if audit.figures.is_multiple_of(FIGURES_PER_TELLING) {
            progress(audit.figures);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    for (key, held) in held {
        let (product_id, geo_zone) = keys::read_stock(&key)?;
        let (ledger, _) = sum_ledger(look, keys::ledger(&product_id, &geo_zone))?;
        audit.drifts.push(Drift {
            product_id,
            geo_zone,
            recorded: mw_domain::Level::default(),
            ledger,
            held,
        });
    }
    progress(audit.figures);
    Ok(audit)
}

fn sum_ledger(look: &dyn Look, prefix: Vec<u8>) -> Result<(Delta, u64)> {
    let (mut sum, mut movements) = (Delta::default(), 0);
    look.scan(Table::Ledger, &Span::prefix(prefix), false, &mut |_, value| {
        let delta = mw_codec::stock::decode_movement(value)?.delta;
        sum.on_hand += delta.on_hand;
        sum.reserved += delta.reserved;
        movements += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((sum, movements))
}

/// What open holds and unpaid orders hold.
fn all_held(look: &dyn Look) -> Result<HeldUnits> {
    let beginning = Timestamp::from_millis(i64::MIN);
    let mut held = stock::held_units(look, beginning, Timestamp::MAX)?;
    for (_, id) in due(look, Table::PaymentsDue, beginning, Timestamp::MAX, usize::MAX)? {
        let order = orders::read(look, OrderId::from_bytes(id))?;
        for order in order.into_iter().filter(|order| order.status == OrderStatus::Created) {
            for line in &order.lines {
                *held.entry(keys::stock(&line.product_id, &order.geo_zone)).or_default() +=
                    u64::from(line.quantity);
            }
        }
    }
    Ok(held)
}
