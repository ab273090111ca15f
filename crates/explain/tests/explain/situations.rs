//! `situations.txt`: situations with what is said of each. `UPDATE_GOLDEN=1` writes it anew.

use std::fmt::Write;
use std::path::Path;

use orlop_explain::fix::{self, Budget, Target, place_with};
use orlop_explain::render::{self, View};

use crate::fixture::case;

/// What is said, in short lines.
fn said(input: &str) -> (String, usize) {
    let mut case = case(input);
    let answer = case.explain();
    let mut out = String::new();
    writeln!(out, "{:?}: {}", answer.state, answer.verdict).unwrap();
    for row in &answer.reasons {
        let figures = if row.summary.is_empty() {
            String::new()
        } else {
            format!(" [{}]", row.summary)
        };
        writeln!(
            out,
            "reason: {}/{} {} {}{figures}",
            row.nodes, row.only_reason, row.plugin, row.reason
        )
        .unwrap();
    }
    for row in answer.node_details.iter().filter(|row| row.fits) {
        writeln!(
            out,
            "fits: {} rank {:?} total {:?}",
            row.name,
            row.rank.unwrap_or(0),
            row.total.unwrap_or(0)
        )
        .unwrap();
    }
    if let Some(queue) = &answer.queue {
        writeln!(out, "queue: {}: {}", queue.state, queue.message).unwrap();
    }
    if let Some(account) = &answer.preemption {
        writeln!(out, "preemption: {}", account.message).unwrap();
    }
    for row in &answer.volumes {
        writeln!(
            out,
            "claim: {} {} {} {}",
            row.claim, row.phase, row.storage_class, row.binding_mode
        )
        .unwrap();
    }
    for warning in &answer.warnings {
        writeln!(out, "warning: {warning}").unwrap();
    }
    let report = fix::search(&mut case.world, &answer, &mut Budget::default());
    for fix in &report.fixes {
        let target = match fix.target {
            Target::Pod => "pod",
            Target::Cluster => "cluster",
            Target::NewNode => "new node",
        };
        let changes: Vec<&str> = fix.changes.iter().map(|c| c.text.as_str()).collect();
        let effects: Vec<String> = fix.side_effects.iter().map(|e| format!(" ({e})")).collect();
        writeln!(
            out,
            "fix {target}: {} -> {}{}",
            changes.join(" + "),
            fix.node,
            effects.concat()
        )
        .unwrap();
        let model = case.model();
        let again = place_with(&mut case.world, &model, &fix.edits());
        assert_eq!(again.map(|trial| trial.node), Some(fix.node.clone()), "{input}");
    }
    if let Some(message) = &report.message {
        writeln!(out, "no fix: {message}").unwrap();
    }
    assert_eq!(report.gave_up, None, "{input}");
    // Asking changes nothing.
    let mut after = case.explain();
    assert_eq!(after.verdict, answer.verdict, "{input}");
    let fixes = report.fixes.len();
    after.fixes = Some(report);
    let text = render::pod(&after, View::default());
    assert!(
        text.contains(after.verdict.split(' ').next().unwrap()) && !text.contains('\x1b'),
        "{text}"
    );
    let json = serde_json::to_value(&after).unwrap();
    assert!(
        json["kind"] == "PodExplanation" && json["fixes"]["fixes"].is_array(),
        "{json}"
    );
    (out, fixes)
}

#[test]
fn situations_are_explained() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/explain/situations.txt");
    let text = std::fs::read_to_string(&path).unwrap();
    let (mut written, mut pending, mut fixed, mut wrong) = (String::new(), 0, 0, vec![]);
    for section in text.split("=== ").skip(1) {
        let (name, body) = section.split_once('\n').unwrap();
        let (input, expected) = body.split_once("---\n").unwrap_or((body, ""));
        let (said, fixes) = said(input.trim_end());
        if !name.starts_with("placed") {
            pending += 1;
            fixed += usize::from(fixes > 0);
        }
        if said.trim() != expected.trim() {
            wrong.push(format!("{name}\n--- expected\n{}\n--- said\n{said}", expected.trim()));
        }
        writeln!(written, "=== {name}\n{}\n---\n{said}", input.trim_end()).unwrap();
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, written).unwrap();
    } else {
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    }
    assert!(pending >= 40 && fixed >= 30, "{pending} situations, {fixed} with a fix");
}
