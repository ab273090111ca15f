//! Image references, as far as the API server looks into them: the tag decides how the image is pulled.

/// The tag of an image reference: "latest" if neither tag nor digest is given, none if there is only a digest or if the
/// reference is malformed.
pub fn tag(image: &str) -> Option<&str> {
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    let last = rest.rfind('/').map_or(0, |i| i + 1);
    let (name, tag) = match rest[last..].find(':') {
        Some(colon) => (&rest[..last + colon], Some(&rest[last + colon + 1..])),
        None => (rest, None),
    };
    let well_formed = is_name(name) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
    match (well_formed, tag, digest) {
        (false, ..) => None,
        (true, Some(tag), _) => Some(tag),
        (true, None, Some(_)) => None,
        (true, None, None) => Some("latest"),
    }
}

/// The image may change under its name: it is pulled each time unless the user says otherwise.
pub fn is_latest(image: &str) -> bool {
    tag(image) == Some("latest")
}

fn is_name(name: &str) -> bool {
    const MAX_PATH: usize = 255;
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if name.len() == 64 && name.bytes().all(hex) {
        return false;
    }
    let (domain, path) = match name.split_once('/') {
        Some((first, rest)) if is_domain_like(first) => (first, rest),
        _ => ("docker.io", name),
    };
    // Docker's own images live in a directory that is not written.
    let hub = matches!(domain, "docker.io" | "index.docker.io") && !path.contains('/');
    let length = path.len() + if hub { "library/".len() } else { 0 };
    length <= MAX_PATH && is_domain(domain) && path.split('/').all(is_path_component)
}

/// The first part of a name is a registry if it looks like a host; else it is part of the path.
fn is_domain_like(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost" || part.bytes().any(|b| b.is_ascii_uppercase())
}

fn is_domain(domain: &str) -> bool {
    let host = match domain.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
                return false;
            }
            host
        }
        _ => domain,
    };
    if let Some(ip) = host.strip_prefix('[') {
        return ip
            .strip_suffix(']')
            .is_some_and(|ip| !ip.is_empty() && ip.bytes().all(|b| b.is_ascii_hexdigit() || b == b':'));
    }
    host.split('.').all(|label| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    })
}

/// Lower-case words joined by one dot, one or two underscores, or hyphens.
fn is_path_component(part: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    word(first)
        && word(last)
        && bytes
            .split(|&b| word(b))
            .all(|joint| matches!(joint, b"" | b"." | b"_" | b"__") || joint.iter().all(|&b| b == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let bytes = tag.as_bytes();
    bytes.len() <= 128
        && bytes.first().is_some_and(|&b| word(b))
        && bytes.iter().all(|&b| word(b) || matches!(b, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else {
        return false;
    };
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    hex.len() == length && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::tag;

    #[test]
    fn tags_of_image_references() {
        let digest = format!("@sha256:{}", "a".repeat(64));
        for (image, want) in [
            ("nginx", Some("latest")),
            ("nginx:latest", Some("latest")),
            ("nginx:1.27", Some("1.27")),
            ("library/nginx", Some("latest")),
            ("registry.example.com:5000/team/app", Some("latest")),
            ("registry.example.com:5000/team/app:v1", Some("v1")),
            ("localhost/app", Some("latest")),
            ("[::1]:5000/app:v2", Some("v2")),
            ("a__b/c-d.e_f:v3", Some("v3")),
            ("", None),
            ("Nginx", None),
            ("nginx:", None),
            ("nginx:bad tag", None),
            ("a..b", None),
            ("-a", None),
            ("host_name:5000/a", None),
            (" nginx", None),
        ] {
            assert_eq!(tag(image), want, "{image}");
        }
        assert_eq!(tag(&format!("nginx{digest}")), None);
        assert_eq!(tag(&format!("nginx:latest{digest}")), Some("latest"));
        assert_eq!(tag(&"a".repeat(64)), None);
        assert_eq!((tag(&"x".repeat(247)), tag(&"x".repeat(248))), (Some("latest"), None));
        assert_eq!(tag("nginx@sha256:short"), None);
    }
}
