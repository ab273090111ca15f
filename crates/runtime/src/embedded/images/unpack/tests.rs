use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::super::copy::copy_layers;
use super::super::tests::images::{archive, entry, files, gzip, link, zstd};
use super::*;

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A directory with layers that are unpacked one upon the other.
struct Stack {
    dir: tempfile::TempDir,
    layers: Vec<PathBuf>,
    whiteouts: Whiteouts,
    limits: Limits,
}

impl Stack {
    fn new() -> Stack {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("outside")).unwrap();
        let whiteouts = Whiteouts::supported_in(dir.path());
        Stack {
            dir,
            layers: vec![],
            whiteouts,
            limits: Limits::default(),
        }
    }

    fn unpack_bytes(&mut self, bytes: &[u8], diff_id: &Digest) -> Result<LayerUsage, UnpackError> {
        let dir = self.dir.path().join(format!("layer-{}", self.layers.len()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let below: Vec<PathBuf> = self.layers.iter().rev().cloned().collect();
        let target = LayerTarget {
            dir: &dir,
            below: &below,
            whiteouts: self.whiteouts,
            limits: self.limits,
        };
        let usage = unpack_layer(bytes, bytes.len() as u64, diff_id, &target, &Cancel::default())?;
        self.layers.push(dir);
        Ok(usage)
    }

    fn unpack(&mut self, entries: &[(Entry, &[u8])]) -> Result<LayerUsage, UnpackError> {
        let bytes = archive(entries);
        self.unpack_bytes(&bytes, &Digest::of(&bytes))
    }

    fn error(&mut self, entries: &[(Entry, &[u8])]) -> String {
        let error = self.unpack(entries).unwrap_err();
        super::super::error::chain(&error)
    }

    fn top(&self) -> &Path {
        self.layers.last().unwrap()
    }

    /// All files of the stack as a copy, with what is in them; directories end in `/`.
    fn flattened(&self) -> Vec<String> {
        let to = self.dir.path().join("copy");
        let _ = std::fs::remove_dir_all(&to);
        std::fs::create_dir(&to).unwrap();
        copy_layers(&self.layers, self.whiteouts, &to, &Cancel::default()).unwrap();
        listing(&to)
    }
}

fn listing(dir: &Path) -> Vec<String> {
    fn walk(root: &Path, dir: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_string();
            if entry.file_type().unwrap().is_dir() {
                found.push(format!("{name}/"));
                walk(root, &entry.path(), found);
            } else {
                found.push(name);
            }
        }
    }
    let mut found = vec![];
    walk(dir, dir, &mut found);
    found.sort();
    found
}

fn dir(name: &str) -> Entry {
    entry(name, Kind::Directory)
}

fn file(name: &str) -> Entry {
    entry(name, Kind::Regular)
}

