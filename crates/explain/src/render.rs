//! Answers as text for a terminal.

use crate::detail;
use crate::fix::{FixReport, Target};
use crate::pod::{NodeRow, PodExplanation, PodState};
use crate::simulate::{Share, SimulationReport};
use crate::style::{Colour, Style, Table, wrapped};
use crate::workload::WorkloadExplanation;

/// More nodes than these are printed only if asked for.
const NODES: usize = 6;
/// Names in the table of reasons.
const NAMES: usize = 3;
const EVENTS: usize = 3;
const WIDTH: usize = 110;

/// How a pod's explanation is to be shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct View {
    pub style: Style,
    /// Every node, with every plugin.
    pub wide: bool,
}

pub fn pod(answer: &PodExplanation, view: View) -> String {
    let style = view.style;
    let colour = match answer.state {
        PodState::Scheduled | PodState::Schedulable | PodState::Finished => Colour::Green,
        PodState::Gated | PodState::Preempting => Colour::Yellow,
        PodState::Unschedulable => Colour::Red,
        PodState::Unknown => Colour::Yellow,
    };
    let mut out = wrapped(&answer.verdict, WIDTH, "");
    out = out.lines().map(|line| style.paint(line, colour) + "\n").collect();
    reasons(answer, view, &mut out);
    scores(answer, view, &mut out);
    rejected_nodes(answer, view, &mut out);
    facts(answer, style, &mut out);
    events(answer, style, &mut out);
    for warning in &answer.warnings {
        out += &wrapped(&format!("note: {warning}"), WIDTH, "      ");
    }
    if let Some(report) = &answer.fixes {
        out += "\n";
        out += &fixes(report, style);
    }
    out
}

fn heading(style: Style, text: &str) -> String {
    format!("\n{}\n", style.bold(text))
}

fn reasons(answer: &PodExplanation, view: View, out: &mut String) {
    if answer.reasons.is_empty() {
        return;
    }
    *out += &heading(view.style, "Why nodes are refused");
    let mut table = Table::new(&["NODES", "ALONE", "REASON", "FIGURES", "PLUGIN", "WHICH"]);
    for row in &answer.reasons {
        let mut names: Vec<&str> = row
            .names
            .iter()
            .map(String::as_str)
            .take(if view.wide { usize::MAX } else { NAMES })
            .collect();
        let more = row.names.len() - names.len();
        let rest = format!("and {more} more");
        if more > 0 {
            names.push(&rest);
        }
        table.row(vec![
            row.nodes.to_string(),
            row.only_reason.to_string(),
            row.reason.clone(),
            row.summary.clone(),
            row.plugin.to_string(),
            names.join(", "),
        ]);
    }
    *out += &table.render(view.style);
}

fn scores(answer: &PodExplanation, view: View, out: &mut String) {
    let shown = if view.wide { usize::MAX } else { NODES };
    let rows: Vec<&NodeRow> = answer.node_details.iter().filter(|row| row.fits).collect();
    let plugins: Vec<&str> = rows
        .first()
        .map_or(vec![], |row| row.scores.iter().map(|s| s.plugin).collect());
    if rows.is_empty() || plugins.is_empty() {
        return;
    }
    let title = match answer.reconstructed && answer.state == PodState::Scheduled {
        true => "Feasible nodes (reconstructed from today's state; each cell: raw → normalised × weight)",
        false => "Feasible nodes (each cell: raw → normalised × weight)",
    };
    *out += &heading(view.style, title);
    let mut head = vec!["RANK", "NODE", "TOTAL"];
    head.extend(&plugins);
    let mut table = Table::new(&head);
    let own = |row: &&&NodeRow| answer.node.as_deref() == Some(&*row.name);
    let (first, rest) = rows.split_at(rows.len().min(shown));
    for row in first.iter().chain(rest.iter().filter(own)) {
        let mark = if own(&row) { "*" } else { "" };
        let mut cells = vec![
            row.rank.map_or_else(String::new, |rank| rank.to_string()),
            format!("{}{mark}", row.name),
            row.total.map_or_else(String::new, |total| total.to_string()),
        ];
        cells.extend(plugins.iter().map(|plugin| {
            let score = row.scores.iter().find(|s| s.plugin == *plugin);
            score.map_or_else(String::new, |s| format!("{} → {} × {}", s.raw, s.normalized, s.weight))
        }));
        table.row(cells);
    }
    *out += &table.render(view.style);
    if answer.node.is_some() && rows.iter().any(|row| own(&row)) {
        *out += "* is where the pod is\n";
    }
    if rest.len() > usize::from(rest.iter().any(|row| own(&row))) {
        *out += &format!("and {} more (-o wide shows all)\n", rest.len());
    }
}

