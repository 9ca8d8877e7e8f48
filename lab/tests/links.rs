//! Links of a lab: rates, faults, and that nothing stays behind. As root, with what lab/install.sh installs.

#![allow(clippy::unwrap_used, clippy::panic)] // Tests say what they expect.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use linerate_lab::{Host, Lab, LinkSpec, Process, netns, wait};

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

/// Mb/s that iperf3 moves from one host to another.
fn throughput(lab: &Lab, from: usize, to: usize, link: usize) -> f64 {
    let (from, to) = (lab.host(from).unwrap(), lab.host(to).unwrap());
    let address = to.address(link).to_string();
    let mut server = to.command("iperf3");
    server.args(["-s", "-1", "-B", &address]);
    let _server = Process::start("iperf3", server, &lab.directory().join("iperf3.log")).unwrap();
    // Until the server listens the client ends with an error document, and not always with an error code.
    let rate = wait::until("iperf3's result", LONG, String::new, || {
        let mut client = from.command("iperf3");
        let output = client.args(["-c", &address, "-t", "2", "-O", "1", "-J"]).output().unwrap();
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        Ok(result["end"]["sum_received"]["bits_per_second"].as_f64())
    });
    rate.unwrap() / 1e6
}

#[test]
fn a_link_carries_its_rate_in_each_direction() {
    let links = LinkSpec::parse_list("1000/200,1000", 9000).unwrap();
    let lab = Lab::builder().links(links).build().unwrap();
    // Wide bounds: it is the shaper that is checked, on machines that are busy with other things.
    let there = throughput(&lab, 0, 1, 0);
    assert!((400.0..1100.0).contains(&there), "{there}");
    let back = throughput(&lab, 1, 0, 0);
    assert!((80.0..230.0).contains(&back), "{back}");
    lab.slow(1, 100).unwrap();
    let slow = throughput(&lab, 0, 1, 1);
    assert!((30.0..120.0).contains(&slow), "{slow}");
    lab.restore(1).unwrap();
    let restored = throughput(&lab, 0, 1, 1);
    assert!((300.0..1100.0).contains(&restored), "{restored}");
}

fn faults_and_repair(hosts: usize) {
    let lab = Lab::builder().hosts(hosts).links([LinkSpec::shaped(1000); 2]).build().unwrap();
    let (a, b) = (&lab.hosts()[0], &lab.hosts()[hosts - 1]);
    until_reaches(a, b, 0);
    lab.cut(0).unwrap();
    assert!(!reaches(a, b, 0) && reaches(a, b, 1), "only the cut link is cut");
    lab.restore(0).unwrap();
    until_reaches(a, b, 0);
    lab.drop_silently(0).unwrap();
    assert!(!reaches(a, b, 0) && !reaches(b, a, 0) && reaches(a, b, 1));
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
    use std::net::UdpSocket;
    let lab = Lab::builder().link(LinkSpec::shaped(1000)).build().unwrap();
    let socket = |host: &Host| {
        let address = (host.address(0), 9);
        let socket = host.inside(move || Ok(UdpSocket::bind(address).unwrap())).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        socket
    };
    let (a, b) = (socket(&lab.hosts()[0]), socket(&lab.hosts()[1]));
    let passes = |from: &UdpSocket, to: &UdpSocket| {
        let mut bytes = [0; 8];
        from.send_to(b"x", to.local_addr().unwrap()).unwrap();
        to.recv_from(&mut bytes).is_ok()
    };
    assert!(passes(&a, &b) && passes(&b, &a));
    lab.cut_one_way(0, 0).unwrap();
    assert!(!passes(&a, &b), "what a sends is lost");
    assert!(passes(&b, &a), "what b sends arrives");
    lab.restore(0).unwrap();
    assert!(passes(&a, &b) && passes(&b, &a));
}

fn traces(name: &str) -> Vec<String> {
    let namespaces = netns::list().into_iter().filter(|found| found.starts_with(&format!("{name}-")));
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