#[test]
fn files_with_all_that_belongs_to_them() {
    let mut stack = Stack::new();
    let capability = [1u8, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let usage = stack
        .unpack(&[
            (
                Entry {
                    mode: 0o1777,
                    ..dir("tmp/")
                },
                b"",
            ),
            (
                Entry {
                    mode: 0o4755,
                    uid: 1000,
                    gid: 2000,
                    modified: (1_234_567_890, 123_456_789),
                    ..file("bin/su")
                },
                b"program",
            ),
            (
                Entry {
                    xattrs: vec![
                        ("security.capability".to_string(), capability.to_vec()),
                        ("user.note".to_string(), b"hello".to_vec()),
                        ("trusted.overlay.redirect".to_string(), b"/etc".to_vec()),
                        ("user.overlay.opaque".to_string(), b"y".to_vec()),
                        ("security.selinux".to_string(), b"x".to_vec()),
                    ],
                    ..file("bin/ping")
                },
                b"",
            ),
            (link("bin/hard", Kind::HardLink, "./bin/su"), b""),
            (link("bin/soft", Kind::Symlink, "/nowhere"), b""),
            (entry("pipe", Kind::Fifo), b""),
            (
                Entry {
                    device: (1, 3),
                    mode: 0o666,
                    ..entry("null", Kind::Character)
                },
                b"",
            ),
        ])
        .unwrap();
    assert!(usage.inodes >= 7 && usage.bytes >= 4096);
    let top = stack.top();
    let su = top.join("bin/su").metadata().unwrap();
    assert_eq!(su.mode() & 0o7777, 0o4755);
    assert_eq!((su.mtime(), su.mtime_nsec()), (1_234_567_890, 123_456_789));
    assert_eq!(su.nlink(), 2);
    assert_eq!(top.join("tmp").metadata().unwrap().mode() & 0o7777, 0o1777);
    assert_eq!(top.join("tmp").metadata().unwrap().mtime(), 1_700_000_000);
    assert_eq!(std::fs::read_link(top.join("bin/soft")).unwrap(), Path::new("/nowhere"));
    assert!(top.join("pipe").metadata().unwrap().file_type().is_fifo());
    let attribute = |name: &str| {
        let mut value = [0; 64];
        let length = rustix::fs::lgetxattr(top.join("bin/ping"), name, &mut value[..]);
        length.map(|length| value[..length].to_vec())
    };
    assert_eq!(attribute("user.note").unwrap(), b"hello");
    assert!(attribute("trusted.overlay.redirect").is_err() && attribute("user.overlay.opaque").is_err());
    if is_root() {
        assert_eq!((su.uid(), su.gid()), (1000, 2000));
        assert_eq!(attribute("security.capability").unwrap(), capability);
        assert_eq!(top.join("null").metadata().unwrap().rdev(), rustix::fs::makedev(1, 3));
    }
    // A copy has all of it too.
    stack.flattened();
    let copy = stack.dir.path().join("copy");
    let su = copy.join("bin/su").metadata().unwrap();
    assert_eq!((su.mode() & 0o7777, su.nlink(), su.mtime()), (0o4755, 2, 1_234_567_890));
    assert_eq!(copy.join("tmp").metadata().unwrap().mtime(), 1_700_000_000);
    let mut value = [0; 64];
    assert_eq!(
        rustix::fs::lgetxattr(copy.join("bin/ping"), "user.note", &mut value[..]),
        Ok(5)
    );
}

#[test]
fn nothing_leaves_the_layer() {
    let mut stack = Stack::new();
    stack
        .unpack(&[
            (file("../../outside/a"), b"x"),
            (file("/outside/b"), b"x"),
            (link("out", Kind::Symlink, "../outside"), b""),
            (file("out/c"), b"x"),
            (link("abs", Kind::Symlink, "/outside"), b""),
            (file("abs/d"), b"x"),
            (link("deep", Kind::Symlink, "abs/../../../../outside"), b""),
            (file("deep/e"), b"x"),
        ])
        .unwrap();
    assert_eq!(listing(&stack.dir.path().join("outside")), Vec::<String>::new());
    let found = listing(stack.top());
    let inside: Vec<&str> = found
        .iter()
        .map(String::as_str)
        .filter(|n| n.starts_with("outside/"))
        .collect();
    assert_eq!(
        inside,
        [
            "outside/",
            "outside/a",
            "outside/b",
            "outside/c",
            "outside/d",
            "outside/e"
        ]
    );

    // Hard links to what is not in the layer; through a link; to the layer itself.
    std::fs::write(stack.dir.path().join("outside/secret"), "secret").unwrap();
    for hostile in [
        vec![(link("x", Kind::HardLink, "../outside/secret"), &b""[..])],
        vec![(link("x", Kind::HardLink, "/etc/passwd"), b"")],
        vec![
            (link("o", Kind::Symlink, "../outside"), b""),
            (link("x", Kind::HardLink, "o/secret"), b""),
        ],
        vec![(link("x", Kind::HardLink, "."), b"")],
        vec![(dir("d"), b""), (link("x", Kind::HardLink, "d"), b"")],
        vec![(link("l", Kind::Symlink, "l"), b""), (file("l/x"), b"")],
        vec![(file("f"), b""), (file("f/x"), b"")],
        vec![(file(&"a/".repeat(600)), b"")],
        vec![(file(&"n".repeat(300)), b"")],
        vec![(
            Entry {
                uid: u64::from(u32::MAX),
                ..file("u")
            },
            b"",
        )],
        vec![(file(".wh."), b"")],
        vec![(file("a/.wh..."), b"")],
    ] {
        let name = String::from_utf8_lossy(&hostile.last().unwrap().0.name).into_owned();
        let error = stack.error(&hostile);
        assert!(!error.is_empty(), "{name}");
    }
    // A link that is replaced by a file is replaced, not followed.
    stack
        .unpack(&[
            (link("target", Kind::Symlink, "/outside/secret"), b""),
            (file("target"), b"mine"),
        ])
        .unwrap();
    assert_eq!(
        std::fs::read_to_string(stack.dir.path().join("outside/secret")).unwrap(),
        "secret"
    );
    assert_eq!(std::fs::read_to_string(stack.top().join("target")).unwrap(), "mine");
}

/// A link as the target of a hard link: the link itself, as containerd has it.
#[test]
fn hard_links_to_links() {
    let mut stack = Stack::new();
    stack
        .unpack(&[
            (link("l", Kind::Symlink, "/etc/passwd"), b""),
            (link("x", Kind::HardLink, "l"), b""),
        ])
        .unwrap();
    assert_eq!(
        std::fs::read_link(stack.top().join("x")).unwrap(),
        Path::new("/etc/passwd")
    );
}

fn layers_with_whiteouts(stack: &mut Stack) {
    stack
        .unpack(&[
            (dir("etc/"), b""),
            (file("etc/gone"), b"1"),
            (file("etc/stays"), b"1"),
            (dir("opaque/"), b""),
            (file("opaque/below"), b"1"),
            (dir("again/"), b""),
            (file("again/below"), b"1"),
            (dir("tree/"), b""),
            (file("tree/a/b/c"), b"1"),
            (file("both"), b"1"),
        ])
        .unwrap();
    stack
        .unpack(&[
            (file("etc/.wh.gone"), b""),
            (file("etc/.wh.never-there"), b""),
            (dir("opaque/"), b""),
            (file("opaque/.wh..wh..opq"), b""),
            (file("opaque/new"), b"2"),
            (file(".wh.again"), b""),
            (dir("again/"), b""),
            (file("again/new"), b"2"),
            (file(".wh.tree"), b""),
            (file("both"), b"2"),
            (file(".wh.both"), b""),
            (entry(".wh..wh.plnk/", Kind::Directory), b""),
        ])
        .unwrap();
}

const AFTER_WHITEOUTS: [&str; 7] = [
    "again/",
    "again/new",
    "both",
    "etc/",
    "etc/stays",
    "opaque/",
    "opaque/new",
];

#[test]
fn whiteouts_hide_what_is_below() {
    let mut forms = vec![Whiteouts::Names];
    if Stack::new().whiteouts == Whiteouts::Overlay {
        forms.push(Whiteouts::Overlay);
    }
    for whiteouts in forms {
        let mut stack = Stack::new();
        stack.whiteouts = whiteouts;
        layers_with_whiteouts(&mut stack);
        assert_eq!(stack.flattened(), AFTER_WHITEOUTS, "{whiteouts:?}");
    }
}

/// A mount that goes with the test.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// The kernel sees in the layers what the copy has.
#[test]
fn overlayfs_agrees() {
    let mut stack = Stack::new();
    if stack.whiteouts != Whiteouts::Overlay {
        return;
    }
    layers_with_whiteouts(&mut stack);
    // All of the root is hidden.
    let check = |stack: &Stack, want: &[&str]| {
        let at = stack.dir.path().join("merged");
        let _ = std::fs::create_dir(&at);
        let lower: Vec<&str> = stack.layers.iter().rev().map(|l| l.to_str().unwrap()).collect();
        let options = format!("lowerdir={}", lower.join(":"));
        let mounted = nix::mount::mount(
            Some("overlay"),
            &at,
            Some("overlay"),
            nix::mount::MsFlags::MS_RDONLY,
            Some(options.as_str()),
        );
        if mounted.is_err() {
            return;
        }
        let mount = Mount(at.clone());
        assert_eq!(listing(&at), want);
        drop(mount);
        assert_eq!(stack.flattened(), want);
    };
    check(&stack, &AFTER_WHITEOUTS);
    stack
        .unpack(&[(file(".wh..wh..opq"), b""), (file("only"), b"3")])
        .unwrap();
    check(&stack, &["only"]);
}

#[test]
fn directories_that_are_not_named_look_as_below() {
    let mut stack = Stack::new();
    stack
        .unpack(&[(
            Entry {
                mode: 0o750,
                modified: (1000, 0),
                ..dir("secret/")
            },
            b"",
        )])
        .unwrap();
    stack.unpack(&[(file("secret/new/file"), b"")]).unwrap();
    let mode = |path: &str| stack.top().join(path).metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("secret"), mode("secret/new")), (0o750, 0o755));
}

