//! Blobs from a registry to the disk: resumed where they were cut off, verified as they come.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use super::super::digest::Hasher;
use super::super::manifest::Descriptor;
use super::http::shown;
use super::{RegistryError, Session};

/// What must come in each period, or the server is taken for one that hangs.
const MIN_PROGRESS: u64 = 16 << 10;
/// A connection that brought this much was worth it: attempts are counted anew.
const WORTHWHILE: u64 = 1 << 20;
/// How much is written at once.
const CHUNK: usize = 512 << 10;

/// A file that is written and hashed in one go.
pub(crate) struct BlobSink {
    file: File,
    hasher: Hasher,
    written: u64,
}

impl BlobSink {
    pub(crate) fn create(path: &Path, descriptor: &Descriptor) -> io::Result<BlobSink> {
        Ok(BlobSink {
            file: File::create_new(path)?,
            hasher: descriptor.digest.hasher(),
            written: 0,
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn restart(&mut self, descriptor: &Descriptor) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hasher = descriptor.digest.hasher();
        self.written = 0;
        Ok(())
    }
}

/// One blob on its way.
pub(crate) struct Download<'a> {
    pub session: &'a Session,
    pub descriptor: &'a Descriptor,
    /// Called with how much there is so far.
    pub progress: &'a (dyn Fn(u64) + Send + Sync),
}

impl Download<'_> {
    /// Fetches the whole blob, attempt after attempt.
    pub(crate) async fn run(&self, mut sink: BlobSink) -> Result<(), RegistryError> {
        let mut attempt = 1;
        loop {
            let before = sink.written;
            let error;
            (sink, error) = self.attempt(sink).await?;
            let Some(error) = error else {
                return self.verify(sink);
            };
            if sink.written.saturating_sub(before) >= WORTHWHILE {
                attempt = 1;
            }
            if !error.is_transient() || attempt >= self.session.http().timeouts.attempts {
                return Err(error);
            }
            self.session.back_off(attempt, &error).await;
            attempt += 1;
        }
    }

    fn verify(&self, sink: BlobSink) -> Result<(), RegistryError> {
        let (actual, expected) = (sink.hasher.finish(), &self.descriptor.digest);
        match actual == *expected {
            true => Ok(()),
            false => Err(RegistryError::Digest {
                actual,
                expected: expected.clone(),
            }),
        }
    }

    /// One connection. The sink comes back with what arrived, and with what ended it; what is not about the registry is
    /// an error at once.
    async fn attempt(&self, mut sink: BlobSink) -> Result<(BlobSink, Option<RegistryError>), RegistryError> {
        let response = match self.session.open_blob(&self.descriptor.digest, sink.written).await {
            Ok(response) => response,
            Err(e) => return Ok((sink, Some(e))),
        };
        if sink.written > 0 && response.status() != StatusCode::PARTIAL_CONTENT {
            sink.restart(self.descriptor).map_err(RegistryError::Store)?;
        }
        let mut body = response.into_body();
        let mut buffer = BytesMut::new();
        let mut error = None;
        let mut period = Period::begin(self.session.http().timeouts.progress);
        loop {
            match self.read(&mut body, &mut period).await {
                Ok(None) => break,
                Ok(Some(data)) => buffer.extend_from_slice(&data),
                Err(e) => {
                    error = Some(e);
                    break;
                }
            }
            if sink.written + buffer.len() as u64 > self.descriptor.size {
                return Err(RegistryError::Size {
                    digest: self.descriptor.digest.clone(),
                    size: self.descriptor.size,
                });
            }
            if buffer.len() >= CHUNK {
                sink = write(sink, buffer.split().freeze()).await?;
                (self.progress)(sink.written);
            }
        }
        sink = write(sink, buffer.freeze()).await?;
        (self.progress)(sink.written);
        if error.is_none() && sink.written < self.descriptor.size {
            error = Some(self.cut_off(sink.written));
        }
        // All of it came before the connection broke.
        if sink.written == self.descriptor.size {
            error = None;
        }
        Ok((sink, error))
    }

    async fn read(&self, body: &mut Incoming, period: &mut Period) -> Result<Option<Bytes>, RegistryError> {
        let idle = self.session.http().timeouts.idle;
        loop {
            let Ok(frame) = timeout(idle, body.frame()).await else {
                return Err(self.hanging(idle));
            };
            match frame {
                None => return Ok(None),
                Some(Err(_)) => return Err(self.cut_off(period.all)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        if !period.count(data.len() as u64) {
                            return Err(self.hanging(period.length));
                        }
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    fn url(&self) -> String {
        let uri = self.session.blob_uri(&self.descriptor.digest);
        uri.as_ref().map(shown).unwrap_or_default()
    }

    fn hanging(&self, after: std::time::Duration) -> RegistryError {
        RegistryError::Timeout {
            method: Method::GET,
            url: self.url(),
            seconds: after.as_secs_f32(),
        }
    }

    fn cut_off(&self, read: u64) -> RegistryError {
        RegistryError::CutOff {
            url: self.url(),
            read,
            size: self.descriptor.size,
        }
    }
}

/// Hashing and writing are no work for a thread that serves others.
async fn write(mut sink: BlobSink, bytes: Bytes) -> Result<BlobSink, RegistryError> {
    if bytes.is_empty() {
        return Ok(sink);
    }
    let written = tokio::task::spawn_blocking(move || sink.write(&bytes).map(|()| sink));
    match written.await {
        Ok(done) => done.map_err(RegistryError::Store),
        Err(panicked) => Err(RegistryError::Store(io::Error::other(panicked))),
    }
}

/// A stretch of time in which something must come.
struct Period {
    length: std::time::Duration,
    since: Instant,
    count: u64,
    all: u64,
}

impl Period {
    fn begin(length: std::time::Duration) -> Period {
        Period {
            length,
            since: Instant::now(),
            count: 0,
            all: 0,
        }
    }

    /// `false` if the last period brought too little.
    fn count(&mut self, bytes: u64) -> bool {
        self.count += bytes;
        self.all += bytes;
        if self.since.elapsed() < self.length {
            return true;
        }
        let enough = self.count >= MIN_PROGRESS;
        self.since = Instant::now();
        self.count = 0;
        enough
    }
}
