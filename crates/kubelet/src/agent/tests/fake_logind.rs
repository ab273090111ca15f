//! A bus of its own with somebody on it who answers as logind and systemd do.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use nix::fcntl::OFlag;
use parking_lot::Mutex;
use zbus::message::Type;
use zbus::wire::Variant;
use zbus::{Connection, Message, MessageStream};

use crate::test_bus::TestBus;
use crate::testing::until;

pub(super) struct FakeLogind {
    pub daemon: TestBus,
    bus: Connection,
    state: Arc<Mutex<State>>,
}

struct State {
    delay: Duration,
    settings: PathBuf,
    /// Our ends of the locks that were given out.
    locks: Vec<std::fs::File>,
}

impl FakeLogind {
    pub(super) async fn start(directory: &Path, settings: &Path) -> FakeLogind {
        let (daemon, bus) = TestBus::start(directory).await;
        let state = Arc::new(Mutex::new(State {
            delay: Duration::from_secs(5),
            settings: settings.to_path_buf(),
            locks: Vec::new(),
        }));
        let calls = MessageStream::from(&bus);
        for name in ["org.freedesktop.login1", "org.freedesktop.systemd1"] {
            bus.request_name(name).await.unwrap();
        }
        tokio::spawn(answer(bus.clone(), calls, state.clone()));
        FakeLogind { daemon, bus, state }
    }

    pub(super) fn delay(&self) -> Duration {
        self.state.lock().delay
    }

    /// Whether anybody has a lock.
    pub(super) fn is_held(&self) -> bool {
        let mut state = self.state.lock();
        // An end of file: the other end is closed. Without one there is nothing to read yet.
        state.locks.retain_mut(|lock| {
            lock.read(&mut [0])
                .is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
        });
        !state.locks.is_empty()
    }

    pub(super) async fn until_held(&self, is_held: bool) {
        until("the inhibitor lock is held", || self.is_held(), is_held).await;
    }

    /// The machine goes down, or does not after all.
    pub(super) async fn signal(&self, goes_down: bool) {
        let place = ("/org/freedesktop/login1", "org.freedesktop.login1.Manager");
        self.bus
            .emit_signal(None::<&str>, place.0, place.1, "PrepareForShutdown", &goes_down)
            .await
            .unwrap();
    }
}

async fn answer(bus: Connection, mut calls: MessageStream, state: Arc<Mutex<State>>) {
    while let Some(Ok(call)) = calls.next().await {
        if call.message_type() == Type::MethodCall {
            let reply = reply(&call, &mut state.lock());
            bus.send(&reply).await.unwrap();
        }
    }
}

fn reply(call: &Message, state: &mut State) -> Message {
    let header = call.header();
    let back = Message::method_return(&header);
    match header.member().map(|member| member.to_string()).as_deref() {
        Some("Get") => {
            let asked: (String, String) = call.body().deserialize().unwrap();
            assert_eq!(asked.1, "InhibitDelayMaxUSec");
            let micros = u64::try_from(state.delay.as_micros()).unwrap();
            back.build(&Variant::from(micros)).unwrap()
        }
        Some("Inhibit") => {
            let asked: (String, String, String, String) = call.body().deserialize().unwrap();
            assert_eq!([asked.0.as_str(), &asked.1, &asked.3], ["shutdown", "kubelet", "delay"]);
            let (ours, theirs): (OwnedFd, OwnedFd) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
            state.locks.push(ours.into());
            back.build(&zbus::wire::OwnedFd::from(theirs)).unwrap()
        }
        Some("KillUnit") => {
            let asked: (String, String, i32) = call.body().deserialize().unwrap();
            assert_eq!(asked, ("systemd-logind.service".into(), "all".into(), 1));
            let text = std::fs::read_to_string(state.settings.join("99-kubelet.conf")).unwrap();
            let (_, seconds) = text.split_once("InhibitDelayMaxSec=").unwrap();
            state.delay = Duration::from_secs(seconds.trim().parse().unwrap());
            back.build(&()).unwrap()
        }
        other => panic!("nobody should call {other:?}"),
    }
}
