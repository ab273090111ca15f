//! kube-apiserver's flags, but for those about who comes in: what is carried out is in the structs below, the rest in the
//! table of `others`. `names` has all of upstream's, and the tests hold the three, and docs/api-server-flags.md, together.

mod admission_config;
mod etcd_servers;
mod gates;
#[cfg(test)]
mod names;
mod others;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use orlop_apiserver::pki::TlsOptions;
use orlop_apiserver::{Config, KeyFiles, NamedCertificate};

pub(super) use self::etcd_servers::{EtcdArgs, StatePlace};
use self::others::ApiServerFlags;
use super::upstream_flags::OtherFlags;
use super::{parse_bool, parse_duration};

#[derive(clap::Args)]
pub(super) struct ServerFlags {
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    neighbours: NeighbourArgs,
    #[command(flatten)]
    tokens: TokenArgs,
    #[command(flatten)]
    admission: AdmissionArgs,
    #[command(flatten)]
    pub(super) etcd: EtcdArgs,
    /// Turn API versions on or off: GROUP/VERSION=true (what is served is fixed, so only what is the case can be asked for)
    #[arg(long, value_name = "KEY=BOOL", value_delimiter = ',')]
    runtime_config: Vec<String>,
    /// Turn features on or off, NAME=BOOL: none of them can be
    #[arg(long, value_name = "NAME=BOOL", value_delimiter = ',')]
    feature_gates: Vec<String>,
    /// Seconds that watches last at least if they don't say how long
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    min_request_timeout: u64,
    /// Host name to use in URLs to the server: where the keys of service account tokens are
    #[arg(long, value_name = "HOST")]
    external_hostname: Option<String>,
    #[command(flatten)]
    others: OtherFlags<ApiServerFlags>,
}

#[derive(clap::Args)]
struct TlsArgs {
    /// Directory of the serving certificate, apiserver.crt and apiserver.key, if it is there
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<PathBuf>,
    /// Certificate to serve with [default: that of --cert-dir, else one of the data directory's own authority]
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Further certificate and key to serve with, for clients that ask for one of the names, or of the certificate's own
    #[arg(long, value_name = "FILE,FILE[:NAME,...]", value_parser = named_certificate)]
    tls_sni_cert_key: Vec<NamedCertificate>,
    /// Oldest version of TLS that is spoken: VersionTLS12 or VersionTLS13
    #[arg(long, value_name = "VERSION", default_value = "VersionTLS12", value_parser = ["", "VersionTLS12", "VersionTLS13"])]
    tls_min_version: String,
    /// Cipher suites of TLS 1.2 [default: those that are safe]; only safe ones are used
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    tls_cipher_suites: Vec<String>,
    /// Authorities whose client certificates are good, beside the data directory's own
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
}

#[derive(clap::Args)]
struct NeighbourArgs {
    /// Client certificate to show to kubelets [default: one of the data directory's own authority]
    #[arg(long, value_name = "FILE", requires = "kubelet_client_key")]
    kubelet_client_certificate: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "kubelet_client_certificate")]
    kubelet_client_key: Option<PathBuf>,
    /// Authorities that kubelets' certificates must be of, beside the data directory's own [default: any certificate will do]
    #[arg(long, value_name = "FILE")]
    kubelet_certificate_authority: Option<PathBuf>,
    /// Client certificate to show to extension API servers [default: that of the data directory]
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file")]
    proxy_client_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    proxy_client_key_file: Option<PathBuf>,
}

/// `CERTIFICATE,KEY` or `CERTIFICATE,KEY:NAME,NAME`.
// Upstream: component-base/cli/flag (NamedCertKey)
fn named_certificate(text: &str) -> Result<NamedCertificate, String> {
    let (files, names) = text.split_once(':').unwrap_or((text, ""));
    let Some((certificate, key)) = files.split_once(',').filter(|(_, key)| !key.contains(',')) else {
        return Err("expected comma separated certificate and key file paths".into());
    };
    let names = names.split(',').map(|name| name.trim().to_lowercase());
    Ok(NamedCertificate {
        certificate: certificate.trim().into(),
        key: key.trim().into(),
        names: names.filter(|name| !name.is_empty()).collect(),
    })
}

#[derive(clap::Args)]
struct TokenArgs {
    /// Keys or certificates that verify service account tokens, PEM [default: the key that signs them]
    #[arg(long, value_name = "FILE")]
    service_account_key_file: Vec<PathBuf>,
    /// Private key that signs service account tokens, PEM: RSA or P-256 [default: that of the data directory]
    #[arg(long, value_name = "FILE")]
    service_account_signing_key_file: Option<PathBuf>,
    /// Where others find the keys of service account tokens [default: /openid/v1/jwks of this server]
    #[arg(long, value_name = "URL")]
    service_account_jwks_uri: Option<String>,
    /// How long service account tokens last at most: an hour to 2^32 seconds [default: a year]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    service_account_max_token_expiration: Option<Duration>,
}

