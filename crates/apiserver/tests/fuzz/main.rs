//! What clients send, damaged in every way a seed can think of: patches, objects in all three formats, selectors,
//! requests for certificates, times and quantities. Nothing panics, nothing nests or grows without bound, nothing takes
//! long. A few thousand inputs a target in every test run; `make fuzz MINUTES=5` goes on for longer, from another seed.
//!
//! Each input comes from its own seed, and a finding names it: `FUZZ_ONLY=json_patch FUZZ_SEED=4711 make fuzz`
//! replays one. Targets run on a stack as large as that of the server's threads, so what overflows there does here; the
//! last line before such an end says which thousand inputs to look through (`FUZZ_INPUTS=1000`).

mod corpus;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use orlop_api::batch::cron_schedule::Schedule;
use orlop_api::patch::{apply, json, merge, strategic};
use orlop_api::quantity::{Format, Quantity};
use orlop_api::schema::{self, MAX_DEPTH, STACK_BYTES, TypeRef};
use orlop_api::selector::{FieldSelector, LabelSelector};
use orlop_api::{Cursor, KindDef, Problems, Status, Value, duration, int_or_string, meta, protobuf};
use orlop_apiserver::pki;
use orlop_base::Random;
use orlop_base::clock::{self, Shift, monotonic};
use serde_json::{Map, json};

use corpus::Corpus;

/// What one input came to, in bytes.
struct Size {
    input: usize,
    output: usize,
}

type Target = fn(&Corpus, &mut Random) -> Size;

/// Name, inputs in an ordinary test run, and how many times as often it gets a turn in a long one.
const TARGETS: &[(&str, u64, u64, Target)] = &[
    ("json_patch", 3000, 8, json_patch),
    ("merge_patch", 2000, 6, merge_patch),
    ("strategic_patch", 2000, 6, strategic_patch),
    ("apply_patch", 2000, 6, apply_patch),
    ("json_body", 2000, 4, json_body),
    ("yaml_body", 1000, 2, yaml_body),
    ("protobuf_body", 2000, 4, protobuf_body),
    ("label_selector", 5000, 24, label_selector),
    ("field_selector", 5000, 24, field_selector),
    ("quantity", 5000, 32, quantity),
    ("time", 5000, 32, time),
    ("certificate_request", 3000, 12, certificate_request),
];

/// How much larger an answer may be than what led to it: an object's defaults, its ownership and a message about it.
const GROWTH: usize = 64;
const SMALL: usize = 64 * 1024;
/// What an object of the corpus adds to an input, about.
const OBJECT: usize = 2000;
/// No input here is large: what takes this long would take the server for minutes with one of 3 MB.
const PATIENCE: Duration = Duration::from_secs(2);
const TURN: u64 = 1000;

#[test]
fn nothing_that_is_sent_breaks_anything() {
    let ask = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let number = |name: &str| ask(name).and_then(|text| text.parse::<u64>().ok());
    let long = number("FUZZ_MINUTES").map(|minutes| Duration::from_secs(minutes * 60));
    let at_least = number("FUZZ_AT_LEAST").unwrap_or(0);
    let seed = number("FUZZ_SEED").unwrap_or_else(|| match long {
        Some(_) => Random::from_entropy().next_u64() >> 16,
        None => 1,
    });
    let only = ask("FUZZ_ONLY");
    let inputs = number("FUZZ_INPUTS")
        .or(only.is_some().then_some(1))
        .filter(|_| long.is_none());
    let chosen = TARGETS
        .iter()
        .filter(move |t| only.as_deref().is_none_or(|only| t.0 == only));
    let run = move || {
        let corpus = Corpus::new();
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        let began = monotonic();
        match long {
            None => {
                for (name, few, _, target) in chosen {
                    batch(name, *target, &corpus, seed, inputs.unwrap_or(*few));
                    counts.insert(name, inputs.unwrap_or(*few));
                }
            }
            Some(long) => {
                let chosen: Vec<_> = chosen.collect();
                while began.elapsed() < long || counts.values().sum::<u64>() < at_least {
                    for (name, _, weight, target) in &chosen {
                        let done = counts.entry(name).or_default();
                        let first = seed.wrapping_add(*done);
                        println!("{name}: {} inputs from seed {first}", weight * TURN);
                        batch(name, *target, &corpus, first, weight * TURN);
                        *done += weight * TURN;
                    }
                }
            }
        }
        let took = began.elapsed().as_secs_f64();
        let all: u64 = counts.values().sum();
        println!(
            "{all} inputs in {took:.0} s ({:.0} a second) from seed {seed}: {counts:?}",
            all as f64 / took
        );
    };
    let thread = std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(run)
        .expect("a thread");
    if let Err(finding) = thread.join() {
        std::panic::resume_unwind(finding);
    }
    assert!(peak_memory() < 1 << 30, "memory has grown to {} bytes", peak_memory());
}