fn rejected_nodes(answer: &PodExplanation, view: View, out: &mut String) {
    let rows: Vec<&NodeRow> = answer.node_details.iter().filter(|row| !row.fits).collect();
    if rows.is_empty() || (answer.state == PodState::Scheduled && !view.wide) {
        return;
    }
    let shown = if view.wide { rows.len() } else { NODES.min(rows.len()) };
    *out += &heading(
        view.style,
        if shown < rows.len() {
            "Nodes that lack least"
        } else {
            "Node by node"
        },
    );
    let mut table = Table::new(&["NODE", "REFUSED BY", "BECAUSE"]);
    for row in &rows[..shown] {
        let mut name = row.name.clone();
        for rejection in &row.rejections {
            let mut lines: Vec<String> = rejection.details.iter().map(detail::text).collect();
            if lines.is_empty() {
                lines = rejection.reasons.clone();
            }
            if row.nominated_pods_in_the_way {
                lines.push("once the pods nominated to the node are there".into());
            }
            for (at, line) in lines.into_iter().enumerate() {
                let plugin = if at == 0 {
                    rejection.plugin.to_string()
                } else {
                    String::new()
                };
                table.row(vec![std::mem::take(&mut name), plugin, line]);
            }
        }
        if !row.largest_pods.is_empty() {
            let pods: Vec<String> = row
                .largest_pods
                .iter()
                .map(|p| format!("{} ({})", p.pod, p.requested))
                .collect();
            table.row(vec![
                String::new(),
                String::new(),
                format!("largest pods there: {}", pods.join(", ")),
            ]);
        }
    }
    *out += &table.render(view.style);
    if shown < rows.len() {
        *out += &format!("and {} more (-o wide shows all)\n", rows.len() - shown);
    }
}

fn facts(answer: &PodExplanation, style: Style, out: &mut String) {
    let mut lines: Vec<(&str, String)> = vec![];
    if let Some(queue) = &answer.queue {
        lines.push(("Queue", format!("{}: {}", queue.state, queue.message)));
        if !queue.waits_for.is_empty() {
            lines.push(("Waits for", queue.waits_for.join("; ")));
        }
    }
    let class = answer
        .priority_class_name
        .as_ref()
        .map_or(String::new(), |class| format!(" ({class})"));
    lines.push(("Priority", format!("{}{class}", answer.priority)));
    if let Some(account) = &answer.preemption {
        lines.push(("Preemption", account.message.clone()));
    }
    if !answer.requests.is_empty() {
        let requests: Vec<String> = answer
            .requests
            .iter()
            .map(|(name, amount)| format!("{name} {amount}"))
            .collect();
        lines.push(("Requests", requests.join(", ")));
    }
    for row in &answer.volumes {
        let volume = if row.volume.is_empty() {
            String::new()
        } else {
            format!(", volume {}", row.volume)
        };
        let class = match (row.storage_class.as_str(), row.binding_mode.as_str()) {
            ("", _) => String::new(),
            (class, "") => format!(", class {class}"),
            (class, mode) => format!(", class {class} ({mode})"),
        };
        lines.push(("Claim", format!("{}: {}{volume}{class}", row.claim, row.phase)));
    }
    if let Some(message) = &answer.scheduler_message {
        lines.push(("Scheduler", message.clone()));
    }
    *out += "\n";
    for (name, text) in lines {
        let label = style.bold(&format!("{name:<11}"));
        let text = wrapped(&text, WIDTH - 12, &" ".repeat(12));
        *out += &format!("{label} {text}");
    }
}

fn events(answer: &PodExplanation, style: Style, out: &mut String) {
    let told: Vec<_> = answer
        .events
        .iter()
        .rev()
        .filter(|e| e.reason != "FailedScheduling")
        .take(EVENTS)
        .collect();
    let failed: u64 = answer
        .events
        .iter()
        .filter(|e| e.reason == "FailedScheduling")
        .map(|e| e.count)
        .sum();
    if failed > 0 {
        let last = answer
            .events
            .iter()
            .filter(|e| e.reason == "FailedScheduling")
            .filter_map(|e| e.last)
            .max();
        let last = last.map_or(String::new(), |at| format!(", the last at {at:.0}"));
        *out += &format!("{} {failed} FailedScheduling{last}\n", style.bold("Attempts   "));
    }
    for event in told.into_iter().rev() {
        let text = wrapped(
            &format!("{}: {}", event.reason, event.message),
            WIDTH - 12,
            &" ".repeat(12),
        );
        *out += &format!("{} {text}", style.bold("Event      "));
    }
}

