//! Which images this kubelet pulled and with which credentials, so that a pod can't use what was pulled with another's
//! secret: it must prove that it may pull the image itself.
//!
//! Kept in files (`<root>/image_manager/pulled/sha256-…`), with the names and fields of Kubernetes' kubelet, so that they
//! survive a restart. An intent file (`pulling/`) exists during a pull: an image with only an intent left came from a pull that
//! was interrupted, and does not count as preloaded.
//!
//! Upstream: pkg/kubelet/images/pullmanager (v1.36).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use jiff::Timestamp;
use orlop_base::clock::rfc3339;
use orlop_runtime::image_name::ImageName;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::keyring::{AccountSource, Credentials, SecretSource, Source, hex};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Upstream: no more secrets than these are added to a record when an image is merely used.
const MOST_SECRETS: usize = 100;

/// Which images on the node a pod may use without asking the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    NeverVerify,
    #[default]
    NeverVerifyPreloadedImages,
    /// These, whole repositories or prefixes ending in `/*`.
    NeverVerifyAllowlistedImages(Vec<String>),
    AlwaysVerify,
}

impl Verification {
    fn required(&self, repository: &str, pulled_by_agent: bool) -> bool {
        match self {
            Verification::NeverVerify => false,
            Verification::NeverVerifyPreloadedImages => pulled_by_agent,
            Verification::AlwaysVerify => true,
            Verification::NeverVerifyAllowlistedImages(list) => {
                !list.iter().any(|pattern| match pattern.strip_suffix('*') {
                    Some(prefix) => prefix.ends_with('/') && repository.starts_with(prefix),
                    None => repository == pattern,
                })
            }
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Allowed {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<SecretSource>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<AccountSource>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    kind: String,
    api_version: String,
    last_updated_time: String,
    image_ref: String,
    /// By repository.
    #[serde(default)]
    credential_mapping: BTreeMap<String, Allowed>,
}

impl Record {
    fn new(image_ref: &str, now: Timestamp) -> Record {
        Record {
            kind: "ImagePulledRecord".to_string(),
            api_version: API_VERSION.to_string(),
            last_updated_time: rfc3339(now),
            image_ref: image_ref.to_string(),
            credential_mapping: BTreeMap::new(),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Intent {
    kind: String,
    api_version: String,
    image: String,
}

impl Intent {
    fn new(image: &str) -> Intent {
        Intent {
            kind: "ImagePullIntent".to_string(),
            api_version: API_VERSION.to_string(),
            image: image.to_string(),
        }
    }
}

#[derive(Default)]
struct Known {
    records: BTreeMap<String, Record>,
    intents: BTreeMap<String, Pulls>,
}

/// The pulls of one image.
#[derive(Default)]
struct Pulls {
    /// 0 for what an earlier agent left.
    under_way: usize,
    /// What the name stood for on the node before the first of them: that came from none of them. Differs from upstream,
    /// where a preloaded image must be pulled (and may not be had at all) while any other pod pulls it.
    before: Option<String>,
}

pub(super) struct Records {
    /// `None`: remembered only as long as the kubelet runs.
    folder: Option<PathBuf>,
    verification: Verification,
    known: Mutex<Known>,
}

impl Records {
    /// With what an earlier agent left in `directory`. Files that can't be read are left out and named in the log.
    pub(super) fn open(folder: Option<PathBuf>, verification: Verification) -> Records {
        let mut known = Known::default();
        if let Some(folder) = &folder {
            for record in read_all::<Record>(&folder.join("pulled")) {
                known.records.insert(record.image_ref.clone(), record);
            }
            for intent in read_all::<Intent>(&folder.join("pulling")) {
                known.intents.insert(intent.image, Pulls::default());
            }
        }
        Records {
            folder,
            verification,
            known: Mutex::new(known),
        }
    }

    /// Before a pull of what is here as `present`. While it can't be written, nothing is pulled.
    pub(super) fn begin(&self, image: &str, present: Option<String>, now: Timestamp) -> io::Result<()> {
        let known = &mut *self.known.lock();
        match (known.intents.get(image), &present) {
            (None, _) => self.write("pulling", image, &Intent::new(image))?,
            // It may have come from the pull whose end nobody saw: nobody's, until somebody shows that it is theirs.
            (Some(Pulls { under_way: 0, .. }), Some(image_ref)) => {
                let record = known.records.entry(image_ref.clone());
                self.write(
                    "pulled",
                    image_ref,
                    record.or_insert_with(|| Record::new(image_ref, now)),
                )?;
            }
            _ => {}
        }
        let first = || Pulls {
            under_way: 0,
            before: present,
        };
        known.intents.entry(image.to_string()).or_insert_with(first).under_way += 1;
        Ok(())
    }

    pub(super) fn failed(&self, image: &str) {
        let mut known = self.known.lock();
        let Some(pulls) = known.intents.get_mut(image) else {
            return;
        };
        pulls.under_way = pulls.under_way.saturating_sub(1);
        if pulls.under_way == 0 {
            known.intents.remove(image);
            self.remove("pulling", image);
        }
    }

    /// After a pull, with the credentials that worked; `None`: none were needed.
    pub(super) fn pulled(&self, image: &str, image_ref: &str, with: Option<&Credentials>, now: Timestamp) {
        let source = with.and_then(|credentials| credentials.source.clone());
        if self.allow(image, image_ref, source, now) {
            self.failed(image);
        }
    }

    /// Adds to the record; false if that could not be written.
    fn allow(&self, image: &str, image_ref: &str, source: Option<Source>, now: Timestamp) -> bool {
        let Ok(name) = ImageName::parse(image) else { return true };
        let mut known = self.known.lock();
        let record = known
            .records
            .entry(image_ref.to_string())
            .or_insert_with(|| Record::new(image_ref, now));
        let before = record.clone();
        let allowed = record.credential_mapping.entry(name.repository).or_default();
        match source {
            None => {
                *allowed = Allowed {
                    node_pods_accessible: true,
                    ..Allowed::default()
                }
            }
            Some(_) if allowed.node_pods_accessible => {}
            Some(Source::ServiceAccount(account)) => {
                allowed.kubernetes_service_accounts.retain(|known| *known != account);
                allowed.kubernetes_service_accounts.push(account);
                allowed.kubernetes_service_accounts.sort();
            }
            Some(Source::Secret(source)) => {
                let place = |s: &SecretSource| (s.uid.clone(), s.namespace.clone(), s.name.clone());
                allowed
                    .kubernetes_secrets
                    .retain(|known| place(known) != place(&source));
                allowed.kubernetes_secrets.push(source);
                allowed.kubernetes_secrets.sort();
            }
        }
        if *record == before {
            return true;
        }
        record.last_updated_time = rfc3339(now);
        match self.write("pulled", image_ref, record) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(image = %image_ref, err = %error, "failed to write image pull record");
                false
            }
        }
    }

    /// True if a pod with these credentials must pull the image though it is here as `image_ref`.
    pub(super) fn must_pull(&self, image: &str, image_ref: &str, credentials: &[Credentials], now: Timestamp) -> bool {
        let Ok(name) = ImageName::parse(image) else { return true };
        let (allowed, pulled_by_agent) = {
            let known = self.known.lock();
            let record = known.records.get(image_ref);
            let allowed = record.and_then(|record| record.credential_mapping.get(&name.repository));
            let pulls = known.intents.get(image);
            let of_a_pull = pulls.is_some_and(|pulls| pulls.before.as_deref() != Some(image_ref));
            (allowed.cloned(), record.is_some() || of_a_pull)
        };
        if !self.verification.required(&name.repository, pulled_by_agent) {
            return false;
        }
        let Some(allowed) = allowed else { return true };
        if allowed.node_pods_accessible {
            return false;
        }
        for source in credentials.iter().filter_map(|credentials| credentials.source.as_ref()) {
            let source = match source {
                Source::Secret(source) => source,
                Source::ServiceAccount(account) if allowed.kubernetes_service_accounts.contains(account) => {
                    return false;
                }
                Source::ServiceAccount(_) => continue,
            };
            let same_place = |known: &SecretSource| {
                (&known.uid, &known.namespace, &known.name) == (&source.uid, &source.namespace, &source.name)
            };
            let same_hash = |known: &SecretSource| known.credential_hash == source.credential_hash;
            let mut secrets = allowed.kubernetes_secrets.iter();
            if let Some(known) = secrets.find(|known| same_place(known) || same_hash(known)) {
                if known != source && allowed.kubernetes_secrets.len() < MOST_SECRETS {
                    self.allow(image, image_ref, Some(Source::Secret(source.clone())), now);
                }
                return false;
            }
        }
        true
    }

    /// Whether looking at credentials can make a difference: saves fetching secrets where it can't.
    pub(super) fn needs_credentials(&self, image: &str, image_ref: &str) -> bool {
        let Ok(name) = ImageName::parse(image) else { return true };
        let known = self.known.lock();
        let record = known.records.get(image_ref);
        let allowed = record.and_then(|record| record.credential_mapping.get(&name.repository));
        allowed.is_some_and(|allowed| !allowed.node_pods_accessible)
    }

    /// Forgets images that are gone. Those of pulls under way are not in the list yet and stay.
    pub(super) fn retain(&self, images: &BTreeSet<String>) {
        let mut known = self.known.lock();
        if known.intents.values().any(|pulls| pulls.under_way > 0) {
            return;
        }
        known.records.retain(|image_ref, _| {
            let here = images.contains(image_ref);
            if !here {
                self.remove("pulled", image_ref);
            }
            here
        });
    }

    fn file(&self, kind: &str, name: &str) -> Option<PathBuf> {
        let hash = hex(digest::digest(&digest::SHA256, name.as_bytes()).as_ref());
        Some(self.folder.as_ref()?.join(kind).join(format!("sha256-{hash}")))
    }

    fn write(&self, kind: &str, name: &str, value: &impl Serialize) -> io::Result<()> {
        let Some(file) = self.file(kind, name) else {
            return Ok(());
        };
        let folder = file.parent().expect("in a folder of its kind");
        std::fs::create_dir_all(folder)?;
        let unfinished = file.with_extension("tmp");
        std::fs::write(&unfinished, serde_json::to_vec(value)?)?;
        std::fs::rename(unfinished, file)
    }

    fn remove(&self, kind: &str, name: &str) {
        let Some(file) = self.file(kind, name) else { return };
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %file.display(), err = %error, "failed to remove image pull record");
            }
            _ => {}
        }
    }
}

fn read_all<T: DeserializeOwned>(folder: &Path) -> Vec<T> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_none());
    files
        .filter_map(|path| {
            let text = std::fs::read(&path).ok()?;
            let value = serde_json::from_slice(&text);
            value
                .inspect_err(
                    |error| tracing::warn!(path = %path.display(), err = %error, "failed to read image pull record"),
                )
                .ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(name: &str, hash: &str) -> Credentials {
        Credentials {
            auth: Default::default(),
            source: Some(Source::Secret(SecretSource {
                uid: name.to_string(),
                namespace: "n".to_string(),
                name: name.to_string(),
                credential_hash: hash.to_string(),
            })),
        }
    }

    fn now() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    #[test]
    fn who_may_use_an_image() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Records::open(Some(folder.path().to_path_buf()), Verification::default());
        let records = open();
        let must = |records: &Records, image: &str, with: &[Credentials]| records.must_pull(image, "id", with, now());
        // It was there before the kubelet: anybody's.
        assert!(!must(&records, "q.io/a", &[]));
        // Pulled with a secret: for those who have it, by place or by contents.
        records.begin("q.io/a", None, now()).unwrap();
        assert!(must(&records, "q.io/a", &[]), "a pull is under way");
        records.pulled("q.io/a", "id", Some(&credentials("s", "h")), now());
        for records in [&records, &open()] {
            assert!(must(records, "q.io/a:tag", &[]));
            assert!(must(records, "q.io/b", &[credentials("s", "h")]), "another repository");
            assert!(must(records, "q.io/a", &[credentials("t", "other")]));
            assert!(!must(records, "q.io/a", &[credentials("s", "h")]));
            assert!(records.needs_credentials("q.io/a", "id"));
        }
        assert!(!must(&records, "q.io/a", &[credentials("t", "h")]), "the same contents");
        assert!(
            !must(&records, "q.io/a", &[credentials("t", "changed")]),
            "by now known by its place"
        );
        assert!(
            !must(&open(), "q.io/a", &[credentials("s", "new")]),
            "the same place, other contents"
        );
        // By a service account: for pods of that.
        let account = |uid: &str| Credentials {
            auth: Default::default(),
            source: Some(Source::ServiceAccount(AccountSource {
                uid: uid.to_string(),
                namespace: "n".to_string(),
                name: "a".to_string(),
            })),
        };
        assert!(must(&records, "q.io/a", &[account("1")]));
        records.begin("q.io/a", None, now()).unwrap();
        records.pulled("q.io/a", "id", Some(&account("1")), now());
        assert!(!must(&open(), "q.io/a", &[account("1")]));
        assert!(must(&open(), "q.io/a", &[account("2")]), "another of its name");
        // Pulled without any: anybody's from now on.
        records.begin("q.io/a", None, now()).unwrap();
        records.pulled("q.io/a", "id", None, now());
        assert!(!must(&open(), "q.io/a", &[]));
        assert!(!open().needs_credentials("q.io/a", "id"));
        // The image is gone.
        records.retain(&BTreeSet::new());
        assert_eq!(std::fs::read_dir(folder.path().join("pulled")).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(folder.path().join("pulling")).unwrap().count(), 0);
    }

    #[test]
    fn a_pull_whose_end_nobody_saw() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Records::open(Some(folder.path().to_path_buf()), Verification::default());
        open().begin("q.io/a", None, now()).unwrap();
        std::fs::write(folder.path().join("pulled-junk"), "{").unwrap();
        let after = open();
        assert!(after.must_pull("q.io/a", "id", &[], now()));
        after.begin("q.io/a", None, now()).unwrap();
        after.failed("q.io/a");
        assert!(!open().must_pull("q.io/a", "id", &[], now()));
        // It had brought the image: a failure to pull that again makes it nobody's.
        open().begin("q.io/a", None, now()).unwrap();
        let after = open();
        after.begin("q.io/a", Some("id".to_string()), now()).unwrap();
        after.failed("q.io/a");
        for records in [&after, &open()] {
            assert!(records.must_pull("q.io/a", "id", &[], now()));
        }
    }

    #[test]
    fn what_was_there_before_a_pull_stays_everybodys_during_it() {
        let records = Records::open(None, Verification::default());
        records.begin("q.io/a", Some("old".to_string()), now()).unwrap();
        records.begin("q.io/a", Some("new".to_string()), now()).unwrap();
        assert!(!records.must_pull("q.io/a", "old", &[], now()));
        assert!(
            records.must_pull("q.io/a", "new", &[], now()),
            "brought by the first pull"
        );
        records.failed("q.io/a");
        records.pulled("q.io/a", "old", Some(&credentials("s", "h")), now());
        assert!(
            records.must_pull("q.io/a", "old", &[], now()),
            "known by its secret now"
        );
    }

    #[test]
    fn policies() {
        let list = Verification::NeverVerifyAllowlistedImages(vec!["q.io/a".into(), "r.io/x/*".into()]);
        for (policy, repository, by_agent, want) in [
            (&Verification::NeverVerify, "q.io/a", true, false),
            (&Verification::AlwaysVerify, "q.io/a", false, true),
            (&Verification::NeverVerifyPreloadedImages, "q.io/a", false, false),
            (&Verification::NeverVerifyPreloadedImages, "q.io/a", true, true),
            (&list, "q.io/a", true, false),
            (&list, "q.io/b", false, true),
            (&list, "r.io/x/y", true, false),
            (&list, "r.io/xy", true, true),
        ] {
            assert_eq!(policy.required(repository, by_agent), want, "{policy:?} {repository}");
        }
    }
}
