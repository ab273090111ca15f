//! Names to addresses, as the C library would: `/etc/hosts`, then the servers and the search list of `/etc/resolv.conf`.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{ExitCode, eprintln, os, println, sys};

const A: u16 = 1;
const AAAA: u16 = 28;

struct Resolver {
    servers: Vec<SocketAddr>,
    search: Vec<String>,
    ndots: usize,
    timeout_ms: u64,
    attempts: u32,
}

/// What servers said about a name.
enum Answer {
    Addresses(Vec<IpAddr>),
    /// There is no such name, or it has no address.
    Nothing(&'static str),
    /// Nobody answered.
    Silence,
}

impl Resolver {
    fn read() -> Resolver {
        let mut resolver = Resolver {
            servers: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            timeout_ms: 5000,
            attempts: 2,
        };
        for line in os::read_text("/etc/resolv.conf").unwrap_or_default().lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let address = words.next().and_then(|a| a.parse::<IpAddr>().ok());
                    resolver.servers.extend(address.map(|ip| SocketAddr::new(ip, 53)));
                }
                Some("search" | "domain") => resolver.search = words.map(str::to_string).collect(),
                Some("options") => words.for_each(|option| resolver.set_option(option)),
                _ => {}
            }
        }
        resolver.servers.truncate(3);
        resolver
    }

    fn set_option(&mut self, option: &str) {
        match option.split_once(':') {
            Some(("ndots", n)) => self.ndots = n.parse().unwrap_or(1),
            Some(("timeout", n)) => self.timeout_ms = n.parse::<u64>().unwrap_or(5).clamp(1, 30) * 1000,
            Some(("attempts", n)) => self.attempts = n.parse().unwrap_or(2).clamp(1, 5),
            _ => {}
        }
    }

    /// The names that are asked for, in order.
    fn candidates(&self, name: &str) -> Vec<String> {
        if let Some(absolute) = name.strip_suffix('.') {
            return alloc::vec![absolute.to_string()];
        }
        let mut names: Vec<String> = self
            .search
            .iter()
            .map(|d| format!("{name}.{}", d.trim_end_matches('.')))
            .collect();
        match name.matches('.').count() >= self.ndots {
            true => names.insert(0, name.to_string()),
            false => names.push(name.to_string()),
        }
        names
    }

    fn lookup(&self, name: &str) -> Result<(String, Vec<IpAddr>), String> {
        if self.servers.is_empty() {
            return Err("no name server in /etc/resolv.conf".to_string());
        }
        let mut why = "no such host";
        for candidate in self.candidates(name) {
            let mut addresses = Vec::new();
            for kind in [A, AAAA] {
                match self.ask_all(&candidate, kind) {
                    Answer::Addresses(found) => addresses.extend(found),
                    Answer::Nothing(reason) => why = reason,
                    Answer::Silence => return Err("connection timed out; no servers could be reached".to_string()),
                }
            }
            if !addresses.is_empty() {
                return Ok((candidate, addresses));
            }
        }
        Err(why.to_string())
    }

    fn ask_all(&self, name: &str, kind: u16) -> Answer {
        for _ in 0..self.attempts {
            for server in &self.servers {
                match ask(server, name, kind, self.timeout_ms) {
                    Answer::Silence => {}
                    answer => return answer,
                }
            }
        }
        Answer::Silence
    }
}

fn ask(server: &SocketAddr, name: &str, kind: u16, timeout_ms: u64) -> Answer {
    let id = sys::random() as u16;
    let Some(query) = encode(id, name, kind) else {
        return Answer::Nothing("invalid name");
    };
    let Ok(fd) = sys::socket_for(server, sys::SOCK_DGRAM) else {
        return Answer::Silence;
    };
    let answer = exchange(fd, server, &query, kind, timeout_ms);
    sys::close(fd);
    answer
}

fn exchange(fd: i32, server: &SocketAddr, query: &[u8], kind: u16, timeout_ms: u64) -> Answer {
    // Connected, so that only this server can answer.
    if sys::connect(fd, server).is_err() || sys::write(fd, query).is_err() {
        return Answer::Silence;
    }
    let deadline = sys::monotonic_ms() + timeout_ms;
    let mut buffer = [0; 4096];
    loop {
        let left = deadline.saturating_sub(sys::monotonic_ms());
        let mut waiting = [sys::PollFd {
            fd,
            events: sys::POLLIN,
            revents: 0,
        }];
        if left == 0 || sys::poll(&mut waiting, Some(left)).is_err() {
            return Answer::Silence;
        }
        match sys::read(fd, &mut buffer) {
            Ok(count) if count >= 12 && buffer[..2] == query[..2] => return decode(&buffer[..count], kind),
            Ok(_) | Err(sys::EAGAIN) => {}
            // Nobody listens there.
            Err(_) => return Answer::Silence,
        }
    }
}

