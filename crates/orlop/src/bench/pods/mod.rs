//! `orlop bench pods`: how long pods take from their creation until they run, on the embedded runtime and on one behind a
//! socket, and what they cost. Each runtime has a cluster of the bench's own; all are measured in turns, so that they meet
//! the same machine. A runtime behind a socket is also asked for the same containers directly, without a cluster.

mod bare;
mod cluster;
mod overhead;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use orlop_base::clock::monotonic;

use bare::BareRuntime;
use cluster::{Cluster, Pods};
use overhead::Processes;

const COMMAND: [&str; 2] = ["sleep", "1000000"];
/// Pods that are started one after the other, of which the middle one is told.
const ALONE: usize = 11;
/// The kernel takes network namespaces apart after they are gone for everybody else, and holds up new ones meanwhile.
const SETTLE: Duration = Duration::from_secs(1);
/// What follows from the start of so many is not idleness.
const CALM: Duration = Duration::from_secs(5);
/// How long a cluster is looked at while it has nothing to do.
const IDLE: Duration = Duration::from_secs(20);
/// The name of the runtime without a socket.
pub(crate) const EMBEDDED: &str = "embedded";
/// The part of containerd that CRI has for itself.
const NAMESPACE: &str = "k8s.io";

/// What a bench of pods is made with.
pub(crate) struct Setting<'a> {
    /// `embedded`, and sockets.
    pub runtimes: &'a [String],
    /// Where runtimes with a socket look for the configuration of pod networks.
    pub cni_conf_dir: &'a Path,
    pub image: &'a str,
    pub pods: usize,
}

/// What was measured of one runtime, or of its bare calls.
pub(crate) struct Column {
    title: String,
    alone: Vec<Duration>,
    together: Duration,
    cluster: Option<Costs>,
}

/// What a cluster takes. Sizes in bytes.
#[derive(Default)]
struct Costs {
    empty: u64,
    full: u64,
    /// For each pod, in other processes than the cluster's and the pod's own.
    overhead: u64,
    /// Of one core, while all pods run and nothing happens.
    core: f64,
}

/// One runtime under measurement.
struct Contestant {
    pods: Pods,
    column: Column,
    bare: Option<(BareRuntime, Column)>,
}

/// Everything that must be there while the bench runs, and goes with the value.
pub(crate) struct Stage<'a> {
    setting: Setting<'a>,
    clusters: Vec<(String, Cluster)>,
    /// Images that were put where they are for the bench: addresses of containerd, and its images' names.
    imported: Vec<(String, String)>,
    files: PathBuf,
}

impl<'a> Stage<'a> {
    /// To be called outside of asynchronous code.
    pub(crate) fn set(setting: Setting<'a>) -> anyhow::Result<Stage<'a>> {
        let files = std::env::temp_dir().join(format!("orlop-bench-pods-{}", std::process::id()));
        std::fs::create_dir_all(&files)?;
        let mut stage = Stage {
            setting,
            clusters: vec![],
            imported: vec![],
            files,
        };
        for (number, runtime) in stage.setting.runtimes.iter().enumerate() {
            let wanted = match runtime.as_str() {
                EMBEDDED => EMBEDDED.to_string(),
                socket => format!("cri:{socket}"),
            };
            let cluster = Cluster::start(&wanted, number, &stage.setting, &stage.files);
            let cluster = cluster.with_context(|| format!("failed to start a cluster on {runtime}"))?;
            stage.clusters.push((runtime.clone(), cluster));
        }
        stage.share_builtin_image()?;
        Ok(stage)
    }

    /// The embedded runtime's own image is for all, so that they start the same thing.
    fn share_builtin_image(&mut self) -> anyhow::Result<()> {
        let embedded = self.clusters.iter().find(|(runtime, _)| runtime == EMBEDDED);
        let Some((_, cluster)) = embedded.filter(|_| self.setting.image.starts_with("orlop.local/")) else {
            return Ok(());
        };
        let archive = self.files.join("image.tar");
        let mut save = Command::new(std::env::current_exe()?);
        save.args(["image", "save", self.setting.image, "--output"])
            .arg(&archive);
        run(save.arg("--data-dir").arg(cluster.data_dir()))?;
        let name = match self.setting.image.contains(':') {
            true => self.setting.image.to_string(),
            false => format!("{}:latest", self.setting.image),
        };
        for (socket, _) in self.clusters.iter().filter(|(runtime, _)| runtime != EMBEDDED) {
            let has = run(ctr(socket).args(["images", "list", "--quiet"]))?;
            if !has.lines().any(|line| line == name) {
                run(ctr(socket).args(["images", "import"]).arg(&archive))?;
                self.imported.push((socket.clone(), name.clone()));
            }
        }
        Ok(())
    }

    pub(crate) async fn measure(&self) -> anyhow::Result<Vec<Column>> {
        let mut all = vec![];
        for (runtime, cluster) in &self.clusters {
            let pods = cluster.connect(self.setting.image).await?;
            let bare = match runtime.as_str() {
                EMBEDDED => None,
                socket => {
                    let files = self.files.join("bare");
                    let bare = BareRuntime::connect(socket, self.setting.image, files).await?;
                    Some((bare, Column::new(&format!("{} bare", short(socket)))))
                }
            };
            all.push(Contestant {
                pods,
                column: Column::new(short(runtime)),
                bare,
            });
        }
        tokio::time::sleep(CALM).await;
        for contestant in &mut all {
            let costs = contestant.column.cluster.get_or_insert_default();
            costs.empty = contestant.pods.usage()?.resident;
        }
        eprintln!("· {ALONE} pods one after the other on each");
        for number in 0..ALONE {
            for contestant in &mut all {
                contestant.one(number).await?;
            }
        }
        for contestant in &mut all {
            contestant.many(self.setting.pods).await?;
        }
        let columns = all.into_iter().flat_map(|contestant| {
            let bare = contestant.bare.map(|(_, column)| column);
            [Some(contestant.column), bare].into_iter().flatten()
        });
        Ok(columns.collect())
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // Images can't go while containers use them.
        self.clusters.clear();
        for (socket, name) in &self.imported {
            let removed = run(ctr(socket).args(["images", "list"])).and_then(|listed| {
                let names = names_of_image(&listed, name);
                run(ctr(socket).args(["images", "remove"]).args(names))
            });
            if let Err(error) = removed {
                eprintln!("· {name} is still in {socket}: {error:#}");
            }
        }
        let _ = std::fs::remove_dir_all(&self.files);
    }
}

impl Contestant {
    async fn one(&mut self, number: usize) -> anyhow::Result<()> {
        if let Some((bare, column)) = &mut self.bare {
            tokio::time::sleep(SETTLE).await;
            let started = monotonic();
            let sandbox = bare.start(&format!("bare-{number}")).await?;
            column.alone.push(started.elapsed());
            bare.remove(&sandbox).await?;
        }
        let running = self.pods.running().await?;
        tokio::time::sleep(SETTLE).await;
        let started = monotonic();
        self.pods.create(&format!("pod-{number}")).await?;
        self.pods.until_running(running, 1).await?;
        self.column.alone.push(started.elapsed());
        self.pods.delete_all().await
    }

