//! Usage of pods' volumes. All of their files have to be walked: so a pod's volumes are measured at most once in a period,
//! in the background, and requests get the last result.
// Upstream: pkg/kubelet/server/stats/{fs_resource_analyzer,volume_stat_calculator}.go (v1.36)
// Differs from upstream: looked at when somebody asks, not all the time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use orlop_api::duration::parse_duration;
use orlop_api::types::core::{Pod, Volume};
use orlop_base::Clock;
use orlop_base::clock::rfc3339;
use parking_lot::Mutex;

use super::summary::{Fs, PvcRef, VolumeStats};
use crate::config::Config;
use crate::spec::{name, namespace, uid};
use crate::volumes::{VolumeUse, Volumes};

/// How long a request waits for a measurement that it started. Small volumes are then reported at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// Looks at the volumes of the pod with this uid.
pub type Look = Arc<dyn Fn(String) -> BoxFuture<'static, Vec<VolumeUse>> + Send + Sync>;

/// Cheap to clone.
#[derive(Clone)]
pub struct VolumeSizes {
    look: Look,
    /// None: never.
    period: Option<Duration>,
    clock: Clock,
    known: Arc<Mutex<HashMap<String, Measured>>>,
    /// Held by the one look that is under way.
    looking: Arc<tokio::sync::Mutex<()>>,
}

struct Measured {
    at: Timestamp,
    volumes: Vec<VolumeUse>,
}

/// A pod's volumes: those that count as its local storage, and all others.
#[derive(Debug, Default, PartialEq)]
pub struct PodVolumes {
    pub ephemeral: Vec<VolumeStats>,
    pub others: Vec<VolumeStats>,
}

impl VolumeSizes {
    pub fn new(look: Look, period: Option<Duration>, clock: Clock) -> VolumeSizes {
        VolumeSizes {
            look,
            period,
            clock,
            known: Arc::default(),
            looking: Arc::default(),
        }
    }

    pub fn of(volumes: Volumes, config: &Config, clock: Clock) -> VolumeSizes {
        let look: Look = Arc::new(move |uid| {
            let volumes = volumes.clone();
            async move { volumes.used(&uid).await }.boxed()
        });
        VolumeSizes::new(look, period(config), clock)
    }

    /// Measures the pods that are due. A measurement that takes long goes on in the background.
    pub async fn refresh(&self, uids: &[String]) {
        let Some(period) = self.period else { return };
        let due = self.due(uids, period);
        if due.is_empty() {
            return;
        }
        let Ok(turn) = self.looking.clone().try_lock_owned() else {
            return;
        };
        let sizes = self.clone();
        let looking = tokio::spawn(async move {
            let _turn = turn;
            for uid in due {
                let volumes = (sizes.look)(uid.clone()).await;
                let at = sizes.clock.now();
                sizes.known.lock().insert(uid, Measured { at, volumes });
            }
        });
        let _ = tokio::time::timeout(PATIENCE, looking).await;
    }

    /// Those never looked at or not for a period. Of pods that are gone nothing is kept.
    fn due(&self, uids: &[String], period: Duration) -> Vec<String> {
        let mut known = self.known.lock();
        known.retain(|uid, _| uids.contains(uid));
        let now = self.clock.now();
        let is_fresh = |measured: &Measured| now.duration_since(measured.at).unsigned_abs() < period;
        let due = uids.iter().filter(|uid| !known.get(*uid).is_some_and(is_fresh));
        due.cloned().collect()
    }

    /// As of the last look.
    pub fn of_pod(&self, pod: &Pod) -> PodVolumes {
        match self.known.lock().get(uid(pod)) {
            Some(measured) => of_pod(pod, &measured.volumes, &rfc3339(measured.at)),
            None => PodVolumes::default(),
        }
    }
}

/// Negative (zero is the default): nobody wants to know.
fn period(config: &Config) -> Option<Duration> {
    let text = config.document["volumeStatsAggPeriod"].as_str()?;
    let nanos = u64::try_from(parse_duration(text).ok()?).ok()?;
    Some(Duration::from_nanos(nanos)).filter(|period| !period.is_zero())
}

/// By name. Directories that are no volume of the pod's are left out.
fn of_pod(pod: &Pod, used: &[VolumeUse], time: &str) -> PodVolumes {
    let specs = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let specs: BTreeMap<&str, &Volume> = specs.map(|volume| (volume.name.as_str(), volume)).collect();
    let mut used: Vec<&VolumeUse> = used.iter().collect();
    used.sort_by(|a, b| a.volume.cmp(&b.volume));
    let mut all = PodVolumes::default();
    for one in used {
        let Some(spec) = specs.get(one.volume.as_str()) else {
            continue;
        };
        let list = match is_local_storage(spec) {
            true => &mut all.ephemeral,
            false => &mut all.others,
        };
        list.push(VolumeStats {
            fs: file_system(one, time),
            name: one.volume.clone(),
            pvc_ref: claim(pod, spec),
        });
    }
    all
}

// Upstream: pkg/volume/util (IsLocalEphemeralVolume)
fn is_local_storage(volume: &Volume) -> bool {
    let on_disk = |medium: &Option<String>| medium.as_deref().unwrap_or_default().is_empty();
    let empty_dir = volume.empty_dir.as_ref();
    volume.git_repo.is_some() || volume.config_map.is_some() || empty_dir.is_some_and(|dir| on_disk(&dir.medium))
}

