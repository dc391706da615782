//! The setup before a run: a reachable server, and products with stock, imported through the API.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::client::{Client, Reply};
use crate::error::LoadError;
use crate::run::Event;
use crate::sampling::Names;
use crate::target::Target;
use crate::wire::text_field;
use crate::workload::Data;

/// Products of one import request.
const BATCH: u64 = 1_000;
/// Prices are spread over this many steps.
const PRICES: u64 = 9_000;
const DESCRIPTION: &str = "A product of the load generator: its attributes and the length of its description are those \
    of an ordinary product.";

/// Checks that the server responds.
pub(crate) fn probe(target: &Target, timeout: Duration) -> Result<(), LoadError> {
    let unreachable = |source| LoadError::Unreachable { url: target.url().to_owned(), source };
    let mut client = Client::connect(target, timeout).map_err(unreachable)?;
    client.get("/healthz").map(drop).map_err(unreachable)
}

/// Imports all products with their units in every zone.
pub(crate) fn import(
    target: &Target,
    names: &Names,
    data: &Data,
    currency: &str,
    timeout: Duration,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(&Event),
) -> Result<(), LoadError> {
    let failed = |why: String| LoadError::Setup { what: "products", why };
    let broken = |error: std::io::Error| failed(error.to_string());
    let mut client = Client::connect(target, timeout).map_err(broken)?;
    let stock: Vec<String> =
        (0..data.zones).map(|zone| format!("\"{}\":{}", names.id('z', zone), data.units)).collect();
    let stock = stock.join(",");
    let mut done = 0;
    while done < data.products {
        if stop.load(Ordering::Relaxed) {
            return Err(LoadError::Interrupted);
        }
        observe(&Event::Setup { what: "products", done, total: data.products });
        let until = (done + BATCH).min(data.products);
        let mut body = String::new();
        for number in done..until {
            line(&mut body, names, data, number, currency, &stock);
        }
        let reply =
            client.post("/v1/products/import", "application/x-ndjson", body.as_bytes()).map_err(broken)?;
        judge(target, &reply)?;
        done = until;
    }
    observe(&Event::Setup { what: "products", done, total: data.products });
    Ok(())
}

/// Checks that the products of an earlier run exist.
pub(crate) fn find(target: &Target, names: &Names, data: &Data, timeout: Duration) -> Result<(), LoadError> {
    let failed = |why: String| LoadError::Setup { what: "products", why };
    let mut client = Client::connect(target, timeout).map_err(|error| failed(error.to_string()))?;
    for number in [0, data.products.saturating_sub(1)] {
        let id = names.id('p', number);
        let reply = client.get(&format!("/v1/products/{id}")).map_err(|error| failed(error.to_string()))?;
        allowed(target, &reply)?;
        if reply.status != 200 {
            let why = format!(
                "find {id}: not found; pass the --products of the run that created it, or leave out --reuse"
            );
            return Err(failed(why));
        }
    }
    Ok(())
}

fn line(body: &mut String, names: &Names, data: &Data, number: u64, currency: &str, stock: &str) {
    let id = names.id('p', number);
    let category = names.id('c', number % data.categories.max(1));
    let price = 100 + number.wrapping_mul(7_919) % PRICES;
    // Writing to a string cannot fail.
    let _ = writeln!(
        body,
        r#"{{"product_id":"{id}","name":"Product {number}","category":"{category}","price":{{"amount":"{price}.90","currency":"{currency}"}},"description":"{DESCRIPTION}","attributes":{{"colour":"black","weight":"180 g"}},"stock":{{{stock}}}}}"#
    );
}

fn allowed(target: &Target, reply: &Reply) -> Result<(), LoadError> {
    let wanted = match reply.status {
        401 => "a token",
        403 => "a token with more rights",
        _ => return Ok(()),
    };
    Err(LoadError::Refused { url: target.url().to_owned(), wanted })
}

fn judge(target: &Target, reply: &Reply) -> Result<(), LoadError> {
    allowed(target, reply)?;
    let failed = |why: String| Err(LoadError::Setup { what: "products", why });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if reply.status != 200 {
        return failed(format!("the server returned {}: {}", reply.status, text(&reply.body)));
    }
    let bad = reply
        .body
        .split(|byte| *byte == b'\n')
        .find(|line| text_field(line, b"\"status\"") == Some(b"failed"));
    match bad {
        None => Ok(()),
        Some(line) if text_field(line, b"\"code\"") == Some(b"currency_mismatch") => {
            failed("the shop has another currency: name it with --currency".to_owned())
        }
        Some(line) => failed(format!("a product was refused: {}", text(line))),
    }
}
