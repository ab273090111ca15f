//! Rules that the compiler does not keep. Each message says how to put things right.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use orlop_testkit::workspace_root;

/// Past this many lines a file hides a second noun.
const LINES_MAX: usize = 900;

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every file below a directory with this ending.
fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut pending = vec![directory.to_path_buf()];
    while let Some(next) = pending.pop() {
        for entry in std::fs::read_dir(&next).unwrap_or_else(|e| panic!("{}: {e}", next.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                pending.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn rust_files() -> Vec<PathBuf> {
    files(&workspace_root().join("crates"), "rs")
}

fn shown(path: &Path) -> String {
    path.strip_prefix(workspace_root())
        .unwrap_or(path)
        .display()
        .to_string()
}

#[track_caller]
fn check(problems: Vec<String>, hint: &str) {
    assert!(problems.is_empty(), "\n{}\n\nHow to fix: {hint}\n", problems.join("\n"));
}

/// crate → the workspace crates it uses, outside of tests.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(workspace_root().join("crates")).unwrap() {
        let directory = entry.unwrap().path();
        let name = directory.file_name().unwrap().to_string_lossy().into_owned();
        let mut section = "";
        let mut uses = BTreeSet::new();
        let manifest = read(&directory.join("Cargo.toml"));
        for line in manifest.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line;
            } else if section.ends_with("dependencies]")
                && let Some(rest) = line.strip_prefix("orlop-")
            {
                let end = rest
                    .find(|c: char| !c.is_alphanumeric() && c != '-')
                    .unwrap_or(rest.len());
                uses.insert(rest[..end].to_string());
            }
        }
        // Every crate's tests do: see features_are_the_same_for_one_crate_and_for_all.
        uses.remove("features");
        uses.remove(&name);
        found.insert(name, uses);
    }
    found
}

/// The table of ARCHITECTURE.md: crate → what it may depend on.
fn allowed(crates: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let text = read(&workspace_root().join("ARCHITECTURE.md"));
    let rows = text
        .lines()
        .skip_while(|l| !l.starts_with("| crate |"))
        .skip(2)
        .take_while(|l| l.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells[0].trim_matches('`').to_string();
        let may = match cells[2] {
            "–" => BTreeSet::new(),
            words if words.starts_with("all but ") => {
                let but = &words["all but ".len()..];
                crates.iter().filter(|c| **c != but && **c != name).cloned().collect()
            }
            words => {
                let words = words.replace(" (for its tests)", "");
                words.split(',').map(|w| w.trim().to_string()).collect()
            }
        };
        (name, may)
    })
    .collect()
}

#[test]
fn crates_depend_on_each_other_as_the_architecture_says() {
    let actual = dependencies();
    let allowed = allowed(&actual.keys().cloned().collect());
    let mut problems = vec![];
    for (name, uses) in &actual {
        match allowed.get(name) {
            None => problems.push(format!("crate {name} is not in the table")),
            Some(may) => problems.extend(uses.difference(may).map(|d| format!("{name} depends on {d}"))),
        }
    }
    problems.extend(
        allowed
            .keys()
            .filter(|n| !actual.contains_key(*n))
            .map(|n| format!("there is no crate {n}")),
    );
    check(
        problems,
        "remove the dependency, or, if the new arrow is meant, change the table in ARCHITECTURE.md and say why",
    );
}

/// What cargo builds third-party crates with when it builds these packages and their tests.
fn features_of(packages: &[&str]) -> BTreeSet<String> {
    let output = std::process::Command::new("cargo")
        .args([
            "tree",
            "--locked",
            "--offline",
            "-e",
            "normal,build,dev",
            "--prefix",
            "none",
            "-f",
            "{p} {f}",
        ])
        .args(packages)
        .current_dir(workspace_root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
    text.lines().map(|l| l.trim_end_matches(" (*)").to_string()).collect()
}

#[test]
fn features_are_the_same_for_one_crate_and_for_all() {
    let all = features_of(&["--workspace"]);
    let mut problems = vec![];
    for name in dependencies().keys().filter(|n| *n != "orlop") {
        let one = features_of(&["-p", &format!("orlop-{name}")]);
        problems.extend(one.difference(&all).map(|line| format!("orlop-{name} alone: {line}")));
    }
    check(
        problems,
        "name the crate with the features that the workspace has (cargo tree --workspace -f '{p} {f}') in \
         crates/features/Cargo.toml, and orlop-features among the new crate's development dependencies",
    );
}

/// The crate that talks to the kernel about containers, where each use says why it is sound.
const UNSAFE_CRATE: &str = "crates/runtime/";
/// How far above a use its reason may begin.
const REASON_LINES: usize = 6;

#[test]
fn unsafe_code_is_in_one_crate_and_has_reasons() {
    // Put together, so that this file does not name itself.
    let marks: Vec<String> = ["{", "fn ", "impl ", "trait ", "extern "]
        .iter()
        .map(|w| format!("{}safe {w}", "un"))
        .collect();
    let lint = format!("({}safe_code)", "un");
    let mut problems = vec![];
    for path in &rust_files() {
        let text = read(path);
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            let is_use = marks.iter().any(|m| code.contains(m.as_str()));
            let reasons = &lines[number.saturating_sub(REASON_LINES)..=number];
            let has_reason = reasons
                .iter()
                .any(|line| line.contains("SAFETY") || line.contains("# Safety"));
            let is_sound = shown(path).starts_with(UNSAFE_CRATE) && (has_reason || !is_use);
            if (is_use || code.contains(&lint)) && !is_sound {
                problems.push(format!("{}:{}: {}", shown(path), number + 1, line.trim()));
            }
        }
    }
    check(
        problems,
        "find a safe way: nix and rustix have one for most calls; in crates/runtime say under SAFETY why it is sound",
    );
}

