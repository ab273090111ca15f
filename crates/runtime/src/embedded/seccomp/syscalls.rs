//! Names and numbers of system calls, as data.

/// Architectures that programs on this machine may be made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Architecture {
    X86_64,
    X86,
    Aarch64,
    Arm,
}

const TABLE: &str = include_str!("syscalls.csv");

impl Architecture {
    /// By the name that profiles use.
    pub(super) fn parse(name: &str) -> Option<Architecture> {
        match name {
            "SCMP_ARCH_X86_64" => Some(Architecture::X86_64),
            "SCMP_ARCH_X86" => Some(Architecture::X86),
            "SCMP_ARCH_AARCH64" => Some(Architecture::Aarch64),
            "SCMP_ARCH_ARM" => Some(Architecture::Arm),
            _ => None,
        }
    }

    /// The architecture of the kernel, and older ones whose programs it runs too.
    pub(crate) fn native() -> Vec<Architecture> {
        match cfg!(target_arch = "aarch64") {
            true => vec![Architecture::Aarch64, Architecture::Arm],
            false => vec![Architecture::X86_64, Architecture::X86],
        }
    }

    /// `AUDIT_ARCH_*`
    pub(super) fn audit(self) -> u32 {
        match self {
            Architecture::X86_64 => 0xc000_003e,
            Architecture::X86 => 0x4000_0003,
            Architecture::Aarch64 => 0xc000_00b7,
            Architecture::Arm => 0x4000_0028,
        }
    }

    fn column(self) -> usize {
        match self {
            Architecture::X86_64 => 1,
            Architecture::X86 => 2,
            Architecture::Aarch64 => 3,
            Architecture::Arm => 4,
        }
    }

    /// All calls, by name.
    pub(super) fn calls(self) -> impl Iterator<Item = (&'static str, u32)> {
        TABLE
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(move |line| {
                let mut fields = line.split(',');
                let name = fields.next()?;
                Some((name, fields.nth(self.column() - 1)?.parse().ok()?))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_kernels() {
        let number = |arch: Architecture, name: &str| arch.calls().find(|(n, _)| *n == name).map(|(_, nr)| nr);
        assert_eq!(number(Architecture::X86_64, "execve"), Some(59));
        assert_eq!(number(Architecture::X86, "execve"), Some(11));
        assert_eq!(number(Architecture::Aarch64, "execve"), Some(221));
        assert_eq!(number(Architecture::Aarch64, "fork"), None);
        #[cfg(target_arch = "x86_64")]
        for (name, nr) in [
            ("openat2", nix::libc::SYS_openat2),
            ("mount_setattr", nix::libc::SYS_mount_setattr),
        ] {
            assert_eq!(number(Architecture::X86_64, name), Some(nr as u32));
        }
        for arch in [
            Architecture::X86_64,
            Architecture::X86,
            Architecture::Aarch64,
            Architecture::Arm,
        ] {
            assert!(arch.calls().count() > 300);
        }
    }
}
