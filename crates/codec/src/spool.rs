//! The spool of an export: records in an unlinked temporary file, whose space is freed with its last reader.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use async_trait::async_trait;
use mw_store::export::{Export, Record};
use mw_store::{Page, PageRequest, Position, Refusal, Result, StoreError};

/// Bytes that are buffered before they are written.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes of one read.
const READ_BYTES: usize = 1 << 18;

/// A spool that is being written.
#[derive(Debug)]
pub struct Spool {
    file: File,
    buffer: Vec<u8>,
    bytes: u64,
    records: u64,
}

impl Spool {
    pub fn new() -> Result<Self> {
        let file = tempfile::tempfile().map_err(|error| failed(&error))?;
        Ok(Self { file, buffer: Vec::new(), bytes: 0, records: 0 })
    }

    pub fn push(&mut self, record: &Record) -> Result<()> {
        let bytes = crate::export::encode(record);
        let len = u32::try_from(bytes.len())
            .map_err(|_| StoreError::Corrupt("spool an export: a record of 4 GiB or more".to_owned()))?;
        self.buffer.extend_from_slice(&len.to_be_bytes());
        self.buffer.extend_from_slice(&bytes);
        self.records += 1;
        if self.buffer.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_all_at(&self.buffer, self.bytes).map_err(|error| failed(&error))?;
        self.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Ends writing and returns the export.
    pub fn finish(mut self) -> Result<SpooledExport> {
        self.flush()?;
        Ok(SpooledExport { file: Arc::new(self.file), bytes: self.bytes, records: self.records })
    }
}

/// A complete spool, read in pages. A page's position is a byte offset.
#[derive(Debug)]
pub struct SpooledExport {
    file: Arc<File>,
    bytes: u64,
    records: u64,
}

#[async_trait]
impl Export for SpooledExport {
    fn estimate(&self) -> u64 {
        self.records
    }

    async fn page(&self, request: PageRequest) -> Result<Page<Record>> {
        let start = match &request.after {
            None => 0,
            Some(Position(bytes)) => {
                let at = bytes.as_slice().try_into().map(u64::from_be_bytes);
                at.ok().filter(|at| *at < self.bytes).ok_or(Refusal::InvalidCursor)?
            }
        };
        let (file, end) = (Arc::clone(&self.file), self.bytes);
        let (encoded, at) = blocking(move || read(&file, start, end, request.limit)).await?;
        let items = encoded.iter().map(|bytes| crate::export::decode(bytes)).collect::<Result<_, _>>()?;
        let next = (at < self.bytes).then(|| Position(at.to_be_bytes().to_vec()));
        Ok(Page { items, next })
    }
}

/// Up to `limit` encoded records from the offset `at` on, and the offset of the next one.
fn read(file: &File, mut at: u64, end: u64, limit: usize) -> io::Result<(Vec<Vec<u8>>, u64)> {
    let mut reader = BufReader::with_capacity(READ_BYTES, ReaderAt { file, at });
    let mut records = Vec::new();
    while at < end && records.len() < limit {
        let mut len = [0; 4];
        reader.read_exact(&mut len)?;
        let len = u32::from_be_bytes(len);
        let mut record = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        reader.read_exact(&mut record)?;
        records.push(record);
        at += 4 + u64::from(len);
    }
    Ok((records, at))
}

/// Reads a file from an offset on. Concurrent pages share the file, so its cursor is not used.
struct ReaderAt<'a> {
    file: &'a File,
    at: u64,
}

impl Read for ReaderAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| StoreError::Unavailable(error.to_string()))?.map_err(|error| failed(&error))
}

fn failed(error: &io::Error) -> StoreError {
    StoreError::Unavailable(format!("spool an export: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_domain::{Attributes, Category, Money, Product, ProductId, Timestamp};

    fn record(number: usize) -> Record {
        Record::Product(Product {
            product_id: ProductId::parse(&format!("p{number}")).unwrap(),
            name: "P".repeat(number % 300 + 1),
            category: Category::parse("c").unwrap(),
            price: Money::ZERO,
            description: "long".repeat(number * 40),
            attributes: Attributes::default(),
            created_at: Timestamp::EPOCH,
            updated_at: Timestamp::EPOCH,
        })
    }

    #[tokio::test]
    async fn records_are_read_back_in_pages_of_any_size() {
        let records: Vec<Record> = (0..300).map(record).collect();
        let mut spool = Spool::new().unwrap();
        for record in &records {
            spool.push(record).unwrap();
        }
        let spooled = spool.finish().unwrap();
        assert_eq!(spooled.estimate(), 300);
        for limit in [1, 7, 299, 300, 1_000] {
            let mut found = Vec::new();
            let mut request = PageRequest::first(limit);
            loop {
                let page = spooled.page(request.clone()).await.unwrap();
                assert!(page.items.len() <= limit);
                found.extend(page.items);
                if page.next.is_none() {
                    break;
                }
                request.after = page.next;
            }
            assert!(found == records, "pages of {limit}");
        }
    }

    #[tokio::test]
    async fn an_empty_export_has_one_empty_page_and_refuses_other_positions() {
        let spooled = Spool::new().unwrap().finish().unwrap();
        let page = spooled.page(PageRequest::first(5)).await.unwrap();
        assert_eq!((page.items.len(), page.next), (0, None));
        for bytes in [vec![], vec![0; 8], vec![0xff; 8], vec![0; 9]] {
            let request = PageRequest { limit: 5, after: Some(Position(bytes)) };
            let refused = spooled.page(request).await.unwrap_err();
            assert_eq!(refused.refusal(), Some(&Refusal::InvalidCursor));
        }
    }
}
