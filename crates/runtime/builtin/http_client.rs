//! `get URL`, and as much of `wget` and `curl` as exercises use. Plain http only: there are no certificates in the image.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::{ExitCode, dns, eprintln, os, sys, text};

const MAX_REDIRECTS: usize = 5;
const MAX_HEAD: usize = 64 << 10;

struct Request {
    url: String,
    method: String,
    headers: Vec<String>,
    data: Option<String>,
    timeout_ms: u64,
}

impl Request {
    fn new() -> Request {
        Request {
            url: String::new(),
            method: "GET".to_string(),
            headers: Vec::new(),
            data: None,
            timeout_ms: 30_000,
        }
    }
}

struct Response {
    status: u16,
    head: String,
    body: Vec<u8>,
}

/// The answer of a server, through redirects.
fn fetch(request: &Request) -> Result<Response, String> {
    let mut url = request.url.clone();
    for _ in 0..=MAX_REDIRECTS {
        let response = fetch_once(request, &url)?;
        let location = response.head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("location").then(|| value.trim().to_string())
        });
        match location {
            Some(to) if (300..400).contains(&response.status) => {
                url = match to.starts_with('/') {
                    true => format!("http://{}{to}", split_url(&url)?.0),
                    false => to,
                };
            }
            _ => return Ok(response),
        }
    }
    Err("too many redirects".to_string())
}

/// Host with port, and path.
fn split_url(url: &str) -> Result<(&str, String), String> {
    let rest = match url.split_once("://") {
        Some(("http", rest)) => rest,
        Some((scheme, _)) => return Err(format!("{scheme} is not supported: this tool speaks plain http only")),
        None => url,
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let path = match &rest[end..] {
        "" => "/".to_string(),
        query if query.starts_with('?') => format!("/{query}"),
        path => path.to_string(),
    };
    match rest[..end].is_empty() {
        true => Err(format!("invalid URL {url:?}")),
        false => Ok((&rest[..end], path)),
    }
}

fn split_port(authority: &str) -> Result<(&str, u16), String> {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => match port.parse() {
            Ok(port) => Ok((host, port)),
            Err(_) => Err(format!("invalid port {port:?}")),
        },
        _ => Ok((authority, 80)),
    }
}

fn fetch_once(request: &Request, url: &str) -> Result<Response, String> {
    let (authority, path) = split_url(url)?;
    let (host, port) = split_port(authority)?;
    let deadline = sys::monotonic_ms() + request.timeout_ms;
    let addresses = dns::resolve(host).map_err(|why| format!("bad address {host:?}: {why}"))?;
    let mut last = sys::ENOENT;
    for ip in addresses {
        let address = SocketAddr::new(ip, port);
        match connect(&address, deadline) {
            Ok(fd) => {
                let response = exchange(fd, request, authority, &path, deadline);
                sys::close(fd);
                return response;
            }
            Err(why) => last = why,
        }
    }
    Err(format!("can't connect to remote host ({authority}): {last}"))
}

fn wait(fd: i32, events: i16, deadline: u64) -> sys::Result<()> {
    let left = deadline.saturating_sub(sys::monotonic_ms());
    let mut waiting = [sys::PollFd { fd, events, revents: 0 }];
    match left > 0 && sys::poll(&mut waiting, Some(left))? > 0 {
        true => Ok(()),
        false => Err(sys::ETIMEDOUT),
    }
}

fn connect(address: &SocketAddr, deadline: u64) -> sys::Result<i32> {
    let fd = sys::socket_for(address, sys::SOCK_STREAM)?;
    let connected = match sys::connect(fd, address) {
        Err(sys::EINPROGRESS) => wait(fd, sys::POLLOUT, deadline).and_then(|()| sys::socket_error(fd)),
        other => other,
    };
    match connected {
        Ok(()) => Ok(fd),
        Err(why) => {
            sys::close(fd);
            Err(why)
        }
    }
}

fn exchange(fd: i32, request: &Request, authority: &str, path: &str, deadline: u64) -> Result<Response, String> {
    let mut head = format!(
        "{} {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n",
        request.method
    );
    let given = |name: &str| request.headers.iter().any(|h| h.to_ascii_lowercase().starts_with(name));
    if !given("user-agent:") {
        head.push_str("User-Agent: orlop-echo\r\nAccept: */*\r\n");
    }
    for header in &request.headers {
        head.push_str(&format!("{header}\r\n"));
    }
    if let Some(data) = &request.data {
        head.push_str(&format!("Content-Length: {}\r\n", data.len()));
        if !given("content-type:") {
            head.push_str("Content-Type: application/x-www-form-urlencoded\r\n");
        }
    }
    head.push_str("\r\n");
    head.push_str(request.data.as_deref().unwrap_or_default());
    let failed = |why: sys::Errno| format!("{authority}: {why}");
    let mut rest = head.as_bytes();
    while !rest.is_empty() {
        match sys::send(fd, rest) {
            Ok(count) => rest = &rest[count..],
            Err(sys::EAGAIN) => wait(fd, sys::POLLOUT, deadline).map_err(failed)?,
            Err(why) => return Err(failed(why)),
        }
    }
    read_response(fd, request.method == "HEAD", deadline).map_err(|why| format!("{authority}: {why}"))
}

