//! How fast the number of pods may change: windows in which a change must be wanted all the time, and rates.
// Upstream: pkg/controller/podautoscaler/horizontal.go (v1.36)

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::objects::horizontal_pod_autoscaler::{Behavior, ScalingPolicy, ScalingRules};

/// Without a behaviour of its own, an autoscaler doubles at most, and goes up to this at once.
const SCALE_UP_FLOOR: i64 = 4;

/// What was wanted and done lately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScalingHistory {
    pub recommendations: Vec<(i64, Timestamp)>,
    /// Pods added or removed.
    pub ups: Vec<(i64, Timestamp)>,
    pub downs: Vec<(i64, Timestamp)>,
}

/// A reason in one word, and in words.
pub(super) type Why = (&'static str, &'static str);

pub(super) struct Limited {
    pub replicas: i64,
    /// If other recommendations than the newest count.
    pub stabilized: Option<Why>,
    pub is_limited: bool,
    pub why: Why,
}

/// The size that an autoscaler has, wants, and may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub current: i64,
    pub desired: i64,
    pub min: i64,
    pub max: i64,
}

const LOWEST: Why = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const HIGHEST: Why = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const WITHIN: Why = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_MANY: Why = (
    "TooManyReplicas",
    "the desired replica count is more than the maximum replica count",
);
const TOO_FEW: Why = (
    "TooFewReplicas",
    "the desired replica count is less than the minimum replica count",
);
const UP_LIMIT: Why = (
    "ScaleUpLimit",
    "the desired replica count is increasing faster than the maximum scale rate",
);
const DOWN_LIMIT: Why = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);

/// Remembers what is desired, and says what may be done about it.
pub(super) fn limit(
    sizes: Sizes,
    behavior: Option<&Behavior>,
    down_window: Duration,
    memory: &mut ScalingHistory,
    now: Timestamp,
) -> Limited {
    let Some(behavior) = behavior else {
        return limit_by_default(sizes, down_window, memory, now);
    };
    let window = |rules: &ScalingRules| {
        rules
            .stabilization_window_seconds
            .map(|s| u64::try_from(s).unwrap_or(0))
    };
    let up_window = Duration::from_secs(window(&behavior.scale_up).unwrap_or(0));
    let down_window = window(&behavior.scale_down).map_or(down_window, Duration::from_secs);
    let lately = |window: Duration| {
        let recent = memory
            .recommendations
            .iter()
            .filter(move |(_, at)| *at > before(now, window));
        recent.map(|(replicas, _)| *replicas)
    };
    let up = lately(up_window).fold(sizes.desired, i64::min);
    let down = lately(down_window).fold(sizes.desired, i64::max);
    let stable = sizes.current.max(up).min(down);
    remember(
        &mut memory.recommendations,
        sizes.desired,
        up_window.max(down_window),
        now,
    );
    let why = if sizes.desired >= sizes.current {
        LOWEST
    } else {
        HIGHEST
    };
    let (replicas, limited) = rate_limit(
        Sizes {
            desired: stable,
            ..sizes
        },
        behavior,
        memory,
        now,
    );
    Limited {
        replicas,
        stabilized: (stable != sizes.desired).then_some(why),
        is_limited: replicas != stable,
        why: limited,
    }
}

fn limit_by_default(sizes: Sizes, down_window: Duration, memory: &mut ScalingHistory, now: Timestamp) -> Limited {
    let cutoff = before(now, down_window);
    let recent = memory.recommendations.iter().filter(|(_, at)| *at >= cutoff);
    let stable = recent.map(|(replicas, _)| *replicas).fold(sizes.desired, i64::max);
    remember(&mut memory.recommendations, sizes.desired, down_window, now);
    let rate = (2 * sizes.current).max(SCALE_UP_FLOOR);
    let (max, too_many) = if sizes.max > rate {
        (rate, UP_LIMIT)
    } else {
        (sizes.max, TOO_MANY)
    };
    let (replicas, why) = if stable < sizes.min {
        (sizes.min, TOO_FEW)
    } else if stable > max {
        (max, too_many)
    } else {
        (stable, WITHIN)
    };
    Limited {
        replicas,
        stabilized: (stable != sizes.desired).then_some(HIGHEST),
        is_limited: replicas != stable,
        why,
    }
}

