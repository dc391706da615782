//! Reservations as documents.

use mongodb::bson::{Bson, Document, doc};
use mw_domain::{Demand, GeoZone, ProductId, Reservation, ReservationId, ReservationStatus};
use mw_store::{Result, StoreError};

use crate::documents::fields;
use crate::documents::ids::{plain_uuid, read_id, read_plain_uuid, to_bson_id};
use crate::documents::times::{read_time, to_bson_time};

pub(crate) fn write(reservation: &Reservation) -> Document {
    let lines: Vec<Bson> = reservation
        .lines
        .iter()
        .map(|line| {
            doc! { "product_id": to_bson_id(line.product_id.as_str()), "quantity": i64::from(line.quantity) }
                .into()
        })
        .collect();
    doc! {
        "_id": plain_uuid(reservation.reservation_id.uuid()),
        "geozone": reservation.geo_zone.as_str(),
        "lines": lines,
        "status": reservation.status.as_str(),
        "created_at": to_bson_time(reservation.created_at),
        "expires_at": to_bson_time(reservation.expires_at),
        "purge_at": to_bson_time(reservation.forgotten_at()),
    }
}

pub(crate) fn read(document: &Document) -> Result<Reservation> {
    read_fields(document)
        .ok_or_else(|| StoreError::Corrupt(format!("read reservation {:?}", document.get("_id"))))
}

fn read_fields(document: &Document) -> Option<Reservation> {
    let line = |line: &Bson| {
        let line = line.as_document()?;
        let quantity = line.get("quantity").and_then(fields::whole)?;
        Some(Demand {
            product_id: read_id(line.get("product_id")?, ProductId::parse)?,
            quantity: u32::try_from(quantity).ok()?,
        })
    };
    let time = |field| document.get(field).and_then(read_time);
    Some(Reservation {
        reservation_id: ReservationId::new(read_plain_uuid(document.get("_id")?)?),
        geo_zone: GeoZone::parse(document.get_str("geozone").ok()?).ok()?,
        lines: document.get_array("lines").ok()?.iter().map(line).collect::<Option<_>>()?,
        status: ReservationStatus::parse(document.get_str("status").ok()?)?,
        created_at: time("created_at")?,
        expires_at: time("expires_at")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_domain::Timestamp;
    use uuid::Uuid;

    #[test]
    fn reservations_read_back() {
        for status in ReservationStatus::ALL {
            let reservation = Reservation {
                reservation_id: ReservationId::new(Uuid::from_u128(5)),
                geo_zone: GeoZone::parse("north").unwrap(),
                lines: vec![
                    Demand { product_id: ProductId::parse("p").unwrap(), quantity: 3 },
                    Demand { product_id: ProductId::parse("507f1f77bcf86cd799439011").unwrap(), quantity: 1 },
                ],
                status,
                created_at: Timestamp::from_millis(1),
                expires_at: Timestamp::from_millis(2),
            };
            assert_eq!(read(&write(&reservation)), Ok(reservation));
        }
        assert!(read(&doc! { "_id": 1 }).is_err());
    }
}