/// The fixes, or why there are none.
pub fn fixes(report: &FixReport, style: Style) -> String {
    let mut out = format!(
        "{}\n",
        style.bold("What would let it run (each was tried in the scheduler's core)")
    );
    if let Some(message) = &report.message {
        out += &format!("Nothing to fix: {message}.\n");
        return out;
    }
    if report.fixes.is_empty() {
        out += "No change of the kinds that are searched would do.\n";
    }
    let mut target = None;
    for (number, fix) in report.fixes.iter().enumerate() {
        if target != Some(fix.target) {
            target = Some(fix.target);
            let title = match fix.target {
                Target::Pod => "on the pod",
                Target::Cluster => "on the cluster",
                Target::NewNode => "one more node",
            };
            out += &format!("{}\n", style.dim(title));
        }
        let texts: Vec<&str> = fix.changes.iter().map(|change| change.text.as_str()).collect();
        let line = format!("{}; it goes to {}", texts.join(", and "), fix.node);
        let number = format!("{:>2}.", number + 1);
        out += &format!(
            "{} {}",
            style.paint(&number, Colour::Green),
            wrapped(&line, WIDTH - 4, "    ")
        );
        for effect in &fix.side_effects {
            out += &wrapped(&format!("    side effect: {effect}"), WIDTH, "      ");
        }
        for command in fix.changes.iter().filter_map(|change| change.command.as_ref()) {
            out += &format!("    {}\n", style.dim(command));
        }
    }
    if let Some(gave_up) = &report.gave_up {
        out += &format!("{}\n", style.paint(gave_up, Colour::Yellow));
    }
    out
}

/// A workload's explanation, with its first pending pod.
pub fn workload(answer: &WorkloadExplanation, view: View) -> String {
    let style = view.style;
    let colour = if answer.ready as i64 >= answer.desired {
        Colour::Green
    } else {
        Colour::Red
    };
    let verdict = wrapped(&answer.verdict, WIDTH, "");
    let mut out: String = verdict.lines().map(|line| style.paint(line, colour) + "\n").collect();
    if !answer.refusals.is_empty() {
        out += &heading(style, "Why pods are not created");
        for refusal in &answer.refusals {
            out += &wrapped(
                &format!("{} ({}): {}", refusal.object, refusal.source, refusal.message),
                WIDTH,
                "  ",
            );
        }
    }
    if !answer.quotas.is_empty() {
        out += &heading(style, "Quotas that are used up");
        let mut table = Table::new(&["QUOTA", "RESOURCE", "USED", "HARD"]);
        for row in &answer.quotas {
            table.row(vec![
                row.quota.clone(),
                row.resource.clone(),
                row.used.clone(),
                row.hard.clone(),
            ]);
        }
        out += &table.render(style);
    }
    for (title, groups) in [
        ("Pods without a node", &answer.pending),
        ("Pods that are not ready", &answer.not_ready),
    ] {
        if groups.is_empty() {
            continue;
        }
        out += &heading(style, title);
        for group in groups {
            let shown = if view.wide { usize::MAX } else { NAMES };
            let mut names: Vec<&str> = group.pods.iter().take(shown).map(String::as_str).collect();
            let more = format!("and {} more", group.pods.len() - names.len());
            if group.pods.len() > names.len() {
                names.push(&more);
            }
            out += &wrapped(
                &format!("{}: {} ({})", group.pods.len(), group.reason, names.join(", ")),
                WIDTH,
                "   ",
            );
        }
    }
    for unreadable in &answer.unreadable {
        out += &wrapped(
            &format!("note: may not read {} ({})", unreadable.resource, unreadable.message),
            WIDTH,
            "      ",
        );
    }
    if let Some(example) = &answer.example {
        out += &heading(
            style,
            &format!("The first of them: {}/{}", example.namespace, example.name),
        );
        out += &pod(example, view);
    }
    out
}

/// Moves that are printed unless all are asked for.
const MOVES: usize = 20;