#[test]
fn later_entries_win() {
    let mut stack = Stack::new();
    stack
        .unpack(&[
            (file("a"), b"1"),
            (file("a"), b"2"),
            (dir("d/"), b""),
            (file("d/x"), b""),
            (file("d"), b"a file now"),
            (file("e"), b""),
            (dir("e"), b""),
            (file("e/x"), b""),
            (dir("e"), b""),
        ])
        .unwrap();
    assert_eq!(listing(stack.top()), ["a", "d", "e/", "e/x"]);
    assert_eq!(std::fs::read_to_string(stack.top().join("a")).unwrap(), "2");
}

#[test]
fn bombs_are_stopped() {
    let mut stack = Stack::new();
    stack.limits = Limits {
        small: 1 << 20,
        ratio: 10,
        files: 100,
        ..Limits::default()
    };
    let zeros = files(&[("zeros", &vec![0; 20 << 20])]);
    for bytes in [gzip(&zeros), zstd(&zeros)] {
        let error = stack.unpack_bytes(&bytes, &Digest::of(&zeros)).unwrap_err().to_string();
        assert!(error.contains("which looks like a decompression bomb"), "{error}");
        let written = std::fs::metadata(stack.dir.path().join("layer-0/zeros")).unwrap().len();
        assert!(written <= (bytes.len() as u64 * 10).max(1 << 20), "{written}");
    }
    // What is large and compressed as such is fine.
    let mut random = orlop_base::random::Random::seeded(1);
    let noise: Vec<u8> = (0..3 << 17).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    let honest = files(&[("noise", &noise)]);
    stack.unpack_bytes(&gzip(&honest), &Digest::of(&honest)).unwrap();
    let many: Vec<(Entry, &[u8])> = (0..200).map(|n| (file(&format!("f{n}")), &b""[..])).collect();
    assert_eq!(stack.error(&many), "layer has more than 100 files");
    // After the archive's end too.
    let mut trailing = files(&[("a", b"")]);
    let diff_id = Digest::of(&trailing);
    trailing.extend(vec![0; 20 << 20]);
    let error = stack.unpack_bytes(&gzip(&trailing), &diff_id).unwrap_err().to_string();
    assert!(error.contains("bomb"), "{error}");
}

