//! What priority and fairness shows of itself: metrics, and dumps of levels, queues and requests.

use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use orlop_base::clock::Shift;
use orlop_base::metrics::series::Series;
use orlop_base::metrics::text::{float, header, label, line};

use super::FlowControl;
use super::level::{Core, FlowStats, Held, Level};
use super::queue_set::RequestId;
use crate::request::Query;

const PATH: &str = "/debug/api_priority_and_fairness/";
const PREFIX: &str = "apiserver_flowcontrol_";

type Gauge<'f> = (&'static str, &'static str, &'f dyn Fn(&Core) -> f64);

impl FlowControl {
    pub(crate) fn write_metrics(&self, out: &mut String) {
        self.write_levels(out);
        self.write_flows(out);
    }

    fn write_levels(&self, out: &mut String) {
        let active = self.active.read().clone();
        let gauges: [Gauge<'_>; 10] = [
            (
                "nominal_limit_seats",
                "Nominal number of execution seats configured for each priority level",
                &|core| f64::from(core.bounds.nominal),
            ),
            (
                "lower_limit_seats",
                "Configured lower bound on number of execution seats available to each priority level",
                &|core| f64::from(core.bounds.min),
            ),
            (
                "upper_limit_seats",
                "Configured upper bound on number of execution seats available to each priority level",
                &|core| f64::from(core.bounds.max),
            ),
            (
                "current_limit_seats",
                "current derived number of execution seats available to each priority level",
                &|core| f64::from(core.share.seats),
            ),
            ("target_seats", "Seat allocation targets", &|core| core.share.target),
            (
                "demand_seats_high_watermark",
                "High watermark, over last adjustment period, of demand_seats",
                &|core| core.demand.observed.max,
            ),
            (
                "demand_seats_average",
                "Time-weighted average, over last adjustment period, of demand_seats",
                &|core| core.demand.observed.average,
            ),
            (
                "demand_seats_stdev",
                "Time-weighted standard deviation, over last adjustment period, of demand_seats",
                &|core| core.demand.observed.deviation,
            ),
            ("demand_seats_smoothed", "Smoothed seat demands", &|core| {
                core.demand.smoothed
            }),
            (
                "request_concurrency_limit",
                "Nominal number of execution seats configured for each priority level",
                &|core| f64::from(core.bounds.nominal),
            ),
        ];
        for (name, help, value) in gauges {
            let name = format!("{PREFIX}{name}");
            header(out, &name, "gauge", &format!("{help}."));
            for level in active.levels.values() {
                let value = value(&level.core.lock());
                line(out, &name, &label("priority_level", &level.name), float(value));
            }
        }
        let name = format!("{PREFIX}seat_fair_frac");
        let help = "Fair fraction of server's concurrency to allocate to each priority level that can use it";
        header(out, &name, "gauge", &format!("{help}."));
        line(out, &name, "", float(*self.fair_fraction.lock()));
    }