fn batch(name: &str, target: Target, corpus: &Corpus, first: u64, count: u64) {
    for seed in first..first.wrapping_add(count) {
        let began = monotonic();
        let outcome = catch_unwind(AssertUnwindSafe(|| target(corpus, &mut Random::seeded(seed))));
        let replay = format!("replay with FUZZ_ONLY={name} FUZZ_SEED={seed}");
        let size = outcome.unwrap_or_else(|_| panic!("it panicked: {replay}"));
        assert!(began.elapsed() < PATIENCE, "it took {:?}: {replay}", began.elapsed());
        let most = size.input * GROWTH + SMALL;
        assert!(
            size.output <= most,
            "{} bytes became {}: {replay}",
            size.input,
            size.output
        );
    }
}

/// The most memory that this process has ever had, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn one<'a, T: ?Sized>(list: &[&'a T], random: &mut Random) -> &'a T {
    list[random.below(list.len() as u64) as usize]
}

fn number(random: &mut Random) -> i64 {
    let edges = [
        0,
        1,
        -1,
        2,
        100,
        i64::MAX,
        i64::MIN,
        i64::MAX - 1,
        i64::MIN + 1,
        i64::MAX / 1000,
        i64::MAX / 1_000_000_000,
        i32::MAX as i64,
        i32::MIN as i64,
        i32::MAX as i64 + 1,
        u32::MAX as i64,
        253_402_207_200,
        253_402_300_800,
        1 << 53,
    ];
    match random.below(3) {
        0 => random.next_u64() as i64,
        1 => random.below(1000) as i64 - 500,
        _ => edges[random.below(edges.len() as u64) as usize],
    }
}

const WORDS: &[&str] = &[
    "",
    "a",
    "b",
    "name",
    "metadata",
    "spec",
    "status",
    "containers",
    "labels",
    "$patch",
    "delete",
    "replace",
    "merge",
    "$retainKeys",
    "$setElementOrder/containers",
    "$setElementOrder/ports",
    "$deleteFromPrimitiveList/finalizers",
    "finalizers",
    "replicas",
    "ownerReferences",
    "managedFields",
    "fieldsV1",
    "f:spec",
    "k:{\"name\":\"c\"}",
    "v:1",
    ".",
    "In",
    "Exists",
    "100m",
    "1e400",
    "-1e-30",
    "9223372036854775807",
    "9999999999999999999Ei",
    "0.0000000001n",
    "9999-12-31T23:59:59Z",
    "0000-01-01T00:00:00Z",
    "2026-02-30T25:61:61Z",
    "1h",
    "9223372036854775807ns",
    "25%",
    "999999999999%",
    "*/0 * * * *",
    "60 24 32 13 8",
    "@every 99999999999h",
    "@yearly",
    "10.0.0.0/33",
    "::ffff:1.2.3.4",
    "\u{0}",
    "\u{fffd}\u{10ffff}",
    "env",
    "ports",
    "volumes",
    "tolerations",
    "tolerationSeconds",
    "template",
    "jobTemplate",
    "schedule",
    "data",
    "rules",
];

fn word(random: &mut Random) -> String {
    match random.below(12) {
        0 => number(random).to_string(),
        1 => "x".repeat(random.below(300) as usize),
        2 => random.name_suffix(4),
        _ => one(WORDS, random).to_string(),
    }
}

fn any_value(random: &mut Random, depth: u64) -> Value {
    match random.below(if depth == 0 { 6 } else { 9 }) {
        0 => Value::Null,
        1 => random.below(2).eq(&0).into(),
        2 | 3 => number(random).into(),
        4 | 5 => word(random).into(),
        6 => (0..random.below(4)).map(|_| any_value(random, depth - 1)).collect(),
        7 => {
            let members = (0..random.below(4)).map(|_| (word(random), any_value(random, depth - 1)));
            Value::Object(members.collect())
        }
        // A well of some depth.
        _ => (0..random.below(140)).fold(json!(1), |inner, _| match random.below(2) {
            0 => json!([inner]),
            _ => json!({"a": inner}),
        }),
    }
}

