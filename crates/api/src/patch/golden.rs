//! What Kubernetes 1.36 itself did, step by step: objects created, updated, patched and applied to by several managers,
//! recorded with its API server. Every step is done again here and must come out the same.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::apply::{ApplyOptions, UpdateOptions, apply, update_managed_fields};
use super::{json as json_patch, merge, strategic};
use crate::schema::{TypeRef, from_value, schema};
use crate::status::Status;

/// Fields that Kubernetes fills in after a patch if they are not there.
const DEFAULTED: &[&str] = &[
    "clusterIP",
    "clusterIPs",
    "defaultMode",
    "dnsPolicy",
    "emptyDir",
    "failureThreshold",
    "imagePullPolicy",
    "internalTrafficPolicy",
    "ipFamilies",
    "ipFamilyPolicy",
    "maxSurge",
    "maxUnavailable",
    "periodSeconds",
    "progressDeadlineSeconds",
    "protocol",
    "replicas",
    "restartPolicy",
    "revisionHistoryLimit",
    "rollingUpdate",
    "scheme",
    "schedulerName",
    "securityContext",
    "selector",
    "serviceAccount",
    "sessionAffinity",
    "status",
    "strategy",
    "successThreshold",
    "targetPort",
    "terminationGracePeriodSeconds",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "timeoutSeconds",
    "type",
];
/// Fields of the metadata that the server sets.
const SYSTEM: &[&str] = &[
    "creationTimestamp",
    "generation",
    "managedFields",
    "namespace",
    "resourceVersion",
    "uid",
];

struct Step<'a> {
    scenario: &'a Value,
    step: &'a Value,
    before: Option<&'a Value>,
    ty: TypeRef,
    now: Timestamp,
    reset: &'static [&'static [&'static str]],
}

