//! The one member: its stores, its leases, and what each call does.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use orlop_base::Shutdown;
use orlop_store::{
    Action, CommitError, EmbeddedLog, EmbeddedOptions, Expect, Op, OpenError, Options, RangeQuery, Revision, Store,
    Write,
};
use parking_lot::Mutex;
use prost::Message;

use crate::apply::{self, Applied};
use crate::errors::Error;
use crate::hub::{self, Hub};
use crate::keys::KeyRange;
use crate::lease::Leases;
use crate::messages::{
    AlarmAction, AlarmMember, AlarmRequest, AlarmResponse, AlarmType, CompactionRequest, DeleteRangeRequest,
    DeleteRangeResponse, HashKvRequest, HashKvResponse, HeaderResponse, LeaseGrantRequest, LeaseGrantResponse,
    LeaseKeepAliveResponse, LeaseLeasesResponse, LeaseStatus, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, Member,
    MemberListResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, Request, RequestOp, Response,
    ResponseHeader, StatusResponse, TxnRequest, TxnResponse,
};
use crate::pair::{Pair, key_value, signed};
use crate::{check, keys, query};

/// The version of etcd whose behaviour this is: clients decide by it what they may ask for.
pub const VERSION: &str = "3.6.8";
/// That of the cluster: the same without the last number.
pub(crate) const CLUSTER_VERSION: &str = "3.6.0";
/// A member that never shared a log with others has had one election.
const RAFT_TERM: u64 = 2;

const COMPACTED: &str = "/e/m/compacted";
const NO_SPACE: &str = "/e/m/nospace";
const IDENTITY: &str = "/e/m/identity";

/// How the member behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    pub data_dir: PathBuf,
    pub name: String,
    pub peer_urls: Vec<String>,
    pub client_urls: Vec<String>,
    pub cluster_token: String,
    /// Whether acknowledged writes are on disk.
    pub sync: bool,
    pub max_txn_ops: usize,
    pub max_request_bytes: usize,
    /// Bytes of keys, values and history, after which writes are refused; none: no bound.
    pub quota_bytes: Option<u64>,
    pub progress_notify_interval: Duration,
}

/// Why there is no member.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("failed to write down which member this is")]
    Identity(#[source] CommitError<Bytes>),
}

/// Numbers by which clients tell members apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    cluster: u64,
    member: u64,
}

/// The member, shared by all connections.
pub struct Server {
    pub(crate) settings: Settings,
    pub(crate) kv: Store<Pair>,
    /// What takes no revision: leases, how far history was compacted, alarms.
    meta: Store<Bytes>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) stopping: Shutdown,
    identity: Identity,
    no_space: AtomicBool,
    /// Revoking happens one at a time, so that an answer means that it has happened.
    revoking: tokio::sync::Mutex<()>,
    pub(crate) calls: Calls,
}

/// For metrics.
#[derive(Default)]
pub(crate) struct Calls {
    pub puts: AtomicU64,
    pub ranges: AtomicU64,
    pub deletes: AtomicU64,
    pub txns: AtomicU64,
    pub expired_leases: AtomicU64,
}