/// What a simulation came to.
pub fn simulation(report: &SimulationReport, view: View) -> String {
    let style = view.style;
    let colour = if report.fits { Colour::Green } else { Colour::Red };
    let verdict = wrapped(&report.verdict, WIDTH, "");
    let mut out: String = verdict.lines().map(|line| style.paint(line, colour) + "\n").collect();
    let shown = |number: usize| if view.wide { number } else { number.min(MOVES) };
    let rest = |number: usize| match number.saturating_sub(shown(number)) {
        0 => String::new(),
        more => format!("and {more} more (-o wide shows all)\n"),
    };
    if !report.pending.is_empty() {
        out += &heading(style, "Left pending");
        let mut table = Table::new(&["POD", "WAS ON", "BECAUSE", "REASON"]);
        for row in &report.pending[..shown(report.pending.len())] {
            let from = row.from.clone().unwrap_or_else(|| "–".into());
            table.row(vec![row.pod.clone(), from, row.because.clone(), row.reason.clone()]);
        }
        out += &(table.render(style) + &rest(report.pending.len()));
    }
    if !report.moves.is_empty() {
        out += &heading(style, "Who goes where");
        let mut table = Table::new(&["POD", "FROM", "TO", "BECAUSE"]);
        for row in &report.moves[..shown(report.moves.len())] {
            let from = row.from.clone().unwrap_or_else(|| "–".into());
            table.row(vec![row.pod.clone(), from, row.to.clone(), row.because.clone()]);
        }
        out += &(table.render(style) + &rest(report.moves.len()));
    }
    if !report.lost.is_empty() {
        out += &heading(style, "Lost: no controller makes them anew");
        out += &wrapped(&report.lost.join(", "), WIDTH, "");
    }
    if !report.budgets.is_empty() {
        out += &heading(style, "PodDisruptionBudgets");
        let mut table = Table::new(&["BUDGET", "EVICTIONS", "ALLOWED NOW", "EFFECT"]);
        for row in &report.budgets {
            let allowed = row.disruptions_allowed.to_string();
            table.row(vec![
                row.budget.clone(),
                row.evictions.to_string(),
                allowed,
                row.effect.clone(),
            ]);
        }
        out += &table.render(style);
    }
    utilisation(report, view, &mut out);
    for note in &report.notes {
        out += &wrapped(&format!("note: {note}"), WIDTH, "      ");
    }
    out
}

fn utilisation(report: &SimulationReport, view: View, out: &mut String) {
    let style = view.style;
    *out += &heading(style, "Utilisation (requested of allocatable)");
    let share = |share: &Share| format!("{}%", share.percent);
    let mut table = Table::new(&["", "NODES", "PODS", "CPU", "MEMORY"]);
    for (name, cluster) in [("before", &report.before), ("after", &report.after)] {
        let (nodes, pods) = (cluster.nodes.to_string(), cluster.pods.to_string());
        table.row(vec![
            name.into(),
            nodes,
            pods,
            share(&cluster.cpu),
            share(&cluster.memory),
        ]);
    }
    *out += &table.render(style);
    if report.nodes.is_empty() {
        return;
    }
    *out += &heading(style, "Nodes that change");
    let mut table = Table::new(&["NODE", "PODS", "CPU", "MEMORY", ""]);
    let shown = if view.wide {
        report.nodes.len()
    } else {
        report.nodes.len().min(MOVES)
    };
    for node in &report.nodes[..shown] {
        let cell = |of: fn(&crate::simulate::OneNode) -> String| {
            let side = |one: &Option<crate::simulate::OneNode>| one.as_ref().map_or("–".to_string(), of);
            format!("{} → {}", side(&node.before), side(&node.after))
        };
        let state = match (&node.before, &node.after) {
            (None, _) => "added",
            (_, None) => "removed",
            (Some(before), Some(after)) if before.schedulable && !after.schedulable => "cordoned",
            (Some(before), Some(after)) if !before.schedulable && after.schedulable => "uncordoned",
            _ => "",
        };
        table.row(vec![
            node.name.clone(),
            cell(|one| one.pods.to_string()),
            cell(|one| format!("{}%", one.cpu_percent)),
            cell(|one| format!("{}%", one.memory_percent)),
            state.to_string(),
        ]);
    }
    *out += &table.render(style);
    if shown < report.nodes.len() {
        *out += &format!("and {} more (-o wide shows all)\n", report.nodes.len() - shown);
    }
}
