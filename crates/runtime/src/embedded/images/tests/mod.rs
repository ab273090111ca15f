//! The store against a registry on loopback that can be told to misbehave.

mod archives;
mod builtins;
mod crashes;
mod debian;
pub(super) mod images;
mod pulls;
mod registry;
mod tls;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use images::TestImage;
use registry::TestRegistry;

fn quick() -> Timeouts {
    Timeouts {
        connect: Duration::from_secs(5),
        response: Duration::from_secs(5),
        idle: Duration::from_secs(5),
        progress: Duration::from_secs(60),
        attempts: 3,
        back_off: Duration::from_millis(1),
        max_back_off: Duration::from_millis(5),
    }
}

/// Nothing built in, nothing that waits.
fn options() -> Options {
    Options {
        timeouts: quick(),
        durable: false,
        builtin: false,
        ..Options::default()
    }
}

async fn open(root: &Path) -> ImageStore {
    ImageStore::open(root, options()).await.unwrap()
}

fn silent() -> Progress {
    Arc::new(|_| {})
}

fn spec(image: &str) -> ImageSpec {
    ImageSpec {
        image: image.to_string(),
        ..ImageSpec::default()
    }
}

fn holder(container: &str) -> HolderId {
    HolderId {
        owner: "node".to_string(),
        container: container.to_string(),
    }
}

/// Names of what is in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Nothing under way, and nothing that no image needs.
fn assert_clean(root: &Path) {
    assert_eq!(names(&root.join("work")), Vec::<String>::new());
    let holders = names(&root.join("holders"));
    assert!(holders.iter().all(|name| name.ends_with(".json")), "{holders:?}");
}