/// A pointer to some place in a value, or beside one.
fn place(value: &Value, random: &mut Random) -> String {
    let (mut at, mut here) = (String::new(), value);
    while random.below(6) > 0 {
        match here {
            Value::Object(map) if !map.is_empty() => {
                let (key, member) = map
                    .iter()
                    .nth(random.below(map.len() as u64) as usize)
                    .expect("it is there");
                at = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
                here = member;
            }
            Value::Array(list) if !list.is_empty() => {
                let i = random.below(list.len() as u64) as usize;
                at = format!("{at}/{i}");
                here = &list[i];
            }
            _ => break,
        }
    }
    match random.below(6) {
        0 => format!("{at}/{}", word(random).replace('/', "~1")),
        1 => format!("{at}/-"),
        2 => format!("{at}/{}", number(random)),
        _ => at,
    }
}

/// Overwrites, doubles or removes something, a few times.
fn damage(value: &mut Value, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = place(value, random);
        let put = any_value(random, 3);
        match value.pointer_mut(&at) {
            Some(Value::Object(map)) if random.below(2) == 0 => {
                map.insert(word(random), put);
            }
            Some(Value::Array(list)) if !list.is_empty() && random.below(2) == 0 => {
                let again = list[random.below(list.len() as u64) as usize].clone();
                let times = 1 + random.below(20) as usize;
                list.extend(std::iter::repeat_n(again, times));
            }
            Some(other) => *other = put,
            None => {}
        }
    }
}

fn damage_bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let len = bytes.len() as u64;
        if len == 0 {
            return bytes.push(random.next_u64() as u8);
        }
        let at = random.below(len) as usize;
        let end = (at + random.below(24) as usize).min(bytes.len());
        match random.below(6) {
            0 => bytes[at] = random.next_u64() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let again = bytes[at..end].repeat(1 + random.below(60) as usize);
                bytes.splice(at..at, again);
            }
            4 => drop(bytes.splice(at..at, word(random).into_bytes())),
            _ => bytes.truncate(at.max(1)),
        }
    }
}

