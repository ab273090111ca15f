//! What is counted, under CoreDNS' names.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use orlop_base::metrics::series::{Buckets, Histogram, Series};
use orlop_base::metrics::{process, text};
use parking_lot::Mutex;

/// There is one server and one zone for all, as in kubeadm's Corefile.
const SERVER: &str = "server=\"dns://:53\",zone=\".\",view=\"\"";
const CACHE: &str = "server=\"dns://:53\",zones=\".\",view=\"\"";

/// Types with a count of their own. Upstream: CoreDNS, plugin/metrics/vars/monitor.go.
const TYPES: [(RecordType, &str); 15] = [
    (RecordType::A, "A"),
    (RecordType::AAAA, "AAAA"),
    (RecordType::SRV, "SRV"),
    (RecordType::PTR, "PTR"),
    (RecordType::CNAME, "CNAME"),
    (RecordType::TXT, "TXT"),
    (RecordType::MX, "MX"),
    (RecordType::NS, "NS"),
    (RecordType::SOA, "SOA"),
    (RecordType::HTTPS, "HTTPS"),
    (RecordType::SVCB, "SVCB"),
    (RecordType::ANY, "ANY"),
    (RecordType::AXFR, "AXFR"),
    (RecordType::IXFR, "IXFR"),
    (RecordType::ZERO, "other"),
];
const CODES: [&str; 7] = [
    "NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "other",
];
const SIZES: [f64; 14] = [
    0., 100., 200., 300., 400., 511., 1023., 2047., 4095., 8291., 16e3, 32e3, 48e3, 64e3,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
}

/// Who gave the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The server itself: it refused.
    Server,
    Cluster,
    Cache,
    Forward,
}

const SOURCES: [&str; 4] = ["", "kubernetes", "cache", "forward"];

fn of_seconds(start: f64, count: usize) -> Histogram {
    let buckets = Buckets {
        start,
        factor: 2.0,
        count,
    };
    Histogram::new(buckets.bounds())
}

pub struct Metrics {
    /// By transport, family and type.
    requests: [[[AtomicU64; TYPES.len()]; 2]; 2],
    dnssec: AtomicU64,
    /// By source and code.
    responses: [[AtomicU64; CODES.len()]; SOURCES.len()],
    durations: Histogram,
    request_sizes: [Histogram; 2],
    response_sizes: [Histogram; 2],
    /// Positive and negative.
    pub cache_entries: [AtomicU64; 2],
    pub cache_hits: [AtomicU64; 2],
    pub cache_misses: AtomicU64,
    pub cache_evictions: [AtomicU64; 2],
    pub forward_rejects: AtomicU64,
    forwarded: Mutex<BTreeMap<SocketAddr, Forwarded>>,
    /// With an address and headless.
    programming: [Histogram; 2],
}

struct Forwarded {
    requests: u64,
    failures: u64,
    by_code: BTreeMap<&'static str, Histogram>,
}

/// A request and what became of it.
pub struct Served {
    pub transport: Transport,
    pub v6: bool,
    pub kind: RecordType,
    pub dnssec_ok: bool,
    pub source: Source,
    pub code: ResponseCode,
    pub request_bytes: usize,
    pub response_bytes: usize,
    pub took: Duration,
}

fn code_place(code: ResponseCode) -> usize {
    usize::from(u16::from(code)).min(CODES.len() - 1)
}

impl Default for Metrics {
    fn default() -> Metrics {
        let counter = || AtomicU64::new(0);
        let pair = || [counter(), counter()];
        let sizes = || Histogram::of_integers(SIZES.into());
        Metrics {
            requests: Default::default(),
            dnssec: counter(),
            responses: Default::default(),
            durations: of_seconds(0.00025, 16),
            request_sizes: [sizes(), sizes()],
            response_sizes: [sizes(), sizes()],
            cache_entries: pair(),
            cache_hits: pair(),
            cache_misses: counter(),
            cache_evictions: pair(),
            forward_rejects: counter(),
            forwarded: Mutex::default(),
            programming: [of_seconds(0.001, 20), of_seconds(0.001, 20)],
        }
    }
}

impl Metrics {
    pub fn served(&self, served: &Served) {
        let transport = served.transport as usize;
        let kind = TYPES.iter().position(|(kind, _)| *kind == served.kind);
        let kind = kind.unwrap_or(TYPES.len() - 1);
        self.requests[transport][usize::from(served.v6)][kind].fetch_add(1, Ordering::Relaxed);
        if served.dnssec_ok {
            self.dnssec.fetch_add(1, Ordering::Relaxed);
        }
        self.responses[served.source as usize][code_place(served.code)].fetch_add(1, Ordering::Relaxed);
        self.durations.observe(served.took.as_secs_f64());
        self.request_sizes[transport].observe(served.request_bytes as f64);
        self.response_sizes[transport].observe(served.response_bytes as f64);
    }

