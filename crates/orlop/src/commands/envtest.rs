//! `orlop envtest`: the directory of binaries that Go projects' envtest (controller-runtime) starts its control plane from.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Directory to write the links to; made if need be
    directory: PathBuf,
}

/// What envtest starts. It asks for kubectl too, but only if a test does.
const OWN: [&str; 2] = ["etcd", "kube-apiserver"];
const KUBECTL: &str = "kubectl";

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("failed to find this program")?;
    let directory = write(
        &args.directory,
        &own,
        in_path(KUBECTL, std::env::var_os("PATH").as_deref()).as_deref(),
    )?;
    println!("export KUBEBUILDER_ASSETS={}", quoted(&directory));
    Ok(())
}

/// Links to this program, and to kubectl if there is one; returns the directory's whole path.
fn write(directory: &Path, own: &Path, kubectl: Option<&Path>) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(directory).with_context(|| format!("failed to make {}", directory.display()))?;
    let directory = directory
        .canonicalize()
        .with_context(|| format!("failed to find {}", directory.display()))?;
    for name in OWN {
        link(&directory.join(name), own)?;
    }
    match kubectl {
        Some(kubectl) if kubectl.parent() != Some(&directory) => link(&directory.join(KUBECTL), kubectl)?,
        Some(_) => {}
        None => tracing::warn!("found no kubectl in PATH; tests that use envtest's kubectl need one"),
    }
    Ok(directory)
}

/// A link that leads there from now on. What is no link is somebody else's.
fn link(at: &Path, to: &Path) -> anyhow::Result<()> {
    match std::fs::symlink_metadata(at) {
        Ok(found) if found.is_symlink() => {
            std::fs::remove_file(at).with_context(|| format!("failed to replace {}", at.display()))?;
        }
        Ok(_) => bail!(
            "{} is there and no link; give another directory, or remove it",
            at.display()
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("failed to look at {}", at.display())),
    }
    symlink(to, at).with_context(|| format!("failed to write {}", at.display()))
}

fn in_path(name: &str, path: Option<&std::ffi::OsStr>) -> Option<PathBuf> {
    let directories = std::env::split_paths(path?);
    directories
        .map(|directory| directory.join(name))
        .find(|file| file.is_file() && file.is_absolute())
}

/// For a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_written_and_replaced_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let assets = dir.path().join("bin/assets");
        let own = dir.path().join("orlop");
        for kubectl in [None, Some(Path::new("/usr/bin/kubectl"))] {
            let written = write(&assets, &own, kubectl).unwrap();
            assert_eq!(std::fs::read_link(written.join("etcd")).unwrap(), own);
            assert_eq!(std::fs::read_link(written.join("kube-apiserver")).unwrap(), own);
            assert_eq!(std::fs::read_link(written.join("kubectl")).ok().as_deref(), kubectl);
        }
        // The directory may be in PATH: its kubectl stays.
        write(&assets, &own, Some(&assets.canonicalize().unwrap().join("kubectl"))).unwrap();
        assert_eq!(
            std::fs::read_link(assets.join("kubectl")).unwrap(),
            Path::new("/usr/bin/kubectl")
        );
        std::fs::remove_file(assets.join("etcd")).unwrap();
        std::fs::write(assets.join("etcd"), "a real one").unwrap();
        let error = write(&assets, &own, None).unwrap_err().to_string();
        assert!(error.contains("is there and no link"), "{error}");
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }
}
