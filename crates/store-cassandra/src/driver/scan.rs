//! Scans of whole tables: read page by page, given to the caller row by row.

use mw_store::Result;
use scylla::deserialize::row::DeserializeRow;
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;

use crate::driver::statements::{Access, Cql};
use crate::schema::tables::Table;

/// Rows of a page.
const PAGE: i32 = 500;

/// Prepares the scan of columns of a table.
pub(crate) async fn prepare(cql: &Cql, table: Table, columns: &str) -> Result<PreparedStatement> {
    let mut statement = cql.prepare(table, Access::Read, &format!("SELECT {columns} FROM {{}}")).await?;
    statement.set_page_size(PAGE);
    Ok(statement)
}

/// Rows that belong together.
pub(crate) struct Group<R> {
    pub(crate) rows: Vec<R>,
    /// A page ended among them or after them: some may have been read later, or deleted meanwhile.
    pub(crate) is_torn: bool,
}

/// A scan in token order: the rows of one partition come together, in clustering order.
pub(crate) struct Scan<'a, R> {
    cql: &'a Cql,
    statement: &'a PreparedStatement,
    page: std::iter::Peekable<std::vec::IntoIter<R>>,
    /// `None` after the last page.
    from: Option<PagingState>,
}

impl<'a, R> Scan<'a, R>
where
    R: for<'f, 'm> DeserializeRow<'f, 'm>,
{
    pub(crate) fn new(cql: &'a Cql, statement: &'a PreparedStatement) -> Self {
        Self { cql, statement, page: Vec::new().into_iter().peekable(), from: Some(PagingState::start()) }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<R>> {
        self.fetch().await?;
        Ok(self.page.next())
    }

    /// The next row and the rows after it that belong to it.
    pub(crate) async fn group(&mut self, belongs: impl Fn(&R, &R) -> bool) -> Result<Option<Group<R>>> {
        let Some(first) = self.next().await? else { return Ok(None) };
        let mut group = Group { rows: vec![first], is_torn: false };
        loop {
            group.is_torn |= self.fetch().await?;
            let first = group.rows.first();
            match self.page.next_if(|row| first.is_some_and(|first| belongs(first, row))) {
                Some(row) => group.rows.push(row),
                None => return Ok(Some(group)),
            }
        }
    }

    /// Fetches pages until there is a row, or the end; returns whether it fetched any.
    async fn fetch(&mut self) -> Result<bool> {
        let mut is_fetched = false;
        while self.page.peek().is_none()
            && let Some(from) = self.from.take()
        {
            let (rows, next) = self.cql.page(self.statement, (), from).await?;
            self.page = rows.into_iter().peekable();
            self.from = next;
            is_fetched = true;
        }
        Ok(is_fetched)
    }
}