    async fn many(&mut self, count: usize) -> anyhow::Result<()> {
        let names = |prefix: &str| (0..count).map(|n| format!("{prefix}-{n}")).collect::<Vec<_>>();
        if let Some((bare, column)) = &mut self.bare {
            eprintln!("· {count} pods at once: {}", column.title);
            tokio::time::sleep(SETTLE).await;
            let (names, started) = (names("bare"), monotonic());
            let made = orlop_base::join_all(names.iter().map(|name| bare.start(name))).await;
            column.together = started.elapsed();
            let (sandboxes, failed): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
            let sandboxes: Vec<String> = sandboxes.into_iter().flatten().collect();
            let gone = orlop_base::join_all(sandboxes.iter().map(|id| bare.remove(id))).await;
            let failed = failed.into_iter().map(|outcome| outcome.map(drop));
            failed.chain(gone).collect::<anyhow::Result<()>>()?;
        }
        eprintln!("· {count} pods at once: {}", self.column.title);
        tokio::time::sleep(SETTLE).await;
        let before = Processes::now();
        let running = self.pods.running().await?;
        let (names, started) = (names("many"), monotonic());
        let made = orlop_base::join_all(names.iter().map(|name| self.pods.create(name))).await;
        made.into_iter().collect::<anyhow::Result<()>>()?;
        self.pods.until_running(running, count).await?;
        self.column.together = started.elapsed();
        eprintln!("· idle with {count} pods");
        tokio::time::sleep(CALM).await;
        let (first, overhead) = (
            self.pods.usage()?,
            Processes::now().overhead_since(&before, count, COMMAND[0]),
        );
        tokio::time::sleep(IDLE).await;
        let last = self.pods.usage()?;
        let costs = self.column.cluster.get_or_insert_default();
        costs.full = last.resident;
        costs.core = last.cpu.saturating_sub(first.cpu).as_secs_f64() / IDLE.as_secs_f64();
        costs.overhead = overhead;
        self.pods.delete_all().await
    }
}

impl Column {
    fn new(title: &str) -> Column {
        Column {
            title: title.to_string(),
            alone: vec![],
            together: Duration::ZERO,
            cluster: None,
        }
    }