fn encode(id: u16, name: &str, kind: u16) -> Option<Vec<u8>> {
    let mut query = Vec::new();
    query.extend_from_slice(&id.to_be_bytes());
    // Recursion is desired; one question.
    query.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        if label.is_empty() || label.len() > 63 {
            return None;
        }
        query.push(label.len() as u8);
        query.extend_from_slice(label.as_bytes());
    }
    query.push(0);
    query.extend_from_slice(&kind.to_be_bytes());
    query.extend_from_slice(&[0, 1]);
    (query.len() <= 12 + 255 + 4).then_some(query)
}

fn decode(message: &[u8], kind: u16) -> Answer {
    match message[3] & 15 {
        0 => {}
        3 => return Answer::Nothing("NXDOMAIN"),
        2 => return Answer::Nothing("SERVFAIL"),
        5 => return Answer::Nothing("REFUSED"),
        _ => return Answer::Nothing("server error"),
    }
    let addresses = read_addresses(message, kind).unwrap_or_default();
    match addresses.is_empty() {
        true => Answer::Nothing("no answer"),
        false => Answer::Addresses(addresses),
    }
}

fn read_addresses(message: &[u8], kind: u16) -> Option<Vec<IpAddr>> {
    let word = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
    let (questions, answers) = (word(4)?, word(6)?);
    let mut at = 12;
    for _ in 0..questions {
        at = skip_name(message, at)? + 4;
    }
    let mut found = Vec::new();
    for _ in 0..answers {
        at = skip_name(message, at)?;
        let (record, length) = (word(at)?, usize::from(word(at + 8)?));
        let data = message.get(at + 10..at + 10 + length)?;
        if record == kind {
            match (kind, length) {
                (A, 4) => found.push(IpAddr::V4(Ipv4Addr::new(data[0], data[1], data[2], data[3]))),
                (AAAA, 16) => {
                    let octets: [u8; 16] = data.try_into().ok()?;
                    found.push(IpAddr::V6(Ipv6Addr::from(octets)));
                }
                _ => {}
            }
        }
        at += 10 + length;
    }
    Some(found)
}

fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length if length >= 0xc0 => return Some(at + 2),
            length => at += usize::from(length) + 1,
        }
    }
}

fn hosts_file(name: &str) -> Vec<IpAddr> {
    let text = os::read_text("/etc/hosts").unwrap_or_default();
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let found = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word == name).then_some(address)
    });
    found.collect()
}

/// The addresses of a host, which may be one already.
pub fn resolve(host: &str) -> Result<Vec<IpAddr>, String> {
    if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse() {
        return Ok(alloc::vec![address]);
    }
    let known = hosts_file(host);
    if !known.is_empty() {
        return Ok(known);
    }
    if host == "localhost" {
        return Ok(alloc::vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    }
    Resolver::read().lookup(host).map(|(_, addresses)| addresses)
}

/// `nslookup NAME [SERVER]`.
pub fn nslookup(arguments: &[String]) -> ExitCode {
    let Some(name) = arguments.first() else {
        eprintln!("usage: nslookup NAME [SERVER]");
        return 2;
    };
    let mut resolver = Resolver::read();
    if let Some(server) = arguments.get(1) {
        match resolve(server) {
            Ok(addresses) => resolver.servers = addresses.iter().map(|ip| SocketAddr::new(*ip, 53)).collect(),
            Err(why) => {
                eprintln!("nslookup: {server}: {why}");
                return 1;
            }
        }
    }
    if let Some(server) = resolver.servers.first() {
        println!("Server:\t\t{}\nAddress:\t{server}\n", server.ip());
    }
    match resolver.lookup(name) {
        Ok((name, addresses)) => {
            for address in addresses {
                println!("Name:\t{name}\nAddress: {address}");
            }
            0
        }
        Err(why) => {
            println!("** server can't find {name}: {why}");
            1
        }
    }
}