impl Calls {
    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Server {
    /// Reads what is in the data directory. To be called in a tokio runtime, whose tasks then follow the store.
    pub async fn open(settings: Settings, stopping: Shutdown) -> Result<Arc<Server>, StartError> {
        let log = |name: &str| {
            let options = EmbeddedOptions {
                sync: settings.sync,
                ..EmbeddedOptions::default()
            };
            EmbeddedLog::open(settings.data_dir.join(name), options)
        };
        let kv: Store<Pair> = Store::open(Box::new(log("kv")?), history())?;
        let meta: Store<Bytes> = Store::open(Box::new(log("meta")?), Options::default())?;
        if let Some(compacted) = number(&meta, COMPACTED) {
            kv.compact(compacted);
        }
        let identity = Identity::settle(&settings, &meta).await?;
        let leases = Arc::new(Leases::open(meta.clone()));
        let revision = hub::read_leases(&kv, &leases);
        let hub = Arc::new(Hub::new(revision));
        orlop_base::spawn(hub::follow(kv.clone(), hub.clone(), leases.clone()));
        let server = Arc::new(Server {
            identity,
            no_space: AtomicBool::new(meta.get(NO_SPACE).is_some()),
            settings,
            kv,
            meta,
            leases,
            hub,
            stopping,
            revoking: tokio::sync::Mutex::new(()),
            calls: Calls::default(),
        });
        orlop_base::spawn(expire(server.clone()));
        Ok(server)
    }

    /// Writes what waits and releases the data directory.
    pub async fn close(&self) {
        self.kv.close().await;
        self.meta.close().await;
    }

    /// Returns when a writer thread is gone, which it should not be before [`Server::close`].
    pub async fn stopped(&self) {
        tokio::select! {
            () = self.kv.stopped() => {}
            () = self.meta.stopped() => {}
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        self.kv.revision()
    }

    pub(crate) fn header(&self, revision: Revision) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.identity.cluster,
            member_id: self.identity.member,
            revision: signed(revision),
            raft_term: RAFT_TERM,
        }
    }

    fn header_now(&self) -> Option<ResponseHeader> {
        Some(self.header(self.revision()))
    }

    // KV

    pub(crate) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Error> {
        check::range(request)?;
        Calls::count(&self.calls.ranges);
        let range = KeyRange::new(&request.key, &request.range_end);
        let at = Revision::try_from(request.revision)
            .ok()
            .filter(|revision| *revision > 0);
        let bounds = RangeQuery {
            prefix: keys::PREFIX,
            from: Some(&range.from),
            before: Some(&range.before),
            at,
            limit: match request.count_only {
                true => Some(0),
                false => query::collects(request),
            },
            start_after: None,
        };
        let page = self.kv.range(bounds, &mut |_| true)?;
        let count = page.items.len() as u64 + page.remaining;
        let mut response = match request.count_only {
            true => RangeResponse {
                count: signed(count),
                ..RangeResponse::default()
            },
            false => query::answer(request, page.items.iter().map(key_value).collect(), count),
        };
        // What was read at an older revision is told with the present one.
        let revision = match at {
            Some(_) => self.revision(),
            None => page.revision,
        };
        response.header = Some(self.header(revision));
        Ok(response)
    }

    pub(crate) async fn put(self: &Arc<Self>, request: PutRequest) -> Result<PutResponse, Error> {
        check::put(&request)?;
        Calls::count(&self.calls.puts);
        self.has_space(true).await?;
        let (response, revision) = self.apply(single(Request::Put(request))).await?;
        let Some(Response::Put(mut response)) = only(response) else {
            return Err(Error::Stopped);
        };
        response.header = Some(self.header(revision));
        Ok(response)
    }

    pub(crate) async fn delete_range(
        self: &Arc<Self>,
        request: DeleteRangeRequest,
    ) -> Result<DeleteRangeResponse, Error> {
        check::delete_range(&request)?;
        Calls::count(&self.calls.deletes);
        let (response, revision) = self.apply(single(Request::DeleteRange(request))).await?;
        let Some(Response::DeleteRange(mut response)) = only(response) else {
            return Err(Error::Stopped);
        };
        response.header = Some(self.header(revision));
        Ok(response)
    }

    pub(crate) async fn txn(self: &Arc<Self>, request: TxnRequest) -> Result<TxnResponse, Error> {
        check::txn(&request, self.settings.max_txn_ops)?;
        Calls::count(&self.calls.txns);
        self.has_space(puts(&request)).await?;
        let (mut response, revision) = self.apply(request).await?;
        response.header = Some(self.header(revision));
        Ok(response)
    }

