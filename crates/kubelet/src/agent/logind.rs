//! systemd-logind over D-Bus: takes the inhibitor lock that delays a node shutdown, and receives PrepareForShutdown.
// Upstream: pkg/kubelet/nodeshutdown/systemd (v1.36)

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use futures::{Stream, StreamExt};
use zbus::connection::Builder;
use zbus::message::Type;
use zbus::wire::OwnedVariant;
use zbus::{Connection, MatchRule, Message, MessageStream};

const SERVICE: &str = "org.freedesktop.login1";
const OBJECT: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
/// Ours among logind's settings.
const FILE: &str = "99-kubelet.conf";
/// The wait for logind to take a setting: this long first, then doubling, this often.
const SETTLES: Duration = Duration::from_millis(100);
const LOOKS: u32 = 6;
/// No answer is waited for longer.
const ANSWER: Duration = Duration::from_secs(25);

/// Where the bus is, and where logind reads its settings.
#[derive(Clone, Debug)]
pub struct LogindEndpoint {
    /// None: the system's bus.
    pub bus: Option<String>,
    pub settings: PathBuf,
}

impl Default for LogindEndpoint {
    fn default() -> LogindEndpoint {
        LogindEndpoint {
            bus: None,
            settings: "/etc/systemd/logind.conf.d".into(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("failed to connect to systemd-logind: {0}")]
    Bus(#[from] zbus::Error),
    #[error("failed to write {}: {source}", path.display())]
    Settings { path: PathBuf, source: std::io::Error },
    #[error("logind's InhibitDelayMaxSec is {is:?}, but shutdownGracePeriod requires {wanted:?}")]
    Delay { is: Duration, wanted: Duration },
}

pub(super) struct Logind {
    bus: Connection,
    settings: PathBuf,
}

impl Logind {
    pub(super) async fn connect(place: &LogindEndpoint) -> Result<Logind, Failure> {
        let bus = match &place.bus {
            Some(address) => Builder::address(address.as_str()),
            None => Builder::system(),
        };
        Ok(Logind {
            bus: bus.method_timeout(ANSWER).build().await?,
            settings: place.settings.clone(),
        })
    }

    /// Makes logind wait as long as this at least, if it would not.
    pub(super) async fn ensure_delay(&self, wanted: Duration) -> Result<(), Failure> {
        if self.delay().await? >= wanted {
            return Ok(());
        }
        self.write_delay(wanted)?;
        self.reload().await?;
        // It reads its settings in its own time.
        let mut pause = SETTLES;
        for _ in 0..LOOKS {
            if self.delay().await? >= wanted {
                return Ok(());
            }
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2);
        }
        let is = self.delay().await?;
        Err(Failure::Delay { is, wanted })
    }

    async fn delay(&self) -> Result<Duration, Failure> {
        let properties = "org.freedesktop.DBus.Properties";
        let asked = (MANAGER, "InhibitDelayMaxUSec");
        let answer = self
            .bus
            .call_method(Some(SERVICE), OBJECT, Some(properties), "Get", &asked)
            .await?;
        let value: OwnedVariant = answer.body().deserialize()?;
        let micros = u64::try_from(value)?;
        Ok(Duration::from_micros(micros))
    }

    fn write_delay(&self, wanted: Duration) -> Result<(), Failure> {
        let path = self.settings.join(FILE);
        let text = format!(
            "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={}\n",
            wanted.as_secs()
        );
        let written = std::fs::create_dir_all(&self.settings).and_then(|()| std::fs::write(&path, text));
        written.map_err(|source| Failure::Settings { path, source })
    }

    async fn reload(&self) -> Result<(), Failure> {
        let systemd = "org.freedesktop.systemd1";
        let manager = "org.freedesktop.systemd1.Manager";
        const SIGHUP: i32 = 1;
        let unit = ("systemd-logind.service", "all", SIGHUP);
        self.bus
            .call_method(
                Some(systemd),
                "/org/freedesktop/systemd1",
                Some(manager),
                "KillUnit",
                &unit,
            )
            .await?;
        Ok(())
    }

    /// The machine goes down only when this is dropped, or when the longest wait is over.
    pub(super) async fn lock(&self) -> Result<OwnedFd, Failure> {
        let what = (
            "shutdown",
            "kubelet",
            "Kubelet needs time to handle node shutdown",
            "delay",
        );
        let answer = self
            .bus
            .call_method(Some(SERVICE), OBJECT, Some(MANAGER), "Inhibit", &what)
            .await?;
        let lock: zbus::wire::OwnedFd = answer.body().deserialize()?;
        Ok(lock.into())
    }

    /// True: the machine is about to go down. False: it is not, after all.
    pub(super) async fn signals(&self) -> Result<impl Stream<Item = bool> + Unpin + use<>, Failure> {
        let rule = MatchRule::builder()
            .msg_type(Type::Signal)
            .interface(MANAGER)
            .member("PrepareForShutdown")
            .path(OBJECT)
            .build()?;
        let messages = MessageStream::for_match_rule(rule, &self.bus, None).await?;
        let meaning = |message: zbus::Result<Message>| async move {
            match message.and_then(|message| message.body().deserialize::<bool>()) {
                Ok(goes_down) => Some(goes_down),
                Err(error) => {
                    tracing::warn!(err = %error, "failed to decode a signal of logind");
                    None
                }
            }
        };
        Ok(messages.filter_map(meaning).boxed())
    }
}
