//! Stored stock levels, ledger movements and reservations.

use mw_domain::stock::{Cause, Delta};
use mw_domain::{
    Demand, GeoZone, Level, Movement, ProductId, Reservation, ReservationId, ReservationStatus, Timestamp,
    ZoneStock,
};
use uuid::Uuid;

use crate::{Damaged, Reader, Writer};

pub fn encode_level(level: Level, updated_at: Timestamp) -> Vec<u8> {
    let mut writer = Writer::new(24);
    writer.unsigned(level.on_hand);
    writer.unsigned(level.reserved);
    writer.time(updated_at);
    writer.done()
}

pub fn decode_level(bytes: &[u8]) -> Result<(Level, Timestamp), Damaged> {
    let mut reader = Reader::new(bytes, "stock")?;
    let level = Level { on_hand: reader.unsigned()?, reserved: reader.unsigned()? };
    let updated_at = reader.time()?;
    reader.end()?;
    Ok((level, updated_at))
}

/// A stock level together with its product and zone.
pub fn write_zone(writer: &mut Writer, stock: &ZoneStock) {
    writer.text(stock.product_id.as_str());
    writer.text(stock.geo_zone.as_str());
    writer.unsigned(stock.level.on_hand);
    writer.unsigned(stock.level.reserved);
    writer.time(stock.updated_at);
}

pub fn read_zone(reader: &mut Reader<'_>) -> Result<ZoneStock, Damaged> {
    Ok(ZoneStock {
        product_id: reader.id(ProductId::parse)?,
        geo_zone: reader.id(GeoZone::parse)?,
        level: Level { on_hand: reader.unsigned()?, reserved: reader.unsigned()? },
        updated_at: reader.time()?,
    })
}

pub fn encode_movement(movement: &Movement) -> Vec<u8> {
    let mut writer = Writer::new(40);
    write_movement(&mut writer, movement);
    writer.done()
}

pub fn decode_movement(bytes: &[u8]) -> Result<Movement, Damaged> {
    let mut reader = Reader::new(bytes, "ledger movement")?;
    let movement = read_movement(&mut reader)?;
    reader.end()?;
    Ok(movement)
}

pub fn write_movement(writer: &mut Writer, movement: &Movement) {
    writer.time(movement.at);
    writer.bytes(movement.op.as_bytes());
    writer.byte(match movement.cause {
        Cause::Set => 0,
        Cause::Adjust => 1,
        Cause::Hold => 2,
        Cause::Take => 3,
        Cause::Release => 4,
        Cause::Return => 5,
    });
    writer.signed(movement.delta.on_hand);
    writer.signed(movement.delta.reserved);
    writer.optional_text(movement.note.as_deref());
}

pub fn read_movement(reader: &mut Reader<'_>) -> Result<Movement, Damaged> {
    Ok(Movement {
        at: reader.time()?,
        op: Uuid::from_bytes(reader.array()?),
        cause: match reader.byte()? {
            0 => Cause::Set,
            1 => Cause::Adjust,
            2 => Cause::Hold,
            3 => Cause::Take,
            4 => Cause::Release,
            5 => Cause::Return,
            _ => return Err(reader.damaged()),
        },
        delta: Delta { on_hand: reader.signed()?, reserved: reader.signed()? },
        note: reader.optional_text()?,
    })
}

/// `keep_until` is the expiry of a closed reservation's row; the row of an open one does not expire.
pub fn encode_reservation(reservation: &Reservation, keep_until: Timestamp) -> Vec<u8> {
    let mut writer = Writer::expiring(64 + reservation.lines.len() * 20, keep_until);
    write_reservation(&mut writer, reservation);
    writer.done()
}

pub fn decode_reservation(bytes: &[u8]) -> Result<(Reservation, Timestamp), Damaged> {
    let (mut reader, keep_until) = Reader::expiring(bytes, "reservation")?;
    let reservation = read_reservation(&mut reader)?;
    reader.end()?;
    Ok((reservation, keep_until))
}

pub fn write_reservation(writer: &mut Writer, reservation: &Reservation) {
    writer.bytes(reservation.reservation_id.as_bytes());
    writer.text(reservation.geo_zone.as_str());
    writer.byte(match reservation.status {
        ReservationStatus::Held => 0,
        ReservationStatus::Confirmed => 1,
        ReservationStatus::Released => 2,
        ReservationStatus::Expired => 3,
    });
    writer.time(reservation.created_at);
    writer.time(reservation.expires_at);
    writer.unsigned(reservation.lines.len() as u64);
    for line in &reservation.lines {
        writer.text(line.product_id.as_str());
        writer.unsigned(u64::from(line.quantity));
    }
}

pub fn read_reservation(reader: &mut Reader<'_>) -> Result<Reservation, Damaged> {
    Ok(Reservation {
        reservation_id: ReservationId::from_bytes(reader.array()?),
        geo_zone: reader.id(GeoZone::parse)?,
        status: match reader.byte()? {
            0 => ReservationStatus::Held,
            1 => ReservationStatus::Confirmed,
            2 => ReservationStatus::Released,
            3 => ReservationStatus::Expired,
            _ => return Err(reader.damaged()),
        },
        created_at: reader.time()?,
        expires_at: reader.time()?,
        lines: reader.list(|reader| {
            Ok(Demand { product_id: reader.id(ProductId::parse)?, quantity: reader.small()? })
        })?,
    })
}
