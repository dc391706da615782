//! The maximum rate of the generator: `GET /healthz` against a thread that sends a constant response.
//!
//! `cargo run --release -p mw-loadgen --example ceiling` prints, for one thread of the generator and several depths of
//! pipelining, the rate that was reached and the CPU time of a request: its inverse is what one core could send
//! if it had the core to itself. The responding thread needs about as much, on another core.

#![expect(clippy::print_stdout, reason = "an example that prints its result")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use mw_loadgen::{LoadError, Options, Target, Workload, run};

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{\"status\":\"ok\"}";
const LISTENER: Token = Token(usize::MAX);
const DEPTHS: [usize; 4] = [1, 2, 8, 32];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let listener = TcpListener::bind(any)?;
    let url = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || answer_all(listener));
    println!("depth    rate/s    busy    µs a request    a core could send");
    for depth in DEPTHS {
        let (rate, busy, cost) = measure(&url, depth)?;
        println!("{depth:>5} {rate:>9.0} {:>6.0}% {cost:>15.2} {:>18.0}/s", busy * 100.0, 1e6 / cost);
    }
    Ok(())
}

fn measure(url: &str, depth: usize) -> Result<(f64, f64, f64), LoadError> {
    let options = Options {
        duration: Duration::from_secs(4),
        warm_up: Duration::from_secs(1),
        connections: 64,
        depth,
        ..Options::default()
    };
    let workload = Workload::find("healthz")?;
    let report = run(&Target::new(url, None)?, &workload, &options, &AtomicBool::new(false), &mut |_| {})?;
    Ok((report.total.rate, report.generator.busy, report.generator.cpu_us_per_request))
}

fn answer_all(mut listener: TcpListener) -> io::Result<()> {
    let mut poll = Poll::new()?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(1_024);
    let mut streams: Vec<Option<TcpStream>> = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    poll.registry().register(&mut stream, Token(streams.len()), Interest::READABLE)?;
                    streams.push(Some(stream));
                }
            } else if let Some(slot) = streams.get_mut(event.token().0)
                && let Some(stream) = slot
                && answer(stream, &mut buffer).is_err()
            {
                *slot = None;
            }
        }
    }
}

/// One response for the end of each request; a request split over two reads would be missed, and none is here.
fn answer(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    loop {
        let read = match stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let requests = memchr::memmem::find_iter(buffer.get(..read).unwrap_or_default(), b"\r\n\r\n").count();
        stream.write_all(&ANSWER.repeat(requests))?;
        if read < buffer.len() {
            return Ok(());
        }
    }
}