    /// Carries a transaction out; the answer and the revision at which that happened.
    async fn apply(self: &Arc<Self>, request: TxnRequest) -> Result<(TxnResponse, Revision), Error> {
        let bytes = request.encoded_len();
        if bytes > self.settings.max_request_bytes {
            return Err(Error::TooLarge);
        }
        let outcome: Arc<Mutex<Option<Result<TxnResponse, Error>>>> = Arc::default();
        let (told, leases) = (outcome.clone(), self.leases.clone());
        let decide = move |view: &orlop_store::View<'_, Pair>| match apply::txn(&request, view, &*leases) {
            Ok(Applied { response, writes }) => {
                *told.lock() = Some(Ok(response));
                writes
            }
            Err(error) => {
                *told.lock() = Some(Err(error));
                vec![]
            }
        };
        let revision = self.kv.decide(bytes, Box::new(decide)).await?;
        let response = outcome.lock().take().unwrap_or(Err(Error::Stopped))?;
        Ok((response, revision))
    }

    pub(crate) async fn compact(&self, request: &CompactionRequest) -> Result<HeaderResponse, Error> {
        let revision = self.revision();
        let at = Revision::try_from(request.revision).unwrap_or(0);
        // A store that never forgot anything can be compacted at its beginning, as upstream's.
        if at <= self.kv.compacted() && self.kv.compacted() > 0 || request.revision < 0 {
            return Err(Error::Compacted);
        }
        if at > revision {
            return Err(Error::FutureRevision);
        }
        self.compact_at(at).await?;
        Ok(HeaderResponse {
            header: self.header_now(),
        })
    }

    pub(crate) async fn compact_at(&self, at: Revision) -> Result<(), Error> {
        let record = Arc::new(Bytes::copy_from_slice(&at.to_le_bytes()));
        self.meta
            .commit(Op::new(COMPACTED, Expect::Any, Action::Put(record)))
            .await?;
        self.kv.compact(at);
        Ok(())
    }

    // Lease

    pub(crate) async fn lease_grant(&self, request: &LeaseGrantRequest) -> Result<LeaseGrantResponse, Error> {
        self.has_space(true).await?;
        let (id, ttl) = self.leases.grant(request.id, request.ttl).await?;
        Ok(LeaseGrantResponse {
            header: self.header_now(),
            id,
            ttl,
            error: String::new(),
        })
    }

    pub(crate) async fn lease_revoke(&self, id: i64) -> Result<HeaderResponse, Error> {
        let _one_at_a_time = self.revoking.lock().await;
        if !self.leases.begin_revoking(id) {
            return Err(Error::LeaseNotFound);
        }
        let revoked = self.revoke(id).await;
        if revoked.is_err() {
            self.leases.give_up_revoking(id);
        }
        revoked?;
        Ok(HeaderResponse {
            header: self.header_now(),
        })
    }

    async fn revoke(&self, id: i64) -> Result<(), Error> {
        // Writes that were judged while the lease was still good are in front of this one; once they have been handed
        // out, the lease knows all its keys.
        let revision = self.kv.decide(0, Box::new(|_| vec![])).await?;
        self.hub.reached(revision).await;
        let keys = self.leases.keys(id);
        if !keys.is_empty() {
            let delete = move |view: &orlop_store::View<'_, Pair>| {
                let has_it = |key: &Arc<str>| view.get(key).is_some_and(|item| item.record.lease == id);
                let gone = keys.into_iter().filter(has_it);
                gone.map(|key| Write { key, record: None }).collect()
            };
            self.kv.decide(0, Box::new(delete)).await?;
        }
        self.leases.end_revoking(id).await
    }

    pub(crate) fn lease_keep_alive(&self, id: i64) -> LeaseKeepAliveResponse {
        LeaseKeepAliveResponse {
            header: self.header_now(),
            id,
            ttl: self.leases.keep_alive(id).unwrap_or(0),
        }
    }

    pub(crate) async fn lease_time_to_live(&self, request: &LeaseTimeToLiveRequest) -> LeaseTimeToLiveResponse {
        if request.keys {
            self.hub.reached(self.revision()).await;
        }
        let standing = self.leases.standing(request.id, request.keys);
        let header = self.header_now();
        match standing {
            Some(standing) => LeaseTimeToLiveResponse {
                header,
                id: request.id,
                ttl: standing.remaining,
                granted_ttl: standing.granted,
                keys: standing.keys.iter().map(|key| keys::decode(key)).collect(),
            },
            None => LeaseTimeToLiveResponse {
                header,
                id: request.id,
                ttl: -1,
                ..LeaseTimeToLiveResponse::default()
            },
        }
    }

    pub(crate) fn lease_leases(&self) -> LeaseLeasesResponse {
        LeaseLeasesResponse {
            header: self.header_now(),
            leases: self.leases.ids().into_iter().map(|id| LeaseStatus { id }).collect(),
        }
    }

    // Cluster and maintenance

    pub(crate) fn member_list(&self) -> MemberListResponse {
        let member = Member {
            id: self.identity.member,
            name: self.settings.name.clone(),
            peer_urls: self.settings.peer_urls.clone(),
            client_urls: self.settings.client_urls.clone(),
            is_learner: false,
        };
        MemberListResponse {
            header: self.header_now(),
            members: vec![member],
        }
    }

    /// An answer that says no more than that it was done.
    pub(crate) fn empty(&self) -> HeaderResponse {
        HeaderResponse {
            header: self.header_now(),
        }
    }

    pub(crate) fn member_id(&self) -> u64 {
        self.identity.member
    }

    pub(crate) fn status(&self) -> StatusResponse {
        let stats = self.kv.stats();
        StatusResponse {
            header: self.header_now(),
            version: VERSION.to_string(),
            db_size: signed(stats.log.disk_bytes),
            leader: self.identity.member,
            raft_index: stats.revision,
            raft_term: RAFT_TERM,
            raft_applied_index: stats.revision,
            errors: self
                .alarms()
                .iter()
                .map(|_| "memberID:".to_string() + &self.identity.member.to_string() + " alarm:NOSPACE ")
                .collect(),
            db_size_in_use: signed(stats.live_bytes + stats.history_bytes),
            is_learner: false,
            storage_version: CLUSTER_VERSION.to_string(),
            db_size_quota: self.settings.quota_bytes.map_or(0, signed),
        }
    }

    pub(crate) fn hash_kv(&self, request: &HashKvRequest) -> Result<HashKvResponse, Error> {
        let at = Revision::try_from(request.revision)
            .ok()
            .filter(|revision| *revision > 0);
        let mut hasher = crc32fast::Hasher::new();
        let all = KeyRange::all();
        let bounds = RangeQuery {
            prefix: keys::PREFIX,
            from: Some(&all.from),
            at,
            ..RangeQuery::default()
        };
        let page = self.kv.range(bounds, &mut |_| true)?;
        for item in &page.items {
            hasher.update(&key_value(item).encode_to_vec());
        }
        Ok(HashKvResponse {
            header: self.header_now(),
            hash: hasher.finalize(),
            compact_revision: signed(self.kv.compacted()),
            hash_revision: signed(page.revision),
        })
    }

    fn alarms(&self) -> Vec<AlarmMember> {
        let alarm = AlarmMember {
            member_id: self.identity.member,
            alarm: AlarmType::NoSpace as i32,
        };
        match self.no_space.load(Ordering::Relaxed) {
            true => vec![alarm],
            false => vec![],
        }
    }

    pub(crate) async fn alarm(&self, request: &AlarmRequest) -> Result<AlarmResponse, Error> {
        let alarms = match request.action() {
            AlarmAction::Get => self.alarms(),
            AlarmAction::Activate if request.alarm() == AlarmType::NoSpace => {
                self.set_no_space(true).await?;
                self.alarms()
            }
            AlarmAction::Deactivate if request.alarm() != AlarmType::Corrupt => {
                let were = self.alarms();
                self.set_no_space(false).await?;
                were
            }
            _ => vec![],
        };
        Ok(AlarmResponse {
            header: self.header_now(),
            alarms,
        })
    }

    async fn set_no_space(&self, on: bool) -> Result<(), Error> {
        let action = match on {
            true => Action::Put(Arc::new(Bytes::from_static(b"1"))),
            false => Action::Delete,
        };
        self.meta.commit(Op::new(NO_SPACE, Expect::Any, action)).await?;
        self.no_space.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Whether what needs space may go on. Whoever finds that there is none raises the alarm, which stays until somebody
    /// disarms it.
    async fn has_space(&self, needs_it: bool) -> Result<(), Error> {
        if !needs_it {
            return Ok(());
        }
        if self.no_space.load(Ordering::Relaxed) {
            return Err(Error::NoSpace);
        }
        let Some(quota) = self.settings.quota_bytes else {
            return Ok(());
        };
        let used = self.kv.used_bytes();
        if used < quota {
            return Ok(());
        }
        tracing::warn!(
            used,
            quota,
            "the space quota is exceeded; compact, then disarm the alarm"
        );
        self.set_no_space(true).await?;
        Err(Error::NoSpace)
    }

    pub(crate) fn has_alarm(&self) -> bool {
        self.no_space.load(Ordering::Relaxed)
    }

    /// Why it takes no writes, if so.
    pub(crate) fn trouble(&self) -> Option<String> {
        let failure = self.kv.health().err().or_else(|| self.meta.health().err());
        failure.map(|failure| failure.error)
    }

    pub(crate) fn lease_count(&self) -> usize {
        self.leases.count()
    }
}

