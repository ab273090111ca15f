//! Flags about a component's own port, the same for every component that has one.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use orlop_base::{Clock, Shutdown};
use orlop_client::Api;
use orlop_serving::certificate::LOCAL_NAMES;
use orlop_serving::{ALWAYS_ALLOWED, Certificate, Options, Pages};

#[derive(clap::Args)]
pub(super) struct ServingArgs {
    /// Address of the healthz, metrics and configz endpoints
    #[arg(long, default_value = "0.0.0.0")]
    bind_address: IpAddr,
    /// Secure port (0: disabled) [default: the component's]
    #[arg(long)]
    secure_port: Option<u16>,
    /// TLS serving certificate
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Directory of the self-signed serving certificate, if none is given [default: in memory]
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<PathBuf>,
    /// Paths that are served without authorization
    #[arg(long, value_name = "PATH", value_delimiter = ',', default_values = ALWAYS_ALLOWED)]
    authorization_always_allow_paths: Vec<String>,
    /// Kubeconfig for TokenReviews [default: the component's kubeconfig]
    #[arg(long, value_name = "KUBECONFIG")]
    authentication_kubeconfig: Option<PathBuf>,
    /// Kubeconfig for SubjectAccessReviews [default: the component's kubeconfig]
    #[arg(long, value_name = "KUBECONFIG")]
    authorization_kubeconfig: Option<PathBuf>,
}

impl ServingArgs {
    /// Serves until the shutdown, if a port is configured.
    pub(super) async fn start<F>(
        self,
        name: &'static str,
        default_port: u16,
        api: &Api,
        connect: impl Fn(PathBuf) -> F,
        pages: Arc<dyn Pages>,
        shutdown: Shutdown,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<Api>>,
    {
        let port = self.secure_port.unwrap_or(default_port);
        if port == 0 && self.secure_port.is_some() {
            return Ok(());
        }
        let judge = async |path: Option<PathBuf>| match path {
            Some(path) => connect(path).await,
            None => Ok(api.clone()),
        };
        let options = Options {
            bind: self.bind_address,
            port,
            name,
            authentication: judge(self.authentication_kubeconfig).await?,
            authorization: judge(self.authorization_kubeconfig).await?,
            certificate: match (self.tls_cert_file, self.tls_private_key_file, self.cert_dir) {
                (Some(certificate), Some(key), _) => Certificate::Files { certificate, key },
                (_, _, Some(directory)) => Certificate::Directory {
                    directory,
                    names: LOCAL_NAMES.map(str::to_string).to_vec(),
                },
                _ => Certificate::Temporary,
            },
            always_allow_paths: self.authorization_always_allow_paths,
            pages,
            clock: Clock::System,
            shutdown,
        };
        let address = orlop_serving::start(options).await?;
        tracing::info!(%address, "serving health and metrics");
        Ok(())
    }
}
