//! A minimal server with the calls of a flash sale, and a chosen flaw.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use uuid::Uuid;

/// The flaw of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// Acknowledges orders beyond the stock.
    Oversells,
    /// Loses every tenth order after it has acknowledged it.
    LosesOrders,
    /// Holds units for every order twice.
    HoldsTwice,
    /// Executes the request, and responds with an unknown outcome the first time.
    IsNotSure,
    /// Executes the request, and closes every tenth connection without a response.
    HangsUp,
    /// Stalls for a while, a second after its start.
    Stalls(Duration),
    /// Closes every connection after one response.
    ClosesEach,
    /// Never responds to an order.
    IsSilent,
}

#[derive(Default)]
struct Books {
    units: u64,
    held: u64,
    zone: String,
    orders: HashMap<String, String>,
    by_key: HashMap<String, String>,
    unsure: HashSet<String>,
    asked: u64,
}

pub(crate) struct Stub {
    pub(crate) url: String,
    books: Arc<Mutex<Books>>,
}

impl Stub {
    /// Its threads end with the test's process.
    pub(crate) fn open(flaw: Flaw) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let books = Arc::new(Mutex::new(Books::default()));
        let (shared, opened) = (Arc::clone(&books), Instant::now());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let books = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, &books, flaw, opened));
            }
        });
        Self { url, books }
    }

    /// Orders that were placed, by key.
    pub(crate) fn placed(&self) -> u64 {
        self.books.lock().unwrap().by_key.len() as u64
    }
}

struct Call {
    method: String,
    path: String,
    key: String,
    body: String,
}

fn serve(stream: TcpStream, books: &Mutex<Books>, flaw: Flaw, opened: Instant) {
    stream.set_nodelay(true).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(call) = read(&mut reader) {
        if let Flaw::Stalls(pause) = flaw {
            let up = opened.elapsed();
            let second = Duration::from_secs(1);
            if up > second && up < second + pause {
                std::thread::sleep((second + pause).saturating_sub(up));
            }
        }
        let Some((status, body)) = response(&mut books.lock().unwrap(), &call, flaw) else { return };
        let length = body.len();
        let last = if flaw == Flaw::ClosesEach { "connection: close\r\n" } else { "" };
        let text = format!("HTTP/1.1 {status} X\r\n{last}content-length: {length}\r\n\r\n{body}");
        if writer.write_all(text.as_bytes()).is_err() || flaw == Flaw::ClosesEach {
            return;
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<Call> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut call = Call { method, path, key: String::new(), body: String::new() };
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            None => break,
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(("idempotency-key", value)) => value.clone_into(&mut call.key),
            Some(_) => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    call.body = String::from_utf8(body).unwrap();
    Some(call)
}

/// `None` closes the connection.
fn response(books: &mut Books, call: &Call, flaw: Flaw) -> Option<(u16, String)> {
    let found = |body: Option<String>| body.map_or((404, "{}".to_owned()), |body| (200, body));
    Some(match (call.method.as_str(), call.path.as_str()) {
        ("GET", "/healthz") => (200, "{}".to_owned()),
        ("POST", "/v1/products/import") => {
            let stock = call.body.split("\"stock\":{\"").nth(1).unwrap();
            let (zone, units) = stock.split_once("\":").unwrap();
            zone.clone_into(&mut books.zone);
            books.units = units.trim_end_matches(['}', '\n']).parse().unwrap();
            (200, "{\"status\":\"created\"}\n".to_owned())
        }
        ("POST", "/v1/orders") => return order(books, call, flaw),
        ("GET", path) if path.ends_with("/stock") => {
            let Books { units, held, zone, .. } = books;
            let held = (*held).min(*units);
            (200, format!(r#"{{"zones":[{{"geo_zone":"{zone}","on_hand":{units},"reserved":{held}}}]}}"#))
        }
        ("GET", path) => found(books.orders.get(path.trim_start_matches("/v1/orders/")).cloned()),
        _ => (404, "{}".to_owned()),
    })
}

fn order(books: &mut Books, call: &Call, flaw: Flaw) -> Option<(u16, String)> {
    books.asked += 1;
    if flaw == Flaw::IsSilent {
        std::thread::park();
    }
    if let Some(id) = books.by_key.get(&call.key) {
        let again = books.orders[id].clone();
        return Some((201, again));
    }
    if books.held >= books.units && flaw != Flaw::Oversells {
        return Some((409, r#"{"code":"out_of_stock"}"#.to_owned()));
    }
    books.held += if flaw == Flaw::HoldsTwice { 2 } else { 1 };
    let id = Uuid::new_v4().to_string();
    let rest = call.body.strip_prefix('{').unwrap();
    let text = format!(r#"{{"order_id":"{id}","status":"created",{rest}"#);
    books.by_key.insert(call.key.clone(), id.clone());
    books.orders.insert(id.clone(), text.clone());
    if flaw == Flaw::LosesOrders && books.asked.is_multiple_of(10) {
        books.orders.remove(&id);
    }
    if flaw == Flaw::IsNotSure && books.unsure.insert(call.key.clone()) {
        return Some((504, r#"{"code":"outcome_unknown"}"#.to_owned()));
    }
    (flaw != Flaw::HangsUp || !books.asked.is_multiple_of(10)).then_some((201, text))
}
