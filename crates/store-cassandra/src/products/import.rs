//! A card that comes with stock: all of it or nothing.
//!
//! Every step is done once however often it is asked for, by the id of the import: a zone's ledger says either that it was set
//! or, by a void row, that it was refused, so that all who work on one import come to the same end. Where a zone is
//! refused, what was done in others is taken back. Zones that would be refused now come first, then those that get fewer
//! units, which can always be given back; then those that get more, and the card last.

use mw_codec::once::{read_key, write_key};
use mw_codec::{Damaged, Reader, Writer};
use mw_domain::GeoZone;
use mw_store::once::Outcome;
use mw_store::products::{ImportProduct, Imported};
use mw_store::{Done, Freshness, Refusal, Result, StoreError};
use uuid::Uuid;

use crate::CassandraStore;
use crate::guard::half_done;
use crate::intents::Kind;
use crate::keeper::{Answer, Change, Place, StoredRow, read_row};
use crate::ledger::{END_OF_TIME, LedgerRow, State};
use crate::once::Claim;
use crate::stock::gone;
use crate::time::to_cql;

/// How often units are taken back while others sell them.
const TAKEN_BACK_ROUNDS: usize = 8;

/// How somebody who finds an import half done goes on.
enum Turn {
    /// Under its key, which is still its own.
    Keyed,
    /// Without a key.
    Alone,
    /// Its key has an answer.
    Answered,
}

/// When a zone is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// It would be refused.
    Refused,
    /// It gets fewer units.
    Less,
    More,
}

/// The id of the movement that takes another back.
const fn taken_back(op: Uuid) -> Uuid {
    Uuid::from_u128(op.as_u128() ^ (1 << 64))
}

fn remember(imported: &Imported) -> Outcome {
    Outcome::Imported { product_id: imported.product_id.clone(), created: imported.created }
}

fn recall(outcome: Outcome) -> Option<Imported> {
    match outcome {
        Outcome::Imported { product_id, created } => Some(Imported { product_id, created }),
        _ => None,
    }
}

impl CassandraStore {
    pub(super) async fn import_card(&self, command: ImportProduct) -> Result<Done<Imported>> {
        let (once, op, now) = (command.once.clone(), command.op, command.now);
        let work = async |op, maybe_begun: bool| {
            let command = ImportProduct { op, ..command };
            command.product.check()?;
            if maybe_begun {
                self.check_not_refused(&command).await.map_err(half_done)?;
            }
            let intent = self.intents.begin(&self.cql, Kind::Import, op, encode(&command)).await?;
            match self.import_steps(&command).await {
                Ok(imported) => {
                    self.intents.end(&self.cql, intent).await;
                    Ok(imported)
                }
                Err(StoreError::Refused(refusal)) => {
                    self.intents.end(&self.cql, intent).await;
                    Err(StoreError::Refused(refusal))
                }
                Err(error) => {
                    self.intents.leave(intent);
                    Err(half_done(error))
                }
            }
        };
        self.keyed(once.as_ref(), op, now, (remember, recall), work).await
    }

    /// Somebody was refused in the middle of the same import and may not have taken all of it back: it stays refused.
    async fn check_not_refused(&self, command: &ImportProduct) -> Result<()> {
        for (zone, _) in &command.stock {
            let place = place(command, zone);
            if self.movement(&place, command.op).await?.is_none_or(|row| row.state != State::Void) {
                continue;
            }
            self.take_back(command).await?;
            let current = self.level_at(&place, Freshness::Full, command.now).await?;
            let current = current.ok_or_else(|| gone(&place))?;
            return Err(Refusal::StockBelowReserved { current }.into());
        }
        Ok(())
    }