fn depth(value: &Value) -> u32 {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// All that is done with an object that a write has made, but for looking at others. The size of what would be answered.
fn pass_on(kind: &'static KindDef, ty: TypeRef, old: &Value, made: Value) -> usize {
    let decoded = match schema::from_value(made, ty) {
        Ok(decoded) => decoded,
        Err(e) => return e.to_string().len(),
    };
    let mut new = decoded.value;
    assert!(depth(&new) <= MAX_DEPTH, "no object is deeper");
    let told: usize = decoded.problems.iter().map(String::len).sum();
    if !new["metadata"].is_object() {
        new["metadata"] = Value::Object(Map::new());
    }
    let now = Timestamp::UNIX_EPOCH;
    (kind.default)(&mut new);
    let options = apply::UpdateOptions {
        manager: "f",
        now,
        api_version: &kind.api_version(),
        subresource: "",
        reset: &[],
    };
    apply::update_managed_fields(&mut new, Some(old), Some(ty), &options);
    let mut status = new.clone();
    (kind.prepare_status)(&mut status, old);
    (kind.prepare_update)(&mut new, old);
    let mut problems = Problems::default();
    let (root, before) = (Cursor::root(&new), Cursor::root(old));
    meta::validate_update(&root.at("metadata"), &before.at("metadata"), &mut problems);
    meta::validate_create(&root.at("metadata"), kind.namespaced, kind.name_rule, &mut problems);
    (kind.validate)(&root, &mut problems);
    (kind.validate_create)(&root, &mut problems);
    (kind.validate_update)(&root, &before, &mut problems);
    (kind.validate_status)(&Cursor::root(&status), &before, &mut problems);
    let warnings: usize = (kind.warnings)(&root, Some(&before)).iter().map(String::len).sum();
    for (now, object) in [(now, &new), (Timestamp::MAX, &status)] {
        drop((kind.cells)(object, now));
        kind.fields.iter().for_each(|field| drop(field.value(object)));
    }
    let wire = protobuf::encode_message(&new, ty);
    let refusal = Status::invalid(kind.group, kind.kind, "n", &problems)
        .to_value()
        .to_string();
    told + warnings + wire.len() + new.to_string().len() + refusal.len()
}

fn json_patch(corpus: &Corpus, random: &mut Random) -> Size {
    let (kind, ty, old) = corpus.object(random);
    // Many steps of one kind build up; a few of all kinds meet each other.
    let (count, ops): (u64, &[&str]) = match random.below(3) {
        0 => (60, &["add", "move"]),
        1 => (30, &["add", "copy"]),
        _ => (6, &["add", "remove", "replace", "move", "copy", "test", "frob"]),
    };
    let mut pointers: Vec<String> = (0..6).map(|_| place(old, random)).collect();
    let mut steps = vec![];
    for _ in 0..=random.below(count) {
        let mut pointer = || pointers[random.below(pointers.len() as u64) as usize].clone();
        let (path, from) = (pointer(), pointer());
        pointers.push(format!("{path}/{}", word(random).replace('/', "~1")));
        steps.push(json!({"op": one(ops, random), "path": path, "from": from, "value": any_value(random, 2)}));
    }
    let bytes = Value::from(steps).to_string().into_bytes();
    let mut new = old.clone();
    let output = match json::apply(&mut new, &bytes) {
        Err(e) => e.status().to_value().to_string().len() + e.to_string().len(),
        Ok(()) => pass_on(kind, *ty, old, new.clone()),
    };
    assert!(depth(&new) <= MAX_DEPTH, "nothing deeper is ever made");
    Size {
        input: bytes.len() + OBJECT,
        output,
    }
}

/// A part of an object as it is, damaged: what a patch looks like.
fn patch_for(old: &Value, random: &mut Random) -> Value {
    let mut patch = old.clone();
    damage(&mut patch, random);
    if let Some(map) = patch.as_object_mut() {
        map.retain(|_, _| random.below(3) > 0);
    }
    match random.below(8) {
        0 => any_value(random, 4),
        _ => patch,
    }
}

fn merge_patch(corpus: &Corpus, random: &mut Random) -> Size {
    let (kind, ty, old) = corpus.object(random);
    let bytes = patch_for(old, random).to_string().into_bytes();
    let mut new = old.clone();
    let output = match merge::decode(&bytes) {
        Err(e) => e.to_string().len(),
        Ok(patch) => {
            merge::apply(&mut new, patch);
            pass_on(kind, *ty, old, new)
        }
    };
    Size {
        input: bytes.len() + OBJECT,
        output,
    }
}

fn strategic_patch(corpus: &Corpus, random: &mut Random) -> Size {
    let (kind, ty, old) = corpus.object(random);
    let bytes = patch_for(old, random).to_string().into_bytes();
    let mut new = old.clone();
    let applied = strategic::decode(&bytes).and_then(|patch| strategic::apply(&mut new, patch, *ty));
    let output = match applied {
        Err(e) => e.to_string().len(),
        Ok(()) => pass_on(kind, *ty, old, new),
    };
    Size {
        input: bytes.len() + OBJECT,
        output,
    }
}

fn apply_patch(corpus: &Corpus, random: &mut Random) -> Size {
    let (kind, ty, old) = corpus.object(random);
    let mut live = old.clone();
    if random.below(2) == 0 {
        damage(&mut live["metadata"]["managedFields"], random);
    }
    let mut sent = patch_for(old, random);
    if let Some(meta) = sent.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("managedFields");
    }
    let bytes = sent.to_string().into_bytes();
    let options = apply::ApplyOptions {
        manager: one(&["m", "kubectl", "x"], random),
        force: random.below(2) == 0,
        now: Timestamp::UNIX_EPOCH,
        api_version: &kind.api_version(),
        subresource: "",
        reset: &[],
    };
    let applied = schema::yaml_to_value(&bytes)
        .map_err(|e| e.to_string())
        .and_then(|(sent, _)| {
            let live = (random.below(4) > 0).then_some(&live);
            apply::apply(live, &sent, Some(*ty), &options).map_err(|e| e.status().to_value().to_string())
        });
    let output = match applied {
        Err(text) => text.len(),
        Ok(new) => pass_on(kind, *ty, old, new),
    };
    Size {
        input: bytes.len() + OBJECT,
        output,
    }
}

fn body(corpus: &Corpus, random: &mut Random, decode: fn(&[u8], TypeRef) -> Result<Value, String>) -> Size {
    let (kind, ty, old) = corpus.object(random);
    let mut new = old.clone();
    damage(&mut new, random);
    let mut bytes = new.to_string().into_bytes();
    if random.below(2) == 0 {
        damage_bytes(&mut bytes, random);
    }
    let output = match decode(&bytes, *ty) {
        Err(e) => e.len(),
        Ok(value) => pass_on(kind, *ty, old, value),
    };
    Size {
        input: bytes.len() + OBJECT,
        output,
    }
}