fn rate_limit(sizes: Sizes, behavior: &Behavior, memory: &ScalingHistory, now: Timestamp) -> (i64, Why) {
    if sizes.desired > sizes.current {
        let rate = up_rate(sizes.current, &behavior.scale_up, memory, now).max(sizes.current);
        let (max, why) = if sizes.max > rate {
            (rate, UP_LIMIT)
        } else {
            (sizes.max, TOO_MANY)
        };
        if sizes.desired > max {
            return (max, why);
        }
    } else if sizes.desired < sizes.current {
        let rate = down_rate(sizes.current, &behavior.scale_down, memory, now).min(sizes.current);
        let (min, why) = if sizes.min < rate {
            (rate, DOWN_LIMIT)
        } else {
            (sizes.min, TOO_FEW)
        };
        if sizes.desired < min {
            return (min, why);
        }
    }
    (sizes.desired, WITHIN)
}

fn policy(kind: &str, value: i64) -> ScalingPolicy {
    ScalingPolicy {
        r#type: kind.to_string(),
        value,
        period_seconds: 15,
    }
}

/// The most that the policies allow, counted from the size at the beginning of each policy's period.
fn up_rate(current: i64, rules: &ScalingRules, memory: &ScalingHistory, now: Timestamp) -> i64 {
    let default = [policy("Pods", 4), policy("Percent", 100)];
    let policies = if rules.policies.is_empty() {
        &default[..]
    } else {
        &rules.policies
    };
    let limits = policies.iter().map(|policy| {
        let start = size_before(current, policy, memory, now);
        match policy.r#type.as_str() {
            "Pods" => start + policy.value,
            _ => (start as f64 * (1.0 + policy.value as f64 / 100.0)).ceil() as i64,
        }
    });
    match rules.select_policy.as_deref() {
        Some("Disabled") => current,
        Some("Min") => limits.min().unwrap_or(current),
        _ => limits.max().unwrap_or(current),
    }
}

fn down_rate(current: i64, rules: &ScalingRules, memory: &ScalingHistory, now: Timestamp) -> i64 {
    let default = [policy("Percent", 100)];
    let policies = if rules.policies.is_empty() {
        &default[..]
    } else {
        &rules.policies
    };
    let limits = policies.iter().map(|policy| {
        let start = size_before(current, policy, memory, now);
        match policy.r#type.as_str() {
            "Pods" => start - policy.value,
            _ => (start as f64 * (1.0 - policy.value as f64 / 100.0)) as i64,
        }
    });
    match rules.select_policy.as_deref() {
        Some("Disabled") => current,
        Some("Min") => limits.max().unwrap_or(current),
        _ => limits.min().unwrap_or(current),
    }
}

fn size_before(current: i64, policy: &ScalingPolicy, memory: &ScalingHistory, now: Timestamp) -> i64 {
    let period = Duration::from_secs(u64::try_from(policy.period_seconds).unwrap_or(0));
    let cutoff = before(now, period);
    let lately = |events: &[(i64, Timestamp)]| -> i64 {
        let recent = events.iter().filter(|(_, at)| *at > cutoff);
        recent.map(|(change, _)| *change).sum()
    };
    current - lately(&memory.ups) + lately(&memory.downs)
}

/// Writes down a change, for the rates.
pub(super) fn note_change(
    memory: &mut ScalingHistory,
    behavior: Option<&Behavior>,
    from: i64,
    to: i64,
    now: Timestamp,
) {
    let Some(behavior) = behavior else { return };
    let (events, rules) = match to > from {
        true => (&mut memory.ups, &behavior.scale_up),
        false => (&mut memory.downs, &behavior.scale_down),
    };
    let longest = rules
        .policies
        .iter()
        .map(|policy| policy.period_seconds)
        .max()
        .unwrap_or(15);
    let longest = Duration::from_secs(u64::try_from(longest).unwrap_or(0));
    remember(events, (to - from).abs(), longest, now);
}

/// Adds an entry, and forgets what is too old to matter.
fn remember(entries: &mut Vec<(i64, Timestamp)>, value: i64, keep: Duration, now: Timestamp) {
    let cutoff = before(now, keep);
    entries.retain(|(_, at)| *at >= cutoff);
    entries.push((value, now));
}

fn before(now: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    now.checked_sub(by).unwrap_or(Timestamp::MIN)
}
