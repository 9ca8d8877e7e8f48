//! Every number on the wire, written out: one that is given to something else fails here.

use linerate_wire::fault::{Code, GuestState, Side, Step};
use linerate_wire::frame::{Role, Tag};
use linerate_wire::message::{MessageTag, ModeTag, Outcome, StreamNoteTag};
use linerate_wire::{VERSION_MAX, VERSION_MIN};

/// Number and name of everything that `from_number` knows.
fn table<T: std::fmt::Debug>(from_number: impl Fn(u16) -> Option<T>) -> Vec<(u16, String)> {
    (0..=u16::MAX)
        .filter_map(|number| from_number(number).map(|value| (number, format!("{value:?}"))))
        .collect()
}

/// The same for numbers of 8 bits.
fn small_table<T: std::fmt::Debug>(from_number: impl Fn(u8) -> Option<T>) -> Vec<(u16, String)> {
    table(|number| u8::try_from(number).ok().and_then(&from_number))
}

fn expect(table: Vec<(u16, String)>, golden: &[(u16, &str)]) {
    let table: Vec<(u16, &str)> = table.iter().map(|(number, name)| (*number, name.as_str())).collect();
    assert_eq!(table, golden);
}

#[test]
fn versions() {
    assert_eq!((VERSION_MIN, VERSION_MAX), (2, 2));
}

#[test]
fn tags() {
    let golden = [
        (0x01, "Hello"),
        (0x02, "Welcome"),
        (0x03, "Refuse"),
        (0x04, "Outcome"),
        (0x05, "Lists"),
        (0x10, "Write"),
        (0x11, "Probe"),
        (0x12, "Claim"),
        (0x20, "Ack"),
        (0x21, "Grant"),
        (0x30, "Control"),
        (0x31, "ControlAck"),
        (0x32, "Keepalive"),
    ];
    expect(table(Tag::from_number), &golden);
    assert_eq!(Tag::ALL.iter().map(|tag| *tag as u16).collect::<Vec<_>>(), golden.map(|(number, _)| number));
}

#[test]
fn messages() {
    let golden = [
        (0x01, "Offer"),
        (0x02, "Admitted"),
        (0x03, "Prepare"),
        (0x04, "Prepared"),
        (0x05, "RoundMark"),
        (0x06, "Fence"),
        (0x07, "Fenced"),
        (0x08, "RamComplete"),
        (0x09, "RamSealed"),
        (0x0a, "DeviceState"),
        (0x0b, "DeviceStateEnd"),
        (0x0c, "Loaded"),
        (0x0d, "Commit"),
        (0x0e, "TakenOver"),
        (0x0f, "Finished"),
        (0x10, "Abort"),
        (0x11, "Aborted"),
        (0x12, "Stream"),
        (0x14, "StreamsPrepared"),
        (0x15, "Stopped"),
        (0x16, "LastLook"),
    ];
    expect(table(MessageTag::from_number), &golden);
    assert_eq!(
        MessageTag::ALL.iter().map(|tag| *tag as u16).collect::<Vec<_>>(),
        golden.map(|(number, _)| number)
    );
}

#[test]
fn modes() {
    let golden = [(1, "Direct"), (2, "Streams"), (3, "Handover")];
    expect(small_table(ModeTag::from_number), &golden);
    assert_eq!(
        ModeTag::ALL.iter().map(|tag| *tag as u16).collect::<Vec<_>>(),
        golden.map(|(number, _)| number)
    );
    for tag in ModeTag::ALL {
        assert_eq!(ModeTag::from_name(tag.name()), Some(*tag));
    }
}

#[test]
fn codes() {
    let golden = [
        (1, "VersionMismatch"),
        (2, "ProtocolViolation"),
        (3, "SessionUnknown"),
        (4, "NotAuthorised"),
        (5, "Cancelled"),
        (6, "GuestUnknown"),
        (7, "GuestExists"),
        (8, "GuestBusy"),
        (9, "NotMigratable"),
        (10, "MemoryShort"),
        (11, "ResourceMissing"),
        (12, "GuestDiffers"),
        (13, "HypervisorFailed"),
        (14, "NoLink"),
        (15, "PeerLost"),
        (16, "TrackingFailed"),
        (17, "MemoryFailed"),
        (18, "ChecksumMismatch"),
        (19, "VerifyMismatch"),
        (20, "NotConverging"),
        (21, "TimedOut"),
        (22, "JournalFailed"),
        (23, "AgentRestarted"),
        (24, "GuestGone"),
        (25, "Internal"),
        (26, "Cordoned"),
        (27, "GuestStopped"),
    ];
    expect(table(Code::from_number), &golden);
    assert_eq!(
        Code::ALL.iter().map(|code| *code as u16).collect::<Vec<_>>(),
        golden.map(|(number, _)| number)
    );
}