fn read_response(fd: i32, head_only: bool, deadline: u64) -> Result<Response, String> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = find(&bytes, b"\r\n\r\n") {
            break at;
        }
        if bytes.len() > MAX_HEAD || !read_more(fd, &mut bytes, deadline)? {
            return Err("server returned no HTTP response".to_string());
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .ok_or("invalid status line")?;
    let header = |name: &str| {
        let found = head.lines().filter_map(|line| line.split_once(':'));
        found
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.trim().to_string())
            .next()
    };
    let length = header("content-length").and_then(|v| v.parse::<usize>().ok());
    let chunked = header("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked"));
    let mut body = bytes[end + 4..].to_vec();
    if !head_only && status != 204 && status != 304 {
        while length.is_none_or(|length| body.len() < length) {
            if chunked && unchunk(&body).is_some() {
                break;
            }
            if !read_more(fd, &mut body, deadline)? {
                break;
            }
        }
    }
    if chunked {
        body = unchunk(&body).ok_or("response is cut off")?;
    }
    if length.is_some_and(|length| !head_only && body.len() < length) {
        return Err("response is cut off".to_string());
    }
    Ok(Response { status, head, body })
}

fn read_more(fd: i32, bytes: &mut Vec<u8>, deadline: u64) -> Result<bool, String> {
    let mut buffer = [0; 8192];
    loop {
        match sys::read(fd, &mut buffer) {
            Ok(count) => {
                bytes.extend_from_slice(&buffer[..count]);
                return Ok(count > 0);
            }
            Err(sys::EAGAIN) => wait(fd, sys::POLLIN, deadline).map_err(|why| why.to_string())?,
            Err(why) => return Err(why.to_string()),
        }
    }
}

pub fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// The content of a body in chunks, once it is whole.
pub fn unchunk(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let end = find(bytes, b"\r\n")?;
        let size = core::str::from_utf8(&bytes[..end]).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        bytes = &bytes[end + 2..];
        if size == 0 {
            return Some(content);
        }
        content.extend_from_slice(bytes.get(..size)?);
        bytes = bytes.get(size.checked_add(2)?..)?;
    }
}

/// `get URL`: the body, and 1 if the server said that something is wrong.
pub fn get(arguments: &[String]) -> ExitCode {
    let Some(url) = arguments.first() else {
        eprintln!("usage: get URL");
        return 2;
    };
    let request = Request {
        url: url.clone(),
        ..Request::new()
    };
    match fetch(&request) {
        Ok(response) => {
            let _ = os::write_all(1, &response.body);
            ExitCode::from(response.status >= 400)
        }
        Err(why) => {
            eprintln!("get: {why}");
            1
        }
    }
}

/// `-T5`, `-T 5`, `--timeout=5`, `--timeout 5`: the value of an option, if this is it.
fn option_value<'a>(argument: &'a str, names: &[&str], rest: &mut core::slice::Iter<'a, String>) -> Option<&'a str> {
    for name in names {
        let Some(after) = argument.strip_prefix(name) else {
            continue;
        };
        if after.is_empty() {
            return Some(rest.next().map_or("", String::as_str));
        }
        if let Some(value) = after.strip_prefix('=') {
            return Some(value);
        }
        if !name.starts_with("--") {
            return Some(after);
        }
    }
    None
}

/// `wget [-q] [-S] [-O FILE] [-T SECONDS] [--spider] [--header=H] [--post-data=D] URL`.
pub fn wget(arguments: &[String]) -> ExitCode {
    let mut request = Request::new();
    let (mut quiet, mut spider, mut show_head) = (false, false, false);
    let mut output = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        // `-qO-` is what everybody writes.
        let argument = match argument.strip_prefix("-q") {
            Some(more) => {
                quiet = true;
                if more.is_empty() {
                    continue;
                }
                format!("-{more}").leak()
            }
            None => argument.as_str(),
        };
        if let Some(value) = option_value(argument, &["-O", "--output-document"], &mut rest) {
            output = Some(value.to_string());
        } else if let Some(value) = option_value(argument, &["-T", "--timeout"], &mut rest) {
            request.timeout_ms = text::duration_ms(value).unwrap_or(30_000);
        } else if let Some(value) = option_value(argument, &["--header"], &mut rest) {
            request.headers.push(value.to_string());
        } else if let Some(value) = option_value(argument, &["--post-data"], &mut rest) {
            request.method = "POST".to_string();
            request.data = Some(value.to_string());
        } else if option_value(argument, &["-t", "--tries", "-U", "--user-agent"], &mut rest).is_some() {
        } else {
            match argument {
                "--spider" => spider = true,
                "-S" | "--server-response" => show_head = true,
                "--no-check-certificate" | "-nv" | "--quiet" => quiet = true,
                option if option.starts_with('-') => {
                    eprintln!("wget: unsupported option {option}");
                    return 2;
                }
                url => request.url = url.to_string(),
            }
        }
    }
    if request.url.is_empty() {
        eprintln!("usage: wget [-q] [-S] [-O FILE] [-T SECONDS] [--spider] [--header=H] [--post-data=D] URL");
        return 2;
    }
    let response = match fetch(&request) {
        Ok(response) => response,
        Err(why) => {
            eprintln!("wget: {why}");
            return 1;
        }
    };
    if show_head {
        eprintln!("{}", response.head);
    }
    if response.status >= 400 {
        let line = response.head.lines().next().unwrap_or_default();
        eprintln!("wget: server returned error: {line}");
        return 1;
    }
    if spider {
        if !quiet {
            eprintln!("remote file exists");
        }
        return 0;
    }
    let file = output.unwrap_or_else(|| file_name(&request.url));
    save("wget", &file, &response.body)
}

