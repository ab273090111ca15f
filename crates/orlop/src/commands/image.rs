//! `orlop image`: the images of a data directory, for the containers of its nodes. It works whether or not a cluster runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use orlop_runtime::cri::messages::{AuthConfig, Image, ImageSpec};
use orlop_runtime::embedded::images::{ImageStore, Progress, Prune, PullEvent};
use parking_lot::Mutex;
use serde_json::json;

use crate::embedded::open_images;
use crate::output::counted;
use crate::status::render_table;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Data directory of the cluster [default: /var/lib/orlop as root, else ~/.local/share/orlop]
    #[arg(long, global = true, value_name = "DIR", env = "ORLOP_DATA_DIR")]
    data_dir: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Pull images from their registries; registries.yaml in the data directory has mirrors and credentials
    Pull {
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
        /// Credentials for the registry
        #[arg(
            long,
            value_name = "USER:PASSWORD",
            env = "ORLOP_REGISTRY_CREDS",
            hide_env_values = true
        )]
        creds: Option<String>,
    },
    /// Load images from archives of `docker save` or in OCI layout, compressed or not
    Load {
        /// Archives (-: standard input)
        #[arg(value_name = "FILE", default_value = "-")]
        files: Vec<PathBuf>,
    },
    /// Save images to an archive that `docker load` and others can read
    Save {
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
        /// File to write (-: standard output)
        #[arg(short, long, value_name = "FILE", default_value = "-")]
        output: PathBuf,
    },
    /// List images
    #[command(visible_alias = "list")]
    Ls {
        /// Output format: text or json
        #[arg(short, long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
        output: String,
        /// Show image ids only
        #[arg(short, long)]
        quiet: bool,
    },
    /// Remove images, by name or id; layers in use stay until their containers are gone
    Rm {
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Remove images without a name
    Prune {
        /// Remove all images that no container uses
        #[arg(short, long)]
        all: bool,
    },
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let dir = args.data_dir.map_or_else(super::up::default_data_dir, Ok)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the tokio runtime")?;
    runtime.block_on(async {
        let store = open_images(&dir).await?;
        match args.verb {
            Verb::Pull { images, creds } => pull(&store, &images, creds.as_deref()).await,
            Verb::Load { files } => load(&store, &files).await,
            Verb::Save { images, output } => save(&store, &images, &output).await,
            Verb::Ls { output, quiet } => list(&store, &output, quiet).await,
            Verb::Rm { images } => remove(&store, &images).await,
            Verb::Prune { all } => prune(&store, all).await,
        }
    })
}

fn spec(image: &str) -> ImageSpec {
    ImageSpec {
        image: image.to_string(),
        ..ImageSpec::default()
    }
}

async fn pull(store: &ImageStore, images: &[String], creds: Option<&str>) -> anyhow::Result<()> {
    let auth = creds.map(parse_creds).transpose()?;
    for image in images {
        let bar = PullBar::start(image);
        let pulled = store.pull(&spec(image), auth.as_ref(), bar.progress()).await;
        drop(bar);
        println!("{}", pulled?);
    }
    Ok(())
}

fn parse_creds(text: &str) -> anyhow::Result<AuthConfig> {
    let Some((username, password)) = text.split_once(':') else {
        bail!("invalid --creds: must be USER:PASSWORD");
    };
    Ok(AuthConfig {
        username: username.to_string(),
        password: password.to_string(),
        ..AuthConfig::default()
    })
}

async fn load(store: &ImageStore, files: &[PathBuf]) -> anyhow::Result<()> {
    for file in files {
        let loaded = match is_standard(file) {
            true if std::io::stdin().is_terminal() => bail!("name an archive, or pipe one into this command"),
            true => store.load(std::io::stdin()).await,
            false => {
                let opened = File::open(file).with_context(|| format!("failed to read {}", file.display()))?;
                let bar = transfer_bar(&file.display().to_string(), opened.metadata()?.len());
                let loaded = store.load(bar.wrap_read(opened)).await;
                bar.finish_and_clear();
                loaded
            }
        };
        for image in loaded? {
            match image.tags.as_slice() {
                [] => println!("Loaded {}", image.id),
                tags => tags.iter().for_each(|tag| println!("Loaded {tag}")),
            }
        }
    }
    Ok(())
}

