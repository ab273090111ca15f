//! The log file: one line an event, rotated by size; rotated files are deleted by number and age.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use orlop_base::Clock;
use parking_lot::Mutex;

use super::LogOptions;

const MEGABYTE: u64 = 1024 * 1024;
/// Upstream: lumberjack's names of rotated files.
const TIME_FORMAT: &str = "%Y-%m-%dT%H-%M-%S%.3f";

pub(super) struct LogFile {
    /// None: standard output.
    open: Option<Mutex<Open>>,
    rotation: Arc<Rotation>,
    clock: Clock,
}

struct Open {
    file: File,
    size: u64,
}

struct Rotation {
    path: PathBuf,
    max_bytes: u64,
    max_backups: usize,
    max_age_days: u32,
    compress: bool,
    /// Held while old files are dealt with.
    cleaning: Mutex<()>,
}

impl LogFile {
    pub(super) fn open(options: &LogOptions, clock: Clock) -> io::Result<LogFile> {
        let open = match options.path.to_str() {
            Some("-") => None,
            _ => Some(Mutex::new(Open::append(&options.path)?)),
        };
        let rotation = Arc::new(Rotation {
            path: options.path.clone(),
            max_bytes: options.max_size_mb.saturating_mul(MEGABYTE),
            max_backups: options.max_backups,
            max_age_days: options.max_age_days,
            compress: options.compress,
            cleaning: Mutex::new(()),
        });
        Ok(LogFile { open, rotation, clock })
    }

    /// Writes a line in one piece, so that lines never mix.
    pub(super) fn write(&self, line: &[u8]) -> io::Result<()> {
        let Some(open) = &self.open else {
            return io::stdout().lock().write_all(line);
        };
        let mut open = open.lock();
        let length = line.len() as u64;
        let max = self.rotation.max_bytes;
        if max > 0 && open.size > 0 && open.size.saturating_add(length) > max {
            let now = self.clock.now();
            std::fs::rename(&self.rotation.path, self.rotation.backup(now))?;
            *open = Open::append(&self.rotation.path)?;
            let rotation = self.rotation.clone();
            // Compressing takes a while, and requests wait for their lines.
            std::thread::Builder::new()
                .name("orlop-audit".into())
                .spawn(move || rotation.clean(now))?;
        }
        open.file.write_all(line)?;
        open.size = open.size.saturating_add(length);
        Ok(())
    }
}

impl Open {
    fn append(path: &Path) -> io::Result<Open> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let size = file.metadata()?.len();
        Ok(Open { file, size })
    }
}

impl Rotation {
    /// What names of rotated files begin and end with.
    fn affixes(&self) -> (String, String) {
        let part = |part: Option<&std::ffi::OsStr>| part.map_or(String::new(), |p| p.to_string_lossy().into_owned());
        let extension = match part(self.path.extension()) {
            extension if extension.is_empty() => extension,
            extension => format!(".{extension}"),
        };
        (format!("{}-", part(self.path.file_stem())), extension)
    }

    fn backup(&self, now: Timestamp) -> PathBuf {
        let (prefix, suffix) = self.affixes();
        self.path
            .with_file_name(format!("{prefix}{}{suffix}", now.strftime(TIME_FORMAT)))
    }

    /// Rotated files with the times in their names, newest first.
    fn backups(&self) -> Vec<(String, PathBuf)> {
        let (prefix, suffix) = self.affixes();
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty());
        let entries = std::fs::read_dir(folder.unwrap_or(Path::new(".")));
        let mut found: Vec<(String, PathBuf)> = entries
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry.file_name().into_string().ok()?;
                let time = name.strip_suffix(".gz").unwrap_or(&name);
                let time = time.strip_prefix(&prefix)?.strip_suffix(&suffix)?;
                time.starts_with(|c: char| c.is_ascii_digit())
                    .then(|| (time.to_string(), entry.path()))
            })
            .collect();
        found.sort();
        found.reverse();
        found
    }

    fn clean(&self, now: Timestamp) {
        let _cleaning = self.cleaning.lock();
        let age = SignedDuration::from_hours(i64::from(self.max_age_days).saturating_mul(24));
        let oldest = now.saturating_sub(age).map(|t| t.strftime(TIME_FORMAT).to_string());
        let oldest = oldest.unwrap_or_default();
        for (position, (time, path)) in self.backups().into_iter().enumerate() {
            let is_one_too_many = self.max_backups > 0 && position >= self.max_backups;
            let is_too_old = self.max_age_days > 0 && time < oldest;
            let done = if is_one_too_many || is_too_old {
                std::fs::remove_file(&path)
            } else if self.compress && path.extension().is_none_or(|extension| extension != "gz") {
                compress(&path)
            } else {
                Ok(())
            };
            if let Err(e) = done {
                tracing::warn!(path = %path.display(), err = %e, "failed to clean up rotated audit log");
            }
        }
    }
}

fn compress(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut name = path.as_os_str().to_os_string();
    name.push(".gz");
    let to = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&name)?;
    let mut encoder = flate2::write::GzEncoder::new(to, flate2::Compression::default());
    io::copy(&mut File::open(path)?, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    std::fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn files_are_rotated_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let clock = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
        let options = LogOptions {
            max_size_mb: 1,
            max_backups: 2,
            max_age_days: 3,
            ..LogOptions::plain(path.clone())
        };
        let log = LogFile::open(&options, clock.clone()).unwrap();
        let line = vec![b'x'; 600 * 1024];
        for _ in 0..5 {
            log.write(&line).unwrap();
            clock.advance(Duration::from_secs(3600));
        }
        assert_eq!(path.metadata().unwrap().len(), line.len() as u64);
        // Whatever the threads have done so far, this does all of it.
        log.rotation.clean(clock.now());
        let names = || {
            let list = log.rotation.backups();
            list.into_iter().map(|(time, _)| time).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["2026-01-01T04-00-00.000", "2026-01-01T03-00-00.000"]);
        clock.advance(Duration::from_secs(71 * 3600));
        log.rotation.clean(clock.now());
        assert_eq!(names(), ["2026-01-01T04-00-00.000"]);
    }

    #[test]
    fn rotated_files_are_compressed() {
        use std::io::Read;
        let dir = tempfile::tempdir().unwrap();
        let rotated = dir.path().join("audit-2026-01-01T04-00-00.000.log");
        std::fs::write(&rotated, "line\n").unwrap();
        let options = LogOptions {
            compress: true,
            ..LogOptions::plain(dir.path().join("audit.log"))
        };
        let log = LogFile::open(&options, Clock::System).unwrap();
        log.rotation.clean(Timestamp::UNIX_EPOCH);
        let [(_, path)] = &log.rotation.backups()[..] else {
            panic!("one file");
        };
        let mut text = String::new();
        flate2::read::GzDecoder::new(File::open(path).unwrap())
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!((text.as_str(), rotated.exists()), ("line\n", false));
    }
}