#[derive(clap::Args)]
struct AdmissionArgs {
    /// Admission plugins to turn on beside those that are on by default
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    enable_admission_plugins: Vec<String>,
    /// Admission plugins to turn off
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    disable_admission_plugins: Vec<String>,
    /// File with an AdmissionConfiguration: defaults and exemptions of PodSecurity
    #[arg(long, value_name = "FILE")]
    admission_control_config_file: Option<PathBuf>,
    /// Let containers be privileged (upstream's default is false)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "true", value_parser = parse_bool)]
    allow_privileged: bool,
    /// Seconds that pods stay on a node that is not ready, unless they say it themselves
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    default_not_ready_toleration_seconds: i64,
    /// The same for a node that is out of reach
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    default_unreachable_toleration_seconds: i64,
}

impl ServerFlags {
    /// Sets what the flags say; refuses what they ask for in vain.
    pub(super) fn apply(&self, config: &mut Config) -> anyhow::Result<()> {
        self.others.settle()?;
        gates::check_runtime_config(&self.runtime_config)?;
        gates::check_features(&self.feature_gates)?;
        let neighbours = &self.neighbours;
        config.keys = KeyFiles {
            serving: self.tls.serving()?,
            client_authority: self.tls.client_ca_file.clone(),
            named_serving: self.tls.tls_sni_cert_key.clone(),
            front_proxy: pair(&neighbours.proxy_client_cert_file, &neighbours.proxy_client_key_file),
            kubelet_client: pair(&neighbours.kubelet_client_certificate, &neighbours.kubelet_client_key),
            kubelet_authority: neighbours.kubelet_certificate_authority.clone(),
            token_signing: self.tokens.service_account_signing_key_file.clone(),
            token_verifying: self.tokens.service_account_key_file.clone(),
        };
        config.tls = self.tls.options()?;
        config.max_token_expiration = self.tokens.max_expiration()?;
        config.jwks_uri = self.jwks_uri(config)?;
        let admission = &self.admission;
        config.admission.set_plugins(
            &admission.enable_admission_plugins,
            &admission.disable_admission_plugins,
        )?;
        config.admission.not_ready_toleration_seconds = admission.default_not_ready_toleration_seconds;
        config.admission.unreachable_toleration_seconds = admission.default_unreachable_toleration_seconds;
        config.admission.allow_privileged = admission.allow_privileged;
        if let Some(file) = &admission.admission_control_config_file {
            admission_config::apply(file, &mut config.admission).context("--admission-control-config-file")?;
        }
        config.min_request_timeout = Duration::from_secs(self.min_request_timeout);
        Ok(())
    }

    fn jwks_uri(&self, config: &Config) -> anyhow::Result<Option<String>> {
        if let Some(uri) = &self.tokens.service_account_jwks_uri {
            // Upstream: others must be able to trust what they find there.
            if !uri.starts_with("https://") {
                bail!("--service-account-jwks-uri: must start with https://");
            }
            return Ok(Some(uri.clone()));
        }
        let host = self.external_hostname.as_ref();
        Ok(host.map(|host| format!("https://{host}:{}/openid/v1/jwks", config.port)))
    }
}

fn pair(certificate: &Option<PathBuf>, key: &Option<PathBuf>) -> Option<(PathBuf, PathBuf)> {
    Some((certificate.clone()?, key.clone()?))
}

impl TokenArgs {
    fn max_expiration(&self) -> anyhow::Result<Option<Duration>> {
        const HOUR: Duration = Duration::from_secs(3600);
        const MOST: Duration = Duration::from_secs(1 << 32);
        let given = self
            .service_account_max_token_expiration
            .filter(|given| !given.is_zero());
        if given.is_some_and(|given| !(HOUR..=MOST).contains(&given)) {
            bail!("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds");
        }
        Ok(given)
    }
}

impl TlsArgs {
    fn options(&self) -> anyhow::Result<TlsOptions> {
        let options = TlsOptions {
            only_1_3: self.tls_min_version == "VersionTLS13",
            cipher_suites: self.tls_cipher_suites.clone(),
        };
        if let Some(unknown) = options.unknown_suite() {
            bail!("--tls-cipher-suites: cipher suite {unknown} not supported or doesn't exist");
        }
        if !options.only_1_3 && !options.has_1_2() {
            tracing::warn!("none of the cipher suites is safe; speaking TLS 1.3 alone");
        }
        Ok(options)
    }

    fn serving(&self) -> anyhow::Result<Option<(PathBuf, PathBuf)>> {
        if let Some(pair) = pair(&self.tls_cert_file, &self.tls_private_key_file) {
            return Ok(Some(pair));
        }
        let Some(directory) = &self.cert_dir else {
            return Ok(None);
        };
        let (certificate, key) = (directory.join("apiserver.crt"), directory.join("apiserver.key"));
        match (exists(&certificate)?, exists(&key)?) {
            (true, true) => Ok(Some((certificate, key))),
            // Upstream makes one that signs itself there; ours is signed by the data directory's authority.
            (false, false) => Ok(None),
            _ => bail!(
                "--cert-dir: {} has one of apiserver.crt and apiserver.key without the other",
                directory.display()
            ),
        }
    }
}

fn exists(path: &std::path::Path) -> anyhow::Result<bool> {
    path.try_exists()
        .with_context(|| format!("failed to look for {}", path.display()))
}

#[cfg(test)]
mod tests;
