//! Rules of the service that a file from elsewhere may violate.

use mw_domain::limits::{InvalidField, LINES_MAX, TEXT_CHARS_MAX, check_quantity, check_text};
use mw_domain::orders::total;
use mw_domain::{Cart, EventKind, Movement, Order, OrderEvent, ProductId, Reservation, ZoneStock};
use mw_store::export::Record;

type Checked = Result<(), InvalidField>;

pub(super) fn record(record: &Record) -> Checked {
    match record {
        Record::Product(product) => product.check(),
        Record::Stock { stock, ledger } => figures(stock).and_then(|()| movements(ledger)),
        Record::Ledger { ledger, .. } => movements(ledger),
        Record::Cart(it) => cart(it),
        Record::Session(session) => session.check(),
        Record::Reservation(it) => reservation(it),
        Record::Order { order: it, events } => order(it, events),
        Record::CartChange { .. } | Record::StoredOutcome(_) => Ok(()),
    }
}

fn figures(stock: &ZoneStock) -> Checked {
    if stock.level.reserved > stock.level.on_hand {
        return Err(InvalidField::new("stock.level", "reserved is more than on_hand"));
    }
    Ok(())
}

fn movements(ledger: &[Movement]) -> Checked {
    let mut notes = ledger.iter().filter_map(|movement| movement.note.as_deref());
    notes.try_for_each(|note| check_text("ledger.note", note, TEXT_CHARS_MAX))
}

fn cart(cart: &Cart) -> Checked {
    let lines = cart.lines.iter().map(|line| (&line.product_id, line.quantity));
    check_lines(lines, 0)?;
    if !cart.lines.is_sorted_by(|a, b| a.product_id < b.product_id) {
        return Err(InvalidField::new("lines", "not by product id"));
    }
    Ok(())
}

fn reservation(reservation: &Reservation) -> Checked {
    let lines = reservation.lines.iter().map(|line| (&line.product_id, line.quantity));
    check_lines(lines, 1)
}

fn order(order: &Order, events: &[OrderEvent]) -> Checked {
    let lines = order.lines.iter().map(|line| (&line.product_id, line.quantity));
    check_lines(lines, 1)?;
    if total(&order.lines) != Some(order.total) {
        return Err(InvalidField::new("order.total", "not the sum of the lines"));
    }
    let texts = [
        ("order.delivery_address", &order.delivery_address),
        ("order.payment_method", &order.payment_method),
    ];
    for (field, text) in texts {
        check_text(field, text.as_deref().unwrap_or_default(), TEXT_CHARS_MAX)?;
    }
    let begins = events.first().is_some_and(|event| event.kind == EventKind::Created);
    let ends = events.last().is_some_and(|event| event.to == order.status);
    if begins && ends {
        Ok(())
    } else {
        let detail = "the events do not lead from created to the order's status";
        Err(InvalidField::new("events", detail))
    }
}

fn check_lines<'a>(lines: impl ExactSizeIterator<Item = (&'a ProductId, u32)>, min: usize) -> Checked {
    if !(min..=LINES_MAX).contains(&lines.len()) {
        let detail = format!("{min} to {LINES_MAX} lines");
        return Err(InvalidField::new("lines", detail));
    }
    let mut seen = std::collections::BTreeSet::new();
    for (at, (product_id, quantity)) in lines.enumerate() {
        check_quantity(&format!("lines[{at}].quantity"), u64::from(quantity))?;
        if !seen.insert(product_id) {
            return Err(InvalidField::new(format!("lines[{at}].product_id"), "duplicate"));
        }
    }
    Ok(())
}