fn json_body(corpus: &Corpus, random: &mut Random) -> Size {
    body(corpus, random, |bytes, ty| {
        let syntax = schema::json_syntax_error(bytes);
        let decoded = schema::decode_json(bytes, ty).map_err(|e| e.to_string())?;
        assert_eq!(syntax, None, "what decodes is JSON");
        Ok(decoded.value)
    })
}

fn yaml_body(corpus: &Corpus, random: &mut Random) -> Size {
    body(corpus, random, |bytes, ty| {
        // Not JSON any more, so that it is read as YAML.
        let text = [b"---\n", bytes].concat();
        schema::decode_yaml(&text, ty)
            .map(|d| d.value)
            .map_err(|e| e.to_string())
    })
}

fn protobuf_body(corpus: &Corpus, random: &mut Random) -> Size {
    let (kind, ty, old) = corpus.object(random);
    let mut bytes = protobuf::encode(old, &kind.api_version(), kind.kind, *ty);
    damage_bytes(&mut bytes, random);
    let output = match protobuf::decode_as(&bytes, *ty) {
        Err(e) => e.to_string().len(),
        Ok((_, value)) => pass_on(kind, *ty, old, value),
    };
    drop(protobuf::decode(&bytes));
    Size {
        input: bytes.len(),
        output,
    }
}

fn selector_text(random: &mut Random) -> String {
    let parts = [
        "a",
        "b.c/d",
        "=",
        "==",
        "!=",
        "!",
        ",",
        " in ",
        " notin ",
        "(",
        ")",
        "<",
        ">",
        "\\",
        "\\,",
        " ",
        "1",
        "-1",
        "metadata.name",
        "99999999999999999999",
        "\u{e4}",
    ];
    let mut text = String::new();
    for _ in 0..random.below(14) {
        match random.below(12) {
            0 => text += &word(random),
            _ => text += one(&parts, random),
        }
    }
    text
}

