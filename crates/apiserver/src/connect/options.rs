//! What a request for a pod's logs or streams asks for, checked, and put the way kubelets are asked. Pure.

use jiff::Timestamp;
use orlop_api::field::{Path, ProblemKind};
use orlop_api::{KindDef, Problems, Status, Value};
use orlop_streaming::Streams;
use serde_json::json;

use crate::request::{Query, RequestInfo};

/// The options of a request as the object that admission sees: PodExecOptions and its like.
// Upstream: the defaults of pkg/apis/core/v1/conversion.go
pub(super) fn object(kind: &KindDef, info: &RequestInfo) -> Value {
    let options_kind = kind.subresource(&info.subresource).map_or("", |sub| sub.kind);
    let mut object = json!({"kind": options_kind, "apiVersion": "v1"});
    let query = &info.query;
    let texts: &[&str] = match info.subresource.as_str() {
        "exec" | "attach" => &["container"],
        _ => &[],
    };
    for name in texts {
        if let Some(given) = query.get(name).filter(|given| !given.is_empty()) {
            object[*name] = given.into();
        }
    }
    match info.subresource.as_str() {
        "exec" | "attach" => {
            for name in ["stdin", "stdout", "stderr", "tty"] {
                if query.flag(name) {
                    object[name] = true.into();
                }
            }
            let command: Vec<&str> = query.all("command").collect();
            if info.subresource == "exec" {
                object["command"] = command.into();
            }
        }
        "portforward" => {
            let ports = query.all("ports").flat_map(|ports| ports.split(','));
            let ports: Vec<i64> = ports.filter_map(|port| port.parse().ok()).collect();
            if !ports.is_empty() {
                object["ports"] = ports.into();
            }
        }
        _ => {
            let prefix = format!("/{}/proxy", info.name);
            let path = info.path.split_once(&prefix).map_or("", |(_, path)| path);
            if !path.is_empty() {
                object["path"] = path.into();
            }
        }
    }
    object
}

/// The parameters of pods/log.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LogOptions {
    pub container: String,
    pub skip_verification: bool,
    follow: bool,
    previous: bool,
    timestamps: bool,
    since_seconds: Option<i64>,
    since_time: Option<Timestamp>,
    tail_lines: Option<i64>,
    limit_bytes: Option<i64>,
    /// All, Stdout or Stderr.
    stream: String,
}

impl LogOptions {
    pub(super) fn parse(query: &Query, pod: &str) -> Result<LogOptions, Status> {
        let since_time = match query.get("sinceTime") {
            None | Some("" | "null") => None,
            Some(text) => Some(parse_time(text)?),
        };
        let options = LogOptions {
            container: query.get("container").unwrap_or("").to_string(),
            skip_verification: query.flag("insecureSkipTLSVerifyBackend"),
            follow: query.flag("follow"),
            previous: query.flag("previous"),
            timestamps: query.flag("timestamps"),
            since_seconds: query.number("sinceSeconds")?,
            since_time,
            tail_lines: query.number("tailLines")?,
            limit_bytes: query.number("limitBytes")?,
            stream: query.get("stream").unwrap_or("All").to_string(),
        };
        let problems = options.problems();
        if problems.is_empty() {
            Ok(options)
        } else {
            Err(Status::invalid("", "PodLogOptions", pod, &problems))
        }
    }

    fn problems(&self) -> Problems {
        let mut p = Problems::default();
        let (root, positive) = (Path::default(), "must be greater than 0");
        if let Some(lines) = self.tail_lines.filter(|lines| *lines < 0) {
            p.invalid_value(
                &root.field("tailLines"),
                &lines.into(),
                "must be greater than or equal to 0",
            );
        }
        if let Some(bytes) = self.limit_bytes.filter(|bytes| *bytes < 1) {
            p.invalid_value(&root.field("limitBytes"), &bytes.into(), positive);
        }
        match self.since_seconds {
            Some(_) if self.since_time.is_some() => {
                let text = "at most one of `sinceTime` or `sinceSeconds` may be specified";
                p.push(ProblemKind::Forbidden, &root, None, text);
            }
            Some(seconds) if seconds < 1 => p.invalid_value(&root.field("sinceSeconds"), &seconds.into(), positive),
            _ => {}
        }
        if !["All", "Stderr", "Stdout"].contains(&self.stream.as_str()) {
            let value = format!("{:?}", self.stream);
            let text = r#"supported values: "All", "Stderr", "Stdout""#;
            p.push(ProblemKind::NotSupported, &root.field("stream"), Some(value), text);
        }
        if self.stream != "All" && self.tail_lines.is_some() {
            let text = "`tailLines` and specific `stream` are mutually exclusive for now";
            p.push(ProblemKind::Forbidden, &root, None, text);
        }
        p
    }

    /// The query for the kubelet, with its question mark.
    pub(super) fn query(&self) -> String {
        let number = |number: Option<i64>| number.map(|number| number.to_string());
        let flag = |flag: bool| flag.then(|| "true".to_string());
        let time = self.since_time.map(orlop_base::clock::rfc3339);
        encode([
            ("follow", flag(self.follow)),
            ("limitBytes", number(self.limit_bytes)),
            ("previous", flag(self.previous)),
            ("sinceSeconds", number(self.since_seconds)),
            ("sinceTime", time),
            ("stream", Some(self.stream.clone())),
            ("tailLines", number(self.tail_lines)),
            ("timestamps", flag(self.timestamps)),
        ])
    }
}

fn parse_time(text: &str) -> Result<Timestamp, Status> {
    text.parse().map_err(|_| {
        let layout = "2006-01-02T15:04:05Z07:00";
        Status::bad_request(format!(
            "parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\""
        ))
    })
}

