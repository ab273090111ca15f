//! Reads a log file from the right place on, and goes on with what is appended and with the file that takes its place.

use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;

use super::Query;
use super::filter::Filter;

const BLOCK: usize = 32 * 1024;
/// How often a file that is followed is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often it is asked whether the container still runs.
const ASK: Duration = Duration::from_secs(1);

/// The container a log is of.
#[async_trait]
pub trait Source: Send + Sync {
    /// Whether there may be more to come.
    async fn is_running(&self) -> bool;
}

/// Sends what the query asks for, until the end: of the file, of the container if it is followed, or of the limit. Ends
/// early if nobody listens.
pub async fn read(path: PathBuf, query: Query, source: &dyn Source, sink: mpsc::Sender<Bytes>) -> io::Result<()> {
    let mut file = open(&path, query.tail_lines).await?;
    let mut filter = Filter::new(&query);
    let mut asked = tokio::time::Instant::now();
    // Whether the container had ended before the last look at the file.
    let mut is_last_look = !query.follow;
    loop {
        if !forward(&mut file, &mut filter, &sink).await? || filter.is_full() {
            return Ok(());
        }
        if let Some(next) = successor(&file, &path).await? {
            // What was written between the last look and the rotation.
            if !forward(&mut file, &mut filter, &sink).await? {
                return Ok(());
            }
            filter.end_of_file();
            file = next;
            continue;
        }
        if is_last_look {
            return Ok(());
        }
        if asked.elapsed() >= ASK {
            is_last_look = !source.is_running().await;
            asked = tokio::time::Instant::now();
            if is_last_look {
                continue;
            }
        }
        tokio::select! {
            _ = tokio::time::sleep(LOOK) => {}
            _ = sink.closed() => return Ok(()),
        }
    }
}

/// Sends everything up to the end of the file. False if nobody listens or the limit is reached.
async fn forward(file: &mut File, filter: &mut Filter, sink: &mpsc::Sender<Bytes>) -> io::Result<bool> {
    let mut block = vec![0; BLOCK];
    let mut out = Vec::new();
    loop {
        let count = file.read(&mut block).await?;
        if count == 0 {
            return Ok(true);
        }
        filter.feed(&block[..count], &mut out);
        if !out.is_empty() && sink.send(Bytes::from(std::mem::take(&mut out))).await.is_err() {
            return Ok(false);
        }
        if filter.is_full() {
            return Ok(false);
        }
    }
}

/// The file that took the place of this one, if so. A file that was cut short is read again from its start.
async fn successor(file: &File, path: &Path) -> io::Result<Option<File>> {
    let ours = file.metadata().await?;
    let there = match tokio::fs::metadata(path).await {
        Ok(there) => there,
        // Between the rotation and the runtime's new file; or the container is gone.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if (there.dev(), there.ino()) != (ours.dev(), ours.ino()) {
        return match File::open(path).await {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
    }
    let mut position = file.try_clone().await?;
    if ours.len() < position.stream_position().await? {
        position.rewind().await?;
        return Ok(Some(position));
    }
    Ok(None)
}

async fn open(path: &Path, tail_lines: Option<u64>) -> io::Result<File> {
    let path = path.to_path_buf();
    let opened = crate::blocking::run(move || {
        let mut file = std::fs::File::open(&path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other(format!("{} is not a regular file", path.display())));
        }
        if let Some(lines) = tail_lines {
            let start = tail_start(&mut file, lines)?;
            file.seek(SeekFrom::Start(start))?;
        }
        Ok(file)
    });
    Ok(File::from_std(opened.await.map_err(io::Error::other)??))
}

