//! Answers of other servers, kept for as long as they say but no longer than 30 s (pure: the time is told).
//!
//! Upstream: CoreDNS, plugin/cache, with kubeadm's `cache 30`.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use orlop_base::clock::Shift;
use parking_lot::Mutex;

use crate::metrics::Metrics;
use crate::wire::Reply;

/// Seconds.
const TTL_MAX: u32 = 30;
/// 9,984 answers of each kind, as CoreDNS keeps.
const SHARDS: usize = 256;
const SHARD: usize = 39;

/// What is asked of other servers: the same question is asked once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// In lower case.
    pub name: Name,
    pub kind: RecordType,
    pub dnssec_ok: bool,
    pub checking_disabled: bool,
}

/// What another server said.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub reply: Reply,
    pub at: Instant,
    /// Zero: not kept.
    pub lifetime: Duration,
}

impl Resolved {
    pub fn new(mut reply: Reply, at: Instant) -> Resolved {
        let lifetime = lifetime(&reply);
        for section in [&mut reply.answers, &mut reply.authorities, &mut reply.additionals] {
            section.iter_mut().for_each(|r| r.ttl = r.ttl.min(TTL_MAX));
        }
        Resolved {
            reply,
            at,
            lifetime: Duration::from_secs(lifetime.into()),
        }
    }

    pub fn is_denial(&self) -> bool {
        self.reply.answers.is_empty() || self.reply.code == ResponseCode::NXDomain
    }

    /// The answer as it is `now`: with what is left of its time.
    pub fn reply(&self, now: Instant) -> Reply {
        let age = now.saturating_duration_since(self.at).as_secs() as u32;
        let aged = |records: &[Record]| -> Vec<Record> {
            let mut records = records.to_vec();
            records.iter_mut().for_each(|r| r.ttl = r.ttl.saturating_sub(age));
            records
        };
        Reply {
            answers: aged(&self.reply.answers),
            authorities: aged(&self.reply.authorities),
            additionals: aged(&self.reply.additionals),
            ..self.reply
        }
    }
}

/// Seconds. RFC 2308: a denial lives as long as the zone's SOA record says, and without one not at all.
fn lifetime(reply: &Reply) -> u32 {
    let denial = reply.answers.is_empty() || reply.code == ResponseCode::NXDomain;
    let all = || reply.answers.iter().chain(&reply.authorities).chain(&reply.additionals);
    let shortest = all().map(|r| r.ttl).min().unwrap_or(0).min(TTL_MAX);
    match (reply.code, denial) {
        (ResponseCode::NoError, false) => shortest,
        (ResponseCode::NoError | ResponseCode::NXDomain, true) => {
            let minimum = reply.authorities.iter().find_map(|r| match &r.data {
                RData::SOA(soa) => Some(soa.minimum),
                _ => None,
            });
            minimum.map_or(0, |minimum| shortest.min(minimum))
        }
        _ => 0,
    }
}

type Shard = Mutex<HashMap<Question, Arc<Resolved>>>;

/// Positive answers and denials, apart: many of the one do not push out the other.
pub struct Cache {
    hasher: RandomState,
    kinds: [Box<[Shard]>; 2],
}

impl Default for Cache {
    fn default() -> Cache {
        let shards = || (0..SHARDS).map(|_| Shard::default()).collect();
        Cache {
            hasher: RandomState::new(),
            kinds: [shards(), shards()],
        }
    }
}

impl Cache {
    fn place(&self, question: &Question) -> usize {
        self.hasher.hash_one(question) as usize % SHARDS
    }

    pub fn get(&self, question: &Question, now: Instant, metrics: &Metrics) -> Option<Arc<Resolved>> {
        let place = self.place(question);
        for (kind, shards) in self.kinds.iter().enumerate() {
            let found = shards[place].lock().get(question).cloned();
            let fresh = found.filter(|one| now.saturating_duration_since(one.at) < one.lifetime);
            if fresh.is_some() {
                metrics.cache_hits[kind].fetch_add(1, Ordering::Relaxed);
                return fresh;
            }
        }
        metrics.cache_misses.fetch_add(1, Ordering::Relaxed);
        None
    }

