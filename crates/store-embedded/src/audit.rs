//! Stock audit: recomputes every stock level from its ledger, and every reserved unit from the hold or order that has it.
//!
//! Invariant: the audit reads one snapshot, so writes during its run are never reported as drift.

use std::ops::ControlFlow;

use mw_domain::stock::Delta;
use mw_domain::{Level, OrderId, OrderStatus, Timestamp};
use mw_store::Result;
use mw_store::stock::{Audit, Drift};

use crate::keys;
use crate::orders;
use crate::reader::{KeyRange, Reader};
use crate::stock::{self, HeldUnits};
use crate::tables::Table;
use crate::timers;

/// Stock levels between two progress reports.
const LEVELS_PER_PROGRESS_REPORT: u64 = 1_000;

pub(crate) fn run(reader: &dyn Reader, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
    let mut held = all_held(reader)?;
    let mut audit = Audit::default();
    reader.scan(Table::Stock, &KeyRange::prefix(Vec::new()), false, &mut |key, value| {
        let (product_id, geo_zone) = keys::read_stock(key)?;
        let (recorded, _) = mw_codec::stock::decode_level(value)?;
        let (ledger, movements) = sum_ledger(reader, keys::ledger(&product_id, &geo_zone))?;
        let held = held.remove(key).unwrap_or_default();
        audit.levels += 1;
        audit.movements += movements;
        let is_explained = ledger.on_hand == recorded.on_hand.cast_signed()
            && ledger.reserved == recorded.reserved.cast_signed()
            && held == recorded.reserved
            && recorded.reserved <= recorded.on_hand;
        if !is_explained {
            audit.drifts.push(Drift { product_id, geo_zone, recorded, ledger, held });
        }
        if audit.levels.is_multiple_of(LEVELS_PER_PROGRESS_REPORT) {
            progress(audit.levels);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    // Units held of products that have no stock level.
    for (key, held) in held {
        let (product_id, geo_zone) = keys::read_stock(&key)?;
        let (ledger, _) = sum_ledger(reader, keys::ledger(&product_id, &geo_zone))?;
        audit.drifts.push(Drift { product_id, geo_zone, recorded: Level::default(), ledger, held });
    }
    progress(audit.levels);
    Ok(audit)
}

fn sum_ledger(reader: &dyn Reader, prefix: Vec<u8>) -> Result<(Delta, u64)> {
    let (mut sum, mut movements) = (Delta::default(), 0);
    reader.scan(Table::Ledger, &KeyRange::prefix(prefix), false, &mut |_, value| {
        let delta = mw_codec::stock::decode_movement(value)?.delta;
        sum.on_hand += delta.on_hand;
        sum.reserved += delta.reserved;
        movements += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((sum, movements))
}

/// The units of all open holds and unpaid orders.
fn all_held(reader: &dyn Reader) -> Result<HeldUnits> {
    let mut held = stock::held_units(reader, timers::BEGINNING, Timestamp::MAX)?;
    for (_, id) in timers::due(reader, Table::PaymentTimers, timers::BEGINNING, Timestamp::MAX, usize::MAX)? {
        let order = orders::read(reader, OrderId::from_bytes(id))?;
        for order in order.into_iter().filter(|order| order.status == OrderStatus::Created) {
            for line in &order.lines {
                *held.entry(keys::stock(&line.product_id, &order.geo_zone)).or_default() +=
                    u64::from(line.quantity);
            }
        }
    }
    Ok(held)
}