/// The parameters of pods/exec, attach and portforward.
#[derive(Debug, Default, PartialEq)]
pub(super) struct StreamOptions {
    pub container: String,
    pub streams: Streams,
    command: Vec<String>,
    ports: Vec<i64>,
}

impl StreamOptions {
    pub(super) fn parse(subresource: &str, query: &Query) -> Result<StreamOptions, Status> {
        if subresource == "portforward" {
            let parse = |text: &str| {
                let wrong = || Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"));
                text.parse::<i64>().map_err(|_| wrong())
            };
            let ports = query
                .all("ports")
                .flat_map(|list| list.split(','))
                .filter(|text| !text.is_empty());
            let ports = ports.map(parse).collect::<Result<_, _>>()?;
            return Ok(StreamOptions {
                ports,
                ..Default::default()
            });
        }
        let tty = query.flag("tty");
        Ok(StreamOptions {
            container: query.get("container").unwrap_or("").to_string(),
            streams: Streams {
                stdin: query.flag("stdin"),
                stdout: query.flag("stdout"),
                stderr: query.flag("stderr"),
                tty,
            },
            command: match subresource {
                "exec" => query.all("command").map(str::to_string).collect(),
                _ => vec![],
            },
            ports: vec![],
        })
    }

    /// The query for the kubelet, with its question mark if there is any.
    pub(super) fn query(&self) -> String {
        let one = |flag: bool| flag.then(|| "1".to_string());
        let ports: Vec<String> = self.ports.iter().map(i64::to_string).collect();
        let commands = self.command.iter().map(|word| ("command", Some(word.clone())));
        encode(commands.chain([
            ("error", one(self.streams.stderr)),
            ("input", one(self.streams.stdin)),
            ("output", one(self.streams.stdout)),
            ("port", (!ports.is_empty()).then(|| ports.join(","))),
            ("tty", one(self.streams.tty)),
        ]))
    }
}

/// A query with what is there, in order.
fn encode<'a>(pairs: impl IntoIterator<Item = (&'a str, Option<String>)>) -> String {
    let mut query = String::new();
    for (name, value) in pairs {
        let Some(value) = value else { continue };
        query.push(if query.is_empty() { '?' } else { '&' });
        query.push_str(name);
        query.push('=');
        for byte in value.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => query.push(byte.into()),
                b' ' => query.push('+'),
                _ => query.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_asked_for_as_wanted() {
        let asked = |query: &str| LogOptions::parse(&Query::parse(query), "p").map(|options| options.query());
        for (query, wanted) in [
            ("", "?stream=All"),
            (
                "follow=true&container=c&timestamps=true&previous=false",
                "?follow=true&stream=All&timestamps=true",
            ),
            (
                "tailLines=0&limitBytes=5&sinceSeconds=60",
                "?limitBytes=5&sinceSeconds=60&stream=All&tailLines=0",
            ),
            (
                "sinceTime=2026-11-16T03:00:00%2B01:00",
                "?sinceTime=2026-11-16T02%3A00%3A00Z&stream=All",
            ),
            ("stream=Stderr&previous=1", "?previous=true&stream=Stderr"),
        ] {
            assert_eq!(asked(query).unwrap(), wanted, "{query}");
        }
        let options = LogOptions::parse(&Query::parse("insecureSkipTLSVerifyBackend=true&container=x"), "p").unwrap();
        assert!(options.skip_verification && options.container == "x");
    }

    #[test]
    fn nonsense_is_refused() {
        for (query, code, text) in [
            (
                "tailLines=-1",
                422,
                r#"PodLogOptions "p" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0"#,
            ),
            (
                "limitBytes=0",
                422,
                r#"PodLogOptions "p" is invalid: limitBytes: Invalid value: 0: must be greater than 0"#,
            ),
            (
                "sinceSeconds=0",
                422,
                r#"PodLogOptions "p" is invalid: sinceSeconds: Invalid value: 0: must be greater than 0"#,
            ),
            ("tailLines=x", 400, r#"strconv.ParseInt: parsing "x": invalid syntax"#),
            (
                "stream=Both",
                422,
                r#"PodLogOptions "p" is invalid: stream: Unsupported value: "Both": supported values: "All", "Stderr", "Stdout""#,
            ),
        ] {
            let status = LogOptions::parse(&Query::parse(query), "p").unwrap_err();
            assert_eq!((status.code, status.message.as_str()), (code, text), "{query}");
        }
        for query in [
            "sinceSeconds=1&sinceTime=2026-11-16T03:00:00Z",
            "stream=Stdout&tailLines=1",
            "tailLines=-1&limitBytes=-1",
            "sinceTime=yesterday",
        ] {
            assert!(LogOptions::parse(&Query::parse(query), "p").is_err(), "{query}");
        }
    }

    #[test]
    fn streams_are_asked_for_as_wanted() {
        for (subresource, query, wanted) in [
            (
                "exec",
                "command=sh&command=-c&command=echo+a%26b&stdin=true&stdout=true&tty=true",
                "?command=sh&command=-c&command=echo+a%26b&input=1&output=1&tty=1",
            ),
            ("exec", "command=ls&stderr=1&stdout=false", "?command=ls&error=1"),
            ("attach", "command=ls&stdout=1&stderr=1", "?error=1&output=1"),
            ("portforward", "ports=80&ports=443,8080", "?port=80%2C443%2C8080"),
            ("portforward", "", ""),
        ] {
            assert_eq!(
                StreamOptions::parse(subresource, &Query::parse(query)).unwrap().query(),
                wanted
            );
        }
        assert_eq!(
            StreamOptions::parse("portforward", &Query::parse("ports=http"))
                .unwrap_err()
                .code,
            400
        );
    }
}