#[test]
fn every_step_comes_out_as_in_kubernetes() {
    let scenarios: Vec<Value> = serde_json::from_str(include_str!("../../testdata/patches-1.36.json")).unwrap();
    let mut failures = vec![];
    let mut steps = 0;
    for scenario in &scenarios {
        let mut before = None;
        for (i, step) in scenario["steps"].as_array().unwrap().iter().enumerate() {
            steps += 1;
            if let Err(why) = Step::new(scenario, step, before).run() {
                let shown = json!({"op": step["op"], "body": step["body"]});
                failures.push(format!("{} step {i} {shown}:\n  {why}", scenario["title"]));
            }
            before = step.get("after").or(before);
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {steps} steps:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(steps > 150);
}

impl<'a> Step<'a> {
    fn new(scenario: &'a Value, step: &'a Value, before: Option<&'a Value>) -> Step<'a> {
        let text = |name: &str| scenario[name].as_str().unwrap();
        let ty = schema().kind(text("apiVersion"), text("kind")).unwrap();
        let times = step["after"]["metadata"]["managedFields"]
            .as_array()
            .into_iter()
            .flatten();
        let newest = times
            .filter_map(|e| e["time"].as_str())
            .max()
            .unwrap_or("2026-11-15T00:00:00Z");
        let reset: &[&[&str]] = match (text("kind"), step["subresource"].as_str().unwrap_or("")) {
            ("Pod", "status") => &[
                &["spec"],
                &["metadata", "deletionTimestamp"],
                &["metadata", "ownerReferences"],
            ],
            ("Deployment", "status") => &[&["spec"], &["metadata", "labels"]],
            (_, "status") => &[&["spec"]],
            ("PersistentVolume" | "Pod" | "Deployment" | "Service" | "Node" | "Job" | "Ingress", _) => &[&["status"]],
            _ => &[],
        };
        Step {
            scenario,
            step,
            before,
            ty,
            now: newest.parse().unwrap(),
            reset,
        }
    }

    fn text(&self, name: &str) -> &'a str {
        self.step[name].as_str().unwrap_or("")
    }

    fn run(&self) -> Result<(), String> {
        match self.text("op") {
            "create" | "update" => self.bookkeeping(),
            "apply" => self.applied(),
            _ => self.patched(),
        }
    }

    /// The object that Kubernetes stored, with the managed fields it made of it taken out.
    fn after(&self) -> Option<(Value, Value)> {
        let mut after = self.step.get("after")?.clone();
        let managed = after["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields")
            .unwrap_or_default();
        Some((after, managed))
    }

    fn bookkeeping(&self) -> Result<(), String> {
        let Some((mut new, managed)) = self.after() else {
            return Ok(());
        };
        if let Some(sent) = self.step.get("sent").filter(|s| !s.is_null()) {
            new["metadata"]["managedFields"] = sent.clone();
        }
        let opts = UpdateOptions {
            manager: self.text("manager"),
            now: self.now,
            api_version: self.scenario["apiVersion"].as_str().unwrap(),
            subresource: self.text("subresource"),
            reset: self.reset,
        };
        update_managed_fields(&mut new, self.before, Some(self.ty), &opts);
        equal("managed fields", &new["metadata"]["managedFields"], &managed)
    }

    fn applied(&self) -> Result<(), String> {
        let opts = ApplyOptions {
            manager: self.text("manager"),
            force: self.step["force"] == true,
            now: self.now,
            api_version: self.scenario["apiVersion"].as_str().unwrap(),
            subresource: self.text("subresource"),
            reset: self.reset,
        };
        let result = apply(self.before, &self.step["body"], Some(self.ty), &opts);
        let Some(object) = self.same_outcome(result.map_err(Status::from))? else {
            return Ok(());
        };
        let (after, managed) = self.after().unwrap();
        equal("managed fields", &object["metadata"]["managedFields"], &managed)?;
        self.same_object(object, &after)
    }

    fn patched(&self) -> Result<(), String> {
        let mut object = self.before.unwrap().clone();
        let body = self.step["body"].to_string();
        let result = match self.text("op") {
            "json" => json_patch::apply(&mut object, body.as_bytes()),
            "merge" => merge::decode(body.as_bytes()).map(|patch| merge::apply(&mut object, patch)),
            "strategic" => {
                strategic::decode(body.as_bytes()).and_then(|patch| strategic::apply(&mut object, patch, self.ty))
            }
            other => return Err(format!("no such op: {other}")),
        };
        if self.same_outcome(result.map_err(Status::from))?.is_some() {
            self.same_object(object, &self.after().unwrap().0)?;
            self.bookkeeping()?;
        }
        Ok(())
    }

    /// Both succeeded: what we got. Both failed alike, or Kubernetes failed later, in validation: None.
    fn same_outcome<T>(&self, result: Result<T, Status>) -> Result<Option<T>, String> {
        let Some(error) = self.step.get("error") else {
            return result.map(Some).map_err(|e| format!("failed: {e}"));
        };
        let message = error["message"].as_str().unwrap();
        match result {
            Ok(_) if message.contains(" is invalid: ") => Ok(None),
            Ok(_) => Err(format!("should have failed: {message}")),
            Err(status) => {
                equal("code", &status.code.into(), &self.step["code"])?;
                equal("message", &status.message.clone().into(), &error["message"])?;
                equal(
                    "details",
                    &sorted(&status.to_value()["details"]),
                    &sorted(&error["details"]),
                )?;
                Ok(None)
            }
        }
    }

    fn same_object(&self, object: Value, after: &Value) -> Result<(), String> {
        let decoded = from_value(object, self.ty).map_err(|e| e.to_string())?;
        let (mut ours, mut theirs) = (decoded.value, after.clone());
        for object in [&mut ours, &mut theirs] {
            object["metadata"]
                .as_object_mut()
                .unwrap()
                .retain(|k, _| !SYSTEM.contains(&k.as_str()));
        }
        explains(&ours, &theirs, "")
    }
}

/// Kubernetes lists the causes of conflicts in any order.
fn sorted(details: &Value) -> Value {
    let mut details = details.clone();
    if let Some(causes) = details.get_mut("causes").and_then(Value::as_array_mut) {
        causes.sort_by_key(Value::to_string);
    }
    details
}

fn equal(what: &str, ours: &Value, theirs: &Value) -> Result<(), String> {
    if ours == theirs {
        Ok(())
    } else {
        Err(format!("{what}:\n  ours   {ours}\n  theirs {theirs}"))
    }
}

/// Theirs is ours with defaults filled in.
fn explains(ours: &Value, theirs: &Value, path: &str) -> Result<(), String> {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let zero = |k: &str, v: &Value| v.is_null() || (DEFAULTED.contains(&k) && v == &json!(0));
            for (key, value) in a.iter().filter(|(k, v)| !zero(k, v)) {
                let there = b
                    .get(key)
                    .ok_or_else(|| format!("{path}.{key} should not be there: {value}"))?;
                explains(value, there, &format!("{path}.{key}"))?;
            }
            let missing = b.iter().find(|(k, v)| {
                !v.is_null() && a.get(*k).is_none_or(Value::is_null) && !DEFAULTED.contains(&k.as_str())
            });
            match missing {
                None => Ok(()),
                Some((key, value)) => Err(format!("{path}.{key} is missing: {value}")),
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.try_for_each(|(i, (a, b))| explains(a, b, &format!("{path}[{i}]")))
        }
        _ => equal(path, ours, theirs),
    }
}
