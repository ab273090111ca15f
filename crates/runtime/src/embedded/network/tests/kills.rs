//! Processes that end at each step of each call.

use super::super::*;
use super::bed::*;
use crate::cri::messages::Protocol;

/// A call ends after this many steps, as if the process had been killed there. Whether it got to its end.
async fn killed_after(bed: &Bed, steps: usize, work: impl FnOnce(&mut Worker) -> Result<()> + Send + 'static) -> bool {
    let call = move |worker: &mut Worker| {
        worker.steps_left = Some(steps);
        let outcome = work(worker);
        match outcome {
            Ok(()) => Ok(true),
            Err(PodNetworkError::Stopped) => Ok(false),
            Err(error) => Err(error),
        }
    };
    bed.network.call(call).await.unwrap()
}

fn ports() -> Vec<PortMapping> {
    vec![PortMapping {
        protocol: Protocol::Tcp.into(),
        container_port: 80,
        host_port: 8080,
        host_ip: String::new(),
    }]
}

#[tokio::test]
async fn attach_is_finished_or_taken_back_wherever_it_ended() {
    let ranges = [V4, V6];
    let mut reached_the_end = false;
    for steps in 0.. {
        let mut bed = Bed::new(&ranges).await;
        let before = bed.leftovers();
        let pod = orlop_netlink::Namespace::create().unwrap();
        let at = path(&pod);
        let done = killed_after(&bed, steps, move |w| w.attach("a", &at, &ports()).map(drop)).await;
        bed.restart(&ranges).await;
        if steps % 2 == 0 {
            // The sandbox is still wanted: attached again, it is whole.
            let addresses = bed.network.attach("a", &path(&pod), &ports()).await.unwrap();
            let _server = serve(&pod, "0.0.0.0:80");
            assert_eq!(
                ask(&bed.outside, ip(NODE), 8080),
                Some(ip(OUTSIDE)),
                "after {steps} steps"
            );
            assert_eq!(addresses.len(), 2);
            assert_eq!(bed.network.retain(&["a".to_string()]).await.unwrap(), Freed::default());
        }
        bed.network.retain(&[]).await.unwrap();
        assert_eq!(bed.leftovers(), before, "after {steps} steps");
        let state = |name: &str| std::fs::read_dir(bed.state.path().join("network").join(name)).unwrap();
        assert_eq!(state("sandboxes").count(), 0);
        let leases = state("addresses").filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            !name.to_string_lossy().starts_with("last")
        });
        assert_eq!(leases.count(), 0);
        if done {
            reached_the_end = true;
            break;
        }
    }
    assert!(reached_the_end);
}

#[tokio::test]
async fn detach_can_end_anywhere() {
    for steps in 0.. {
        let mut bed = Bed::new(&[V4]).await;
        let before = bed.leftovers();
        let _a = bed.pod("a", &ports()).await;
        let b = bed.pod("b", &[]).await;
        let done = killed_after(&bed, steps, |worker| {
            let link = worker.link_of("a")?;
            worker.step()?;
            worker.delete_links(link.as_slice())?;
            worker.step()?;
            worker.forget("a")
        })
        .await;
        bed.restart(&[V4]).await;
        // Sandboxes that are there stay, whatever became of the other.
        bed.network.retain(&["b".to_string()]).await.unwrap();
        let _server = serve(&b.namespace, "0.0.0.0:80");
        assert!(ask(&bed.node, b.v4(), 80).is_some());
        assert!(is_out_of_reach(&bed.outside, ip(NODE), 8080), "after {steps} steps");
        bed.network.detach("a").await.unwrap();
        bed.network.detach("b").await.unwrap();
        assert_eq!(bed.leftovers(), before);
        if done {
            break;
        }
    }
}

/// Somebody else flushed our table, deleted a link, and left a link with a name like ours.
#[tokio::test]
async fn retain_repairs_and_removes() {
    let bed = Bed::new(&[V4]).await;
    let pod = bed.pod("a", &ports()).await;
    let names = names::Names::new("test", "node-1");
    let stray = names.veth("stray", 0);
    shell(
        &bed.node,
        &format!("nft flush ruleset; ip link add name {stray} type veth peer name x0"),
    );
    assert!(is_out_of_reach(&bed.outside, ip(NODE), 8080));
    let freed = bed.network.retain(&["a".to_string()]).await.unwrap();
    assert_eq!(freed.links, 1);
    let _server = serve(&pod.namespace, "0.0.0.0:80");
    assert_eq!(ask(&bed.outside, ip(NODE), 8080), Some(ip(OUTSIDE)));
}
