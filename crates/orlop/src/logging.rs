//! Log lines go to standard error, those of `orlop up`'s components to files as well (`cluster::logs`); what a command
//! answers goes to standard output.
//!
//! `-v N` means for our components what it means for Kubernetes' (0 what everyone should see, 2 what happens, 4 and 5 why,
//! 10 everything), and nothing for the libraries below them: `RUST_LOG` is for those.

use std::io::IsTerminal;

use clap::builder::PossibleValue;
use orlop_base::verbosity;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::cluster::logs::{ComponentLines, ComponentWriter};
use crate::log_file::LogFile;

#[derive(clap::Args)]
pub(crate) struct LoggingArgs {
    /// Format of log lines
    #[arg(long, visible_alias = "logging-format", global = true, default_value = "text", value_parser = formats())]
    log_format: String,
    /// Number for the log level verbosity, 0 to 10
    #[arg(short, long = "v", global = true, value_name = "LEVEL", default_value_t = 0)]
    verbosity: u8,
}

/// etcd says `console` where Kubernetes says `text`.
fn formats() -> [PossibleValue; 2] {
    [PossibleValue::new("text").alias("console"), PossibleValue::new("json")]
}

/// Libraries that log what they also return as errors. Whoever gets the error logs it, once.
const RETURN_THEIR_ERRORS: &[&str] = &["hyper", "hyper_rustls", "hyper_util", "h2", "rustls", "tower", "tonic"];

/// `RUST_LOG` overrides the verbosity; JSON lines for machines with `--log-format json`.
/// `file` is where standard error leads, if it is a log file of ours.
pub(crate) fn start(args: &LoggingArgs, file: Option<LogFile>) {
    let asked = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let filter: Box<dyn Layer<Registry> + Send + Sync> = match asked.and_then(|text| EnvFilter::try_new(text).ok()) {
        Some(filter) => Box::new(filter),
        None => Box::new(filter(args.verbosity)),
    };
    // Colours are for people: a file would only hold their codes.
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
    let writer = match file {
        Some(file) => BoxMakeWriter::new(file),
        None => BoxMakeWriter::new(std::io::stderr),
    };
    let layers: Vec<BoxedLayer<_>> = vec![
        lines(args, colours, writer),
        Box::new(ComponentLines(lines(args, false, BoxMakeWriter::new(ComponentWriter)))),
    ];
    tracing_subscriber::registry().with(filter).with(layers).init();
}

type BoxedLayer<S> = Box<dyn Layer<S> + Send + Sync>;

fn lines<S>(args: &LoggingArgs, colours: bool, writer: BoxMakeWriter) -> BoxedLayer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(colours)
        .with_writer(writer)
        .with_target(false);
    match args.log_format.as_str() {
        "json" => Box::new(lines.json()),
        _ => Box::new(lines),
    }
}

fn filter(wanted: u8) -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    // Lines of lower levels are then passed over without a look at where they come from.
    let most = match wanted {
        0..4 => LevelFilter::INFO,
        4..6 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    FilterFn::new(move |line: &Metadata<'_>| is_shown(line.target(), *line.level(), wanted)).with_max_level_hint(most)
}

fn is_shown(target: &str, level: Level, wanted: u8) -> bool {
    let library = target.split("::").next().unwrap_or_default();
    if library == "orlop" || library.starts_with("orlop_") {
        return verbosity::of_target(target).unwrap_or_else(|| usual_verbosity(level)) <= wanted;
    }
    level <= Level::WARN && !RETURN_THEIR_ERRORS.contains(&library)
}

/// Of lines that name none.
fn usual_verbosity(level: Level) -> u8 {
    match level {
        Level::ERROR | Level::WARN | Level::INFO => 0,
        Level::DEBUG => 4,
        Level::TRACE => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbosities_are_kubernetes_and_libraries_are_silent() {
        // target, level, from which verbosity on it is shown
        let cases = [
            ("orlop_scheduler::shell::bind::v2", Level::INFO, Some(2)),
            ("orlop_scheduler::shell::engine::v3", Level::INFO, Some(3)),
            ("orlop_scheduler::shell::failure::v5", Level::DEBUG, Some(5)),
            ("orlop_scheduler::shell::engine::v10", Level::TRACE, Some(10)),
            ("orlop_client::reachability", Level::WARN, Some(0)),
            ("orlop_kubelet::agent", Level::INFO, Some(0)),
            ("orlop::components", Level::DEBUG, Some(4)),
            ("orlop_store", Level::TRACE, Some(6)),
            ("hyper_rustls::config", Level::WARN, None),
            ("hyper_util::client::legacy::pool", Level::DEBUG, None),
            ("h2::codec::framed_read", Level::TRACE, None),
            ("rustls::conn", Level::WARN, None),
            ("tower::buffer::worker", Level::TRACE, None),
            ("zbus::connection", Level::WARN, Some(0)),
            ("zbus::connection", Level::INFO, None),
            ("orlopedia", Level::INFO, None),
        ];
        for (target, level, from) in cases {
            let shown = (0..=10).find(|v| is_shown(target, level, *v));
            assert_eq!(shown, from, "{target} {level}");
            let all_above = (shown.unwrap_or(11)..=10).all(|v| is_shown(target, level, v));
            assert!(all_above, "{target} {level} is shown up to a verbosity only");
        }
    }

    #[test]
    fn the_hint_lets_through_what_is_wanted() {
        for (target_level, from) in [(LevelFilter::INFO, 0), (LevelFilter::DEBUG, 4), (LevelFilter::TRACE, 6)] {
            for wanted in from..=10 {
                let subscriber = tracing_subscriber::registry().with(filter(wanted));
                assert!(subscriber.max_level_hint() >= Some(target_level), "-v {wanted}");
            }
        }
    }
}
