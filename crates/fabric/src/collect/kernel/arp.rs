//! Questions to the networks of this host, by ARP: who else has its addresses (RFC 5227), and whether its gateways
//! answer.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::LinkAddr;
use socket2::{Domain, Protocol, Socket, Type};

use crate::model::{Gateway, Inventory, Port, PortKind, Taken};

const ARP: u16 = 0x0806;
const REQUEST: u16 = 1;
const REPLY: u16 = 2;
/// Requests follow each other after this.
const GAP: Duration = Duration::from_millis(70);
/// Time to wait for replies: another owner of an address answers within it.
const LISTEN: Duration = Duration::from_millis(280);
/// A gateway that is busy is given more time.
const PATIENCE: Duration = Duration::from_millis(450);
/// Ports that are asked at a time.
const PORTS_MAX: usize = 64;

type Mac = [u8; 6];

/// What to ask on one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Questions {
    port: String,
    mac: Mac,
    own: Vec<Ipv4Addr>,
    gateways: Vec<Ipv4Addr>,
}

/// The replies on one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    port: String,
    /// Who answered for an address.
    replies: BTreeMap<Ipv4Addr, Mac>,
    asked: bool,
}

/// Ports with an Ethernet address, a signal and something to ask.
pub fn questions(inventory: &Inventory) -> Vec<Questions> {
    let of = |port: &Port| {
        let speaks = !matches!(port.kind, PortKind::Loopback | PortKind::Tun | PortKind::Other);
        let mac = port.mac.as_deref().and_then(mac).filter(|mac| *mac != [0; 6])?;
        let live = speaks && port.up != Some(false) && port.carrier != Some(false) && port.master.is_none();
        let own =
            port.addresses.iter().filter(|address| address.shared()).filter_map(|address| v4(address.ip));
        let gateways =
            inventory.gateways.iter().filter(|one| one.port == port.name).filter_map(|one| v4(one.ip));
        let questions =
            Questions { port: port.name.clone(), mac, own: own.collect(), gateways: gateways.collect() };
        (live && !(questions.own.is_empty() && questions.gateways.is_empty())).then_some(questions)
    };
    inventory.ports.iter().filter_map(of).take(PORTS_MAX).collect()
}

/// Asks on all ports at the same time.
pub fn ask(questions: &[Questions]) -> Vec<Answers> {
    thread::scope(|scope| {
        let asking: Vec<_> =
            questions.iter().map(|one| scope.spawn(move || ask_port(one).unwrap_or_default())).collect();
        asking
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause)))
            .collect()
    })
}

/// Writes the replies into the inventory.
pub fn record(answers: &[Answers], inventory: &mut Inventory) {
    let ours: Vec<Mac> = inventory.ports.iter().filter_map(|port| mac(port.mac.as_deref()?)).collect();
    for Answers { port, replies, .. } in answers.iter().filter(|one| one.asked) {
        for gateway in inventory.gateways.iter_mut().filter(|one| one.port == *port) {
            gateway.answers = v4(gateway.ip).map(|ip| replies.contains_key(&ip));
        }
        let Some(port) = inventory.ports.iter_mut().find(|one| one.name == *port) else { continue };
        let own: Vec<Ipv4Addr> = port.addresses.iter().filter_map(|address| v4(address.ip)).collect();
        let taken = replies.iter().filter(|(ip, mac)| own.contains(ip) && !ours.contains(mac));
        port.taken = taken.map(|(ip, mac)| Taken { ip: (*ip).into(), mac: text(*mac) }).collect();
    }
    // A port that is set by hand to a hardware address is not asked for it.
    let set_by_hand = permanent();
    inventory
        .gateways
        .iter_mut()
        .filter(|one| is_permanent(one, &set_by_hand))
        .for_each(|one| one.answers = None);
}

fn is_permanent(gateway: &Gateway, set_by_hand: &[(Ipv4Addr, String)]) -> bool {
    set_by_hand.iter().any(|(ip, port)| gateway.ip == IpAddr::V4(*ip) && gateway.port == *port)
}

/// Entries of this thread's neighbour table that an operator made.
fn permanent() -> Vec<(Ipv4Addr, String)> {
    const PERMANENT: u32 = 4;
    let text = std::fs::read_to_string("/proc/thread-self/net/arp").unwrap_or_default();
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let flags = u32::from_str_radix(words.get(2)?.trim_start_matches("0x"), 16).ok()?;
        (flags & PERMANENT != 0).then_some((words.first()?.parse().ok()?, (*words.last()?).to_owned()))
    };
    text.lines().skip(1).filter_map(entry).collect()
}

