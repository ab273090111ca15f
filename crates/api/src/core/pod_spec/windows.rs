//! Windows: its security options, host-process containers, and what does not exist on the other operating system.

use serde_json::Value;

use super::{Read, all_containers};
use crate::field::{Cursor, Problems};
use crate::names;

const MAX_CREDENTIAL_SPEC: usize = 64 * 1024;
const MAX_DOMAIN: usize = 256;
const MAX_USER: usize = 104;

/// `windowsOptions` of a security context.
pub(super) fn options(context: &Cursor<'_>, p: &mut Problems) {
    let Some(c) = context.given("windowsOptions") else {
        return;
    };
    if let Some(name) = c.given("gmsaCredentialSpecName") {
        p.invalid_each(&name, names::dns_subdomain(name.str()));
    }
    if let Some(spec) = c.given("gmsaCredentialSpec") {
        if spec.is_empty() {
            p.invalid(&spec, "gmsaCredentialSpec cannot be an empty string");
        } else if spec.len() > MAX_CREDENTIAL_SPEC {
            p.invalid(&spec, "gmsaCredentialSpec size must be under 64 KiB");
        }
    }
    if let Some(user) = c.given("runAsUserName") {
        for problem in user_name_problems(user.str()) {
            p.invalid(&user, format!("runAsUserName{problem}"));
        }
    }
}

/// `DOMAIN\user` or `user`.
fn user_name_problems(text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec![" cannot be an empty string".into()];
    }
    if text.bytes().any(|b| b.is_ascii_control()) {
        return vec![" cannot contain control characters".into()];
    }
    let (domain, user) = match text.split_once('\\') {
        Some((_, user)) if user.contains('\\') => return vec![" cannot contain more than one backslash".into()],
        Some((domain, user)) => (Some(domain), user),
        None => (None, text),
    };
    let mut out = vec![];
    if let Some(domain) = domain {
        if domain.len() >= MAX_DOMAIN {
            out.push(format!("'s Domain length must be under {MAX_DOMAIN} characters"));
        }
        if !is_net_bios(domain) && !is_dns(domain) {
            out.push("'s Domain doesn't match the NetBios nor the DNS format".into());
        }
    }
    if user.is_empty() {
        out.push("'s User cannot be empty".into());
    } else if user.len() > MAX_USER {
        out.push(format!("'s User length must not be longer than {MAX_USER} characters"));
    }
    if !user.is_empty() && user.bytes().all(|b| matches!(b, b'.' | b' ')) {
        out.push("'s User cannot contain only periods or spaces".into());
    }
    if user.contains([
        '"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']',
    ]) {
        out.push(r#"'s User cannot contain the following characters: "/\:;|=,+*?<>@[]"#.into());
    }
    out
}

fn is_net_bios(domain: &str) -> bool {
    let length = domain.chars().count();
    (1..=15).contains(&length)
        && !domain.starts_with('.')
        && !domain.contains(['\\', '/', ':', '*', '?', '"', '<', '>', '|'])
}

fn is_dns(domain: &str) -> bool {
    domain.split('.').all(|label| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    })
}

fn wants_host_process(holder: &Cursor<'_>) -> Option<bool> {
    holder
        .raw("securityContext")?
        .get("windowsOptions")?
        .get("hostProcess")?
        .as_bool()
}

/// Host-process containers: all or none, and on the host's network.
pub(super) fn host_process(spec: &Cursor<'_>, p: &mut Problems) {
    let pod = wants_host_process(spec);
    let (mut all, mut host) = (0, 0);
    for c in all_containers(spec) {
        all += 1;
        let own = wants_host_process(&c);
        if let (Some(pod), Some(own)) = (pod, own)
            && pod != own
        {
            let path = c
                .path()
                .field("securityContext")
                .field("windowsOptions")
                .field("hostProcess");
            let detail = format!("pod hostProcess value must be identical if both are specified, was {pod}");
            p.invalid_value(&path, &own.into(), detail);
        }
        host += usize::from(own.or(pod) == Some(true));
    }
    if host == 0 {
        return;
    }
    if host != all {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        p.invalid_value(spec.path(), &Value::from(""), detail);
    }
    if spec.flag("hostNetwork") != Some(true) {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        p.invalid_value(spec.at("hostNetwork").path(), &false.into(), detail);
    }
}

/// `os`, and what it rules out.
pub(super) fn operating_system(spec: &Cursor<'_>, p: &mut Problems) {
    let Some(os) = spec.given("os") else { return };
    match os.text("name") {
        "" => p.required(&os.at("name"), ""),
        "linux" => linux(spec, p),
        "windows" => windows(spec, p),
        _ => p.not_supported(&Cursor::new(os.raw("name"), os.path().clone()), &["linux", "windows"]),
    }
}

fn linux(spec: &Cursor<'_>, p: &mut Problems) {
    for holder in std::iter::once(spec.clone()).chain(all_containers(spec)) {
        if let Some(options) = holder.given("securityContext").and_then(|c| c.given("windowsOptions")) {
            p.forbidden(&options, "windows options cannot be set for a linux pod");
        }
    }
}

const LINUX_ONLY_IN_POD: [&str; 11] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];

const LINUX_ONLY_IN_CONTAINER: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

fn windows(spec: &Cursor<'_>, p: &mut Problems) {
    const REFUSED: &str = "cannot be set for a windows pod";
    let mut forbid = |holder: Option<Cursor<'_>>, fields: &[&'static str]| {
        let Some(holder) = holder else { return };
        for found in fields.iter().filter_map(|f| holder.given(f)) {
            p.forbidden(&found, REFUSED);
        }
    };
    forbid(spec.given("securityContext"), &LINUX_ONLY_IN_POD);
    forbid(Some(spec.clone()), &["hostUsers", "shareProcessNamespace"]);
    for field in ["hostPID", "hostIPC"] {
        if spec.flag(field) == Some(true) {
            forbid(Some(spec.clone()), &[field]);
        }
    }
    for c in all_containers(spec) {
        forbid(c.given("securityContext"), &LINUX_ONLY_IN_CONTAINER);
    }
}
