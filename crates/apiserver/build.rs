//! Takes the descriptions of types and fields from the sources of the k8s-openapi crate, for OpenAPI documents.
//!
//! They are read as text: compiling that crate for this would take longer than the rest of the build. It is in the lock
//! file as a dependency of the test kit, so cargo knows where it is. Without it the build goes on, and `kubectl explain`
//! shows types and fields alone.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::hash::Hasher;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use flate2::Compression;
use flate2::write::DeflateEncoder;

/// Where the crate keeps the Kubernetes version that we are.
const VERSION_DIR: &str = "src/v1_36";

type Descriptions = BTreeMap<String, Vec<String>>;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/openapi");
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    let mut descriptions = Descriptions::new();
    match find_crate() {
        Some(dir) => read_dir(&dir.join(VERSION_DIR), &mut descriptions)?,
        None => println!("cargo::warning=k8s-openapi's sources were not found: no descriptions in OpenAPI documents"),
    }
    let mut text = String::new();
    for (name, words) in &descriptions {
        text += &format!("{name}\u{1f}{}\u{1e}", words.join("\u{1f}"));
    }
    let mut encoder = DeflateEncoder::new(vec![], Compression::best());
    encoder.write_all(text.as_bytes())?;
    let out = PathBuf::from(env::var("OUT_DIR")?).join("descriptions.deflate");
    fs::write(out, encoder.finish()?)?;

    let mut sum = DefaultHasher::new();
    sum.write(text.as_bytes());
    let mut sources: Vec<PathBuf> = fs::read_dir("src/openapi")?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_, std::io::Error>>()?;
    sources.sort();
    for path in sources {
        sum.write(&fs::read(path)?);
    }
    println!("cargo::rustc-env=ORLOP_OPENAPI_SUM={:016x}", sum.finish());
    Ok(())
}

/// The directory of k8s-openapi, wherever this build's crates come from.
fn find_crate() -> Option<PathBuf> {
    // Offline finds it wherever the whole workspace was fetched or built before; else cargo has to fetch it.
    [&["--offline"][..], &[]].iter().find_map(|options| {
        let output = Command::new(env::var_os("CARGO")?)
            .args(["metadata", "--format-version", "1"])
            .args(*options)
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let paths = text.split("\"manifest_path\":\"").skip(1);
        let dirs = paths.filter_map(|rest| Some(Path::new(rest.split('"').next()?).parent()?.to_owned()));
        let is_it = |dir: &PathBuf| {
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("k8s-openapi") && dir.join(VERSION_DIR).is_dir()
        };
        dirs.into_iter().find(is_it)
    })
}

fn read_dir(dir: &Path, descriptions: &mut Descriptions) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            read_dir(&path, descriptions)?;
        } else if let Some((name, words)) = read_type(&fs::read_to_string(path)?) {
            descriptions.insert(name, words);
        }
    }
    Ok(())
}

/// A file holds one type. It names the definition, and at its end has the type's JSON schema as code:
///
/// ```text
///             "description": "…",
///                 "field": {
///                     "description": "…",
///                 "field": ({
///                     schema_obj.ensure_object().insert("description".into(), "…".into());
/// ```
///
/// Gives the definition's name; then its description, and name and description of each field.
fn read_type(source: &str) -> Option<(String, Vec<String>)> {
    let name = source.lines().next()?.strip_prefix("// Generated from definition ")?;
    let mut words = vec![String::new()];
    let mut field = "";
    for line in source.lines().skip_while(|l| !l.contains("fn json_schema(")) {
        let text = line.trim_start();
        let depth = line.len() - text.len();
        let described = text
            .strip_prefix("\"description\": ")
            .or_else(|| text.strip_prefix("schema_obj.ensure_object().insert(\"description\".into(), "));
        match (depth, described.and_then(literal)) {
            (12, Some(description)) => words[0] = description,
            (16, _) if text.starts_with('"') => field = text.split('"').nth(1)?,
            (20, Some(description)) => words.extend([field.to_string(), description]),
            _ => {}
        }
    }
    Some((name.to_string(), words))
}

/// The value of the string literal at the start of the text.
fn literal(text: &str) -> Option<String> {
    let mut chars = text.strip_prefix('"')?.chars();
    let mut value = String::new();
    loop {
        match chars.next()? {
            '"' => return Some(value),
            '\\' => value.push(match chars.next()? {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'u' => {
                    let digits: String = chars.by_ref().skip(1).take_while(|c| *c != '}').collect();
                    u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32)?
                }
                other => other,
            }),
            other => value.push(other),
        }
    }
}
