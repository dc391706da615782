//! Every frame reads back from its fixture. `MW_BLESS=1` writes fixtures that are missing; it never changes one.

use std::fmt::Write as _;
use std::path::Path;

use super::*;
use crate::stock::forwarding::connection::{LinkError, append, read_frame};
use crate::stock::ledger::END_OF_TIME;

/// The bodies that version 1 wrote.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/v1");

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000 + ms)
}

fn uuid(number: u128) -> Uuid {
    Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 | number)
}

fn command(id: u64, action: Action) -> ForwardedCommand {
    let stock_key =
        StockKey { product_id: ProductId::parse("phone").unwrap(), geo_zone: GeoZone::parse("msk").unwrap() };
    ForwardedCommand { id, stock_key, now: at(5), action }
}

fn commands() -> Vec<ForwardedCommand> {
    let (until, op_id, quantity) = (at(900_000), uuid(1), 3);
    let mut actions = vec![
        Action::Hold { until, op_id, quantity, started_after: Some(1_234_567) },
        Action::Hold { until: END_OF_TIME, op_id, quantity: u32::MAX, started_after: None },
        Action::RaiseEarliestHoldEnd,
    ];
    actions.extend(TRANSITIONS.map(|transition| Action::Advance { until, op_id, quantity, transition }));
    (300..).zip(actions).map(|(id, action)| command(id, action)).collect()
}

fn outcomes() -> Vec<Outcome> {
    let level = Level { on_hand: 1_000_000, reserved: 300 };
    let done = |state| Outcome::Done { state, level, updated_at: at(6) };
    let mut outcomes: Vec<Outcome> = LedgerState::ALL.into_iter().map(|state| done(Some(state))).collect();
    outcomes.extend([
        done(None),
        Outcome::Short { available: 2 },
        Outcome::ExpireHoldsFirst,
        Outcome::Failed(StoreError::Overloaded),
        Outcome::Failed(StoreError::Unavailable("no node".to_owned())),
        Outcome::Failed(StoreError::Ambiguous("no result".to_owned())),
        Outcome::Failed(StoreError::Corrupt("no level".to_owned())),
    ]);
    outcomes
}

fn frames() -> Vec<(&'static str, Frame)> {
    vec![
        ("frame_challenge", Frame::Challenge { process: uuid(2), nonce: [1; NONCE_BYTES] }),
        ("frame_hello", Frame::Hello { process: uuid(3), nonce: [2; NONCE_BYTES], proof: [3; PROOF_BYTES] }),
        ("frame_welcome", Frame::Welcome { proof: [4; PROOF_BYTES], stamp: 5_000_000 }),
        ("frame_commands", Frame::Commands { seen: 5_500_000, commands: commands() }),
        (
            "frame_decisions",
            Frame::Decisions { stamp: 6_000_000, decisions: (300..).zip(outcomes()).collect() },
        ),
        ("frame_alive", Frame::Decisions { stamp: 7, decisions: Vec::new() }),
    ]
}

/// Reads a fixture; it must equal the bytes that this release writes.
fn fixture(name: &str, written: &[u8]) -> Vec<u8> {
    let path = Path::new(FIXTURES).join(format!("{name}.hex"));
    let hex = written.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    });
    if !path.exists() && std::env::var_os("MW_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("{hex}\n")).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(stored.trim(), hex, "{name}: this release writes other bytes; give them a new version");
    let digits: Vec<char> = stored.trim().chars().collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap()).collect()
}

#[test]
fn every_frame_reads_back_from_its_fixture() {
    for (name, frame) in frames() {
        assert_eq!(Frame::decode(&fixture(name, &frame.encode())), Ok(frame), "{name}");
    }
}

#[test]
fn no_cut_or_longer_frame_reads_as_whole() {
    for (name, frame) in frames() {
        let mut body = frame.encode();
        for len in 0..body.len() {
            assert!(Frame::decode(&body[..len]).is_err(), "{name} cut to {len}");
        }
        body.push(0);
        assert!(Frame::decode(&body).is_err(), "{name}");
    }
}

#[test]
fn a_frame_of_another_version_or_kind_is_refused() {
    let body = Frame::Commands { seen: 1, commands: commands() }.encode();
    for (byte, value) in [(0, mw_codec::VERSION + 1), (1, 9)] {
        let mut other = body.clone();
        other[byte] = value;
        assert!(Frame::decode(&other).is_err());
    }
}

#[test]
fn a_full_frame_of_the_longest_items_is_within_the_bound() {
    let id = "x".repeat(mw_domain::limits::ID_BYTES_MAX);
    let longest = ForwardedCommand {
        id: u64::MAX,
        stock_key: StockKey {
            product_id: ProductId::parse(&id).unwrap(),
            geo_zone: GeoZone::parse(&id).unwrap(),
        },
        now: END_OF_TIME,
        action: Action::Hold {
            until: END_OF_TIME,
            op_id: uuid(1),
            quantity: u32::MAX,
            started_after: Some(u64::MAX),
        },
    };
    let commands = Frame::Commands { seen: u64::MAX, commands: vec![longest; ITEMS_MAX] };
    append(&commands, &mut Vec::new()).unwrap();
    let failed = Outcome::Failed(StoreError::Ambiguous("ж".repeat(10_000)));
    let decisions = Frame::Decisions { stamp: u64::MAX, decisions: vec![(u64::MAX, failed); ITEMS_MAX] };
    append(&decisions, &mut Vec::new()).unwrap();
    assert!(Frame::decode(&decisions.encode()).is_ok());
}

#[tokio::test]
async fn a_frame_longer_than_the_bound_is_refused_before_it_is_read() {
    let mut bytes: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0, 0];
    let read = read_frame(&mut bytes).await;
    assert!(matches!(read, Err(LinkError::FrameTooLong(_))), "{read:?}");
}

#[test]
fn a_decision_crosses_the_wire_unchanged() {
    let stock_key = command(1, Action::RaiseEarliestHoldEnd).stock_key;
    for outcome in outcomes() {
        assert_eq!(Outcome::of(outcome.clone().decision(&stock_key)), outcome);
    }
}