    /// None for the code if there was no answer.
    pub fn forwarded(&self, to: SocketAddr, code: Option<ResponseCode>, took: Duration) {
        let mut all = self.forwarded.lock();
        let one = all.entry(to).or_insert_with(|| Forwarded {
            requests: 0,
            failures: 0,
            by_code: BTreeMap::new(),
        });
        one.requests += 1;
        let Some(code) = code else {
            one.failures += 1;
            return;
        };
        let histogram = one.by_code.entry(CODES[code_place(code)]);
        let histogram = histogram.or_insert_with(|| of_seconds(0.00025, 16));
        histogram.observe(took.as_secs_f64());
    }

    /// Resolvers that are no longer asked.
    pub fn forget_others(&self, known: impl Fn(&SocketAddr) -> bool) {
        self.forwarded.lock().retain(|to, _| known(to));
    }

    /// From a change of the cluster until it is answered with.
    pub fn programmed(&self, headless: bool, took: Duration) {
        self.programming[usize::from(headless)].observe(took.as_secs_f64());
    }

    pub fn render(&self) -> String {
        let mut out = String::with_capacity(16 << 10);
        self.write_server(&mut out);
        self.write_cache(&mut out);
        self.write_forward(&mut out);
        let name = "coredns_kubernetes_dns_programming_duration_seconds";
        let help = "Histogram of the time (in seconds) it took to program a dns instance.";
        text::header(&mut out, name, "histogram", help);
        for (histogram, kind) in self.programming.iter().zip(["cluster_ip", "headless_with_selector"]) {
            histogram.write(&mut out, name, &text::label("service_kind", kind));
        }
        process::write(&mut out);
        out
    }

    fn write_server(&self, out: &mut String) {
        let name = "coredns_dns_requests_total";
        let help = "Counter of DNS requests made per zone, protocol and family.";
        text::header(out, name, "counter", help);
        for (transport, proto) in self.requests.iter().zip(["udp", "tcp"]) {
            for (family, number) in transport.iter().zip(["1", "2"]) {
                for (count, (_, kind)) in family.iter().zip(TYPES) {
                    let labels = format!("{SERVER},proto=\"{proto}\",family=\"{number}\",type=\"{kind}\"");
                    write_unless_zero(out, name, &labels, count);
                }
            }
        }
        let name = "coredns_dns_do_requests_total";
        text::header(
            out,
            name,
            "counter",
            "Counter of DNS requests with DO bit set per zone.",
        );
        text::line(out, name, SERVER, self.dnssec.load(Ordering::Relaxed));
        let name = "coredns_dns_responses_total";
        text::header(out, name, "counter", "Counter of response status codes.");
        for (codes, plugin) in self.responses.iter().zip(SOURCES) {
            for (count, code) in codes.iter().zip(CODES) {
                let labels = format!("{SERVER},rcode=\"{code}\",plugin=\"{plugin}\"");
                write_unless_zero(out, name, &labels, count);
            }
        }
        let name = "coredns_dns_request_duration_seconds";
        let help = "Histogram of the time (in seconds) each request took per zone.";
        text::header(out, name, "histogram", help);
        self.durations.write(out, name, SERVER);
        let sizes = [
            (
                "coredns_dns_request_size_bytes",
                "Size of the request in bytes.",
                &self.request_sizes,
            ),
            (
                "coredns_dns_response_size_bytes",
                "Size of the returned response in bytes.",
                &self.response_sizes,
            ),
        ];
        for (name, help, histograms) in sizes {
            text::header(out, name, "histogram", help);
            for (histogram, proto) in histograms.iter().zip(["udp", "tcp"]) {
                histogram.write(out, name, &format!("{SERVER},proto=\"{proto}\""));
            }
        }
    }

    fn write_cache(&self, out: &mut String) {
        let by_type = [
            (
                "coredns_cache_entries",
                "gauge",
                "The number of elements in the cache.",
                &self.cache_entries,
            ),
            (
                "coredns_cache_hits_total",
                "counter",
                "The count of cache hits.",
                &self.cache_hits,
            ),
            (
                "coredns_cache_evictions_total",
                "counter",
                "The count of cache evictions.",
                &self.cache_evictions,
            ),
        ];
        for (name, kind, help, counts) in by_type {
            text::header(out, name, kind, help);
            for (count, of) in counts.iter().zip(["success", "denial"]) {
                let labels = format!("{CACHE},type=\"{of}\"");
                text::line(out, name, &labels, count.load(Ordering::Relaxed));
            }
        }
        let misses = self.cache_misses.load(Ordering::Relaxed);
        let hits: u64 = self.cache_hits.iter().map(|c| c.load(Ordering::Relaxed)).sum();
        let totals = [
            ("coredns_cache_misses_total", "The count of cache misses.", misses),
            (
                "coredns_cache_requests_total",
                "The count of cache requests.",
                hits + misses,
            ),
        ];
        for (name, help, count) in totals {
            text::header(out, name, "counter", help);
            text::line(out, name, CACHE, count);
        }
    }

