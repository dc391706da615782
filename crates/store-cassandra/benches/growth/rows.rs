//! Rows of incompressible bytes in the table of closed carts, each a partition of its own, and their trace for the simulated ring.

use std::fmt::Write as _;

use futures_util::{StreamExt, stream};
use mw_store_cassandra::{Options, Table};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use scylla::client::session::Session;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;

/// Rows that the cluster is filled with.
const ROWS: u32 = 5_000;
const ROW_BYTES: usize = 4_096;
/// Statements at the same time.
const CONCURRENT: usize = 16;
/// A busy machine lets a write time out now and then.
const ATTEMPTS_MAX: u32 = 10;
/// One of so many operations of the prober is a write; the others are reads.
const WRITE_OF: u32 = 4;
/// 2026-09-21.
const NOW: CqlTimestamp = CqlTimestamp(1_790_000_000_000);

pub(crate) struct Rows {
    session: Session,
    keyspace: String,
    insert: PreparedStatement,
    select: PreparedStatement,
}

type Row = (&'static str, String, i32, CqlTimestamp, Vec<u8>, Vec<u8>);

impl Rows {
    pub(crate) async fn prepare(session: Session, options: &Options) -> Self {
        let keyspace = Table::ClosedCarts.class().keyspace(&options.keyspace);
        let insert = format!(
            "INSERT INTO {keyspace}.{} (owner_kind, owner_id, bucket, created_at, cart_id, cart) \
             VALUES (?, ?, ?, ?, ?, ?)",
            Table::ClosedCarts
        );
        let select = format!(
            "SELECT cart FROM {keyspace}.{} WHERE owner_kind = ? AND owner_id = ? AND bucket = ?",
            Table::ClosedCarts
        );
        let mut insert = session.prepare(insert).await.unwrap();
        let mut select = session.prepare(select).await.unwrap();
        for statement in [&mut insert, &mut select] {
            statement.set_consistency(Consistency::LocalQuorum);
            statement.set_is_idempotent(true);
        }
        Self { session, keyspace, insert, select }
    }

    pub(crate) fn keyspace(&self) -> &str {
        &self.keyspace
    }

    /// Fills the cluster; returns what a traced process would have written about it, as if a second had a thousand requests.
    pub(crate) async fn fill(&self) -> String {
        let writes = stream::iter(0..ROWS).map(|number| async move {
            let mut attempts = 0;
            while !self.insert(row("filled", number)).await {
                attempts += 1;
                assert!(attempts < ATTEMPTS_MAX, "row {number} cannot be written");
            }
        });
        writes.buffer_unordered(CONCURRENT).collect::<Vec<()>>().await;
        let mut text = String::new();
        for number in 0..ROWS {
            let token = self.insert.calculate_token(&row("filled", number)).unwrap().unwrap().value();
            let statement = format!(r#""op":"write","rows":1,"bytes":{ROW_BYTES}"#);
            writeln!(text, r#"{{"t":{number},"op":"request","request":"POST /x"}}"#).unwrap();
            writeln!(text, r#"{{"t":{number},"table":"closed_carts","token":{token},{statement}}}"#).unwrap();
        }
        text
    }

    async fn insert(&self, row: Row) -> bool {
        self.session.execute_unpaged(&self.insert, row).await.is_ok()
    }

    /// Reads a row at random, or writes another one; whether it succeeded.
    pub(crate) async fn probe(&self, number: u32) -> bool {
        if number.is_multiple_of(WRITE_OF) {
            return self.insert(row("probed", number)).await;
        }
        let (kind, owner, bucket, ..) = row("filled", rand::rng().random_range(0..ROWS));
        let read = self.session.execute_unpaged(&self.select, (kind, owner, bucket)).await;
        read.is_ok_and(|read| read.into_rows_result().is_ok_and(|rows| rows.rows_num() == 1))
    }
}

/// The same row for the same number.
fn row(set: &str, number: u32) -> Row {
    let mut cart = vec![0; ROW_BYTES];
    SmallRng::seed_from_u64(u64::from(number)).fill_bytes(&mut cart);
    ("u", format!("{set}-{number}"), 0, NOW, number.to_be_bytes().to_vec(), cart)
}