    fn write_flows(&self, out: &mut String) {
        let all = self.stats.lock();
        let labels = |level: &str, schema: &str| {
            let mut labels = label("flow_schema", schema);
            let _ = write!(labels, ",{}", label("priority_level", level));
            labels
        };
        let mut family = |name: &str, kind: &str, help: &str, write: &dyn Fn(&FlowStats, &mut String, &str, &str)| {
            let name = format!("{PREFIX}{name}");
            header(out, &name, kind, &format!("{help}."));
            for ((level, schema), stats) in all.iter() {
                write(stats, out, &name, &labels(level, schema));
            }
        };
        family(
            "dispatched_requests_total",
            "counter",
            "Number of requests executed by API Priority and Fairness subsystem",
            &|stats, out, name, labels| stats.dispatched.write(out, name, labels),
        );
        family(
            "rejected_requests_total",
            "counter",
            "Number of requests rejected by API Priority and Fairness subsystem",
            &|stats, out, name, labels| {
                for (reason, count) in [
                    ("cancelled", &stats.cancelled),
                    ("concurrency-limit", &stats.concurrency_limit),
                    ("queue-full", &stats.queue_full),
                    ("time-out", &stats.timed_out),
                ] {
                    let count = count.load(Ordering::Relaxed);
                    if count > 0 {
                        line(out, name, &format!("{labels},{}", label("reason", reason)), count);
                    }
                }
            },
        );
        family(
            "current_inqueue_requests",
            "gauge",
            "Number of requests currently pending in queues of the API Priority and Fairness subsystem",
            &|stats, out, name, labels| stats.waiting.write(out, name, labels),
        );
        family(
            "current_inqueue_seats",
            "gauge",
            "Number of seats currently pending in queues of the API Priority and Fairness subsystem",
            &|stats, out, name, labels| stats.waiting_seats.write(out, name, labels),
        );
        family(
            "current_executing_requests",
            "gauge",
            "Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API Priority and Fairness subsystem",
            &|stats, out, name, labels| stats.executing.write(out, name, labels),
        );
        for name in ["current_executing_seats", "request_concurrency_in_use"] {
            family(
                name,
                "gauge",
                "Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem",
                &|stats, out, name, labels| stats.executing_seats.write(out, name, labels),
            );
        }
        family(
            "request_wait_duration_seconds",
            "histogram",
            "Length of time a request spent waiting in its queue",
            &|stats, out, name, labels| {
                for (execute, waited) in [("false", &stats.waited_in_vain), ("true", &stats.waited)] {
                    if !waited.is_empty() {
                        waited.write(out, name, &format!("{},{labels}", label("execute", execute)));
                    }
                }
            },
        );
        family(
            "request_execution_seconds",
            "histogram",
            "Duration of initial stage (for a WATCH) or any (for a non-WATCH) stage of request execution in the API Priority and Fairness subsystem",
            &|stats, out, name, labels| {
                for (kind, executed) in [("regular", &stats.executed), ("watch", &stats.executed_watch)] {
                    if !executed.is_empty() {
                        executed.write(out, name, &format!("{labels},{}", label("type", kind)));
                    }
                }
            },
        );
        family(
            "request_queue_length_after_enqueue",
            "histogram",
            "Length of queue in the API Priority and Fairness subsystem, as seen by each request after it is enqueued",
            &|stats, out, name, labels| {
                if !stats.lengths.is_empty() {
                    stats.lengths.write(out, name, labels);
                }
            },
        );
        family(
            "work_estimated_seats",
            "histogram",
            "Number of estimated seats (maximum of initial and final seats) associated with requests in API Priority and Fairness",
            &|stats, out, name, labels| {
                if !stats.widths.is_empty() {
                    stats.widths.write(out, name, labels);
                }
            },
        );
    }

    /// Answers `/debug/api_priority_and_fairness/…`.
    pub(crate) fn dump(&self, path: &str, query: &Query, now: Timestamp) -> Option<String> {
        match path.strip_prefix(PATH)? {
            "dump_priority_levels" => Some(self.dump_levels()),
            "dump_queues" => Some(self.dump_queues()),
            "dump_requests" => {
                let details = query.get("includeRequestDetails").is_some_and(|text| !text.is_empty());
                Some(self.dump_requests(details, now))
            }
            _ => None,
        }
    }

    fn rows(&self, heads: &[&str], rows: impl Fn(&Level, &Core) -> Vec<Vec<String>>) -> String {
        let mut all = vec![heads.iter().map(|head| head.to_string()).collect()];
        for level in self.active.read().levels.values() {
            all.extend(rows(level, &level.core.lock()));
        }
        table(&all)
    }

    fn dump_levels(&self) -> String {
        let heads = [
            "PriorityLevelName",
            "ActiveQueues",
            "IsIdle",
            "IsQuiescing",
            "WaitingRequests",
            "ExecutingRequests",
            "DispatchedRequests",
            "RejectedRequests",
            "TimedoutRequests",
            "CancelledRequests",
        ];
        self.rows(&heads, |level, core| {
            let totals = core.set.totals();
            let active = core.set.queues().iter().filter(|queue| !queue.waiting.is_empty());
            vec![vec![
                level.name.clone(),
                active.count().to_string(),
                core.set.is_idle().to_string(),
                core.is_retiring.to_string(),
                totals.waiting.to_string(),
                totals.executing.to_string(),
                totals.dispatched.to_string(),
                totals.rejected.to_string(),
                totals.timed_out.to_string(),
                totals.cancelled.to_string(),
            ]]
        })
    }