    fn write_forward(&self, out: &mut String) {
        let name = "coredns_forward_max_concurrent_rejects_total";
        let help = "Counter of the number of queries rejected because the concurrent queries were at maximum.";
        text::header(out, name, "counter", help);
        text::line(out, name, "", self.forward_rejects.load(Ordering::Relaxed));
        let all = self.forwarded.lock();
        let to = |address: &SocketAddr| text::label("to", &address.to_string());
        let name = "coredns_forward_requests_total";
        text::header(out, name, "counter", "Counter of requests made per upstream.");
        for (address, one) in all.iter() {
            text::line(out, name, &to(address), one.requests);
        }
        let name = "coredns_forward_request_failures_total";
        let help = "Counter of requests to an upstream that were not answered.";
        text::header(out, name, "counter", help);
        for (address, one) in all.iter() {
            text::line(out, name, &to(address), one.failures);
        }
        let name = "coredns_proxy_request_duration_seconds";
        text::header(out, name, "histogram", "Histogram of the time each request took.");
        for (address, one) in all.iter() {
            for (code, histogram) in &one.by_code {
                let labels = format!("proxy_name=\"forward\",{},rcode=\"{code}\"", to(address));
                histogram.write(out, name, &labels);
            }
        }
    }
}

/// Most types and codes never come.
fn write_unless_zero(out: &mut String, name: &str, labels: &str, count: &AtomicU64) {
    match count.load(Ordering::Relaxed) {
        0 => {}
        count => text::line(out, name, labels, count),
    }
}

#[cfg(test)]
mod tests {
    use orlop_base::metrics::exposition;

    use super::*;

    fn used() -> Metrics {
        let metrics = Metrics::default();
        metrics.served(&Served {
            transport: Transport::Udp,
            v6: false,
            kind: RecordType::A,
            dnssec_ok: false,
            source: Source::Cluster,
            code: ResponseCode::NXDomain,
            request_bytes: 50,
            response_bytes: 100,
            took: Duration::from_micros(300),
        });
        metrics.forwarded(
            "1.1.1.1:53".parse().unwrap(),
            Some(ResponseCode::NoError),
            Duration::from_millis(1),
        );
        metrics.forwarded("1.1.1.1:53".parse().unwrap(), None, Duration::from_secs(2));
        metrics.programmed(true, Duration::from_millis(3));
        metrics
    }

    #[test]
    fn each_metric_is_what_its_type_says() {
        let families = exposition::parse(&used().render()).unwrap();
        assert!(families.values().all(|family| !family.help.is_empty()));
        let sizes = &families["coredns_dns_request_size_bytes"];
        assert_eq!(sizes.kind, "histogram");
        assert!(sizes.samples.iter().any(|s| s.suffix == "_sum" && s.value == 50.0));
        let rejects = &families["coredns_forward_max_concurrent_rejects_total"];
        assert_eq!(rejects.value(&[]), Some(0.0));
        let empty = exposition::parse(&Metrics::default().render()).unwrap();
        assert!(empty.keys().eq(families.keys()), "a metric is there before it is used");
    }

    #[test]
    fn coredns_names_with_their_labels() {
        let text = used().render();
        for line in [
            r#"coredns_dns_requests_total{server="dns://:53",zone=".",view="",proto="udp",family="1",type="A"} 1"#,
            r#"coredns_dns_responses_total{server="dns://:53",zone=".",view="",rcode="NXDOMAIN",plugin="kubernetes"} 1"#,
            r#"coredns_dns_request_duration_seconds_bucket{server="dns://:53",zone=".",view="",le="0.00025"} 0"#,
            r#"coredns_dns_request_duration_seconds_bucket{server="dns://:53",zone=".",view="",le="0.0005"} 1"#,
            r#"coredns_dns_response_size_bytes_bucket{server="dns://:53",zone=".",view="",proto="udp",le="100"} 1"#,
            r#"coredns_cache_entries{server="dns://:53",zones=".",view="",type="denial"} 0"#,
            r#"coredns_forward_requests_total{to="1.1.1.1:53"} 2"#,
            r#"coredns_proxy_request_duration_seconds_count{proxy_name="forward",to="1.1.1.1:53",rcode="NOERROR"} 1"#,
            r#"coredns_kubernetes_dns_programming_duration_seconds_count{service_kind="headless_with_selector"} 1"#,
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line}\n{text}");
        }
    }
}