    /// What has been done of it is found done. A refusal says that nothing of it is left.
    async fn import_steps(&self, command: &ImportProduct) -> Result<Imported> {
        let ImportProduct { product, op, now, .. } = command;
        let mut zones = Vec::with_capacity(command.stock.len());
        for (zone, on_hand) in &command.stock {
            let place = place(command, zone);
            let level = self.level_at(&place, Freshness::Full, *now).await?.map(|stock| stock.level);
            let rank = match level {
                Some(level) if *on_hand < level.reserved => Rank::Refused,
                Some(level) if *on_hand < level.on_hand => Rank::Less,
                _ => Rank::More,
            };
            zones.push((rank, place, *on_hand));
        }
        zones.sort_by_key(|(rank, ..)| *rank);
        for (_, place, on_hand) in zones {
            match self.put_on_hand(&place, *op, on_hand, None, *now).await {
                Ok(_) => {}
                Err(StoreError::Refused(refusal)) => {
                    if self.shut(&place, command.op, command.now).await.map_err(half_done)? {
                        self.take_back(command).await.map_err(half_done)?;
                        return Err(StoreError::Refused(refusal));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let created = self.put_card(product, *op).await?.created;
        Ok(Imported { product_id: product.product_id.clone(), created })
    }

    /// Undoes what this import did to the figures, and shuts the door to whoever is still at it.
    async fn take_back(&self, command: &ImportProduct) -> Result<()> {
        for (zone, _) in &command.stock {
            let place = place(command, zone);
            if self.shut(&place, command.op, command.now).await? {
                continue;
            }
            if let Some(row) = self.movement(&place, command.op).await? {
                self.move_back(&place, command, -row.quantity).await?;
            }
        }
        Ok(())
    }

    /// Units that came and have been sold since stay: nobody can take them back.
    async fn move_back(&self, place: &Place, command: &ImportProduct, mut delta: i64) -> Result<()> {
        let op_id = taken_back(command.op);
        for _ in 0..TAKEN_BACK_ROUNDS {
            let back = Change::Adjust { op_id, delta, note: "import refused".to_owned() };
            let Answer::Refused(refusal) = self.ask(place, back, command.now).await? else { return Ok(()) };
            tracing::error!(?place, import = %command.op, delta, %refusal, "a refused import is not all taken back");
            let Refusal::StockBelowReserved { current } = refusal else { return Ok(()) };
            delta = -current.level.available().cast_signed();
        }
        Err(StoreError::Unavailable(format!("the stock of {} is being fought for", place.product_id)))
    }

    /// What an operation of the back office did to a figure.
    async fn movement(&self, place: &Place, op: Uuid) -> Result<Option<LedgerRow>> {
        let key = (place.product_id.as_str(), place.geo_zone.as_str(), to_cql(END_OF_TIME), op);
        let row: Option<StoredRow> = self.cql.first(&self.products.moved, key).await?;
        row.map(read_row).transpose()
    }

    /// Finishes an import of which something was done; of which nothing was, nothing is.
    pub(crate) async fn finish_import(&self, payload: &[u8]) -> Result<()> {
        let command = decode(payload)?;
        let mut is_begun = false;
        for (zone, _) in &command.stock {
            is_begun = is_begun || self.movement(&place(&command, zone), command.op).await?.is_some();
        }
        let card = self.card(&self.products.serial, &command.product.product_id).await?;
        if !is_begun && !card.is_some_and(|(_, guard)| guard.remembers(command.op)) {
            return self.intents.wait_for(command.op);
        }
        let (once, op, now) = (command.once.clone(), command.op, command.now);
        let steps = async || {
            self.check_not_refused(&command).await?;
            self.import_steps(&command).await
        };
        let turn = match &once {
            Some(once) => match self.claims.look(&self.cql, once, now).await {
                Ok(Some(Claim::Do { op_id, .. })) if op_id == op => Turn::Keyed,
                Ok(Some(Claim::Done(_))) => Turn::Answered,
                // Freed because it was refused, which its rows say, or older than keys live.
                Ok(_) | Err(StoreError::Refused(_)) => Turn::Alone,
                Err(error) => return Err(error),
            },
            None => Turn::Alone,
        };
        let finished = match turn {
            Turn::Answered => self.check_not_refused(&command).await,
            Turn::Alone => steps().await.map(drop),
            Turn::Keyed => {
                let work = async |op_id, _| {
                    if op_id != op {
                        return Err(StoreError::Unavailable("the key of an import has gone on".to_owned()));
                    }
                    steps().await
                };
                self.keyed(once.as_ref(), op, now, (remember, recall), work).await.map(drop)
            }
        };
        match finished {
            Ok(()) | Err(StoreError::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn place(command: &ImportProduct, zone: &GeoZone) -> Place {
    Place { product_id: command.product.product_id.clone(), geo_zone: zone.clone() }
}

fn encode(command: &ImportProduct) -> Vec<u8> {
    let ImportProduct { product, stock, op, now, once } = command;
    let mut writer = Writer::new(256);
    mw_codec::products::write(&mut writer, product);
    writer.unsigned(stock.len() as u64);
    for (zone, on_hand) in stock {
        writer.text(zone.as_str());
        writer.unsigned(*on_hand);
    }
    writer.bytes(op.as_bytes());
    writer.time(*now);
    writer.optional(once.as_ref(), |writer, once| {
        writer.time(once.keep_until);
        write_key(writer, once);
    });
    writer.done()
}

fn decode(bytes: &[u8]) -> Result<ImportProduct, Damaged> {
    let mut reader = Reader::new(bytes, "intent of an import")?;
    let command = ImportProduct {
        product: mw_codec::products::read(&mut reader)?,
        stock: reader.list(|reader| Ok((reader.id(GeoZone::parse)?, reader.unsigned()?)))?,
        op: Uuid::from_bytes(reader.array()?),
        now: reader.time()?,
        once: reader.optional(|reader| {
            let keep_until = reader.time()?;
            read_key(reader, keep_until)
        })?,
    };
    reader.end()?;
    Ok(command)
}
