//! `orlop version`.

#[derive(clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_: Args) -> anyhow::Result<()> {
    println!(
        "orlop {} (Kubernetes {})",
        env!("CARGO_PKG_VERSION"),
        orlop_apiserver::discovery::GIT_VERSION
    );
    Ok(())
}