/// History stays until somebody compacts it; the bounds are for when nobody does.
fn history() -> Options {
    Options {
        history_events: 2_000_000,
        history_bytes: 512 << 20,
        history_age: Duration::from_secs(365 * 86_400),
        ..Options::default()
    }
}

fn number(meta: &Store<Bytes>, key: &str) -> Option<u64> {
    let item = meta.get(key)?;
    <[u8; 8]>::try_from(&item.record[..]).ok().map(u64::from_le_bytes)
}

impl Identity {
    /// The same flags give the same numbers.
    fn of(settings: &Settings) -> Identity {
        let mut urls = settings.peer_urls.clone();
        urls.sort();
        let text = urls.join(",") + &settings.cluster_token;
        let half = |salt: &str| u64::from(crc32fast::hash(format!("{salt}{text}").as_bytes()));
        Identity {
            cluster: (half("cluster") << 32) | half("cluster2"),
            member: (half("member") << 32) | half("member2"),
        }
    }

    /// Keeps the numbers of the first start, whatever the flags say later.
    async fn settle(settings: &Settings, meta: &Store<Bytes>) -> Result<Identity, StartError> {
        let identity = Identity::of(settings);
        if let Some(stored) = meta.get(IDENTITY).and_then(|item| Identity::decode(&item.record)) {
            if stored != identity {
                tracing::warn!(
                    "taking the member from the data directory; --initial-* flags and peer URLs no longer count"
                );
            }
            return Ok(stored);
        }
        let record = Arc::new(identity.encode());
        let written = meta.commit(Op::new(IDENTITY, Expect::Any, Action::Put(record))).await;
        written.map_err(StartError::Identity)?;
        Ok(identity)
    }

