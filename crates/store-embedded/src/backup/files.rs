//! Files of a backup: written whole and synced, checked against their checksum while they are copied.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3Default;

use super::BackupError;

const CHUNK_BYTES: usize = 1 << 20;
/// A copy syncs after so many bytes: a sync of the journal would otherwise wait for all of it.
const SYNC_BYTES: usize = 8 << 20;

/// The length and checksum of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) bytes: u64,
    pub(super) checksum: u128,
}

#[cfg(test)]
impl Digest {
    pub(super) fn of(content: &[u8]) -> Self {
        Self { bytes: content.len() as u64, checksum: xxhash_rust::xxh3::xxh3_128(content) }
    }
}

/// Counts and hashes what is written through it.
pub(super) struct DigestWriter<W> {
    inner: W,
    hasher: Xxh3Default,
    bytes: u64,
}

impl<W: Write> DigestWriter<W> {
    pub(super) fn new(inner: W) -> Self {
        Self { inner, hasher: Xxh3Default::new(), bytes: 0 }
    }

    pub(super) fn finish(self) -> (W, Digest) {
        (self.inner, Digest { bytes: self.bytes, checksum: self.hasher.digest128() })
    }
}

impl<W: Write> Write for DigestWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(bytes.get(..written).unwrap_or_default());
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Writes a new file and syncs it; `fill` writes its content.
pub(super) fn create(
    path: &Path,
    fill: impl FnOnce(&mut DigestWriter<File>) -> io::Result<()>,
) -> Result<Digest, BackupError> {
    let write = || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut writer = DigestWriter::new(File::create(path)?);
        fill(&mut writer)?;
        let (written, digest) = writer.finish();
        written.sync_all()?;
        Ok(digest)
    };
    write().map_err(|source| BackupError::io("write", path, source))
}

pub(super) fn create_with(path: &Path, content: &[u8]) -> Result<Digest, BackupError> {
    create(path, |file| file.write_all(content))
}

/// Copies a file whole; the error of a copy that is not as expected names the source.
pub(super) fn copy(from: &Path, to: &Path, expected: Digest) -> Result<(), BackupError> {
    let mut source = File::open(from).map_err(|source| BackupError::io("open", from, source))?;
    let copied = create(to, |file| {
        let mut unsynced = 0;
        each_chunk(&mut source, |chunk| {
            file.write_all(chunk)?;
            unsynced += chunk.len();
            if unsynced >= SYNC_BYTES {
                unsynced = 0;
                file.inner.sync_data()?;
            }
            Ok(())
        })
    })?;
    check(from, copied, expected)
}

/// Reads a file whole and compares it.
pub(super) fn verify(path: &Path, expected: Digest) -> Result<(), BackupError> {
    let read = || {
        let mut writer = DigestWriter::new(io::sink());
        each_chunk(&mut File::open(path)?, |chunk| writer.write_all(chunk))?;
        Ok(writer.finish().1)
    };
    let found = read().map_err(|source| BackupError::io("read", path, source))?;
    check(path, found, expected)
}

fn check(path: &Path, found: Digest, expected: Digest) -> Result<(), BackupError> {
    if found == expected {
        return Ok(());
    }
    let detail = format!(
        "{} bytes with checksum {:032x}, expected {} bytes with {:032x}",
        found.bytes, found.checksum, expected.bytes, expected.checksum
    );
    Err(BackupError::damaged(path, detail))
}

fn each_chunk(from: &mut impl Read, mut visit: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        visit(chunk.get(..read).unwrap_or_default())?;
    }
}

/// Makes the names in a folder durable.
pub(super) fn sync_folder(path: &Path) -> Result<(), BackupError> {
    let sync = || File::open(path)?.sync_all();
    sync().map_err(|source| BackupError::io("sync", path, source))
}
