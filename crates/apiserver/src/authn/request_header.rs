//! Front proxies: who shows a certificate of their authority says in headers for whom a request is made.
// Upstream: staging/src/k8s.io/apiserver/pkg/authentication/request/headerrequest (v1.36)

use http::{HeaderMap, HeaderName};
use jiff::Timestamp;
use orlop_x509::ClientAuthority;
use rustls_pki_types::CertificateDer;

use super::impersonation::percent_decoded;
use super::{AuthnError, UserInfo};

/// Which proxies are believed, and in which headers.
#[derive(Clone, Debug)]
pub struct RequestHeaderOptions {
    /// Certificates that vouch for proxies, in PEM.
    pub client_authority: String,
    /// Common names of the proxies' certificates; empty for any.
    pub allowed_names: Vec<String>,
    pub username_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_prefixes: Vec<String>,
}

pub(super) struct RequestHeader {
    authority: ClientAuthority,
    options: RequestHeaderOptions,
}

impl RequestHeader {
    pub(super) fn new(options: RequestHeaderOptions) -> Result<RequestHeader, orlop_x509::AuthorityError> {
        Ok(RequestHeader {
            authority: ClientAuthority::from_pem(&options.client_authority)?,
            options,
        })
    }

    /// Whether a request says for whom it is made. Most do not, and their certificates need not be looked at.
    pub(super) fn applies(&self, headers: &HeaderMap) -> bool {
        first(headers, &self.options.username_headers).is_some()
    }

    /// The user that a proxy names, none if it is no proxy that says so.
    pub(super) fn user(
        &self,
        headers: &HeaderMap,
        chain: &[CertificateDer<'_>],
        now: Timestamp,
    ) -> Result<Option<UserInfo>, AuthnError> {
        let proxy = self.authority.verify(chain, now);
        let proxy = proxy.map_err(|e| AuthnError::Certificate(e.to_string()))?;
        let (name, allowed) = (proxy.subject.common_name(), &self.options.allowed_names);
        if !allowed.is_empty() && !allowed.iter().any(|wanted| wanted == name) {
            let why = format!("x509: subject with cn={name} is not in the allowed list");
            return Err(AuthnError::Certificate(why));
        }
        let Some(name) = first(headers, &self.options.username_headers) else {
            return Ok(None);
        };
        let mut user = UserInfo {
            name,
            uid: first(headers, &self.options.uid_headers).unwrap_or_default(),
            groups: all(headers, &self.options.group_headers),
            ..UserInfo::default()
        };
        self.read_extra(headers, &mut user);
        user.ensure_authenticated();
        Ok(Some(user))
    }

    fn read_extra(&self, headers: &HeaderMap, user: &mut UserInfo) {
        for name in headers.keys() {
            let key = self.options.extra_prefixes.iter().find_map(|prefix| {
                let prefix = prefix.to_ascii_lowercase();
                name.as_str().strip_prefix(&prefix)
            });
            if let Some(key) = key {
                let values = values(headers, name.as_str());
                user.extra.entry(percent_decoded(key)).or_default().extend(values);
            }
        }
    }
}

fn values(headers: &HeaderMap, name: &str) -> Vec<String> {
    let Ok(name) = HeaderName::try_from(name) else {
        return vec![];
    };
    let values = headers.get_all(name).into_iter();
    values
        .filter_map(|value| std::str::from_utf8(value.as_bytes()).ok().map(str::to_string))
        .collect()
}

fn all(headers: &HeaderMap, names: &[String]) -> Vec<String> {
    names.iter().flat_map(|name| values(headers, name)).collect()
}

fn first(headers: &HeaderMap, names: &[String]) -> Option<String> {
    all(headers, names).into_iter().find(|value| !value.is_empty())
}
