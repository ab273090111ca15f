use super::*;
use crate::events::testing::Said;
use base64::Engine;
use orlop_runtime::Error;
use orlop_runtime::simulated::{Kind, Simulated};

struct World {
    images: Images,
    runtime: Simulated,
    said: Said,
    clock: Clock,
}

fn world(settings: ImageSettings) -> World {
    let clock = Clock::manual("2026-01-02T03:04:05Z".parse().unwrap());
    let (runtime, said) = (Simulated::for_tests(&clock), Said::default());
    let secrets: Secrets = Arc::new(|namespace, name| {
        async move {
            let auths = match name.as_str() {
                "one" => r#"{"auths": {"q.io": {"username": "a", "password": "x"}}}"#,
                "two" => r#"{"auths": {"q.io": {"username": "b", "password": "y"}}}"#,
                "broken" => "{",
                _ => return Err(ObjectError::NotFound(format!("secret {name:?} not found"))),
            };
            let data = base64::engine::general_purpose::STANDARD.encode(auths);
            let secret = serde_json::json!({
                "metadata": {"name": name, "namespace": namespace, "uid": name},
                "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": data},
            });
            Ok(Arc::new(orlop_api::types::from_value(secret).unwrap()))
        }
        .boxed()
    });
    let images = Images::with_secrets(
        Arc::new(runtime.clone()),
        secrets,
        said.events(),
        clock.clone(),
        settings,
    );
    World {
        images,
        runtime,
        said,
        clock,
    }
}

fn pod(uid: &str, image: &str, policy: &str, secrets: &[&str]) -> Pod {
    let secrets: Vec<_> = secrets.iter().map(|name| serde_json::json!({"name": name})).collect();
    orlop_api::types::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "n", "uid": uid},
        "spec": {"imagePullSecrets": secrets,
            "containers": [{"name": "c", "image": image, "imagePullPolicy": policy}]},
    }))
    .unwrap()
}

async fn ensure(images: &Images, pod: &Pod) -> Result<PulledImage, ImageError> {
    let container = &pod.spec.as_ref().unwrap().containers[0];
    images.ensure(pod, container, &PodSandboxConfig::default()).await
}

fn pulls(runtime: &Simulated) -> Vec<String> {
    let calls = runtime
        .take_calls()
        .into_iter()
        .filter(|call| call.kind == Kind::PullImage);
    calls.map(|call| call.subject).collect()
}

