//! Importing a product together with its stock: all of it or nothing.
//!
//! Every step has the id of the import and takes effect once, however often it runs. The ledger of a zone has either
//! the row that set the units or a void row that refused to, so every process that works on the same import comes to
//! the same result. After a refusal the zones that were set are compensated. Zones that would be refused now are tried
//! first, then those that get fewer units, which can always be compensated, then those that get more, and the product
//! last.

use mw_codec::intents::import as codec;
use mw_domain::GeoZone;
use mw_store::products::{ImportProduct, Imported};
use mw_store::{Done, Freshness, Refusal, RequestIdentity, Result, StoreError};
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::time::to_cql;
use crate::recovery::idempotency::Claim;
use crate::recovery::intents::Kind;
use crate::stock::decision::{Decision, StockCommand, StockKey};
use crate::stock::ledger::{END_OF_TIME, LedgerRow, LedgerState, Transition};
use crate::stock::missing_stock;
use crate::stock::rows::{StoredRow, read_row};

/// Rounds of compensating a zone whose units are being sold meanwhile.
const COMPENSATION_ROUNDS_MAX: usize = 8;

/// The idempotency key of an import that is recovered.
enum KeyState {
    /// Claimed for this import, without an outcome.
    Claimed,
    /// Not there, or claimed for another operation.
    Free,
    HasOutcome,
}

/// The order in which zones are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ZoneRank {
    WouldBeRefused,
    FewerUnits,
    MoreUnits,
}

/// The id of the movement that compensates the one of an import.
const fn compensation_id(op: Uuid) -> Uuid {
    Uuid::from_u128(op.as_u128() ^ (1 << 64))
}

fn stock_key(command: &ImportProduct, zone: &GeoZone) -> StockKey {
    StockKey { product_id: command.product.product_id.clone(), geo_zone: zone.clone() }
}

impl CassandraStore {
    pub(super) async fn import(&self, command: ImportProduct) -> Result<Done<Imported>> {
        let (identity, op, now) = (command.identity.clone(), command.op, command.now);
        let work = async |op, is_retry: bool| {
            let command = ImportProduct { op, ..command };
            command.product.check()?;
            if is_retry {
                self.check_not_refused(&command).await.map_err(StoreError::after_first_effect)?;
            }
            // Crash here: at most the key is claimed; a repeated request runs again under the same id.
            let intent = self.intents.begin(&self.cql, Kind::Import, op, codec::encode(&command)).await?;
            // Crash here: an intent without any row of the import; recovery makes sure that no write in flight can apply, and
            // drops it.
            match self.import_steps(&command).await {
                Ok(imported) => {
                    // Crash here: the import is done; `recover_import` finds every step done and stores the outcome.
                    self.intents.complete(&self.cql, intent).await;
                    // Crash here: the key has no outcome; a repeated request finds every step done and stores it.
                    Ok(imported)
                }
                Err(StoreError::Refused(refusal)) => {
                    // Crash here: the import is refused and compensated; `recover_import` finds that and frees the key.
                    self.intents.complete(&self.cql, intent).await;
                    Err(StoreError::Refused(refusal))
                }
                Err(error) => {
                    self.intents.abandon(intent);
                    Err(error.after_first_effect())
                }
            }
        };
        self.idempotent(identity.as_ref(), op, now, work).await
    }

    /// Refuses an import that another request or process was refused in the middle of: it stays refused, and what was
    /// not compensated then is compensated now.
    async fn check_not_refused(&self, command: &ImportProduct) -> Result<()> {
        for (zone, _) in &command.stock {
            let stock_key = stock_key(command, zone);
            let row = self.import_row(&stock_key, command.op).await?;
            if row.is_none_or(|row| row.state != LedgerState::Void) {
                continue;
            }
            self.compensate(command).await?;
            let current = self.level_at(&stock_key, Freshness::Latest, command.now).await?;
            let current = current.ok_or_else(|| missing_stock(&stock_key))?;
            return Err(Refusal::StockBelowReserved { current }.into());
        }
        Ok(())
    }

