use super::*;
use proptest::prelude::*;

fn settings(success_threshold: u32, failure_threshold: u32) -> Settings {
    Settings {
        initial_delay: Duration::ZERO,
        period: Duration::from_secs(10),
        timeout: Duration::from_secs(1),
        success_threshold,
        failure_threshold,
    }
}

fn only(kind: Kind, settings: Settings) -> [Option<Settings>; 3] {
    KINDS.map(|k| (k == kind).then_some(settings))
}

/// Runs the probe of this kind when it is next due.
fn answer(track: &mut Track, kind: Kind, success: Option<bool>, random: &mut Random) -> bool {
    let at = track.due(kind).expect("due");
    track.begin(kind);
    assert_eq!(track.due(kind), None, "not twice at once");
    track.finish(kind, success, at, random)
}

/// Answers: s success, f failure, e the probe did not work. Results: + yes, - no, ? not known, then `!` on hold.
#[test]
fn results_change_at_the_thresholds() {
    for (kind, success, failure, answers, want) in [
        (Kind::Readiness, 1, 3, "sfffs", "-+++-+"),
        (Kind::Readiness, 1, 3, "sffsff", "-++++++"),
        (Kind::Readiness, 3, 1, "sssfssfsss", "---+------+"),
        (Kind::Readiness, 1, 1, "fsesf", "--+++-"),
        (Kind::Readiness, 1, 2, "sfef", "-+++-"),
        (Kind::Liveness, 1, 3, "fffs", "+++-!"),
        (Kind::Liveness, 1, 3, "ffsfff", "++++++-!"),
        (Kind::Liveness, 1, 1, "sf", "++-!"),
        (Kind::Startup, 1, 3, "ffs", "???+!"),
        (Kind::Startup, 1, 2, "ff", "??-!"),
        (Kind::Startup, 2, 1, "ss", "??+!"),
    ] {
        let (now, mut random) = (Instant::now(), Random::seeded(1));
        let mut track = Track::new(
            only(kind, settings(success, failure)),
            Duration::ZERO,
            None,
            now,
            &mut random,
        );
        let shown = |track: &Track| match track.result(kind) {
            Some(true) => '+',
            Some(false) => '-',
            None => '?',
        };
        let mut seen = String::from(shown(&track));
        for c in answers.chars() {
            if track.due(kind).is_none() {
                seen.push('!');
                break;
            }
            let before = track.result(kind);
            let said = match c {
                's' => Some(true),
                'f' => Some(false),
                _ => None,
            };
            let changed = answer(&mut track, kind, said, &mut random);
            assert_eq!(changed, track.result(kind) != before);
            seen.push(shown(&track));
        }
        if track.due(kind).is_none() && !seen.ends_with('!') {
            seen.push('!');
        }
        assert_eq!(seen, want, "{kind:?} {success}/{failure} {answers}");
    }
}

#[test]
fn first_runs_and_the_gate() {
    let (now, mut random) = (Instant::now(), Random::seeded(3));
    let second = Duration::from_secs(1);
    let delayed = Settings {
        initial_delay: 5 * second,
        ..settings(1, 3)
    };
    // Readiness at once, or when the initial delay is over.
    let track = Track::new(
        only(Kind::Readiness, settings(1, 3)),
        Duration::ZERO,
        None,
        now,
        &mut random,
    );
    assert_eq!(track.due(Kind::Readiness), Some(now));
    let track = Track::new(only(Kind::Readiness, delayed), 2 * second, None, now, &mut random);
    assert_eq!(track.due(Kind::Readiness), Some(now + 3 * second));
    let track = Track::new(only(Kind::Readiness, delayed), 9 * second, None, now, &mut random);
    assert_eq!(track.due(Kind::Readiness), Some(now));

    // The others wait for startup.
    let all = [Some(settings(1, 3)); 3];
    let mut track = Track::new(all, Duration::ZERO, None, now, &mut random);
    assert_eq!((track.due(Kind::Liveness), track.due(Kind::Readiness)), (None, None));
    assert!(track.due(Kind::Startup).is_some_and(|at| at < now + second));
    assert!(!track.started());
    answer(&mut track, Kind::Startup, Some(true), &mut random);
    assert!(track.started());
    assert!(track.due(Kind::Readiness).is_some_and(|at| at < now + second));
    assert!(track.due(Kind::Liveness).is_some_and(|at| at < now + 11 * second));
    assert_eq!(track.due(Kind::Startup), None);
}