fn label_selector(_: &Corpus, random: &mut Random) -> Size {
    let text = selector_text(random);
    let output = match LabelSelector::parse(&text) {
        Err(e) => e.to_string().len(),
        Ok(selector) => {
            for value in [None, Some(""), Some("1"), Some("9223372036854775807"), Some("x")] {
                selector.matches(|_| value);
            }
            0
        }
    };
    let object = json!({"matchLabels": any_value(random, 2), "matchExpressions": [
        {"key": word(random), "operator": one(&["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "x"], random),
         "values": any_value(random, 2)}]});
    let parsed = LabelSelector::from_object(&object);
    if let Ok(selector) = parsed {
        selector.matches(|_| Some("1"));
    }
    Size {
        input: text.len(),
        output,
    }
}

fn field_selector(_: &Corpus, random: &mut Random) -> Size {
    let text = selector_text(random);
    let output = match FieldSelector::parse(&text) {
        Err(e) => e.to_string().len(),
        Ok(selector) => {
            selector.matches(|_| "1");
            selector.exact("metadata.name").map_or(0, str::len)
        }
    };
    Size {
        input: text.len(),
        output,
    }
}

fn quantity_text(random: &mut Random) -> String {
    let signs = ["", "-", "+"];
    let points = ["", ".", ".0", ".000000001", ".999999999999999999999", "..", ".5"];
    let units = [
        "",
        "n",
        "u",
        "m",
        "k",
        "M",
        "G",
        "T",
        "P",
        "E",
        "Ki",
        "Mi",
        "Gi",
        "Ti",
        "Pi",
        "Ei",
        "e3",
        "E-99",
        "e999999999999",
        "x",
    ];
    match random.below(8) {
        0 => word(random),
        _ => format!(
            "{}{}{}{}",
            one(&signs, random),
            number(random).unsigned_abs(),
            one(&points, random),
            one(&units, random)
        ),
    }
}

fn quantity(_: &Corpus, random: &mut Random) -> Size {
    let (a, b) = (quantity_text(random), quantity_text(random));
    let mut output = 0;
    match (Quantity::parse(&a), Quantity::parse(&b)) {
        (Ok(mut sum), Ok(other)) => {
            let _ = sum.cmp(&other);
            for step in 0..random.below(8) {
                match step % 4 {
                    0 => sum.add(&other),
                    1 => sum.mul(number(random)),
                    2 => sum.sub(&other),
                    _ => sum.neg(),
                }
                let text = sum.canonical();
                output = output.max(text.len());
                let _ = (sum.value(), sum.milli_value(), sum.as_f64(), sum.is_whole(), sum.sign());
            }
            let again = Quantity::parse(&other.canonical()).expect("what is written can be read");
            assert_eq!(again.nanos(), other.nanos(), "{b}");
        }
        (a, b) => {
            output = [a.err(), b.err()]
                .into_iter()
                .flatten()
                .map(|e| e.to_string().len())
                .sum()
        }
    }
    let made = Quantity::from_i64(number(random), Format::BinarySI).canonical();
    drop(Quantity::parse(&made).expect("what is written can be read"));
    let percent = json!(format!("{}%", number(random)));
    for round in [int_or_string::Round::Up, int_or_string::Round::Down] {
        int_or_string::scaled(Some(&percent), number(random), round);
        int_or_string::scaled(Some(&json!(number(random))), number(random), round);
    }
    Size {
        input: a.len() + b.len(),
        output,
    }
}

fn time(_: &Corpus, random: &mut Random) -> Size {
    let some = |random: &mut Random| match random.below(4) {
        0 => Timestamp::MAX,
        1 => Timestamp::MIN,
        2 => Timestamp::UNIX_EPOCH,
        _ => Timestamp::from_second(number(random) % 250_000_000_000).unwrap_or_default(),
    };
    let (at, seconds) = (some(random), number(random));
    let long = clock::seconds(seconds);
    let moved = at.later_by_seconds(seconds).earlier(long).later(long);
    assert!(clock::elapsed(moved, at) <= clock::elapsed(Timestamp::MIN, Timestamp::MAX));
    let begin = monotonic();
    assert!(begin.later(long) >= begin.earlier(long));
    clock::wall().later(long).later(long).earlier(long);
    let text = match random.below(3) {
        0 => word(random),
        1 => format!(
            "{}{}",
            number(random),
            one(&["ns", "us", "ms", "s", "m", "h", "h1m", "x"], random)
        ),
        _ => format!("{}:{}Z", clock::rfc3339(at), number(random)),
    };
    let mut output = match duration::parse_duration(&text) {
        Ok(nanos) => duration::duration_text(nanos).len(),
        Err(e) => e.to_string().len(),
    };
    output += duration::duration_text(number(random)).len();
    let lease = schema::schema()
        .get("coordination/v1.Lease")
        .expect("leases are in the table");
    let spec = json!({"spec": {"renewTime": text, "leaseDurationSeconds": number(random)},
        "metadata": {"creationTimestamp": clock::rfc3339(at), "deletionGracePeriodSeconds": seconds}});
    output += match schema::from_value(spec, lease) {
        Ok(decoded) => decoded.value.to_string().len(),
        Err(e) => e.to_string().len(),
    };
    let field = |random: &mut Random| match random.below(4) {
        0 => "*".to_string(),
        1 => format!("{}/{}", random.below(70), random.below(5)),
        2 => format!("{}-{}", random.below(70), number(random)),
        _ => random.below(32).to_string(),
    };
    let schedule = match random.below(4) {
        0 => format!("@every {text}"),
        _ => (0..5).map(|_| field(random)).collect::<Vec<_>>().join(" "),
    };
    // A schedule that never comes is looked for day by day, for years: now and then is enough.
    if let Ok(schedule) = Schedule::parse(&schedule)
        && random.below(16) == 0
        && let Some(next) = schedule.next_after(at, &TimeZone::UTC)
    {
        assert!(next > at, "{schedule:?}");
    }
    Size {
        input: text.len(),
        output,
    }
}

fn certificate_request(corpus: &Corpus, random: &mut Random) -> Size {
    let mut der = corpus.requests[random.below(corpus.requests.len() as u64) as usize].clone();
    if random.below(2) == 0 {
        // One byte, which mostly is a length, a tag or a letter.
        let at = random.below(der.len().min(140) as u64) as usize;
        der[at] = random.next_u64() as u8;
    } else {
        damage_bytes(&mut der, random);
    }
    let lines: Vec<String> = STANDARD
        .encode(&der)
        .as_bytes()
        .chunks(64)
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    let mut pem = format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n",
        lines.join("\n")
    );
    if random.below(16) == 0 {
        let mut bytes = pem.into_bytes();
        damage_bytes(&mut bytes, random);
        pem = String::from_utf8_lossy(&bytes).into_owned();
    }
    let output = match pki::CertificateRequest::from_pem(pem.as_bytes()) {
        Ok(asked) => format!("{asked:?}").len(),
        Err(e) => e.to_string().len(),
    };
    Size {
        input: pem.len(),
        output,
    }
}