#[test]
fn full_disks_are_named() {
    let mut stack = Stack::new();
    stack.limits.reserve = u64::MAX / 2;
    let error = stack.error(&[(file("a"), b"")]);
    assert!(error.starts_with("no space left on device: "), "{error}");
    if !is_root() {
        return;
    }
    let stack = Stack::new();
    let at = stack.dir.path().join("disk");
    std::fs::create_dir(&at).unwrap();
    let flags = nix::mount::MsFlags::empty();
    if nix::mount::mount(Some("tmpfs"), &at, Some("tmpfs"), flags, Some("size=1m")).is_err() {
        return;
    }
    let _mount = Mount(at.clone());
    let bytes = files(&[("large", &vec![1; 4 << 20])]);
    let target = LayerTarget {
        dir: &at,
        below: &[],
        whiteouts: Whiteouts::Names,
        limits: Limits {
            reserve: 0,
            ..Limits::default()
        },
    };
    for compressed in [1, 0] {
        let limits = Limits {
            reserve: compressed,
            ..target.limits
        };
        let target = LayerTarget { limits, ..target };
        let unpacked = unpack_layer(
            &bytes[..],
            bytes.len() as u64,
            &Digest::of(&bytes),
            &target,
            &Cancel::default(),
        );
        let error = super::super::error::chain(&unpacked.unwrap_err());
        assert!(error.to_lowercase().contains("no space left on device"), "{error}");
    }
}

#[test]
fn digests_are_verified_and_damage_is_named() {
    let mut stack = Stack::new();
    let bytes = files(&[("a", b"1")]);
    let error = stack
        .unpack_bytes(&bytes, &Digest::of(b"other"))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("wrong diff id calculated on extraction"), "{error}");
    let compressed = gzip(&bytes);
    for damaged in [
        &compressed[..compressed.len() - 9],
        &bytes[..700],
        &b"\x1f\x8bgarbage"[..],
        &[0xff; 600],
    ] {
        assert!(stack.unpack_bytes(damaged, &Digest::of(&bytes)).is_err());
    }
    let mut socket = bytes.clone();
    socket[156] = b'Z';
    assert!(stack.unpack_bytes(&socket, &Digest::of(&socket)).is_err());
}

#[test]
fn work_that_nobody_waits_for_ends() {
    let stack = Stack::new();
    let cancel = Cancel::default();
    drop(cancel.on_drop());
    let bytes = files(&[("a", b"1")]);
    let at = stack.dir.path().join("x");
    std::fs::create_dir(&at).unwrap();
    let target = LayerTarget {
        dir: &at,
        below: &[],
        whiteouts: stack.whiteouts,
        limits: stack.limits,
    };
    let unpacked = unpack_layer(&bytes[..], 1, &Digest::of(&bytes), &target, &cancel);
    assert!(matches!(unpacked, Err(UnpackError::Canceled)));
}