/// The last part of a URL's path, as wget names its files.
fn file_name(url: &str) -> String {
    let path = split_url(url).map(|(_, path)| path).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    match path.rsplit('/').next() {
        Some(name) if !name.is_empty() => name.to_string(),
        _ => "index.html".to_string(),
    }
}

fn save(tool: &str, file: &str, body: &[u8]) -> ExitCode {
    let fd = match file {
        "-" => Ok(1),
        path => sys::open(path.as_bytes(), sys::O_WRONLY | sys::O_CREAT | sys::O_TRUNC, 0o644),
    };
    match fd.and_then(|fd| os::write_all(fd, body)) {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("{tool}: {file}: {why}");
            1
        }
    }
}

/// `curl [-s] [-f] [-i] [-I] [-o FILE] [-m SECONDS] [-X METHOD] [-H HEADER] [-d DATA] [-w '%{http_code}'] URL`.
pub fn curl(arguments: &[String]) -> ExitCode {
    let mut request = Request::new();
    let (mut with_head, mut fail, mut silent) = (false, false, false);
    let (mut output, mut report) = (String::from("-"), None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let argument = argument.as_str();
        if let Some(value) = option_value(argument, &["-m", "--max-time", "--connect-timeout"], &mut rest) {
            request.timeout_ms = text::duration_ms(value).unwrap_or(30_000);
        } else if let Some(value) = option_value(argument, &["-o", "--output"], &mut rest) {
            output = value.to_string();
        } else if let Some(value) = option_value(argument, &["-X", "--request"], &mut rest) {
            request.method = value.to_string();
        } else if let Some(value) = option_value(argument, &["-H", "--header"], &mut rest) {
            request.headers.push(value.to_string());
        } else if let Some(value) = option_value(argument, &["-d", "--data"], &mut rest) {
            if request.method == "GET" {
                request.method = "POST".to_string();
            }
            request.data = Some(value.to_string());
        } else if let Some(value) = option_value(argument, &["-w", "--write-out"], &mut rest) {
            report = Some(value.replace("\\n", "\n"));
        } else if let Some(letters) = argument.strip_prefix('-') {
            for letter in letters.chars() {
                match letter {
                    's' | 'S' | 'L' | 'k' | '4' | '6' | 'v' => silent = true,
                    'i' => with_head = true,
                    'I' => (request.method, with_head) = ("HEAD".to_string(), true),
                    'f' => fail = true,
                    // The last letter of several may be one with a value.
                    'o' => output = rest.next().cloned().unwrap_or_default(),
                    'w' => report = rest.next().map(|value| value.replace("\\n", "\n")),
                    _ => {
                        eprintln!("curl: unsupported option {argument}");
                        return 2;
                    }
                }
            }
        } else {
            request.url = argument.to_string();
        }
    }
    if request.url.is_empty() {
        eprintln!("usage: curl [-s] [-f] [-i] [-I] [-o FILE] [-m SECONDS] [-X METHOD] [-H HEADER] [-d DATA] URL");
        return 2;
    }
    let response = match fetch(&request) {
        Ok(response) => response,
        Err(why) => {
            eprintln!("curl: {why}");
            return 7;
        }
    };
    if fail && response.status >= 400 {
        if !silent {
            eprintln!("curl: the requested URL returned error: {}", response.status);
        }
        return 22;
    }
    let mut shown = Vec::new();
    if with_head {
        shown.extend_from_slice(response.head.as_bytes());
        shown.extend_from_slice(b"\r\n\r\n");
    }
    shown.extend_from_slice(&response.body);
    let code = save("curl", &output, &shown);
    if let Some(report) = report {
        crate::print!("{}", report.replace("%{http_code}", &response.status.to_string()));
    }
    code
}