/// `None` without the privilege for a packet socket.
fn ask_port(questions: &Questions) -> Option<Answers> {
    let protocol = Protocol::from(i32::from(ARP.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).ok()?;
    nix::sys::socket::bind(socket.as_raw_fd(), &link_address(&questions.port)?).ok()?;
    let mut answers = Answers { port: questions.port.clone(), replies: BTreeMap::new(), asked: true };
    let began = Instant::now();
    let mut next = began;
    loop {
        let silent = questions.gateways.iter().any(|ip| !answers.replies.contains_key(ip));
        let limit = if silent { PATIENCE } else { LISTEN };
        let now = Instant::now();
        if now >= began + limit {
            // What came while this thread waited for a CPU.
            socket.set_nonblocking(true).ok()?;
            while receive(&socket, questions, &mut answers).is_some() {}
            return Some(answers);
        }
        if now >= next {
            let own = questions.own.iter().map(|ip| (Ipv4Addr::UNSPECIFIED, *ip));
            let source = questions.own.first().copied().unwrap_or(Ipv4Addr::UNSPECIFIED);
            let gateways = questions.gateways.iter().map(|ip| (source, *ip));
            // After its first time an address was asked for often enough.
            let wanted = own.filter(|_| now < began + LISTEN).chain(gateways);
            for (source, target) in wanted.filter(|(_, target)| !answers.replies.contains_key(target)) {
                socket.send(&request(questions.mac, source, target)).ok()?;
            }
            next = now + GAP;
        }
        let wait = next.min(began + limit).saturating_duration_since(Instant::now());
        socket.set_read_timeout(Some(wait.max(Duration::from_millis(1)))).ok()?;
        receive(&socket, questions, &mut answers);
    }
}

/// One frame; `None` if there was none.
fn receive(socket: &Socket, questions: &Questions, answers: &mut Answers) -> Option<()> {
    let mut frame = [0; 128];
    let bytes = std::io::Read::read(&mut &*socket, &mut frame).ok()?;
    let answer = reply(frame.get(..bytes).unwrap_or_default());
    let wanted = |ip: &Ipv4Addr| questions.own.contains(ip) || questions.gateways.contains(ip);
    if let Some((ip, mac)) = answer.filter(|(ip, mac)| wanted(ip) && *mac != questions.mac) {
        answers.replies.insert(ip, mac);
    }
    Some(())
}

/// The packet socket address of a port.
fn link_address(port: &str) -> Option<LinkAddr> {
    let all = nix::ifaddrs::getifaddrs().ok()?;
    let mut ours = all.filter(|one| one.interface_name == port);
    ours.find_map(|one| one.address?.as_link_addr().copied())
}

fn request(mac: Mac, source: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = [0xff; 6].to_vec();
    frame.extend(mac);
    frame.extend(ARP.to_be_bytes());
    // Ethernet and IPv4, with addresses of six and four bytes.
    frame.extend([0, 1, 8, 0, 6, 4]);
    frame.extend(REQUEST.to_be_bytes());
    frame.extend(mac);
    frame.extend(source.octets());
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame.resize(60, 0);
    frame
}

/// Who says to have which address.
fn reply(frame: &[u8]) -> Option<(Ipv4Addr, Mac)> {
    let number = |at: usize| frame.get(at..at + 2)?.first_chunk().map(|two| u16::from_be_bytes(*two));
    if number(12)? != ARP || number(20)? != REPLY || frame.get(14..20)? != [0, 1, 8, 0, 6, 4] {
        return None;
    }
    let mac: Mac = *frame.get(22..28)?.first_chunk()?;
    let ip: [u8; 4] = *frame.get(28..32)?.first_chunk()?;
    Some((ip.into(), mac))
}

fn v4(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    }
}

fn mac(text: &str) -> Option<Mac> {
    let bytes: Option<Vec<u8>> = text.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
    bytes?.try_into().ok()
}

fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::healthy_survey;

    const OURS: Mac = [2, 0, 0, 0, 1, 1];

    #[test]
    fn a_reply_is_read_and_a_request_is_none() {
        let asked = request(OURS, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        assert_eq!(asked.len(), 60);
        assert_eq!(reply(&asked), None);
        let mut answer = asked.clone();
        answer[21] = REPLY as u8;
        assert_eq!(reply(&answer), Some(([10, 0, 0, 1].into(), OURS)));
        (0..42).for_each(|length| assert!(length > 31 || reply(&answer[..length]).is_none()));
    }

    #[test]
    fn a_duplicate_address_is_reported_for_foreign_macs_only() {
        let mut host = healthy_survey().hosts.remove(0);
        host.gateways = vec![Gateway { ip: [192, 168, 0, 254].into(), port: "eno1".into(), answers: None }];
        let questions = questions(&host);
        assert_eq!(questions.len(), 3);
        assert_eq!(questions[0].gateways, [Ipv4Addr::new(192, 168, 0, 254)]);
        let of = |port: &str, replies: &[([u8; 4], Mac)]| Answers {
            port: port.into(),
            replies: replies.iter().map(|(ip, mac)| ((*ip).into(), *mac)).collect(),
            asked: true,
        };
        let stranger = [2, 0xde, 0xad, 0, 0, 1];
        let other_port = mac(host.ports[2].mac.as_deref().unwrap()).unwrap();
        let answers = [
            of("eno1", &[([192, 168, 0, 254], stranger)]),
            of("ens1f0", &[([10, 1, 0, 1], stranger)]),
            of("ens1f1", &[([10, 1, 1, 1], other_port)]),
        ];
        record(&answers, &mut host);
        assert_eq!(host.gateways[0].answers, Some(true));
        let taken: Vec<&str> =
            host.ports.iter().flat_map(|port| &port.taken).map(|one| one.mac.as_str()).collect();
        assert_eq!(taken, ["02:de:ad:00:00:01"]);
        record(&[of("eno1", &[])], &mut host);
        assert_eq!(host.gateways[0].answers, Some(false));
    }
}