    /// Runs every step; a step that is done already takes no effect again. A refusal leaves nothing of the import.
    async fn import_steps(&self, command: &ImportProduct) -> Result<Imported> {
        let ImportProduct { product, op, now, .. } = command;
        for (stock_key, on_hand) in self.ranked_zones(command).await? {
            // Crash here: some zones are set, the others are not; `recover_import` sets the rest.
            match self.put_on_hand(&stock_key, *op, on_hand, None, *now).await {
                Ok(_) => {}
                Err(StoreError::Refused(refusal)) => {
                    // Crash here: a refusal without a row; `recover_import` tries the zone again and may succeed.
                    let voided = self.void_operation(&stock_key, *op, *now).await;
                    // `false`: another process found enough units since, and has set the zone.
                    if voided.map_err(StoreError::after_first_effect)? {
                        // Crash here: the void row refuses the import for good; `recover_import` compensates the
                        // others.
                        self.compensate(command).await.map_err(StoreError::after_first_effect)?;
                        return Err(StoreError::Refused(refusal));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        // Crash here: the stock is set, the product is not in the catalogue; `recover_import` puts it there.
        let created = self.put_under(product, *op).await?.created;
        // Crash here: the import is done, its stock is not in the feed; `recover_import` runs all steps again.
        self.report_zones(&product.product_id, command.stock.iter().map(|(zone, _)| zone)).await?;
        Ok(Imported { product_id: product.product_id.clone(), created })
    }

    /// The zones in the order in which they are set, with their units.
    async fn ranked_zones(&self, command: &ImportProduct) -> Result<Vec<(StockKey, u64)>> {
        let mut zones = Vec::with_capacity(command.stock.len());
        for (zone, on_hand) in &command.stock {
            let stock_key = stock_key(command, zone);
            let stock = self.level_at(&stock_key, Freshness::Latest, command.now).await?;
            let rank = match stock.map(|stock| stock.level) {
                Some(level) if *on_hand < level.reserved => ZoneRank::WouldBeRefused,
                Some(level) if *on_hand < level.on_hand => ZoneRank::FewerUnits,
                _ => ZoneRank::MoreUnits,
            };
            zones.push((rank, stock_key, *on_hand));
        }
        zones.sort_by_key(|(rank, ..)| *rank);
        Ok(zones.into_iter().map(|(_, stock_key, on_hand)| (stock_key, on_hand)).collect())
    }

    /// Undoes what this import did to the stock, and voids the zones that it has not set, so that another process that
    /// still works on it cannot set them.
    async fn compensate(&self, command: &ImportProduct) -> Result<()> {
        for (zone, _) in &command.stock {
            let stock_key = stock_key(command, zone);
            // Crash here: some zones are void or compensated, the others are not; `recover_import` comes here again.
            if self.void_operation(&stock_key, command.op, command.now).await? {
                continue;
            }
            if let Some(row) = self.import_row(&stock_key, command.op).await? {
                self.compensate_zone(&stock_key, command, -row.quantity).await?;
            }
        }
        // Crash here: the units are taken back, which the feed does not show; `recover_import` comes here again.
        self.report_zones(&command.product.product_id, command.stock.iter().map(|(zone, _)| zone)).await
    }

    /// Takes units of a refused import back, once, under its own movement id. Units that were sold since cannot be
    /// taken back.
    async fn compensate_zone(
        &self,
        stock_key: &StockKey,
        command: &ImportProduct,
        mut delta: i64,
    ) -> Result<()> {
        let op_id = compensation_id(command.op);
        for _ in 0..COMPENSATION_ROUNDS_MAX {
            let adjust = StockCommand::Adjust { op_id, delta, note: "import refused".to_owned() };
            let Decision::Refused(refusal) = self.submit(stock_key, adjust, command.now).await? else {
                return Ok(());
            };
            let StockKey { product_id, geo_zone } = stock_key;
            tracing::error!(
                %product_id, %geo_zone, import = %command.op, delta, %refusal,
                "take back the units of a refused import: some are reserved or sold; check the stock of this zone"
            );
            let Refusal::StockBelowReserved { current } = refusal else { return Ok(()) };
            delta = -current.level.available().cast_signed();
        }
        Err(StoreError::Unavailable(format!(
            "take back a refused import of {} in {}: gave up after {COMPENSATION_ROUNDS_MAX} rounds (contention)",
            stock_key.product_id, stock_key.geo_zone
        )))
    }

    /// The ledger row that an import left in a zone: it was set, or it is void.
    async fn import_row(&self, stock_key: &StockKey, op: Uuid) -> Result<Option<LedgerRow>> {
        let key = (stock_key.product_id.as_str(), stock_key.geo_zone.as_str(), to_cql(END_OF_TIME), op);
        let row: Option<StoredRow> = self.cql.first(&self.products.ledger_row, key).await?;
        row.map(read_row).transpose()
    }

    /// Recovers an orphaned or abandoned import that has had an effect; one without any is dropped. Every step is
    /// idempotent, so a crash in here leaves an import that the next process recovers in the same way.
    pub(crate) async fn recover_import(&self, payload: &[u8]) -> Result<()> {
        let command = codec::decode(payload)?;
        if !self.has_effect(&command).await? {
            return self.fence_import(&command).await;
        }
        let (identity, op, now) = (command.identity.clone(), command.op, command.now);
        let steps = async || {
            self.check_not_refused(&command).await?;
            self.import_steps(&command).await
        };
        let recovered = match self.key_state(identity.as_ref(), &command).await? {
            // The steps are done; a refused import under a newer claim may still have to be compensated.
            KeyState::HasOutcome => self.check_not_refused(&command).await,
            KeyState::Free => steps().await.map(drop),
            KeyState::Claimed => {
                let work = async |op_id, _| {
                    if op_id != op {
                        return Err(StoreError::Unavailable(format!(
                            "recover import {op}: its key is claimed for {op_id} now, recovery tries again"
                        )));
                    }
                    steps().await
                };
                self.idempotent(identity.as_ref(), op, now, work).await.map(drop)
            }
        };
        match recovered {
            Ok(()) | Err(StoreError::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes sure that no write of an import without effect can apply any more, or fails where one has applied meanwhile. The
    /// zones of a request without a key are void, so that a process which was only slow is refused; a request with a key may be
    /// repeated, and its writes in flight lose their revision. A crash between two zones leaves the intent.
    async fn fence_import(&self, command: &ImportProduct) -> Result<()> {
        let (op_id, until) = (command.op, END_OF_TIME);
        for (zone, _) in &command.stock {
            let fence = if command.identity.is_some() {
                StockCommand::Fence { until, op_id }
            } else {
                StockCommand::Advance { until, op_id, quantity: 0, transition: Transition::VoidIfAbsent }
            };
            match self.keepers.submit(&self.cql, &stock_key(command, zone), fence, command.now).await? {
                Decision::Done { state: None | Some(LedgerState::Void), .. } => {}
                Decision::Done { .. } => return Err(Self::has_begun(command)),
                other => return Err(other.unexpected()),
            }
        }
        let product_id = &command.product.product_id;
        let (_, revision) = self.stored_product(&self.products.serial_read, product_id).await?;
        if revision.remembers(op_id) {
            return Err(Self::has_begun(command));
        }
        self.fence_product(product_id, &revision).await
    }

    fn has_begun(command: &ImportProduct) -> StoreError {
        StoreError::Ambiguous(format!("recover import {}: it has begun, recovery tries again", command.op))
    }

    /// Whether a zone has a row of the import, or the product its token.
    async fn has_effect(&self, command: &ImportProduct) -> Result<bool> {
        let mut has_row = false;
        for (zone, _) in &command.stock {
            has_row = has_row || self.import_row(&stock_key(command, zone), command.op).await?.is_some();
        }
        let (_, revision) =
            self.stored_product(&self.products.serial_read, &command.product.product_id).await?;
        Ok(has_row || revision.remembers(command.op))
    }

    async fn key_state(
        &self,
        identity: Option<&RequestIdentity>,
        command: &ImportProduct,
    ) -> Result<KeyState> {
        let Some(identity) = identity else { return Ok(KeyState::Free) };
        match self.claims.find(&self.cql, identity, command.now).await {
            Ok(Some(Claim::Execute { op_id, .. })) if op_id == command.op => Ok(KeyState::Claimed),
            Ok(Some(Claim::Replay(_))) => Ok(KeyState::HasOutcome),
            // The key was freed by a refusal, which the ledger rows say too, or it is past its retention.
            Ok(_) | Err(StoreError::Refused(_)) => Ok(KeyState::Free),
            Err(error) => Err(error),
        }
    }
}