#[tokio::test(start_paused = true)]
async fn policies_decide_about_pulling() {
    for (policy, image, present, pulled, want, events) in [
        (
            "Always",
            "a:1",
            true,
            true,
            Ok(()),
            &[
                "Normal Pulling spec.containers{c}: Pulling image \"a:1\"",
                "Normal Pulled",
            ][..],
        ),
        (
            "IfNotPresent",
            "a:1",
            true,
            false,
            Ok(()),
            &[
                "Normal Pulled spec.containers{c}: Container image \"a:1\" already present on machine and can be accessed by the pod",
            ],
        ),
        (
            "IfNotPresent",
            "a",
            false,
            true,
            Ok(()),
            &[
                "Normal Pulling",
                "Normal Pulled spec.containers{c}: Successfully pulled image \"a\" in 0s (0s including waiting). Image size: ",
            ],
        ),
        ("Never", "a:1", true, false, Ok(()), &["Normal Pulled"]),
        (
            "Never",
            "a:1",
            false,
            false,
            Err((
                "ErrImageNeverPull",
                "Container image \"a:1\" is not present with pull policy of Never",
            )),
            &[
                "Warning ErrImageNeverPull spec.containers{c}: Container image \"a:1\" is not present with pull policy of Never",
                "Warning Failed spec.containers{c}: Error: ErrImageNeverPull",
            ],
        ),
        ("", "a:1", true, false, Ok(()), &["Normal Pulled"]),
        ("", "a", true, true, Ok(()), &["Normal Pulling", "Normal Pulled"]),
        (
            "Always",
            "A B",
            false,
            false,
            Err((
                "InvalidImageName",
                "Failed to apply default image tag \"A B\": couldn't parse image name \"A B\": invalid reference format: repository name (library/A B) must be lowercase",
            )),
            &[
                "Warning InspectFailed spec.containers{c}: Failed to apply default image tag \"A B\": couldn't parse",
                "Warning Failed spec.containers{c}: Error: InvalidImageName",
            ],
        ),
    ] {
        let World {
            images, runtime, said, ..
        } = world(ImageSettings::default());
        if present {
            runtime.add_image(&image_name::with_tag(image).unwrap());
        }
        let got = ensure(&images, &pod("u", image, policy, &[])).await;
        let got = got.map(|pulled| assert!(!pulled.image_ref.is_empty()));
        assert_eq!(
            got.map_err(|error| (error.reason, error.message)),
            want.map_err(|(r, m)| (r, m.to_string()))
        );
        let tagged = image_name::with_tag(image)
            .into_iter()
            .filter(|_| pulled)
            .collect::<Vec<_>>();
        assert_eq!(pulls(&runtime), tagged, "{policy} {image}");
        let said = said.take();
        assert!(
            said.len() == events.len() && said.iter().zip(events).all(|(s, e)| s.starts_with(e)),
            "{said:#?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn failures_back_off() {
    let World {
        images,
        runtime,
        said,
        clock,
    } = world(ImageSettings::default());
    let pod = pod("u", "a:1", "IfNotPresent", &[]);
    runtime.fail_always(Kind::PullImage, Some(Error::new(Code::NotFound, "no such image")));
    let failure = ensure(&images, &pod).await.unwrap_err();
    assert_eq!(
        (failure.reason, failure.message.as_str()),
        ("ErrImagePull", "rpc error: code = NotFound desc = no such image")
    );
    assert_eq!(failure.retry_after, Some(FAILURE_SHOWN));
    assert_eq!(
        said.take(),
        [
            "Normal Pulling spec.containers{c}: Pulling image \"a:1\"",
            "Warning Failed spec.containers{c}: Failed to pull image \"a:1\": rpc error: code = NotFound desc = no such image",
            "Warning Failed spec.containers{c}: Error: ErrImagePull",
        ]
    );
    clock.advance(Duration::from_secs(4));
    let waiting = ensure(&images, &pod).await.unwrap_err();
    let why = "Back-off pulling image \"a:1\": ErrImagePull: rpc error: code = NotFound desc = no such image";
    assert_eq!((waiting.reason, waiting.message.as_str()), ("ImagePullBackOff", why));
    assert_eq!(waiting.retry_after, Some(Duration::from_secs(6)));
    assert_eq!(
        said.take(),
        [
            "Normal BackOff spec.containers{c}: Back-off pulling image \"a:1\"",
            "Warning Failed spec.containers{c}: Error: ImagePullBackOff",
        ]
    );
    clock.advance(Duration::from_secs(6));
    assert_eq!(ensure(&images, &pod).await.unwrap_err().reason, "ErrImagePull");
    clock.advance(FAILURE_SHOWN);
    said.take();
    // It has to wait for 17 seconds, and says so every ten: the same each time, so that it can be counted.
    for (wait, left) in [(0, 10), (10, 7)] {
        clock.advance(Duration::from_secs(wait));
        let waiting = ensure(&images, &pod).await.unwrap_err();
        assert_eq!(waiting.retry_after, Some(Duration::from_secs(left)));
        assert_eq!(
            said.take(),
            [
                "Normal BackOff spec.containers{c}: Back-off pulling image \"a:1\"",
                "Warning Failed spec.containers{c}: Error: ImagePullBackOff",
            ]
        );
    }
    assert_eq!(pulls(&runtime).len(), 2);
    // Another pod may try.
    let mut other = pod.clone();
    other.metadata.uid = Some("v".to_string());
    runtime.fail_always(Kind::PullImage, None);
    ensure(&images, &other).await.unwrap();
    // It is there now: no need to wait.
    ensure(&images, &pod).await.unwrap();
    assert!(images.inner.pulls.lock().is_empty());
}

#[test]
fn some_failures_have_names_of_their_own() {
    for (why, reason, message) in [
        ("boo", "ErrImagePull", "boo"),
        (
            "RegistryUnavailable: down",
            "RegistryUnavailable",
            "image pull failed for a because the registry is unavailable: down",
        ),
        (
            "SignatureValidationFailed",
            "SignatureValidationFailed",
            "image pull failed for a because the signature validation failed",
        ),
    ] {
        assert_eq!(pull_error("a", why.to_string()), (reason, message.to_string()));
    }
}

#[tokio::test(start_paused = true)]
async fn equal_pulls_are_one_and_others_take_turns() {
    for (serialize_pulls, at_once) in [(true, 1), (false, 2)] {
        let settings = ImageSettings {
            serialize_pulls,
            max_parallel_pulls: Some(2),
            ..ImageSettings::default()
        };
        let World {
            images, runtime, said, ..
        } = world(settings);
        let hold = runtime.hold(Kind::PullImage);
        let pods: Vec<Pod> = ["a:1", "a:1", "a:1", "b:1", "c:1"]
            .iter()
            .enumerate()
            .map(|(i, image)| pod(&i.to_string(), image, "Always", &[]))
            .collect();
        let all = orlop_base::join_all(pods.iter().map(|pod| ensure(&images, pod)));
        let look = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(runtime.count(Kind::PullImage), at_once);
            drop(hold);
        };
        let (answers, ()) = futures::join!(all, look);
        assert!(answers.iter().all(Result::is_ok));
        let mut pulled = pulls(&runtime);
        pulled.sort();
        assert_eq!(pulled, ["a:1", "b:1", "c:1"]);
        assert_eq!(
            said.take()
                .iter()
                .filter(|line| line.starts_with("Normal Pulled"))
                .count(),
            5
        );
    }
}

#[tokio::test(start_paused = true)]
async fn secrets_are_tried_in_turn_and_remembered() {
    let World {
        images, runtime, said, ..
    } = world(ImageSettings::default());
    let private = pod("u", "q.io/a:1", "IfNotPresent", &["one", "gone", "two", ""]);
    runtime.fail_next(Kind::PullImage, Error::new(Code::Other, "denied"));
    ensure(&images, &private).await.unwrap();
    assert_eq!(pulls(&runtime).len(), 2);
    let missing = "Unable to retrieve some image pull secrets (gone); attempting to pull the image may not succeed.";
    assert!(
        said.take()
            .contains(&format!("Warning FailedToRetrieveImagePullSecret p: {missing}"))
    );

    // The second worked: who has it need not ask, others must.
    ensure(&images, &pod("v", "q.io/a:1", "IfNotPresent", &["two"]))
        .await
        .unwrap();
    assert!(pulls(&runtime).is_empty());
    for (policy, reason) in [("IfNotPresent", "ErrImagePull"), ("Never", "ErrImageNeverPull")] {
        runtime.fail_next(Kind::PullImage, Error::new(Code::Other, "denied"));
        let refused = ensure(&images, &pod(policy, "q.io/a:1", policy, &["one"]))
            .await
            .unwrap_err();
        assert_eq!(refused.reason, reason);
    }
    // Both refused, in the same words and in others.
    let private = pod("w", "q.io/b:1", "IfNotPresent", &["one", "two"]);
    runtime.fail_next(Kind::PullImage, Error::new(Code::Other, "denied"));
    runtime.fail_next(Kind::PullImage, Error::new(Code::Other, "denied"));
    pulls(&runtime);
    let refused = ensure(&images, &private).await.unwrap_err();
    assert!(
        ["denied", "[denied, denied]"].contains(&refused.message.as_str()),
        "{refused:?}"
    );
    let broken = ensure(&images, &pod("x", "q.io/b:1", "Always", &["broken"]))
        .await
        .unwrap_err();
    assert_eq!(broken.reason, "ErrImagePull");
}

#[test]
fn settings_of_a_configuration() {
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let of = |text: &str| {
        ImageSettings::of(
            &crate::config::parse(Some(&format!("{head}{text}")), &[]).unwrap(),
            Path::new("/r"),
        )
    };
    let default = of("");
    assert!(default.serialize_pulls);
    assert_eq!(default.verification, Verification::NeverVerifyPreloadedImages);
    assert_eq!(default.records, Some(PathBuf::from("/r/image_manager")));
    let other = of("serializeImagePulls: false\nmaxParallelImagePulls: 3\n\
         imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n\
         preloadedImagesVerificationAllowlist: [q.io/a]\n");
    assert_eq!((other.serialize_pulls, other.max_parallel_pulls), (false, Some(3)));
    assert_eq!(
        other.verification,
        Verification::NeverVerifyAllowlistedImages(vec!["q.io/a".into()])
    );
}

#[tokio::test(start_paused = true)]
async fn images_of_volumes_are_the_pods_affair() {
    let world = world(ImageSettings::default());
    let pod = pod("u", "a:1", "IfNotPresent", &[]);
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let source = |policy: &str| ImageVolumeSource {
        reference: Some("data:1".into()),
        pull_policy: Some(policy.into()).filter(|policy: &String| !policy.is_empty()),
    };
    let sandbox = PodSandboxConfig::default();
    let refused = world
        .images
        .ensure_volume(&pod, container, &source("Never"), &sandbox)
        .await;
    assert_eq!(refused.unwrap_err().reason, "ErrImageNeverPull");
    assert_eq!(
        world.said.take(),
        [
            "Warning ErrImageNeverPull p: Container image \"data:1\" is not present with pull policy of Never",
            "Warning Failed spec.containers{c}: Error: ErrImageNeverPull",
        ]
    );
    let pulled = world
        .images
        .ensure_volume(&pod, container, &source(""), &sandbox)
        .await
        .unwrap();
    assert!(!pulled.image_ref.is_empty());
    assert_eq!(pulls(&world.runtime), ["data:1"]);
}
