//! Ports of pods on this machine, by kubectl.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use orlop_testkit::Server;

/// `kubectl port-forward` to a port of its own choice.
pub(crate) struct Forward {
    child: Child,
    port: u16,
}

impl Forward {
    pub(crate) fn start(server: &Server, what: &str, port: u16) -> Forward {
        let mut command = server.command(&format!("kubectl port-forward {what} :{port}"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        let mut byte = [0];
        while !said.contains(" -> ") && stdout.read(&mut byte).unwrap() == 1 {
            said.push(byte[0] as char);
        }
        // Forwarding from 127.0.0.1:40123 -> 8080
        let port = said
            .rsplit(':')
            .next()
            .and_then(|rest| rest.split(' ').next())
            .and_then(|n| n.parse().ok());
        let port = port.unwrap_or_else(|| panic!("kubectl port-forward said {said:?}"));
        Forward { child, port }
    }

    pub(crate) fn fetch_bytes(&self, path: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = vec![];
        stream.read_to_end(&mut answer).unwrap();
        let end = answer
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
            .expect("an HTTP answer");
        answer.split_off(end + 4)
    }

    pub(crate) fn fetch(&self, path: &str) -> String {
        String::from_utf8(self.fetch_bytes(path)).unwrap()
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
