//! As whom a container runs: names and numbers of users and groups, by the image's own files.

use std::collections::BTreeSet;

use crate::cri::messages::{LinuxContainerSecurityContext, SupplementalGroupsPolicy};

use super::{PlanError, Result};

/// `/etc/passwd` and `/etc/group` of an image; empty where it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserFiles {
    pub passwd: String,
    pub group: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContainerIdentity {
    pub uid: u32,
    pub gid: u32,
    /// With the primary one, sorted.
    pub groups: Vec<u32>,
    pub home: String,
}

struct User<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl UserFiles {
    fn users(&self) -> impl Iterator<Item = User<'_>> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.trim().split(':');
            let name = fields
                .next()
                .filter(|name| !name.is_empty() && !name.starts_with('#'))?;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            let home = fields.nth(1).unwrap_or_default();
            Some(User { name, uid, gid, home })
        })
    }

    /// Name, number and members.
    fn groups(&self) -> impl Iterator<Item = (&str, u32, Vec<&str>)> {
        self.group.lines().filter_map(|line| {
            let mut fields = line.trim().split(':');
            let name = fields
                .next()
                .filter(|name| !name.is_empty() && !name.starts_with('#'))?;
            let gid = fields.nth(1)?.parse().ok()?;
            let members = fields.next().unwrap_or_default().split(',').filter(|m| !m.is_empty());
            Some((name, gid, members.collect()))
        })
    }

    fn user(&self, text: &str) -> Option<User<'_>> {
        match text.parse::<u32>() {
            Ok(uid) => self.users().find(|user| user.uid == uid),
            Err(_) => self.users().find(|user| user.name == text),
        }
    }
}

/// The user by the security context, else by the image, else root.
pub(crate) fn plan(
    context: &LinuxContainerSecurityContext,
    image_user: &str,
    files: &UserFiles,
) -> Result<ContainerIdentity> {
    let wanted = user_text(context)?;
    let wanted = match wanted.is_empty() {
        true => image_user,
        false => &wanted,
    };
    let (uid, gid) = resolve(wanted, files)?;
    let policy = SupplementalGroupsPolicy::try_from(context.supplemental_groups_policy).map_err(|_| {
        PlanError(format!(
            "unknown supplemental groups policy {}",
            context.supplemental_groups_policy
        ))
    })?;
    let mut groups: BTreeSet<u32> = [gid].into();
    for group in &context.supplemental_groups {
        let group = u32::try_from(*group).map_err(|_| PlanError(format!("invalid supplemental group {group}")))?;
        groups.insert(group);
    }
    if policy == SupplementalGroupsPolicy::Merge {
        let name = match wanted.split(':').next().unwrap_or_default() {
            "" => "0",
            name => name,
        };
        groups.extend(groups_of(name, files));
    }
    let home = files.users().find(|user| user.uid == uid).map_or("/", |user| user.home);
    Ok(ContainerIdentity {
        uid,
        gid,
        groups: groups.into_iter().collect(),
        home: if home.is_empty() { "/" } else { home }.to_string(),
    })
}

/// `user`, `user:group`, or nothing.
fn user_text(context: &LinuxContainerSecurityContext) -> Result<String> {
    let user = match (&context.run_as_user, context.run_as_username.as_str()) {
        (_, name) if !name.is_empty() => name.to_string(),
        (Some(uid), _) => uid.value.to_string(),
        (None, _) => String::new(),
    };
    match (&context.run_as_group, user.is_empty()) {
        (Some(group), true) => Err(PlanError(format!(
            "user group \"{}\" is specified without user",
            group.value
        ))),
        (Some(group), false) => Ok(format!("{user}:{}", group.value)),
        (None, _) => Ok(user),
    }
}

