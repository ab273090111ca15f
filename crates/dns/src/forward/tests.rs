//! Forwarding to resolvers that answer, and to those that don't.

use hickory_proto::rr::RecordType;

use super::*;
use crate::testing::{Manner, Resolver};

fn question(name: &str) -> Question {
    Question {
        name: Name::from_ascii(name).unwrap(),
        kind: RecordType::A,
        dnssec_ok: false,
        checking_disabled: false,
    }
}

fn forward(servers: &[&Resolver]) -> Arc<Forward> {
    let forward = Forward::new(Arc::default());
    let addresses: Vec<_> = servers.iter().map(|r| r.address).collect();
    forward.configure(&addresses, &Stubs::default(), &[]);
    forward
}

async fn address(forward: &Arc<Forward>, name: &str) -> String {
    match forward.resolve(&question(name)).await {
        Ok(resolved) => match resolved.reply.answers.first() {
            Some(record) => record.data.to_string(),
            None => format!("{:?}", resolved.reply.code),
        },
        Err(failure) => format!("{failure:?}"),
    }
}

#[tokio::test]
async fn resolvers_of_all_manners() {
    for (manner, expected, asked) in [
        (Manner::Well, "192.0.2.1", 1),
        (Manner::Late, "192.0.2.1", 1),
        (Manner::Truncating, "192.0.2.2", 2),
        (Manner::Confusing, "192.0.2.1", 1),
        (Manner::Old, "192.0.2.1", 2),
        (Manner::Denying, "NXDomain", 1),
        (Manner::Unable, "ServFail", 1),
    ] {
        let resolver = Resolver::start(manner).await;
        let forward = forward(&[&resolver]);
        assert_eq!(address(&forward, "example.com.").await, expected, "{manner:?}");
        assert_eq!(resolver.seen().len(), asked, "{manner:?}");
    }
    assert_eq!(address(&forward(&[]), "example.com.").await, "NoAnswer");
}

#[tokio::test]
async fn the_next_is_asked_where_one_fails_and_that_one_comes_last_for_a_while() {
    let (dead, well) = (
        Resolver::start(Manner::Silent).await,
        Resolver::start(Manner::Well).await,
    );
    let forward = forward(&[&dead, &well]);
    assert_eq!(address(&forward, "a.example.").await, "192.0.2.1");
    assert_eq!(dead.seen().len(), 1);
    assert_eq!(address(&forward, "b.example.").await, "192.0.2.1");
    assert_eq!(dead.seen().len(), 1, "it is not asked while it rests");
    // If the other one can't either, it is.
    well.set(Manner::Unable);
    dead.set(Manner::Well);
    assert_eq!(address(&forward, "c.example.").await, "192.0.2.1");
    // And now it is well again, and first.
    let before = well.seen().len();
    assert_eq!(address(&forward, "d.example.").await, "192.0.2.1");
    assert_eq!(well.seen().len(), before);
}

#[tokio::test]
async fn nobody_answers() {
    let dead = Resolver::start(Manner::Silent).await;
    let forward = forward(&[&dead]);
    assert_eq!(address(&forward, "example.com.").await, "NoAnswer");
    assert_eq!(dead.seen().len(), 2, "tried twice");
    assert!(forward.flights.lock().is_empty());
}

#[tokio::test]
async fn equal_questions_are_asked_once_and_answers_kept() {
    let resolver = Resolver::start(Manner::Late).await;
    let forward = forward(&[&resolver]);
    let all = (0..50).map(|_| address(&forward, "example.com."));
    for answer in orlop_base::join_all(all).await {
        assert_eq!(answer, "192.0.2.1");
    }
    assert_eq!(resolver.seen().len(), 1);
    let known = forward
        .known(&question("EXAMPLE.com."), orlop_base::clock::monotonic())
        .unwrap();
    assert_eq!(known.lifetime, Duration::from_secs(30));
    // Other servers, other answers.
    let other = Resolver::start(Manner::Well).await;
    forward.configure(&[other.address], &Stubs::default(), &[]);
    assert!(
        forward
            .known(&question("example.com."), orlop_base::clock::monotonic())
            .is_none()
    );
}

#[tokio::test]
async fn there_is_a_bound_to_what_is_under_way() {
    let dead = Resolver::start(Manner::Silent).await;
    let forward = forward(&[&dead]);
    for n in 0..CONCURRENT_MAX {
        assert!(forward.join(&question(&format!("n{n}."))).is_ok());
    }
    assert!(matches!(forward.join(&question("more.")), Err(Failure::Busy)));
    assert!(forward.join(&question("n0.")).is_ok(), "others may wait for it");
}

#[tokio::test]
async fn stub_domains_and_other_servers() {
    let mut resolvers = vec![];
    for _ in 0..4 {
        resolvers.push(Resolver::start(Manner::Well).await);
    }
    let [host, upstream, acme, inner] = &resolvers[..] else {
        unreachable!()
    };
    let domain = |name: &str, resolver: &Resolver| (Name::from_ascii(name).unwrap(), vec![resolver.address]);
    let stubs = Stubs {
        domains: vec![domain("acme.local.", acme), domain("inner.acme.local.", inner)],
        upstream: vec![upstream.address],
    };
    let forward = forward(&[host]);
    forward.configure(&[host.address], &stubs, &[]);
    for name in ["a.acme.local.", "b.inner.acme.local.", "acme.local.", "xacme.local."] {
        address(&forward, name).await;
    }
    let counts: Vec<_> = resolvers.iter().map(|r| r.seen().len()).collect();
    assert_eq!(counts, [0, 1, 2, 1]);
    // Never ourselves.
    forward.configure(&[host.address], &Stubs::default(), &[host.address]);
    assert_eq!(address(&forward, "example.com.").await, "NoAnswer");
    assert_eq!(host.seen().len(), 0);
}