/// To a file beside the one that is wanted, until it is whole.
async fn save(store: &ImageStore, images: &[String], output: &Path) -> anyhow::Result<()> {
    if is_standard(output) {
        if std::io::stdout().is_terminal() {
            bail!("name a file with -o, or pipe the archive into another command");
        }
        return Ok(store.save(images, std::io::stdout()).await?);
    }
    let mut unfinished = output.as_os_str().to_os_string();
    unfinished.push(".tmp");
    let file = File::create(&unfinished).with_context(|| format!("failed to write {}", output.display()))?;
    let bar = transfer_bar(&output.display().to_string(), 0);
    let saved = store.save(images, bar.wrap_write(file)).await;
    bar.finish_and_clear();
    let saved = saved
        .map_err(anyhow::Error::new)
        .and_then(|()| Ok(std::fs::rename(&unfinished, output)?));
    if saved.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    saved
}

fn is_standard(file: &Path) -> bool {
    file == Path::new("-")
}

/// Bytes on their way, on a terminal.
fn transfer_bar(name: &str, bytes: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {elapsed}";
    let style = ProgressStyle::with_template(style).expect("the template is right");
    ProgressBar::new(bytes).with_style(style).with_message(name.to_string())
}

async fn list(store: &ImageStore, output: &str, quiet: bool) -> anyhow::Result<()> {
    let mut images = store.list().await?;
    images.sort_by(|a, b| (&a.repo_tags, &a.id).cmp(&(&b.repo_tags, &b.id)));
    if quiet {
        images.iter().for_each(|image| println!("{}", image.id));
    } else if output == "json" {
        let shown = images.iter().map(|image| {
            json!({"id": image.id, "repoTags": image.repo_tags, "repoDigests": image.repo_digests,
                   "size": image.size, "pinned": image.pinned})
        });
        println!("{:#}", json!({"images": shown.collect::<Vec<_>>()}));
    } else {
        println!("{}", render(&images).trim_end());
    }
    Ok(())
}

/// As `crictl images` has them: a line for each name.
fn render(images: &[Image]) -> String {
    let heads = ["IMAGE", "TAG", "IMAGE ID", "SIZE"].map(String::from);
    let row = |image: &Image, name: &str| {
        let (repository, tag) = split_tag(name);
        vec![
            repository.to_string(),
            tag.to_string(),
            short_id(&image.id),
            size(image.size),
        ]
    };
    let rows = images.iter().flat_map(|image| match image.repo_tags.as_slice() {
        [] => vec![row(image, "<none>")],
        tags => tags.iter().map(|tag| row(image, tag)).collect(),
    });
    let mut text = String::new();
    render_table(&mut text, &heads, rows.collect());
    text
}

/// A port has a colon, too.
fn split_tag(name: &str) -> (&str, &str) {
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, tag),
        _ => (name, "<none>"),
    }
}