fn resolve(text: &str, files: &UserFiles) -> Result<(u32, u32)> {
    if text.is_empty() {
        return Ok((0, files.user("0").map_or(0, |user| user.gid)));
    }
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let found = files.user(user);
    let uid = match (&found, user.parse::<u32>()) {
        (Some(found), _) => found.uid,
        (None, Ok(uid)) => uid,
        (None, Err(_)) => {
            return Err(PlanError(format!(
                "unable to find user {user}: no matching entries in passwd file"
            )));
        }
    };
    let gid = match group.filter(|group| !group.is_empty()) {
        None => found.map_or(0, |user| user.gid),
        Some(group) => match group.parse::<u32>() {
            Ok(gid) => gid,
            Err(_) => files
                .groups()
                .find(|(name, _, _)| *name == group)
                .map(|(_, gid, _)| gid)
                .ok_or_else(|| {
                    PlanError(format!(
                        "unable to find group {group}: no matching entries in group file"
                    ))
                })?,
        },
    };
    Ok((uid, gid))
}

/// Groups that name a user as a member.
fn groups_of(user: &str, files: &UserFiles) -> Vec<u32> {
    let name = match user.parse::<u32>() {
        Ok(_) => files.user(user).map(|user| user.name),
        Err(_) => Some(user),
    };
    let Some(name) = name else { return vec![] };
    let listed = files
        .groups()
        .filter(|(group, _, members)| *group != name && members.contains(&name));
    listed.map(|(_, gid, _)| gid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::messages::Int64Value;

    fn files() -> UserFiles {
        UserFiles {
            passwd: "root:x:0:0:root:/root:/bin/sh\n# no user\nweb:x:33:34::/var/www:/bin/false\nbroken\n".to_string(),
            group: "root:x:0:root\nweb:x:34:\nssl:x:50:web,other\nmore:x:51:root\n".to_string(),
        }
    }

    fn check(context: &LinuxContainerSecurityContext, image: &str, expected: (u32, u32, &[u32], &str)) {
        let identity = plan(context, image, &files()).unwrap();
        let (uid, gid, groups, home) = expected;
        assert_eq!((identity.uid, identity.gid, identity.home.as_str()), (uid, gid, home));
        assert_eq!(identity.groups, groups);
    }

    fn context(user: Option<i64>, group: Option<i64>) -> LinuxContainerSecurityContext {
        LinuxContainerSecurityContext {
            run_as_user: user.map(|value| Int64Value { value }),
            run_as_group: group.map(|value| Int64Value { value }),
            ..LinuxContainerSecurityContext::default()
        }
    }

    #[test]
    fn names_and_numbers() {
        let none = context(None, None);
        check(&none, "", (0, 0, &[0, 51], "/root"));
        check(&none, "web", (33, 34, &[34, 50], "/var/www"));
        check(&none, "33", (33, 34, &[34, 50], "/var/www"));
        check(&none, "33:ssl", (33, 50, &[50], "/var/www"));
        check(&none, "1000", (1000, 0, &[0], "/"));
        check(&none, "1000:7", (1000, 7, &[7], "/"));
        check(&context(Some(33), None), "root", (33, 34, &[34, 50], "/var/www"));
        check(&context(Some(1000), Some(2000)), "web", (1000, 2000, &[2000], "/"));
    }

    #[test]
    fn supplemental_groups() {
        let mut context = context(Some(33), None);
        context.supplemental_groups = vec![7, 50];
        check(&context, "", (33, 34, &[7, 34, 50], "/var/www"));
        context.supplemental_groups_policy = SupplementalGroupsPolicy::Strict as i32;
        context.supplemental_groups = vec![7];
        check(&context, "", (33, 34, &[7, 34], "/var/www"));
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let error =
            |context: &LinuxContainerSecurityContext, image: &str| plan(context, image, &files()).unwrap_err().0;
        assert_eq!(
            error(&context(None, None), "nobody"),
            "unable to find user nobody: no matching entries in passwd file"
        );
        assert_eq!(
            error(&context(None, None), "web:x"),
            "unable to find group x: no matching entries in group file"
        );
        assert_eq!(
            error(&context(None, Some(5)), ""),
            "user group \"5\" is specified without user"
        );
    }
}
