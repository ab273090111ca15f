//! Links in proxied pages: those that begin at the backend's root must lead through the proxy again.
//!
//! Only HTML is looked at, and of it only the attributes that hold addresses; everything else stays byte for byte.
//! Upstream: the proxy transport of apimachinery (v1.36). Left out: addresses with a host name, pages in `deflate`.

use std::io::Read;

use flate2::read::GzDecoder;

/// Larger pages pass as they are.
pub(super) const PAGE_MAX: usize = 16 << 20;

/// Elements, and which of their attributes hold addresses.
const ADDRESSES: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];
/// What is in these is no markup.
const RAW: [&str; 4] = ["script", "style", "textarea", "title"];

/// The page as it is without its compression; none if it can't be read or is too large.
pub(super) fn unpacked(body: &[u8]) -> Option<Vec<u8>> {
    let mut page = vec![];
    let limit = PAGE_MAX as u64 + 1;
    GzDecoder::new(body).take(limit).read_to_end(&mut page).ok()?;
    (page.len() <= PAGE_MAX).then_some(page)
}

/// The page with every link that begins with a slash led through `prefix`.
pub(super) fn rewritten(page: &[u8], prefix: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(page.len() + page.len() / 8);
    let mut at = 0;
    while at < page.len() {
        let next = page[at..]
            .iter()
            .position(|b| *b == b'<')
            .map_or(page.len(), |n| at + n);
        out.extend_from_slice(&page[at..next]);
        at = match page.get(next + 1) {
            _ if page[next..].starts_with(b"<!--") => copy_through(page, next, b"-->", &mut out),
            Some(first) if first.is_ascii_alphabetic() => tag(page, next, prefix, &mut out),
            _ => copy(page, next, (next + 1).min(page.len()), &mut out),
        };
    }
    out
}

fn copy(page: &[u8], from: usize, to: usize, out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&page[from..to]);
    to
}

/// Up to the end of the next `mark`, or of the page.
fn copy_through(page: &[u8], from: usize, mark: &[u8], out: &mut Vec<u8>) -> usize {
    let found = page[from..]
        .windows(mark.len())
        .position(|part| part.eq_ignore_ascii_case(mark));
    copy(page, from, found.map_or(page.len(), |n| from + n + mark.len()), out)
}

/// A tag that begins here, with all that is raw behind it. Gives where it ends.
fn tag(page: &[u8], from: usize, prefix: &str, out: &mut Vec<u8>) -> usize {
    let ends_name = |b: &u8| b.is_ascii_whitespace() || matches!(b, b'>' | b'/');
    let end = after(page, from + 1, |b| !ends_name(b));
    let name = String::from_utf8_lossy(&page[from + 1..end]).to_ascii_lowercase();
    let wanted = ADDRESSES
        .iter()
        .find(|(element, _)| *element == name)
        .map_or(&[][..], |(_, names)| names);
    copy(page, from, end, out);
    let mut at = end;
    while at < page.len() && page[at] != b'>' {
        at = attribute(page, at, wanted, prefix, out);
    }
    at = copy(page, at, (at + 1).min(page.len()), out);
    match RAW.contains(&&*name) {
        true => copy_through(page, at, format!("</{name}").as_bytes(), out),
        false => at,
    }
}

fn after(page: &[u8], from: usize, holds: impl Fn(&u8) -> bool) -> usize {
    page[from..]
        .iter()
        .position(|b| !holds(b))
        .map_or(page.len(), |n| from + n)
}

/// One attribute with the space before it, or whatever stands there.
fn attribute(page: &[u8], from: usize, wanted: &[&str], prefix: &str, out: &mut Vec<u8>) -> usize {
    let start = after(page, from, |b| b.is_ascii_whitespace() || *b == b'/');
    copy(page, from, start, out);
    let end = after(page, start, |b| {
        !b.is_ascii_whitespace() && !matches!(b, b'=' | b'>' | b'/')
    });
    copy(page, start, end, out);
    let name = String::from_utf8_lossy(&page[start..end]).to_ascii_lowercase();
    let equals = after(page, end, u8::is_ascii_whitespace);
    if page.get(equals) != Some(&b'=') {
        // At least one byte further, so that this comes to an end.
        return if end == start && start < page.len() && page[start] != b'>' {
            copy(page, start, start + 1, out)
        } else {
            end
        };
    }
    let value = after(page, equals + 1, u8::is_ascii_whitespace);
    copy(page, end, value, out);
    let (first, last, next) = match page.get(value) {
        Some(quote @ (b'"' | b'\'')) => {
            let last = after(page, value + 1, |b| b != quote);
            (value + 1, last, (last + 1).min(page.len()))
        }
        _ => {
            let last = after(page, value, |b| !b.is_ascii_whitespace() && *b != b'>');
            (value, last, last)
        }
    };
    copy(page, value, first, out);
    let link = &page[first..last];
    if wanted.contains(&&*name)
        && link.starts_with(b"/")
        && !link.starts_with(b"//")
        && !link.starts_with(prefix.as_bytes())
    {
        out.extend_from_slice(prefix.as_bytes());
    }
    copy(page, first, next, out)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn links_from_the_root_lead_through_the_proxy() {
        for (page, wanted) in [
            ("<a href=\"/x\">test</a>", "<a href=\"/p/x\">test</a>"),
            ("<A class=b HREF='/x?y=1'>", "<A class=b HREF='/p/x?y=1'>"),
            (
                "<img src=/x.png><img src = \"/y\"/>",
                "<img src=/p/x.png><img src = \"/p/y\"/>",
            ),
            (
                "<a href=\"x\"><a href=\"//h/x\"><a href=\"http://h/\">",
                "<a href=\"x\"><a href=\"//h/x\"><a href=\"http://h/\">",
            ),
            ("<a href=\"/p/x\">", "<a href=\"/p/x\">"),
            (
                "<p href=\"/x\" title='<a href=\"/x\">'>",
                "<p href=\"/x\" title='<a href=\"/x\">'>",
            ),
            ("<!-- <a href=\"/x\"> --><b>/x</b>", "<!-- <a href=\"/x\"> --><b>/x</b>"),
            (
                "<script src=\"/s\">'<a href=\"/x\">'</script>",
                "<script src=\"/p/s\">'<a href=\"/x\">'</script>",
            ),
            ("a < b <", "a < b <"),
            ("<a href=\"/x", "<a href=\"/p/x"),
            (
                "<form action=/go method=post><input disabled formaction=/f>",
                "<form action=/p/go method=post><input disabled formaction=/p/f>",
            ),
        ] {
            let found = rewritten(page.as_bytes(), "/p");
            assert_eq!(String::from_utf8(found).unwrap(), wanted);
        }
    }

    #[test]
    fn compressed_pages_are_unpacked_within_bounds() {
        let pack = |page: &[u8]| {
            let mut packer = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
            packer.write_all(page).unwrap();
            packer.finish().unwrap()
        };
        assert_eq!(unpacked(&pack(b"<a>")), Some(b"<a>".to_vec()));
        assert_eq!(unpacked(&pack(&vec![0; PAGE_MAX + 1])), None);
        assert_eq!(unpacked(b"nonsense"), None);
    }

    proptest! {
        /// Nothing is lost or looped over, whatever comes: without the prefix all is as it was.
        #[test]
        fn any_bytes_pass(page in "[<>a href=\"'/!-x\u{0}é]{0,60}") {
            prop_assert_eq!(rewritten(page.as_bytes(), ""), page.as_bytes());
        }
    }
}