#[test]
fn steps_sides_states() {
    expect(
        small_table(Step::from_number),
        &[
            (1, "Resolve"),
            (2, "Authorise"),
            (3, "Admit"),
            (4, "Prepare"),
            (5, "Connect"),
            (6, "Track"),
            (7, "Copy"),
            (8, "Blackout"),
            (9, "Commit"),
            (10, "CleanUp"),
        ],
    );
    expect(small_table(Side::from_number), &[(1, "Source"), (2, "Destination")]);
    expect(
        small_table(GuestState::from_number),
        &[
            (1, "RunsAtSource"),
            (2, "PausedAtSource"),
            (3, "RunsAtDestination"),
            (4, "InDoubt"),
            (5, "Gone"),
            (6, "Unknown"),
            (7, "PausedAtDestination"),
            (8, "StoppedAtDestination"),
        ],
    );
}

#[test]
fn roles_notes_outcomes() {
    expect(
        small_table(Role::from_number),
        &[
            (1, "ControlNew"),
            (2, "ControlJoin"),
            (3, "Data"),
            (4, "Query"),
            (5, "RolledBack"),
            (6, "TunnelNew"),
            (7, "ReverseData"),
            (8, "CommitAgain"),
            (9, "Arrival"),
            (10, "Resumes"),
            (11, "Waits"),
            (16, "Bench"),
            (17, "BenchData"),
            (18, "Doctor"),
            (19, "Membership"),
        ],
    );
    expect(
        small_table(StreamNoteTag::from_number),
        &[
            (1, "Open"),
            (2, "Opened"),
            (3, "Refused"),
            (4, "Credit"),
            (5, "End"),
            (6, "Reset"),
            (7, "Stop"),
            (8, "Closed"),
        ],
    );
    expect(
        small_table(Outcome::from_number),
        &[
            (1, "Committed"),
            (2, "Aborted"),
            (3, "Pending"),
            (4, "Unknown"),
            (5, "Returned"),
            (6, "Gone"),
            (7, "NotCommitted"),
        ],
    );
}

/// `from_number` and the number that is sent are separate tables for some types.
#[test]
fn numbers_go_there_and_back() {
    for number in 0..=u8::MAX {
        assert!(Side::from_number(number).is_none_or(|side| side as u8 == number));
        assert!(GuestState::from_number(number).is_none_or(|state| state as u8 == number));
        assert!(Outcome::from_number(number).is_none_or(|outcome| outcome as u8 == number));
        assert!(Step::from_number(number).is_none_or(|step| step as u8 == number));
        assert!(Role::from_number(number).is_none_or(|role| role as u8 == number));
    }
    for number in 0..=u16::MAX {
        assert!(Code::from_number(number).is_none_or(|code| code as u16 == number));
        assert!(Tag::from_number(number).is_none_or(|tag| tag as u16 == number));
        assert!(MessageTag::from_number(number).is_none_or(|tag| tag as u16 == number));
    }
}

#[test]
fn a_data_hello_fits_an_rdma_connection_request() {
    use linerate_wire::frame::{Hello, REQUEST_BYTES};
    use linerate_wire::message::{SessionId, Token};
    let hello = Hello {
        version_min: 1,
        version_max: 3,
        session: SessionId([0xa5; 16]),
        role: Role::Data,
        link: 0x0102,
        channel: 0x0304_0506,
        token: Token([0x5a; 32]),
    };
    let bytes = hello.to_request().unwrap();
    assert_eq!((&bytes[..16], &bytes[16..48]), (&[0xa5; 16][..], &[0x5a; 32][..]));
    assert_eq!(bytes[48..], [0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 1, 3]);
    let mut padded = bytes.to_vec();
    padded.resize(196, 0);
    assert_eq!(Hello::from_request(&padded), Ok(hello.clone()));
    for short in 0..REQUEST_BYTES {
        assert!(Hello::from_request(&bytes[..short]).is_err());
    }
    assert_eq!(Hello { role: Role::ControlJoin, ..hello.clone() }.to_request(), None);
    assert_eq!(Hello { version_max: 256, ..hello }.to_request(), None);
}