/// Clients that others wrote are what tests compare us with; the product has its own types and its own client.
#[test]
fn client_libraries_are_for_tests_only() {
    let mut problems = vec![];
    for entry in std::fs::read_dir(workspace_root().join("crates")).unwrap() {
        let manifest = entry.unwrap().path().join("Cargo.toml");
        if shown(&manifest).starts_with("crates/testkit/") {
            continue;
        }
        let mut section = String::new();
        for line in read(&manifest).lines().map(str::trim) {
            if line.starts_with('[') {
                section = line.to_string();
            }
            let name = line.split(['.', ' ', '=']).next().unwrap_or("");
            if section == "[dependencies]" && (name.starts_with("kube") || name.starts_with("k8s-")) {
                problems.push(format!("{}: {line}", shown(&manifest)));
            }
        }
    }
    check(problems, "use orlop-api and orlop-client, or make it a dev-dependency");
}

/// Crates whose errors all have types.
const TYPED_ERRORS: [&str; 7] = ["api", "apiserver", "base", "orlop", "serving", "store", "x509"];

/// Functions that other modules call: `pub`, `pub(crate)` or `pub(super)`, as text up to their body.
fn public_signatures(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("pub").map(|(at, _)| &text[at..]);
    let starts = starts.filter(|rest| {
        let line = rest.lines().next().unwrap_or("");
        let rest = line.split_once(") ").filter(|(start, _)| start.starts_with("pub("));
        let rest = rest.map(|(_, rest)| rest).or(line.strip_prefix("pub "));
        rest.is_some_and(|rest| {
            ["fn ", "async fn ", "const fn "]
                .iter()
                .any(|start| rest.starts_with(start))
        })
    });
    starts.map(|rest| rest.split(['{', ';']).next().unwrap_or(""))
}

#[test]
fn errors_have_types() {
    let mut problems = vec![];
    for path in rust_files() {
        let name = shown(&path);
        let of_typed = TYPED_ERRORS
            .iter()
            .any(|c| name.starts_with(&format!("crates/{c}/src/")));
        if !of_typed || name.ends_with("tests.rs") || name.contains("/tests/") {
            continue;
        }
        for signature in public_signatures(&read(&path)) {
            let result = signature.split_once("->").map_or("", |(_, result)| result);
            if result.contains("Result<") && result.contains(", String>") {
                problems.push(format!(
                    "{name}: {}",
                    signature.split_whitespace().collect::<Vec<_>>().join(" ")
                ));
            }
        }
    }
    check(
        problems,
        "give the error a type of its own (thiserror), with variants only where callers differ in what they do",
    );
}

/// The kinds that handlers of the registry name, beside `subresources/`, `services.rs` and `stamps.rs`.
const KINDS_IN_HANDLERS: &[(&str, &[&str])] = &[
    // The Go package of their type is another than their group.
    ("body.rs", &["events"]),
    // Whose rules need schemas and expressions.
    ("rules.rs", &["CustomResourceDefinition"]),
    // Which fields whoever writes to an endpoint does not own; new pods are kept decoded for their binding.
    (
        "create.rs",
        &[
            "CertificateSigningRequest",
            "Deployment",
            "FlowSchema",
            "Namespace",
            "Pod",
            "PriorityLevelConfiguration",
            "ResourceClaim",
            "ServiceCIDR",
            "ValidatingAdmissionPolicy",
            "VolumeAttachment",
            "pods",
        ],
    ),
    // Deletes that answer with the object, grace periods, finalizers of namespaces, defaults of propagation.
    (
        "delete.rs",
        &[
            "Job",
            "Namespace",
            "Pod",
            "ReplicationController",
            "csidrivers",
            "csinodes",
            "deviceclasses",
            "namespaces",
            "persistentvolumeclaims",
            "persistentvolumes",
            "pods",
            "podtemplates",
            "resourceclaims",
            "resourceclaimtemplates",
            "resourcequotas",
            "resourceslices",
            "serviceaccounts",
            "services",
            "storageclasses",
            "volumeattachments",
            "volumeattributesclasses",
        ],
    ),
    // A field of its own, and words of refusals.
    ("list.rs", &["Job", "Namespace", "ResourceSlice"]),
    // What counts towards quotas.
    ("mod.rs", &["ResourceQuota"]),
    // Finalizers of namespaces.
    ("update.rs", &["Namespace"]),
];

