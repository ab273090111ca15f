//! People other than the admin: client certificates signed by the cluster's CA, and tokens.

use std::path::{Path, PathBuf};

use crate::Server;

/// Someone with a kubeconfig of their own.
#[derive(Debug)]
pub struct User {
    pub kubeconfig: PathBuf,
}

impl Server {
    /// A user with a client certificate: the common name is the name, each organisation a group.
    pub fn user(&self, name: &str, groups: &[&str]) -> User {
        let subject: String = std::iter::once(format!("/CN={name}"))
            .chain(groups.iter().map(|g| format!("/O={g}")))
            .collect();
        let pki = self.data_dir().join("pki");
        let file = name.replace([':', '/'], "-");
        self.run(&format!(
            "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {file}.key
             openssl req -new -key {file}.key -subj '{subject}' -out {file}.csr
             printf 'extendedKeyUsage=clientAuth\\n' > {file}.ext
             openssl x509 -req -in {file}.csr -CA {ca}/ca.crt -CAkey {ca}/ca.key -CAcreateserial \
               -CAserial {file}.srl -days 1 -extfile {file}.ext -out {file}.crt",
            ca = pki.display()
        ));
        self.kubeconfig_of(
            &file,
            &format!("--client-certificate={file}.crt --client-key={file}.key --embed-certs=true"),
        )
    }

    /// `curl` with the admin's certificate: the start of a command line.
    pub fn curl(&self) -> String {
        let identity = self.identity();
        let (certificate, key) = identity.certificate.expect("the admin has a certificate");
        for (name, bytes) in [
            ("ca.crt", &identity.ca),
            ("admin.crt", &certificate),
            ("admin.key", &key),
        ] {
            std::fs::write(self.home().join(name), bytes).expect("our own directory");
        }
        "curl -sS --cacert ca.crt --cert admin.crt --key admin.key".to_string()
    }

    /// The bearer of a token.
    pub fn bearer(&self, name: &str, token: &str) -> User {
        self.kubeconfig_of(name, &format!("--token={token}"))
    }

    fn kubeconfig_of(&self, name: &str, credentials: &str) -> User {
        let kubeconfig = self.home().join(format!("{name}.kubeconfig"));
        std::fs::copy(self.kubeconfig(), &kubeconfig).expect("the admin's kubeconfig is there");
        let config = format!("kubectl config --kubeconfig={}", kubeconfig.display());
        self.run(&format!(
            "{config} set-credentials {name} {credentials}
             {config} set-context --current --user={name}"
        ));
        User { kubeconfig }
    }

    /// A command line as this user.
    pub fn sh_as(&self, user: &User, line: &str) -> crate::Ran {
        self.sh_as_with(&user.kubeconfig, line, "")
    }

    fn sh_as_with(&self, kubeconfig: &Path, line: &str, stdin: &str) -> crate::Ran {
        crate::shell::run(crate::shell::command(line, self.home(), kubeconfig), line, stdin)
    }

    /// A command that this user may run.
    #[track_caller]
    pub fn run_as(&self, user: &User, line: &str) -> String {
        self.sh_as(user, line).ok()
    }

    /// A command that this user is refused.
    #[track_caller]
    pub fn fails_as(&self, user: &User, line: &str) -> String {
        self.sh_as(user, line).fails()
    }

    #[track_caller]
    pub fn run_as_with(&self, user: &User, line: &str, stdin: &str) -> String {
        self.sh_as_with(&user.kubeconfig, line, stdin).ok()
    }

    #[track_caller]
    pub fn fails_as_with(&self, user: &User, line: &str, stdin: &str) -> String {
        self.sh_as_with(&user.kubeconfig, line, stdin).fails()
    }
}
