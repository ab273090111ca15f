//! Durable commits, with one writer and with many; fan-out of events to a thousand watchers; lists; restarts.
//!
//! Commits wait for the disk under the system's directory for temporary files (TMPDIR).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use orlop_base::clock::monotonic;
use orlop_store::log::MemoryLog;
use orlop_store::{Action, EmbeddedLog, EmbeddedOptions, Expect, Op, Options, RangeQuery, Store};
use tokio::runtime::Runtime;

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

criterion_group!(benches, commits, fan_out, reads);
criterion_main!(benches);