    fn encode(self) -> Bytes {
        [self.cluster.to_le_bytes(), self.member.to_le_bytes()].concat().into()
    }

    fn decode(bytes: &[u8]) -> Option<Identity> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Identity {
            cluster: number(0)?,
            member: number(8)?,
        })
    }
}

/// A request outside of a transaction is one of a single operation.
fn single(request: Request) -> TxnRequest {
    TxnRequest {
        success: vec![RequestOp { request: Some(request) }],
        ..TxnRequest::default()
    }
}

fn only(response: TxnResponse) -> Option<Response> {
    response.responses.into_iter().next()?.response
}

/// Whether it may need space.
fn puts(request: &TxnRequest) -> bool {
    request
        .success
        .iter()
        .chain(&request.failure)
        .any(|op| match &op.request {
            Some(Request::Put(_)) => true,
            Some(Request::Txn(request)) => puts(request),
            _ => false,
        })
}

/// Revokes leases whose time is over; for ever.
async fn expire(server: Arc<Server>) {
    loop {
        let id = server.leases.expired().await;
        match server.lease_revoke(id).await {
            Ok(_) => Calls::count(&server.calls.expired_leases),
            // Somebody revoked it right now.
            Err(Error::LeaseNotFound) => {}
            Err(error) => {
                tracing::warn!(%error, lease = format!("{id:016x}"), "failed to revoke a lease; trying again")
            }
        }
    }
}
