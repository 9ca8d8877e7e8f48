//! Links of a lab: rates, faults, and that nothing stays behind. As root, with what lab/install.sh installs.

#![allow(clippy::unwrap_used, clippy::panic)] // Tests say what they expect.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use linerate_lab::{Host, Lab, LinkSpec, netns, wait};

const LONG: Duration = Duration::from_secs(60);

fn reaches(from: &Host, to: &Host, link: usize) -> bool {
    let mut command = from.command("busybox");
    command.args(["ping", "-c", "1", "-W", "2", &to.address(link).to_string()]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

fn until_reaches(from: &Host, to: &Host, link: usize) {
    wait::until("an answer to ping", LONG, String::new, || Ok(reaches(from, to, link).then_some(())))
        .unwrap();
}

/// The shaper of what a host sends on a link, as tc reports it.
#[derive(Debug)]
struct Shaper {
    bytes_per_s: u64,
    burst_bytes: u64,
    sent_bytes: u64,
}

fn shaper(host: &Host, link: usize) -> Shaper {
    let mut tc = host.command("tc");
    let output = tc.args(["-s", "-j", "qdisc", "show", "dev", &host.device(link)]).output().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let root = &found[0];
    assert_eq!((&root["kind"], &root["root"]), (&"tbf".into(), &true.into()), "{found}");
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{found}"));
    Shaper {
        bytes_per_s: number(&root["options"]["rate"]),
        burst_bytes: number(&root["options"]["burst"]),
        sent_bytes: number(&root["bytes"]),
    }
}

/// Sends that many bytes from one host to another by TCP; what it took until all had arrived.
fn send(from: &Host, to: &Host, link: usize, bytes: usize) -> Duration {
    let address = (to.address(link), 0);
    let listener = to.inside(move || Ok(TcpListener::bind(address).unwrap())).unwrap();
    let address = listener.local_addr().unwrap();
    let mut there = from.inside(move || Ok(TcpStream::connect(address).unwrap())).unwrap();
    let (mut here, _) = listener.accept().unwrap();
    here.set_read_timeout(Some(LONG)).unwrap();
    let began = Instant::now();
    let sending = std::thread::spawn(move || there.write_all(&vec![7; bytes]).unwrap());
    let arrived = std::io::copy(&mut here, &mut std::io::sink()).unwrap();
    let took = began.elapsed();
    sending.join().unwrap();
    assert_eq!(arrived, bytes as u64);
    took
}

/// What one host sends to the other goes through a shaper of this rate, and no faster than it lets through. How much
/// slower it goes depends on what else the machine does.
fn carries(lab: &Lab, from: usize, to: usize, link: usize, mbps: u64) {
    const BYTES: usize = 8 << 20;
    let (from, to) = (lab.host(from).unwrap(), lab.host(to).unwrap());
    until_reaches(from, to, link);
    let before = shaper(from, link);
    let rate = mbps * 1_000_000 / 8;
    assert_eq!(before.bytes_per_s, rate, "{before:?}");
    // For 4 ms at least: with less, a busy machine cannot use the rate.
    assert!(before.burst_bytes >= rate / 250, "{before:?}");
    let took = send(from, to, link, BYTES);
    let through = shaper(from, link).sent_bytes - before.sent_bytes;
    assert!(through >= BYTES as u64, "{through} bytes went through the shaper");
    // A full bucket passes at once; twice that is allowed for.
    let least = Duration::from_secs_f64((BYTES as u64 - 2 * before.burst_bytes) as f64 / rate as f64);
    assert!(took >= least, "{BYTES} bytes in {took:?}, faster than {mbps} Mb/s");
}

#[test]
fn a_link_has_a_shaper_of_its_rate_in_each_direction_and_carries_no_more() {
    let links = LinkSpec::parse_list("1000/200,1000", 9000).unwrap();
    let lab = Lab::builder().links(links).build().unwrap();
    carries(&lab, 0, 1, 0, 1000);
    carries(&lab, 1, 0, 0, 200);
    lab.slow(1, 100).unwrap();
    carries(&lab, 0, 1, 1, 100);
    carries(&lab, 1, 0, 1, 100);
    lab.restore(1).unwrap();
    carries(&lab, 0, 1, 1, 1000);
    carries(&lab, 1, 0, 1, 1000);
}

fn faults_and_repair(hosts: usize) {
    let lab = Lab::builder().hosts(hosts).links([LinkSpec::shaped(1000); 2]).build().unwrap();
    let (a, b) = (&lab.hosts()[0], &lab.hosts()[hosts - 1]);
    until_reaches(a, b, 0);
    lab.cut(0).unwrap();
    assert!(!reaches(a, b, 0), "it is cut");
    // Only that one.
    until_reaches(a, b, 1);
    lab.restore(0).unwrap();
    until_reaches(a, b, 0);
    lab.drop_silently(0).unwrap();
    assert!(!reaches(a, b, 0) && !reaches(b, a, 0));
    until_reaches(a, b, 1);
    let carrier = a.command("cat").arg("/sys/class/net/l0/carrier").output().unwrap();
    assert_eq!(carrier.stdout, b"1\n", "a silent cut leaves the port up");
    lab.restore(0).unwrap();
    until_reaches(a, b, 0);
}

#[test]
fn faults_and_repair_of_two_hosts() {
    faults_and_repair(2);
}

#[test]
fn faults_and_repair_of_switched_hosts() {
    faults_and_repair(3);
}

#[test]
fn a_one_way_cut_loses_one_direction() {
    let lab = Lab::builder().link(LinkSpec::shaped(1000)).build().unwrap();
    let socket = |host: &Host| {
        let address = (host.address(0), 9);
        let socket = host.inside(move || Ok(UdpSocket::bind(address).unwrap())).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        socket
    };
    let (a, b) = (socket(&lab.hosts()[0]), socket(&lab.hosts()[1]));
    let count = std::cell::Cell::new(0_u64);
    let passes = |from: &UdpSocket, to: &UdpSocket| {
        count.set(count.get() + 1);
        let sent = count.get().to_be_bytes();
        from.send_to(&sent, to.local_addr().unwrap()).unwrap();
        let mut got = [0; 8];
        // One of an earlier try may come late.
        while to.recv_from(&mut got).is_ok() {
            if got == sent {
                return true;
            }
        }
        false
    };
    let until_passes = |from: &UdpSocket, to: &UdpSocket| {
        let arrives = || Ok(passes(from, to).then_some(()));
        wait::until("a datagram", LONG, String::new, arrives).unwrap();
    };
    until_passes(&a, &b);
    until_passes(&b, &a);
    lab.cut_one_way(0, 0).unwrap();
    assert!(!passes(&a, &b), "what a sends is lost");
    // What b sends arrives.
    until_passes(&b, &a);
    lab.restore(0).unwrap();
    until_passes(&a, &b);
    until_passes(&b, &a);
}

fn traces(name: &str) -> Vec<String> {
    let namespaces =
        netns::list().unwrap().into_iter().filter(|found| found.starts_with(&format!("{name}-")));
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(&format!("/{name}/"))).map(str::to_owned);
    let directory = linerate_lab::lab::root().join(name);
    let directory = directory.exists().then(|| directory.display().to_string());
    let claims = std::fs::read_dir(linerate_lab::lab::root().join("octets")).unwrap().flatten();
    let claims =
        claims.filter(|claim| std::fs::read_to_string(claim.path()).is_ok_and(|owner| owner == name));
    let claims = claims.map(|claim| claim.path().display().to_string());
    namespaces.chain(mounts).chain(directory).chain(claims).collect()
}

#[test]
fn only_links_have_addresses() {
    let lab = Lab::builder().links([LinkSpec::unshaped(); 2]).build().unwrap();
    let host = &lab.hosts()[1];
    host.add_tap("tap0").unwrap();
    until_reaches(&lab.hosts()[0], host, 1);
    let output = host.command("ip").args(["-j", "addr"]).output().unwrap();
    let devices: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let addressed = devices
        .as_array()
        .unwrap()
        .iter()
        .filter(|device| !device["addr_info"].as_array().unwrap().is_empty());
    let mut names: Vec<&str> = addressed.map(|device| device["ifname"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["l0", "l1", "lo"], "the guest LAN must not look like a link");
}

#[test]
fn what_is_not_there_is_an_error() {
    let lab = Lab::builder().link(LinkSpec::unshaped()).build().unwrap();
    assert!(lab.cut(1).is_err() && lab.restore(1).is_err() && lab.slow(1, 10).is_err());
    assert!(lab.cut_one_way(0, 2).is_err() && lab.drop_silently(1).is_err());
    assert!(Lab::attach("lr1-999999").is_err());
    assert!(Lab::builder().build().is_err(), "no links");
    assert!(Lab::builder().hosts(1).link(LinkSpec::unshaped()).build().is_err());
}

#[test]
fn removing_a_lab_leaves_nothing() {
    let lab = Lab::builder().hosts(3).link(LinkSpec::unshaped()).build().unwrap();
    let name = lab.name().to_owned();
    lab.hosts()[0].add_tap("tap0").unwrap();
    // A program without a handle in this process, with a file open in the RAM directory.
    let ram = lab.hosts()[0].ram_directory().join("file");
    let mut command = lab.hosts()[0].command("sh");
    let mut orphan = command.arg("-c").arg(format!("exec sleep 1000 >{}", ram.display())).spawn().unwrap();
    wait::until("the program's file", LONG, String::new, || Ok(ram.exists().then_some(()))).unwrap();
    assert!(
        traces(&name).len() >= 9,
        "3 hosts, switch, observer, 3 mounts, directory, claim: {:?}",
        traces(&name)
    );
    drop(lab);
    assert_eq!(traces(&name), Vec::<String>::new());
    assert!(!orphan.wait().unwrap().success(), "the program was killed");
}

#[test]
fn a_killed_maker_is_swept_up_after() {
    let binary = env!("CARGO_BIN_EXE_linerate-lab");
    let mut maker = Command::new(binary).args(["up", "--links", "1"]).stdout(Stdio::piped()).spawn().unwrap();
    let name = format!("lr{}-0", maker.id());
    // It says so when all of it is made: what a killed maker had begun to make would be made after the sweep.
    let mut output = BufReader::new(maker.stdout.take().unwrap());
    let mut first_line = String::new();
    output.read_line(&mut first_line).unwrap();
    let swept_alive = linerate_lab::sweep();
    let alive = traces(&name).len();
    maker.kill().unwrap();
    maker.wait().unwrap();
    let swept = linerate_lab::sweep();
    assert!(first_line.contains(&name), "the lab was not made: {first_line}");
    assert!(!swept_alive.unwrap().contains(&name) && alive >= 6, "the lab of a running maker stays");
    assert!(swept.unwrap().contains(&name));
    assert_eq!(traces(&name), Vec::<String>::new());
}