/// Where the last `lines` lines begin. What comes after the last newline is no line.
pub fn tail_start(file: &mut (impl Read + Seek), lines: u64) -> io::Result<u64> {
    let end = file.seek(SeekFrom::End(0))?;
    if lines == 0 {
        return Ok(end);
    }
    let mut block = vec![0; 4096];
    let mut left = end;
    // The newline that ends the line before the ones wanted.
    let mut wanted = lines.saturating_add(1);
    while left > 0 {
        let from = left.saturating_sub(block.len() as u64);
        let part = &mut block[..(left - from) as usize];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(part)?;
        for (i, byte) in part.iter().enumerate().rev() {
            if *byte == b'\n' {
                wanted -= 1;
                if wanted == 0 {
                    return Ok(from + i as u64 + 1);
                }
            }
        }
        left = from;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};
    use std::sync::atomic::{AtomicBool, Ordering};

    use proptest::prelude::*;

    use super::*;

    struct Switch(AtomicBool);

    #[async_trait]
    impl Source for Switch {
        async fn is_running(&self) -> bool {
            self.0.load(Ordering::SeqCst)
        }
    }

    proptest! {
        #[test]
        fn the_last_lines(text in "[a\\n]{0,300}", filler in 0usize..5000, lines in 0u64..8) {
            let text = format!("{}{text}", "b".repeat(filler));
            let start = tail_start(&mut Cursor::new(text.as_bytes()), lines).unwrap() as usize;
            let ends: Vec<usize> = text.match_indices('\n').map(|(i, _)| i + 1).collect();
            let expected = match lines {
                0 => text.len(),
                lines if ends.len() as u64 <= lines => 0,
                lines => ends[ends.len() - 1 - lines as usize],
            };
            prop_assert_eq!(start, expected);
        }
    }

    fn line(text: &str) -> String {
        format!("2026-01-01T00:00:00Z stdout F {text}\n")
    }

    async fn expect(receiver: &mut mpsc::Receiver<Bytes>, wanted: &str) {
        let mut got = String::new();
        while got.len() < wanted.len() {
            got.push_str(&String::from_utf8_lossy(&receiver.recv().await.expect("more to come")));
        }
        assert_eq!(got, wanted);
    }

    #[tokio::test]
    async fn follows_over_rotation_and_ends_with_the_container() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(&path, line("a") + &line("b")).unwrap();
        let (sender, mut receiver) = mpsc::channel(4);
        let switch = std::sync::Arc::new(Switch(AtomicBool::new(true)));
        let query = Query {
            follow: true,
            tail_lines: Some(1),
            ..Query::default()
        };
        let task = tokio::spawn({
            let (path, switch) = (path.clone(), switch.clone());
            async move { read(path, query, &*switch, sender).await }
        });
        expect(&mut receiver, "b\n").await;
        let append = |text: &str| {
            let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        append(&line("c"));
        expect(&mut receiver, "c\n").await;
        append(&line("d"));
        std::fs::rename(&path, dir.path().join("0.log.1")).unwrap();
        std::fs::write(&path, line("e")).unwrap();
        expect(&mut receiver, "d\ne\n").await;
        append(&line("last"));
        switch.0.store(false, Ordering::SeqCst);
        expect(&mut receiver, "last\n").await;
        assert!(receiver.recv().await.is_none());
        task.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn ends_at_the_end_when_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let (sender, mut receiver) = mpsc::channel(4);
        let switch = Switch(AtomicBool::new(true));
        assert!(
            read(path.clone(), Query::default(), &switch, sender.clone())
                .await
                .is_err()
        );
        assert!(
            read(dir.path().into(), Query::default(), &switch, sender.clone())
                .await
                .is_err()
        );
        std::fs::write(&path, line("a")).unwrap();
        read(path, Query::default(), &switch, sender).await.unwrap();
        expect(&mut receiver, "a\n").await;
        assert!(receiver.recv().await.is_none());
    }

    #[tokio::test]
    async fn nobody_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(&path, line("a")).unwrap();
        let (sender, receiver) = mpsc::channel(1);
        drop(receiver);
        let query = Query {
            follow: true,
            ..Query::default()
        };
        read(path, query, &Switch(AtomicBool::new(true)), sender).await.unwrap();
    }
}
