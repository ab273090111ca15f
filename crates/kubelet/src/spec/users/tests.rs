use super::super::testing;
use super::*;
use proptest::prelude::*;
use serde_json::json;

fn pod(uid: &str) -> Pod {
    let mut pod = testing::pod(json!({"hostUsers": false}));
    pod.metadata.uid = Some(uid.into());
    pod
}

fn users(dir: &Path) -> Users {
    Users::new(dir, Ids::all(UNIT))
}

fn first(users: &Users, uid: &str) -> u32 {
    users.ensure(&pod(uid), "", true).unwrap();
    users.known(&pod(uid)).unwrap().uids[0].host_id
}

#[test]
fn every_pod_has_its_own_range_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let one = users(dir.path());
    assert_eq!(one.known(&pod("a")), None);
    assert_eq!(
        [first(&one, "a"), first(&one, "b"), first(&one, "a")],
        [65_536, 131_072, 65_536]
    );
    let text = fs::read_to_string(dir.path().join("pods/b/userns")).unwrap();
    let mapping = r#"[{"hostId":131072,"containerId":0,"length":65536}]"#;
    assert_eq!(text, format!(r#"{{"uidMappings":{mapping},"gidMappings":{mapping}}}"#));
    let strange = [("c", "nonsense"), ("d", r#"{"uidMappings":[],"gidMappings":[]}"#)];
    for (uid, text) in strange {
        fs::create_dir_all(dir.path().join("pods").join(uid)).unwrap();
        fs::write(dir.path().join("pods").join(uid).join(FILE), text).unwrap();
    }
    let two = users(dir.path());
    assert_eq!([first(&two, "e"), first(&two, "b")], [196_608, 131_072]);
    let refused = two.ensure(&pod("c"), "", true).unwrap_err().0;
    assert!(
        refused.starts_with("user namespace: invalid user namespace mappings file"),
        "{refused}"
    );
    two.release("a");
    two.release("a");
    assert!(!dir.path().join("pods/a/userns").exists());
    assert_eq!(first(&two, "f"), 65_536);
}

#[test]
fn who_gets_none() {
    let dir = tempfile::tempdir().unwrap();
    let users = users(dir.path());
    for spec in [json!({}), json!({"hostUsers": true})] {
        let pod = testing::pod(spec);
        assert_eq!(users.ensure(&pod, "", false), Ok(()));
        assert_eq!(users.known(&pod), None);
    }
    let refused = |pod: &Pod, handler: &str, supported| users.ensure(pod, handler, supported).unwrap_err().0;
    assert_eq!(
        refused(&pod("a"), "", false),
        "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
    );
    assert_eq!(
        refused(&pod("a"), "kata", false),
        "can't set `spec.hostUsers: false`, RuntimeClass handler \"kata\" does not support user namespaces"
    );
    let host = testing::pod(json!({"hostUsers": false, "hostNetwork": true}));
    assert!(users.ensure(&host, "", true).is_err());
}

#[test]
fn what_the_administrator_gives() {
    assert_eq!(parse_subordinate("0: kubelet 65536 7208960\n"), Ok((65_536, 7_208_960)));
    for wrong in [
        "",
        "0: kubelet 1 2\n1: kubelet 3 4\n",
        "0: kubelet 1",
        "0: kubelet x 2",
        "0: kubelet 4294967296 1",
    ] {
        assert!(parse_subordinate(wrong).is_err(), "{wrong:?}");
    }
    let check = |first, count, per_pod| Ids { first, count, per_pod }.checked(110);
    assert!(Ids::all(UNIT).checked(110).is_ok() && Ids::all(16 * UNIT).checked(110).is_ok());
    assert!(check(UNIT, 110 * UNIT, UNIT).is_ok());
    let cases = [
        (UNIT, 109 * UNIT, UNIT, "are not enough to support 110 pods"),
        (1, 200 * UNIT, UNIT, "ID 1 is not a multiple of 65536"),
        (0, 200 * UNIT, UNIT, "ID 0 must be greater or equal to 65536"),
        (UNIT, 200 * UNIT + 1, UNIT, "length 13107201 is not a multiple of 65536"),
        (UNIT, 200 * UNIT, 1000, "length 1000 is not a multiple of 65536"),
        (65_000 * UNIT, 1000 * UNIT, UNIT, "exceed the range of user IDs"),
    ];
    for (first, count, per_pod, expected) in cases {
        let problem = check(first, count, per_pod).unwrap_err();
        assert!(problem.0.ends_with(expected), "{problem}");
    }
    // The last range ends at the last id.
    let last = Ids::all(UNIT).slots().last().unwrap();
    assert_eq!(last.range().end, 1 << 32);
}

#[test]
fn ranges_run_out() {
    let dir = tempfile::tempdir().unwrap();
    let ids = Ids {
        first: UNIT,
        count: 2 * UNIT,
        per_pod: UNIT,
    };
    let users = Users::new(dir.path(), ids);
    first(&users, "a");
    first(&users, "b");
    let refused = users.ensure(&pod("c"), "", true).unwrap_err().0;
    assert!(refused.contains("could not find an empty slot"), "{refused}");
    users.release("a");
    assert_eq!(first(&users, "c"), UNIT);
}

#[derive(Clone, Debug)]
enum Deed {
    Give(u8),
    Release(u8),
    /// With ranges of this many units from now on.
    Restart(u32),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        5 => (0..12_u8).prop_map(Deed::Give),
        3 => (0..12_u8).prop_map(Deed::Release),
        1 => (1..4_u32).prop_map(Deed::Restart),
    ];
    prop::collection::vec(deed, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn no_two_pods_share_an_id(deeds in deeds()) {
        let dir = tempfile::tempdir().unwrap();
        let mut users = users(dir.path());
        let mut expected: BTreeMap<String, Mapping> = BTreeMap::new();
        for deed in deeds {
            match deed {
                Deed::Give(n) => {
                    let uid = n.to_string();
                    users.ensure(&pod(&uid), "", true).unwrap();
                    let now = users.given.lock()[&uid];
                    // Once given, a range stays.
                    prop_assert_eq!(*expected.entry(uid).or_insert(now), now);
                }
                Deed::Release(n) => {
                    users.release(&n.to_string());
                    expected.remove(&n.to_string());
                }
                Deed::Restart(units) => users = Users::new(dir.path(), Ids::all(units * UNIT)),
            }
            let given = users.given.lock().clone();
            prop_assert_eq!(&given, &expected);
            let all: Vec<Mapping> = given.into_values().collect();
            for (n, one) in all.iter().enumerate() {
                prop_assert!(one.host_id >= UNIT);
                prop_assert!(all[n + 1..].iter().all(|other| !one.overlaps(*other)));
            }
        }
    }
}
