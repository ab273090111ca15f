//! Durable commits, with one writer and with many; fan-out of events to a thousand watchers; lists; restarts. Where there is
//! an etcd on the machine: creates in it, with and without the store.
//!
//! Commits wait for the disk under the system's directory for temporary files (TMPDIR).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use http::uri::PathAndQuery;
use orlop_base::clock::monotonic;
use orlop_store::etcd::messages::{
    Compare, CompareTarget, PutRequest, Request, RequestOp, TargetUnion, TxnRequest, TxnResponse,
};
use orlop_store::etcd::{EtcdOptions, PlainCodec};
use orlop_store::log::MemoryLog;
use orlop_store::{Action, EmbeddedLog, EmbeddedOptions, Expect, Op, Options, RangeQuery, Store};
use tokio::runtime::Runtime;
use tonic::IntoRequest;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

const RECORD_BYTES: usize = 2048;

fn record() -> Arc<Bytes> {
    Arc::new(Bytes::from(vec![b'x'; RECORD_BYTES]))
}

fn put(key: String, record: Arc<Bytes>) -> Op<Bytes> {
    Op::new(key, Expect::Any, Action::Put(record))
}

fn open(dir: &Path) -> Store<Bytes> {
    let log = EmbeddedLog::open(dir, EmbeddedOptions::default()).expect("a fresh directory");
    Store::open(Box::new(log), Options::default()).expect("a good log")
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// `writers` tasks that commit one after the other, `commits` in all.
async fn write(store: &Store<Bytes>, writers: u64, commits: u64) {
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let (store, record) = (store.clone(), record());
            let share = commits / writers + u64::from(writer < commits % writers);
            tokio::spawn(async move {
                for n in 0..share {
                    let key = format!("/registry/pods/{writer}/{}", n % 100);
                    store.commit(put(key, record.clone())).await.expect("the disk works");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
}

fn commits(c: &mut Criterion) {
    let runtime = runtime();
    let mut group = c.benchmark_group("commit");
    group
        .throughput(Throughput::Elements(1))
        .sample_size(10)
        .measurement_time(Duration::from_secs(3));
    for writers in [1, 64] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let store = open(dir.path());
        group.bench_function(format!("durable, {writers} writers"), |b| {
            b.iter_custom(|commits| {
                let start = monotonic();
                runtime.block_on(write(&store, writers, commits));
                start.elapsed()
            });
        });
    }
    let store = Store::open(Box::new(MemoryLog::default()), Options::default()).expect("nothing to read");
    group.bench_function("in memory, 64 writers", |b| {
        b.iter_custom(|commits| {
            let start = monotonic();
            runtime.block_on(write(&store, 64, commits));
            start.elapsed()
        });
    });
    group.finish();
}

/// One event at a time, until each of the watchers has seen it.
fn fan_out(c: &mut Criterion) {
    const WATCHERS: u64 = 1000;
    let runtime = runtime();
    let mut group = c.benchmark_group("watch");
    group
        .throughput(Throughput::Elements(WATCHERS))
        .sample_size(10)
        .measurement_time(Duration::from_secs(3));
    for in_flight in [1u64, 64] {
        let store: Store<Bytes> =
            Store::open(Box::new(MemoryLog::default()), Options::default()).expect("nothing to read");
        group.bench_function(format!("{WATCHERS} watchers, {in_flight} writers"), |b| {
            b.iter_custom(|events| {
                let start = monotonic();
                runtime.block_on(async {
                    let last = store.revision() + events;
                    let watchers: Vec<_> = (0..WATCHERS)
                        .map(|_| {
                            let mut watcher = store.watch("/registry/pods/", store.revision()).expect("the present");
                            tokio::spawn(async move {
                                while watcher.progress() < last {
                                    watcher.next().await.expect("fast enough for history");
                                }
                            })
                        })
                        .collect();
                    write(&store, in_flight, events).await;
                    for watcher in watchers {
                        watcher.await.expect("no panic");
                    }
                });
                start.elapsed()
            });
        });
    }
    group.finish();
}

fn reads(c: &mut Criterion) {
    const KEYS: u64 = 10_000;
    let runtime = runtime();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path());
    runtime.block_on(async {
        let fill = (0..64).map(|task| {
            let (store, record) = (store.clone(), record());
            tokio::spawn(async move {
                for n in (task..KEYS).step_by(64) {
                    let key = format!("/registry/pods/default/pod-{n:05}");
                    store.commit(put(key, record.clone())).await.expect("the disk works");
                }
            })
        });
        for task in fill.collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
    });
    let mut group = c.benchmark_group("read");
    group.sample_size(10).measurement_time(Duration::from_secs(2));
    group.bench_function("get", |b| b.iter(|| store.get("/registry/pods/default/pod-05000")));
    let all = RangeQuery {
        prefix: "/registry/pods/",
        ..RangeQuery::default()
    };
    group.bench_function(format!("list of {KEYS}"), |b| {
        b.iter(|| store.range(all, &mut |_| true))
    });
    let page = RangeQuery {
        limit: Some(500),
        ..all
    };
    group.bench_function("page of 500", |b| b.iter(|| store.range(page, &mut |_| true)));
    drop(store);
    group.bench_function(format!("reopen with {KEYS}"), |b| b.iter(|| open(dir.path())));
    let empty = tempfile::tempdir().expect("a temporary directory");
    group.bench_function("reopen empty", |b| b.iter(|| open(empty.path())));
    group.finish();
}

/// A member of etcd (Debian's etcd-server) in a temporary directory.
struct Member {
    process: std::process::Child,
    url: String,
    _dir: tempfile::TempDir,
}

impl Member {
    /// None if there is no etcd on this machine.
    fn start() -> Option<Member> {
        let free = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            format!("http://{}", listener.local_addr().expect("an address"))
        };
        let (url, peer) = (free(), free());
        let dir = tempfile::tempdir().expect("a temporary directory");
        let process = std::process::Command::new("etcd")
            .arg("--data-dir")
            .arg(dir.path())
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"])
            .args(["--quota-backend-bytes", "8589934592"])
            .spawn()
            .ok()?;
        Some(Member {
            process,
            url,
            _dir: dir,
        })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A create as kube-apiserver sends it: the key must not be there.
fn create(key: &str, value: Bytes) -> TxnRequest {
    TxnRequest {
        compare: vec![Compare {
            target: CompareTarget::Mod as i32,
            key: key.to_string().into(),
            target_union: Some(TargetUnion::ModRevision(0)),
            ..Compare::default()
        }],
        success: vec![RequestOp {
            request: Some(Request::Put(PutRequest {
                key: key.to_string().into(),
                value,
                ..PutRequest::default()
            })),
        }],
        failure: vec![],
    }
}

/// The same creates by 64 writers through the store, and as transactions alone, without image and watch. Keys differ in
/// all of it.
fn creates_in_etcd(c: &mut Criterion) {
    const WRITERS: u64 = 64;
    const CONNECTIONS: usize = 4;
    let Some(member) = Member::start() else {
        return;
    };
    let runtime = runtime();
    let etcd = EtcdOptions {
        compaction_interval: Duration::ZERO,
        ..EtcdOptions::new(vec![member.url.clone()], Arc::new(PlainCodec))
    };
    let store: Store<Bytes> = Store::connect(etcd, Options::default()).expect("etcd starts");
    let channels: Vec<Channel> = runtime.block_on(async {
        let endpoint = || Endpoint::from_shared(member.url.clone()).expect("a URL");
        (0..CONNECTIONS).map(|_| endpoint().connect_lazy()).collect()
    });
    let next = Arc::new(AtomicU64::new(0));
    let key = |next: &AtomicU64| format!("/registry/pods/default/{:010}", next.fetch_add(1, Ordering::Relaxed));
    let mut group = c.benchmark_group("etcd");
    group
        .throughput(Throughput::Elements(1))
        .sample_size(10)
        .measurement_time(Duration::from_secs(5));
    group.bench_function("transactions alone, 64 writers", |b| {
        b.iter_custom(|creates| {
            let start = monotonic();
            runtime.block_on(async {
                let tasks: Vec<_> = (0..WRITERS)
                    .map(|writer| {
                        let (next, channel) = (next.clone(), channels[writer as usize % CONNECTIONS].clone());
                        let share = creates / WRITERS + u64::from(writer < creates % WRITERS);
                        tokio::spawn(async move {
                            let mut grpc = Grpc::new(channel);
                            for _ in 0..share {
                                grpc.ready().await.expect("a connection");
                                let request = create(&key(&next), Bytes::clone(&record()));
                                let codec = ProstCodec::<TxnRequest, TxnResponse>::default();
                                let path = PathAndQuery::from_static("/etcdserverpb.KV/Txn");
                                let answer = grpc.unary(request.into_request(), path, codec).await;
                                assert!(answer.expect("etcd works").into_inner().succeeded);
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.expect("no panic");
                }
            });
            start.elapsed()
        });
    });
    group.bench_function("through the store, 64 writers", |b| {
        b.iter_custom(|creates| {
            let start = monotonic();
            runtime.block_on(async {
                let tasks: Vec<_> = (0..WRITERS)
                    .map(|writer| {
                        let (next, store, record) = (next.clone(), store.clone(), record());
                        let share = creates / WRITERS + u64::from(writer < creates % WRITERS);
                        tokio::spawn(async move {
                            for _ in 0..share {
                                let op = Op::create(key(&next), record.clone());
                                store.commit(op).await.expect("etcd works");
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.expect("no panic");
                }
            });
            start.elapsed()
        });
    });
    group.bench_function("consistent read, 64 readers", |b| {
        b.iter_custom(|reads| {
            let start = monotonic();
            runtime.block_on(async {
                let tasks: Vec<_> = (0..WRITERS)
                    .map(|reader| {
                        let store = store.clone();
                        let share = reads / WRITERS + u64::from(reader < reads % WRITERS);
                        tokio::spawn(async move {
                            for _ in 0..share {
                                store.current().await.expect("etcd works");
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.expect("no panic");
                }
            });
            start.elapsed()
        });
    });
    group.finish();
}

criterion_group!(benches, commits, fan_out, reads, creates_in_etcd);
criterion_main!(benches);
