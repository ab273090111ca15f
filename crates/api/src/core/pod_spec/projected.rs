//! Projected volumes: several sources in one directory.

use std::collections::HashSet;

use super::Read;
use super::volume_sources::{downward_api_file, file_mode, key_to_path, local_path};
use crate::field::{Cursor, Problems};

const SOURCES: [&str; 4] = ["secret", "configMap", "downwardAPI", "serviceAccountToken"];

pub(super) fn validate(c: &Cursor<'_>, p: &mut Problems) {
    file_mode(c, "defaultMode", p);
    let mut paths = HashSet::new();
    for source in c.each("sources") {
        let mut given = SOURCES.iter().filter_map(|kind| Some((*kind, source.given(kind)?)));
        let mut count = 0;
        for (kind, s) in &mut given {
            count += 1;
            match kind {
                "serviceAccountToken" => token(c, &s, p),
                _ => files(c, kind, &s, &mut paths, p),
            }
        }
        if count > 1 {
            p.forbidden(&source, "may not specify more than 1 volume type per source");
        }
    }
}

fn files<'a>(c: &Cursor<'_>, kind: &str, source: &Cursor<'a>, paths: &mut HashSet<&'a str>, p: &mut Problems) {
    let downward = kind == "downwardAPI";
    if !downward && source.text("name").is_empty() {
        p.required(&source.at("name"), "");
    }
    for item in source.each("items") {
        if downward {
            downward_api_file(&Cursor::new(item.value(), source.path().clone()), p);
        } else {
            key_to_path(&item, p);
        }
        let path = item.text("path");
        if !path.is_empty() && !paths.insert(path) {
            let shown = if downward { path } else { source.text("name") };
            p.invalid_value(c.path(), &shown.into(), "conflicting duplicate paths");
        }
    }
}

fn token(c: &Cursor<'_>, source: &Cursor<'_>, p: &mut Problems) {
    let seconds = source.at("expirationSeconds");
    match seconds.as_i64().unwrap_or(0) {
        ..600 => p.invalid(&seconds, "may not specify a duration less than 10 minutes"),
        n if n > 1 << 32 => p.invalid(&seconds, "may not specify a duration larger than 2^32 seconds"),
        _ => {}
    }
    // Upstream reports the path at the volume.
    let path = c.path().field("path");
    if source.text("path").is_empty() {
        p.required(&Cursor::new(None, path), "");
    } else {
        local_path(&source.at("path"), &path, p);
    }
}