#[test]
fn what_ran_before_stays_as_it_was() {
    let (now, mut random) = (Instant::now(), Random::seeded(5));
    let all = [Some(settings(1, 3)); 3];
    let age = Duration::from_secs(3600);
    let adopted = |started, ready| Some(Adopted { started, ready });
    let track = Track::new(all, age, adopted(true, true), now, &mut random);
    assert_eq!(track.result(Kind::Readiness), Some(true));
    assert!(track.started());
    assert_eq!(track.due(Kind::Startup), None);
    let track = Track::new(all, age, adopted(false, false), now, &mut random);
    assert!(!track.started());
    assert_eq!(track.result(Kind::Readiness), Some(false));
}

#[test]
fn a_pod_that_ends_is_asked_for_readiness_only() {
    let (now, mut random) = (Instant::now(), Random::seeded(5));
    let all = [Some(settings(1, 1)); 3];
    let mut track = Track::new(all, Duration::ZERO, None, now, &mut random);
    assert!(track.stop_liveness_and_startup(now, &mut random));
    assert_eq!((track.due(Kind::Liveness), track.due(Kind::Startup)), (None, None));
    assert_eq!(track.due(Kind::Readiness), Some(now));
    assert_eq!(
        (track.result(Kind::Liveness), track.result(Kind::Startup)),
        (Some(true), Some(true))
    );
    assert!(!track.stop_liveness_and_startup(now, &mut random));

    // A failure that was under way no longer counts.
    let mut track = Track::new(
        only(Kind::Liveness, settings(1, 1)),
        Duration::ZERO,
        None,
        now,
        &mut random,
    );
    track.begin(Kind::Liveness);
    track.stop_liveness_and_startup(now, &mut random);
    assert!(!track.finish(Kind::Liveness, Some(false), now, &mut random));
    assert_eq!(track.result(Kind::Liveness), Some(true));
}

#[test]
fn numbers_left_out_have_defaults() {
    let want = settings(1, 3);
    assert_eq!(Settings::of(&Probe::default()), want);
    let odd = Probe {
        period_seconds: Some(0),
        failure_threshold: Some(-1),
        ..Probe::default()
    };
    assert_eq!(Settings::of(&odd), want);
}

proptest! {
    /// Whatever containers answer: a result changes only after as many equal answers in a row as the threshold says,
    /// nothing runs before startup has passed or the initial delay is over, two runs are a period apart, and a failed
    /// liveness or decided startup probe never runs again.
    #[test]
    fn no_answer_counts_that_should_not(
        seed: u64,
        thresholds in proptest::array::uniform6(1u32..4),
        delay in 0u64..20,
        age in 0u64..20,
        present in 1u8..8,
        answers in proptest::collection::vec((0u8..10, 0u64..15_000), 1..80),
    ) {
        let (start, mut random) = (Instant::now(), Random::seeded(seed));
        let all = [0, 1, 2].map(|i| (present & (1 << i) != 0).then(|| Settings {
            initial_delay: Duration::from_secs(delay),
            ..settings(thresholds[2 * i], thresholds[2 * i + 1])
        }));
        let mut track = Track::new(all, Duration::from_secs(age), None, start, &mut random);
        let mut runs: [(Option<bool>, u32); 3] = Default::default();
        let mut last_due: [Option<Instant>; 3] = [None; 3];
        let mut now = start;
        for (what, took_ms) in answers {
            let next = KINDS.into_iter().filter_map(|kind| Some((track.due(kind)?, kind))).min();
            let Some((at, kind)) = next else { break };
            let i = kind as usize;
            prop_assert!(at >= start.later(Duration::from_secs(delay.saturating_sub(age))));
            prop_assert!(kind == Kind::Startup || track.started());
            if let Some(last) = last_due[i].replace(at) {
                prop_assert!(at >= last.later(Duration::from_secs(10)));
            }
            now = now.max(at).later(Duration::from_millis(took_ms));
            let said = match what { 0 => None, n => Some(n > 5) };
            let before = track.result(kind);
            track.begin(kind);
            track.finish(kind, said, now, &mut random);
            if let Some(said) = said {
                runs[i] = if runs[i].0 == Some(said) { (Some(said), runs[i].1 + 1) } else { (Some(said), 1) };
            }
            let (last, run) = runs[i];
            let threshold = thresholds[2 * i + usize::from(last == Some(false))];
            if track.result(kind) != before {
                prop_assert_eq!(track.result(kind), last);
                prop_assert!(run >= threshold);
            }
            if said.is_some() && run >= threshold {
                prop_assert_eq!(track.result(kind), last);
            }
            let over = kind == Kind::Startup && track.result(kind).is_some()
                || kind == Kind::Liveness && track.result(kind) == Some(false);
            prop_assert_eq!(track.due(kind).is_none(), over);
        }
    }
}