fn short_id(id: &str) -> String {
    id.strip_prefix("sha256:").unwrap_or(id).chars().take(13).collect()
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// A name goes, and the image with its last one; an id takes all names with it.
async fn remove(store: &ImageStore, images: &[String]) -> anyhow::Result<()> {
    let mut problems = vec![];
    for image in images {
        let Some(found) = store.status(&spec(image)).await? else {
            problems.push(format!("no such image: {image}"));
            continue;
        };
        if found.pinned {
            problems.push(format!("{image} is built in"));
            continue;
        }
        let is_id =
            found.id == *image || short_id(&found.id).starts_with(image.as_str()) || image.starts_with("sha256:");
        if is_id || !store.untag(image).await? {
            store.remove(&spec(image)).await?;
        }
        println!("Removed {image}");
    }
    match problems.is_empty() {
        true => Ok(()),
        false => bail!("{}", problems.join("; ")),
    }
}

async fn prune(store: &ImageStore, all: bool) -> anyhow::Result<()> {
    let which = if all { Prune::Unused } else { Prune::Untagged };
    let before = used_bytes(store).await?;
    let removed = store.prune(which).await?;
    removed.iter().for_each(|id| println!("Removed {id}"));
    let freed = before.saturating_sub(used_bytes(store).await?);
    println!("{} removed, {} freed", counted(removed.len(), "image"), size(freed));
    Ok(())
}

async fn used_bytes(store: &ImageStore) -> anyhow::Result<u64> {
    Ok(store.fs_usage().await?.used_bytes.map_or(0, |bytes| bytes.value))
}

/// How far a pull is: what has been told of its layers.
#[derive(Debug, Default, PartialEq)]
struct PullState {
    /// By layer: bytes that are here, of how many, and whether it is ready.
    layers: BTreeMap<String, (u64, u64, bool)>,
}

impl PullState {
    fn apply(&mut self, event: PullEvent) {
        match event {
            PullEvent::Resolved { layers } => {
                for (layer, bytes) in layers {
                    self.layers.entry(layer.to_string()).or_insert((0, bytes, false)).1 = bytes;
                }
            }
            PullEvent::Downloading { layer, done, total } => {
                let known = self.layers.entry(layer.to_string()).or_default();
                (known.0, known.1) = (done, total);
            }
            PullEvent::Unpacking { layer } => {
                let known = self.layers.entry(layer.to_string()).or_default();
                known.0 = known.1;
            }
            PullEvent::Ready { layer } => {
                let known = self.layers.entry(layer.to_string()).or_default();
                *known = (known.1, known.1, true);
            }
        }
    }

    fn bytes(&self) -> (u64, u64) {
        let sum = |of: fn(&(u64, u64, bool)) -> u64| self.layers.values().map(of).fold(0, u64::saturating_add);
        (sum(|layer| layer.0), sum(|layer| layer.1))
    }

    fn ready(&self) -> usize {
        self.layers.values().filter(|layer| layer.2).count()
    }
}

/// A bar on a terminal; elsewhere a line for each layer. Dropping it takes the bar away.
struct PullBar {
    image: String,
    bar: Option<ProgressBar>,
    state: Arc<Mutex<PullState>>,
}

impl PullBar {
    fn start(image: &str) -> PullBar {
        let bar = std::io::stderr().is_terminal().then(|| transfer_bar(image, 0));
        PullBar {
            image: image.to_string(),
            bar,
            state: Arc::default(),
        }
    }

    fn progress(&self) -> Progress {
        let (image, bar, state) = (self.image.clone(), self.bar.clone(), self.state.clone());
        Arc::new(move |event| {
            let is_ready = matches!(event, PullEvent::Ready { .. });
            let mut state = state.lock();
            state.apply(event);
            let (done, total) = state.bytes();
            let layers = format!("{} of {} layers", state.ready(), state.layers.len());
            match &bar {
                Some(bar) => {
                    bar.set_length(total);
                    bar.set_position(done);
                    bar.set_message(format!("{image}: {layers}"));
                }
                None if is_ready => eprintln!("{image}: {layers}, {}", size(total)),
                None => {}
            }
        })
    }
}

impl Drop for PullBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use orlop_runtime::embedded::images::Digest;

    use super::*;

    #[test]
    fn names_are_lines() {
        let image = |id: &str, tags: &[&str], size: u64| Image {
            id: format!("sha256:{id}"),
            repo_tags: tags.iter().map(|tag| tag.to_string()).collect(),
            size,
            ..Image::default()
        };
        let images = [
            image(
                "0123456789abcdef",
                &["docker.io/library/busybox:1.36", "localhost:5000/busybox:x"],
                2_160_000,
            ),
            image("fedcba9876543210", &[], 999),
        ];
        let expected = "\
IMAGE                      TAG     IMAGE ID       SIZE
docker.io/library/busybox  1.36    0123456789abc  2.2 MB
localhost:5000/busybox     x       0123456789abc  2.2 MB
<none>                     <none>  fedcba9876543  1.0 kB
";
        assert_eq!(render(&images), expected);
        assert_eq!(split_tag("localhost:5000/a"), ("localhost:5000/a", "<none>"));
        assert_eq!(size(1_234_000_000), "1.23 GB");
    }

    #[test]
    fn a_pull_is_the_sum_of_its_layers() {
        let digest = |n: u8| Digest::parse(&format!("sha256:{}", format!("{n:02x}").repeat(32))).unwrap();
        let mut state = PullState::default();
        state.apply(PullEvent::Resolved {
            layers: vec![(digest(1), 100), (digest(2), 50)],
        });
        state.apply(PullEvent::Ready { layer: digest(2) });
        state.apply(PullEvent::Downloading {
            layer: digest(1),
            done: 30,
            total: 100,
        });
        assert_eq!((state.bytes(), state.ready()), ((80, 150), 1));
        state.apply(PullEvent::Unpacking { layer: digest(1) });
        assert_eq!((state.bytes(), state.ready()), ((150, 150), 1));
    }

    #[test]
    fn credentials() {
        let auth = parse_creds("ann:se:cret").unwrap();
        assert_eq!((auth.username.as_str(), auth.password.as_str()), ("ann", "se:cret"));
        assert!(parse_creds("ann").is_err());
    }
}