    fn dump_queues(&self) -> String {
        let heads = [
            "PriorityLevelName",
            "Index",
            "PendingRequests",
            "ExecutingRequests",
            "SeatsInUse",
            "NextDispatchR",
            "InitialSeatsSum",
            "MaxSeatsSum",
            "TotalWorkSum",
        ];
        let seat_seconds = |work: i128| format!("{:.8}ss", work as f64 / 1e9);
        self.rows(&heads, |level, core| {
            let queues = core.set.queues().iter().enumerate();
            let row = |(index, queue): (usize, &super::queue_set::Queue)| {
                vec![
                    level.name.clone(),
                    index.to_string(),
                    queue.waiting.len().to_string(),
                    queue.executing.to_string(),
                    queue.seats_in_use.to_string(),
                    seat_seconds(queue.next_start),
                    queue.seats_waiting.to_string(),
                    queue.max_seats_waiting.to_string(),
                    seat_seconds(queue.work),
                ]
            };
            queues.map(row).collect()
        })
    }

    fn dump_requests(&self, details: bool, now: Timestamp) -> String {
        let mut heads = vec![
            "PriorityLevelName",
            "FlowSchemaName",
            "QueueIndex",
            "RequestIndexInQueue",
            "FlowDistingsher",
            "ArriveTime",
            "InitialSeats",
            "FinalSeats",
            "AdditionalLatency",
            "StartTime",
        ];
        if details {
            heads.extend([
                "UserName",
                "Verb",
                "APIPath",
                "Namespace",
                "Name",
                "APIVersion",
                "Resource",
                "SubResource",
            ]);
        }
        let since_epoch = self.now();
        let wall = |at: Duration| now.earlier(since_epoch.saturating_sub(at)).to_string();
        self.rows(&heads, |level, core| {
            let row = |id: RequestId, held: &Held| -> Option<Vec<String>> {
                let request = core.set.request(id)?;
                let (info, user) = (held.request.info(), &held.user);
                let queue = request.queue.map_or(-1, |index| index as i64);
                let place = request
                    .queue
                    .and_then(|index| core.set.queues()[index].waiting.iter().position(|other| *other == id));
                let mut row = vec![
                    level.name.clone(),
                    held.flow.schema.name.clone(),
                    queue.to_string(),
                    place.map_or(-1, |place| place as i64).to_string(),
                    held.flow.schema.distinguish(info, user).to_string(),
                    wall(request.arrived),
                    request.work.seats.to_string(),
                    request.work.final_seats.to_string(),
                    format!("{:?}", request.work.afterwards),
                    request.started.map_or_else(String::new, wall),
                ];
                if details {
                    let version = match info.group.is_empty() {
                        true => info.version.clone(),
                        false => format!("{}/{}", info.group, info.version),
                    };
                    row.extend([
                        user.name.clone(),
                        info.verb.to_string(),
                        info.path.clone(),
                        info.namespace.clone(),
                        info.name.clone(),
                        version,
                        info.resource.clone(),
                        info.subresource.clone(),
                    ]);
                }
                Some(row)
            };
            let mut ids: Vec<RequestId> = core.held.keys().copied().collect();
            ids.sort_unstable();
            ids.into_iter().filter_map(|id| row(id, &core.held[&id])).collect()
        })
    }
}

/// Columns with a comma between them, one below the other.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            match i + 1 == columns {
                true => out.push_str(cell),
                // The comma belongs to the cell.
                false => {
                    let _ = write!(out, "{:<1$}", format!("{cell},"), width + 2);
                }
            }
        }
        out.push('\n');
    }
    out
}