    pub fn put(&self, question: &Question, resolved: &Arc<Resolved>, metrics: &Metrics) {
        if resolved.lifetime.is_zero() {
            return;
        }
        let (kind, place) = (usize::from(resolved.is_denial()), self.place(question));
        // What a name was must not be found before what it is.
        if self.kinds[1 - kind][place].lock().remove(question).is_some() {
            metrics.cache_entries[1 - kind].fetch_sub(1, Ordering::Relaxed);
        }
        let mut shard = self.kinds[kind][place].lock();
        if shard.len() >= SHARD && !shard.contains_key(question) {
            // They are few: the one that would end first makes room.
            let first = shard.iter().min_by_key(|(_, one)| one.at.later(one.lifetime));
            if let Some(first) = first.map(|(question, _)| question.clone()) {
                shard.remove(&first);
                metrics.cache_entries[kind].fetch_sub(1, Ordering::Relaxed);
                metrics.cache_evictions[kind].fetch_add(1, Ordering::Relaxed);
            }
        }
        if shard.insert(question.clone(), resolved.clone()).is_none() {
            metrics.cache_entries[kind].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// When other servers are asked from now on.
    pub fn clear(&self, metrics: &Metrics) {
        for (kind, shards) in self.kinds.iter().enumerate() {
            for shard in shards {
                let mut shard = shard.lock();
                metrics.cache_entries[kind].fetch_sub(shard.len() as u64, Ordering::Relaxed);
                shard.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::rdata::{A, SOA};

    use super::*;

    fn question(name: &str) -> Question {
        Question {
            name: Name::from_ascii(name).unwrap(),
            kind: RecordType::A,
            dnssec_ok: false,
            checking_disabled: false,
        }
    }

    fn a(ttl: u32) -> Record {
        Record::from_rdata(Name::root(), ttl, RData::A(A::new(1, 2, 3, 4)))
    }

    fn soa(ttl: u32, minimum: u32) -> Record {
        let soa = SOA::new(Name::root(), Name::root(), 1, 1, 1, 1, minimum);
        Record::from_rdata(Name::root(), ttl, RData::SOA(soa))
    }

    #[test]
    fn lifetimes() {
        let cases = [
            (ResponseCode::NoError, vec![a(300), a(20)], vec![], 20),
            (ResponseCode::NoError, vec![a(300)], vec![], 30),
            (ResponseCode::NoError, vec![a(0)], vec![], 0),
            (ResponseCode::NoError, vec![], vec![soa(300, 10)], 10),
            (ResponseCode::NXDomain, vec![], vec![soa(5, 10)], 5),
            (ResponseCode::NXDomain, vec![a(3)], vec![soa(50, 10)], 3),
            (ResponseCode::NXDomain, vec![], vec![], 0),
            (ResponseCode::ServFail, vec![], vec![soa(5, 10)], 0),
            (ResponseCode::Refused, vec![a(5)], vec![], 0),
        ];
        for (code, answers, authorities, expected) in cases {
            let reply = Reply {
                code,
                answers,
                authorities,
                ..Reply::default()
            };
            assert_eq!(lifetime(&reply), expected, "{reply:?}");
        }
    }

    #[test]
    fn time_runs_out() {
        let (cache, metrics, start) = (Cache::default(), Metrics::default(), orlop_base::clock::monotonic());
        let reply = Reply {
            answers: vec![a(300), a(20)],
            ..Reply::default()
        };
        let resolved = Arc::new(Resolved::new(reply, start));
        cache.put(&question("a."), &resolved, &metrics);
        let ttls = |after| {
            let now = start + Duration::from_secs(after);
            let found = cache.get(&question("a."), now, &metrics)?;
            Some(found.reply(now).answers.iter().map(|r| r.ttl).collect::<Vec<_>>())
        };
        assert_eq!(ttls(0), Some(vec![30, 20]));
        assert_eq!(ttls(15), Some(vec![15, 5]));
        assert_eq!(ttls(20), None);
        // Another question.
        let other = Question {
            dnssec_ok: true,
            ..question("a.")
        };
        assert!(cache.get(&other, start, &metrics).is_none());
        // A denial takes the place of an answer.
        let denial = Reply {
            code: ResponseCode::NXDomain,
            authorities: vec![soa(30, 30)],
            ..Reply::default()
        };
        cache.put(&question("a."), &Arc::new(Resolved::new(denial, start)), &metrics);
        let found = cache.get(&question("a."), start, &metrics).unwrap();
        assert_eq!(found.reply.code, ResponseCode::NXDomain);
        assert_eq!(metrics.cache_entries[0].load(Ordering::Relaxed), 0);
        assert_eq!(metrics.cache_entries[1].load(Ordering::Relaxed), 1);
    }

    #[test]
    fn there_is_a_bound() {
        let (cache, metrics, start) = (Cache::default(), Metrics::default(), orlop_base::clock::monotonic());
        for n in 0..12_000 {
            let reply = Reply {
                answers: vec![a(30)],
                ..Reply::default()
            };
            cache.put(
                &question(&format!("n{n}.")),
                &Arc::new(Resolved::new(reply, start)),
                &metrics,
            );
        }
        let held: usize = cache.kinds[0].iter().map(|s| s.lock().len()).sum();
        assert!((9_000..=SHARDS * SHARD).contains(&held), "{held}");
        assert_eq!(metrics.cache_entries[0].load(Ordering::Relaxed), held as u64);
        assert_eq!(metrics.cache_evictions[0].load(Ordering::Relaxed), 12_000 - held as u64);
        cache.clear(&metrics);
        assert_eq!(metrics.cache_entries[0].load(Ordering::Relaxed), 0);
    }
}
