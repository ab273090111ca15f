//! For whom a kubelet may ask for tokens: the audiences that the pod's volumes name, themselves or through their CSI
//! driver, and those that somebody granted the node.

use orlop_api::Value;

use crate::admission::{Review, together};
use crate::authz::Attributes;
use crate::lookup::{items, text};

/// Volumes from before CSI, and the drivers that took them over.
const TAKEN_OVER: &[(&str, &str)] = &[
    ("awsElasticBlockStore", "ebs.csi.aws.com"),
    ("azureDisk", "disk.csi.azure.com"),
    ("azureFile", "file.csi.azure.com"),
    ("cinder", "cinder.csi.openstack.org"),
    ("gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("portworxVolume", "pxd.portworx.com"),
    ("vsphereVolume", "csi.vsphere.vmware.com"),
];

/// Why a kubelet gets no token for an audience.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct AudienceRefused(String);

pub(super) fn check(review: &Review<'_>, pod: &Value, request: &Value) -> Result<(), AudienceRefused> {
    let audience = match items(request, &["spec", "audiences"]) {
        [] => "",
        [one] => one.as_str().unwrap_or(""),
        _ => return Err(AudienceRefused("node may only request 0 or 1 audiences".into())),
    };
    let named = names_audience(review, pod, audience)
        .map_err(|why| AudienceRefused(format!("error validating audience {audience:?}: {why}")))?;
    if named {
        return Ok(());
    }
    let attributes = Attributes::resource(review.user, "request-serviceaccounts-token-audience", "", audience)
        .in_namespace(&review.namespace)
        .named(&review.name);
    if review.authorizer.authorize(&attributes, review.lookup).allowed {
        return Ok(());
    }
    Err(AudienceRefused(format!(
        "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
        review.user.name
    )))
}

/// Whether any volume names the audience. What could not be looked up is an error only if none does.
fn names_audience(review: &Review<'_>, pod: &Value, audience: &str) -> Result<bool, String> {
    let mut missing = vec![];
    for volume in items(pod, &["spec", "volumes"]) {
        let projected = items(volume, &["projected", "sources"]).iter().any(|source| {
            source.get("serviceAccountToken").is_some()
                && text(source, &["serviceAccountToken", "audience"]) == audience
        });
        if projected {
            return Ok(true);
        }
        match driver_of(review, pod, volume).and_then(|driver| driver_names(review, driver, audience)) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(why) => missing.push(why),
        }
    }
    if missing.is_empty() {
        return Ok(false);
    }
    Err(together(missing))
}

fn driver_of(review: &Review<'_>, pod: &Value, volume: &Value) -> Result<Option<String>, String> {
    if volume.pointer("/ephemeral/volumeClaimTemplate").is_some() {
        let claim = format!("{}-{}", text(pod, &["metadata", "name"]), text(volume, &["name"]));
        return driver_of_claim(review, &claim);
    }
    if volume.get("persistentVolumeClaim").is_some() {
        return driver_of_claim(review, text(volume, &["persistentVolumeClaim", "claimName"]));
    }
    Ok(driver_in(volume))
}

/// The driver of a volume, in a pod or a PersistentVolume's spec.
fn driver_in(volume: &Value) -> Option<String> {
    if let Some(csi) = volume.get("csi") {
        return Some(text(csi, &["driver"]).to_string());
    }
    let taken_over = TAKEN_OVER.iter().find(|(source, _)| volume.get(*source).is_some());
    taken_over.map(|(_, driver)| driver.to_string())
}

fn driver_of_claim(review: &Review<'_>, name: &str) -> Result<Option<String>, String> {
    let missing = |kind: &str, name: &str| format!("{kind} {name:?} not found");
    let claim = review
        .lookup
        .get("persistentvolumeclaims", &review.namespace, name)
        .ok_or_else(|| missing("persistentvolumeclaim", name))?;
    let name = text(&claim, &["spec", "volumeName"]);
    let volume = review
        .lookup
        .get("persistentvolumes", "", name)
        .ok_or_else(|| missing("persistentvolume", name))?;
    Ok(volume.get("spec").and_then(driver_in))
}

fn driver_names(review: &Review<'_>, driver: Option<String>, audience: &str) -> Result<bool, String> {
    let Some(driver) = driver.filter(|d| !d.is_empty()) else {
        return Ok(false);
    };
    let object = review
        .lookup
        .get("csidrivers.storage.k8s.io", "", &driver)
        .ok_or_else(|| format!("csidriver.storage.k8s.io {driver:?} not found"))?;
    let requests = items(&object, &["spec", "tokenRequests"]);
    Ok(requests.iter().any(|r| text(r, &["audience"]) == audience))
}