/// The names in the table of kinds: `Pod` and `pods`.
fn kind_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in files(&workspace_root().join("crates/api/src"), "rs") {
        let text = read(&path);
        let after = |field: &'static str| text.split(field).skip(1).filter_map(|rest| rest.split('"').next());
        let kinds = after("kind: \"").filter(|n| n.starts_with(char::is_uppercase));
        let plurals = after("plural: \"").filter(|n| n.starts_with(char::is_lowercase));
        names.extend(kinds.chain(plurals).map(str::to_string));
    }
    names
}

#[test]
fn handlers_know_no_kinds_but_those_listed() {
    let (names, directory) = (kind_names(), workspace_root().join("crates/apiserver/src/registry"));
    assert!(
        names.contains("Pod") && names.contains("pods"),
        "the table of kinds was not found"
    );
    let mut problems = vec![];
    for path in files(&directory, "rs") {
        let file = path.strip_prefix(&directory).unwrap().display().to_string();
        if file.starts_with("subresources") || ["services.rs", "stamps.rs"].contains(&&*file) {
            continue;
        }
        let text = read(&path);
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
        let code = code.lines().map(|line| line.split("//").next().unwrap_or(""));
        let named: BTreeSet<&str> = code
            .flat_map(|line| line.split('"').skip(1).step_by(2))
            .filter(|word| names.contains(*word))
            .collect();
        let listed = KINDS_IN_HANDLERS.iter().find(|(listed, _)| *listed == file);
        let listed: BTreeSet<&str> = listed.iter().flat_map(|(_, kinds)| kinds.iter().copied()).collect();
        problems.extend(named.difference(&listed).map(|kind| format!("{file} knows {kind}")));
        problems.extend(
            listed
                .difference(&named)
                .map(|kind| format!("{file} does not know {kind} any more")),
        );
    }
    check(
        problems,
        "say it in the kind's row (crates/api/src/kind.rs) instead, or correct KINDS_IN_HANDLERS in this file",
    );
}

#[test]
fn nothing_is_left_to_do_later() {
    // Put together, so that this file does not name itself.
    let marks = [
        ["todo", "!("].concat(),
        ["unimpl", "emented!("].concat(),
        ["#[ig", "nore"].concat(),
        ["dbg", "!("].concat(),
    ];
    let mut problems = vec![];
    for path in rust_files() {
        for (number, line) in read(&path).lines().enumerate() {
            if marks.iter().any(|m| line.contains(m.as_str())) {
                problems.push(format!("{}:{}: {}", shown(&path), number + 1, line.trim()));
            }
        }
    }
    check(
        problems,
        "write what is missing, or leave it out; a test that can't pass yet asserts today's behaviour instead",
    );
}

#[test]
fn files_are_of_a_readable_size() {
    let lengths = rust_files().into_iter().map(|p| (read(&p).lines().count(), p));
    let problems = lengths
        .filter(|(n, _)| *n > LINES_MAX)
        .map(|(n, p)| format!("{}: {n} lines", shown(&p)));
    check(
        problems.collect(),
        &format!("more than {LINES_MAX} lines: which second noun is hiding? Give it a file of its own"),
    );
}

/// The modules that a file declares, as files: `mod a;` in `x/mod.rs`, `x/lib.rs` or `x/main.rs` is `x/a.rs` or
/// `x/a/mod.rs`; in `x/y.rs` it is `x/y/a.rs` or `x/y/a/mod.rs`.
fn declared(path: &Path) -> Vec<PathBuf> {
    let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
    let parent = path.parent().unwrap();
    let is_root = matches!(stem.as_str(), "mod" | "lib" | "main") || is_target(path);
    let base = if is_root {
        parent.to_path_buf()
    } else {
        parent.join(&stem)
    };
    let mut found = vec![];
    let mut at_path: Option<String> = None;
    for line in read(path).lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            at_path = rest.split('"').next().map(str::to_string);
            continue;
        }
        let words = line.strip_prefix("pub ").or_else(|| {
            line.split_once(") ")
                .filter(|(a, _)| a.starts_with("pub("))
                .map(|(_, b)| b)
        });
        let declaration = words
            .unwrap_or(line)
            .strip_prefix("mod ")
            .and_then(|r| r.strip_suffix(';'));
        if let Some(name) = declaration {
            match at_path.take() {
                Some(file) => found.push(parent.join(file)),
                None => found.extend([base.join(format!("{name}.rs")), base.join(name).join("mod.rs")]),
            }
        } else if !line.is_empty() && !line.starts_with("#[") {
            at_path = None;
        }
    }
    found
}