fn claim(pod: &Pod, volume: &Volume) -> Option<PvcRef> {
    let named = volume.persistent_volume_claim.as_ref().map(|c| c.claim_name.clone());
    // A template's claim is named after the pod and the volume.
    let template = volume.ephemeral.as_ref();
    let made = || template.map(|_| format!("{}-{}", name(pod), volume.name));
    Some(PvcRef {
        name: named.or_else(made)?,
        namespace: namespace(pod).to_string(),
    })
}

fn file_system(used: &VolumeUse, time: &str) -> Fs {
    Fs {
        time: time.to_string(),
        available_bytes: Some(used.available_bytes),
        capacity_bytes: Some(used.capacity_bytes),
        used_bytes: Some(used.used_bytes),
        inodes_free: Some(used.inodes_free),
        inodes: Some(used.inodes),
        inodes_used: Some(used.inodes_used),
        device: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use serde_json::json;

    use super::*;
    use crate::spec::testing::pod;

    const MINUTE: Duration = Duration::from_secs(60);

    fn used(volume: &str, bytes: u64) -> VolumeUse {
        VolumeUse {
            volume: volume.into(),
            used_bytes: bytes,
            capacity_bytes: 100,
            ..VolumeUse::default()
        }
    }

    fn with_volume() -> Pod {
        pod(json!({"volumes": [{"name": "e", "emptyDir": {}}]}))
    }

    fn bytes(sizes: &VolumeSizes) -> Option<u64> {
        sizes.of_pod(&with_volume()).ephemeral.first()?.fs.used_bytes
    }

    #[test]
    fn volumes_by_kind() {
        let pod = pod(json!({"volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "c1"}},
            {"name": "own", "ephemeral": {}},
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "config", "configMap": {"name": "m"}},
            {"name": "secret", "secret": {"secretName": "s"}},
        ]}));
        let names = ["secret", "config", "memory", "disk", "own", "data", "stranger"];
        let all = of_pod(&pod, &names.map(|name| used(name, 7)), "t");
        let shown = |list: &[VolumeStats]| -> Vec<String> {
            let claim = |v: &VolumeStats| v.pvc_ref.as_ref().map_or(String::new(), |c| format!("={}", c.name));
            list.iter().map(|v| format!("{}{}", v.name, claim(v))).collect()
        };
        assert_eq!(shown(&all.ephemeral), ["config", "disk"]);
        assert_eq!(shown(&all.others), ["data=c1", "memory", "own=web-own", "secret"]);
        let json = serde_json::to_value(&all.others[0]).unwrap();
        assert_eq!(json["pvcRef"], json!({"name": "c1", "namespace": "default"}));
        assert_eq!((&json["usedBytes"], &json["capacityBytes"]), (&json!(7), &json!(100)));
    }

    #[test]
    fn how_often() {
        let with = |text: &str| {
            let mut config = Config::default();
            config.document["volumeStatsAggPeriod"] = json!(text);
            period(&config)
        };
        assert_eq!(period(&Config::default()), Some(MINUTE));
        assert_eq!([with("30s"), with("-1s"), with("0s")], [Some(MINUTE / 2), None, None]);
    }

    /// Tells how often it looked.
    fn counting(period: Option<Duration>, clock: &Clock) -> VolumeSizes {
        let looks = Arc::new(AtomicU64::new(0));
        let look: Look = Arc::new(move |_| {
            let nth = looks.fetch_add(1, Ordering::SeqCst) + 1;
            async move { vec![used("e", nth)] }.boxed()
        });
        VolumeSizes::new(look, period, clock.clone())
    }

    #[tokio::test]
    async fn once_in_a_period_and_never_for_pods_that_are_gone() {
        let clock = Clock::manual(Timestamp::UNIX_EPOCH);
        let sizes = counting(Some(MINUTE), &clock);
        let here = ["u-1".to_string()];
        assert_eq!(bytes(&sizes), None);
        for (forward, expected) in [(0, 1), (59, 1), (1, 2), (30, 2), (30, 3)] {
            clock.advance(Duration::from_secs(forward));
            sizes.refresh(&here).await;
            assert_eq!(bytes(&sizes), Some(expected));
        }
        sizes.refresh(&[]).await;
        assert_eq!(bytes(&sizes), None);
        let never = counting(None, &clock);
        never.refresh(&here).await;
        assert_eq!(bytes(&never), None);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_large_volumes() {
        let look: Look = Arc::new(|_| {
            async {
                tokio::time::sleep(MINUTE).await;
                vec![used("e", 1)]
            }
            .boxed()
        });
        let sizes = VolumeSizes::new(look, Some(MINUTE), Clock::manual(Timestamp::UNIX_EPOCH));
        let here = ["u-1".to_string()];
        let start = tokio::time::Instant::now();
        sizes.refresh(&here).await;
        assert_eq!((start.elapsed(), bytes(&sizes)), (PATIENCE, None));
        // Nor is a second look begun.
        sizes.refresh(&here).await;
        assert_eq!(start.elapsed(), PATIENCE);
        tokio::time::sleep(MINUTE).await;
        assert_eq!(bytes(&sizes), Some(1));
    }
}