    fn middle(&self) -> Duration {
        let mut times = self.alone.clone();
        times.sort();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

/// Sockets that are not there are left out of what was not asked for by name.
pub(crate) fn usual_runtimes() -> Vec<String> {
    let containerd = "/run/containerd/containerd.sock";
    let sockets = [containerd].into_iter().filter(|path| PathBuf::from(path).exists());
    let sockets = sockets.map(|path| format!("unix://{path}"));
    [EMBEDDED.to_string()].into_iter().chain(sockets).collect()
}

/// All names that containerd's list has for the image of this name: CRI gives each another one, by its digest.
fn names_of_image<'a>(listed: &'a str, name: &str) -> Vec<&'a str> {
    let rows = || listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let digest = |row: &Vec<&'a str>| row.get(2).copied();
    let wanted = rows()
        .find(|row| row.first() == Some(&name))
        .and_then(|row| digest(&row));
    let same = rows().filter(|row| wanted.is_some() && digest(row) == wanted);
    same.filter_map(|row| row.first().copied()).collect()
}

/// How a runtime is called in the table.
fn short(runtime: &str) -> &str {
    let file = runtime.rsplit('/').next().unwrap_or(runtime);
    file.trim_end_matches(".sock")
}

fn ctr(socket: &str) -> Command {
    let mut ctr = Command::new("ctr");
    ctr.args([
        "--address",
        socket.trim_start_matches("unix://"),
        "--namespace",
        NAMESPACE,
    ]);
    ctr
}

fn run(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("failed to run {program}"))?;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A row for each figure, a column for each runtime.
fn table(columns: &[Column], pods: usize) -> Vec<(String, Vec<String>)> {
    let row = |what: &str, figure: &dyn Fn(&Column) -> Option<String>| {
        let figures = columns.iter().map(|column| figure(column).unwrap_or("–".into()));
        (what.to_string(), figures.collect::<Vec<_>>())
    };
    let milliseconds = |time: Duration| Some(format!("{:.0} ms", time.as_secs_f64() * 1e3));
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let cost = |column: &Column, figure: &dyn Fn(&Costs) -> String| column.cluster.as_ref().map(figure);
    vec![
        row("one pod, the middle of 11", &|c| milliseconds(c.middle())),
        row(&format!("{pods} pods at once"), &|c| milliseconds(c.together)),
        row("a pod beside its own processes", &|c| {
            cost(c, &|x| megabytes(x.overhead))
        }),
        row("the cluster without pods", &|c| cost(c, &|x| megabytes(x.empty))),
        row(&format!("the cluster with {pods} pods"), &|c| {
            cost(c, &|x| megabytes(x.full))
        }),
        row("and of a core, idle", &|c| {
            cost(c, &|x| format!("{:.1} %", x.core * 100.0))
        }),
    ]
}

pub(crate) fn print(columns: &[Column], pods: usize) {
    let line = |what: &str, cells: &mut dyn Iterator<Item = &str>| {
        println!(
            "{what:<32}{}",
            cells.map(|cell| format!(" {cell:>18}")).collect::<String>()
        );
    };
    line("", &mut columns.iter().map(|column| column.title.as_str()));
    for (what, figures) in table(columns, pods) {
        line(&what, &mut figures.iter().map(String::as_str));
    }
    let mut clusters = columns.iter().filter(|column| column.cluster.is_some());
    let Some(first) = clusters.next() else { return };
    for other in clusters {
        println!(
            "\n{} / {}: one pod {:.2}, {pods} at once {:.2}",
            first.title,
            other.title,
            first.middle().as_secs_f64() / other.middle().as_secs_f64(),
            first.together.as_secs_f64() / other.together.as_secs_f64()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_goes_with_all_its_names() {
        let listed = "REF TYPE DIGEST SIZE\n\
                      orlop.local/echo:latest application/x sha256:1 4 KiB\n\
                      sha256:9 application/x sha256:1 4 KiB\n\
                      other:1 application/x sha256:2 4 KiB\n";
        assert_eq!(
            names_of_image(listed, "orlop.local/echo:latest"),
            ["orlop.local/echo:latest", "sha256:9"]
        );
        assert_eq!(names_of_image(listed, "none:1"), [""; 0]);
    }

    #[test]
    fn a_row_for_each_figure() {
        let times = [9, 7, 8].map(Duration::from_millis);
        let embedded = Column {
            alone: times.to_vec(),
            together: Duration::from_millis(1234),
            cluster: Some(Costs {
                empty: 50_000_000,
                full: 60_000_000,
                overhead: 300_000,
                core: 0.002,
            }),
            ..Column::new(short(EMBEDDED))
        };
        let bare = Column::new(short("unix:///run/containerd/containerd.sock"));
        assert_eq!(bare.title, "containerd");
        let rows = table(&[embedded, bare], 110);
        let wanted = [
            ("one pod, the middle of 11", ["8 ms", "0 ms"]),
            ("110 pods at once", ["1234 ms", "0 ms"]),
            ("a pod beside its own processes", ["0.3 MB", "–"]),
            ("the cluster without pods", ["50.0 MB", "–"]),
            ("the cluster with 110 pods", ["60.0 MB", "–"]),
            ("and of a core, idle", ["0.2 %", "–"]),
        ];
        assert_eq!(
            rows,
            wanted.map(|(what, cells)| (what.to_string(), cells.map(String::from).to_vec()))
        );
    }
}