/// A file that cargo builds by itself: a test, a benchmark, an example, a further binary.
fn is_target(path: &Path) -> bool {
    let parent = path.parent().unwrap();
    let in_crate = parent.parent().is_some_and(|p| p.join("Cargo.toml").is_file());
    (in_crate
        && ["tests", "benches", "examples", "fuzz_targets"]
            .iter()
            .any(|d| parent.ends_with(d)))
        || (path.ends_with("main.rs") && parent.parent().is_some_and(|p| p.ends_with("tests")))
        || parent.ends_with("src/bin")
        // Built by the runtime's build script: the program of the images that are built in.
        || path.ends_with("crates/runtime/builtin/main.rs")
        || path.ends_with("build.rs")
}

#[test]
fn every_file_is_part_of_the_build() {
    let all: BTreeSet<PathBuf> = rust_files().into_iter().collect();
    let mut pending: Vec<PathBuf> = all
        .iter()
        .filter(|p| p.ends_with("src/lib.rs") || p.ends_with("src/main.rs") || is_target(p))
        .cloned()
        .collect();
    let mut reached: BTreeSet<PathBuf> = BTreeSet::new();
    while let Some(path) = pending.pop() {
        if reached.insert(path.clone()) {
            pending.extend(declared(&path).into_iter().filter(|p| all.contains(p)));
        }
    }
    let lost = all.difference(&reached).map(|p| shown(p)).collect();
    check(
        lost,
        "no `mod` line names these files, so nothing in them is compiled: add it, or delete the file",
    );
}

/// Whether a word of a document looks like a path of this repository.
fn is_path(word: &str) -> bool {
    let known = ["crates/", "docs/", "tools/", "tests/", ".ci/"];
    // How-tos speak of files that the reader is to write.
    let placeholder = word.contains("/foo.");
    let plain = !placeholder && word.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
    plain && (known.iter().any(|k| word.starts_with(k)) || (word.ends_with(".md") && !word.contains("://")))
}

#[test]
fn documents_name_paths_that_exist() {
    let root = workspace_root();
    let mut documents: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .map(|n| root.join(n))
        .into();
    documents.extend(files(&root.join("docs"), "md"));
    let mut problems = vec![];
    for document in documents {
        let text = read(&document);
        let mut missing = |word: &str| problems.push(format!("{}: {word}", shown(&document)));
        let quoted = text.split('`').skip(1).step_by(2);
        quoted
            .filter(|w| is_path(w) && !root.join(w).exists())
            .for_each(&mut missing);
        let here = document.parent().unwrap();
        let links = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', '#']).next());
        links
            .filter(|w| !w.is_empty() && !w.contains("://") && !here.join(w).exists())
            .for_each(&mut missing);
    }
    check(problems, "the file was moved or never was: correct the document");
}

/// Tables that name kinds, admission steps and commands would be useless if something were not in them.
#[test]
fn registries_are_complete() {
    let crates = workspace_root().join("crates");
    let mut problems = vec![];
    // One registry per line: the files of a directory that define something, and the file whose table lists them.
    let registries = [
        (
            "apiserver/src/admission",
            "pub const PLUGIN",
            "apiserver/src/admission/mod.rs",
            "PLUGIN",
        ),
        ("orlop/src/commands", "pub fn run(", "orlop/src/commands/mod.rs", "run("),
    ];
    for (directory, marker, registry, mention) in registries {
        let table = read(&crates.join(registry));
        for path in files(&crates.join(directory), "rs") {
            let is_module = path.ends_with("mod.rs") && path.parent() != Some(&crates.join(directory));
            let module = if is_module {
                path.parent().unwrap().to_path_buf()
            } else {
                path.with_extension("")
            };
            let name = module.file_name().unwrap().to_string_lossy().into_owned();
            if read(&path).contains(marker) && name != "mod" && !table.contains(&format!("{name}::{mention}")) {
                problems.push(format!("{} is not in the table of {registry}", shown(&path)));
            }
        }
    }
    check(problems, "add its row");
}
