//! The RDMA lab: machines with both kernels, what they offer, and a whole migration inside of one. With what
//! lab/install.sh installs. Those of `huge`, `inside`, `pair`, `ports` and `revoked` run in the machine: this program
//! starts itself there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "rdma/huge.rs"]
mod huge;
#[path = "rdma/inside.rs"]
mod inside;
#[path = "rdma/pair.rs"]
mod pair;
#[path = "rdma/ports.rs"]
mod ports;
#[path = "rdma/revoked.rs"]
mod revoked;

use std::path::{Path, PathBuf};
use std::time::Duration;

use linerate_lab::{Cache, LabError, Machine, MachineKernel, MachineOutput, Side, Slot};
use linerate_lock::{Condvar, Mutex};

/// Machines at a time: each is emulated, and busy for a part of its time only.
const MACHINES: usize = 2;
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// Places for machines, given back when dropped.
struct Places(usize);

/// Waits until so many machines more may run.
fn places(wanted: usize) -> Places {
    let full = |running: &mut usize| *running + wanted > MACHINES;
    let mut running = ENDED.wait_while(RUNNING.lock(), full);
    *running += wanted;
    Places(wanted)
}

impl Drop for Places {
    fn drop(&mut self) {
        *RUNNING.lock() -= self.0;
        ENDED.notify_all();
    }
}

fn shell(kernel: MachineKernel, script: &str) -> Machine {
    Machine::new(kernel, ["sh", "-ec", script])
}

/// A test of this program that runs inside of the machine.
fn inside(kernel: MachineKernel, test: &str) -> Machine {
    let program = std::env::current_exe().unwrap();
    let cache = Cache::locate();
    let target = program.ancestors().nth(2).unwrap();
    let words = [program.to_str().unwrap(), "--ignored", "--exact", test, "--nocapture"];
    Machine::new(kernel, words)
        .links(0)
        .memory_mb(2048)
        .share(target)
        .share(cache.directory())
        .env("LINERATE_CACHE", cache.directory().to_str().unwrap())
}

/// What both of two joined machines did. A failure of one is reported with the output of the other.
fn both(run: impl Fn(Side) -> Result<MachineOutput, LabError> + Sync) -> (MachineOutput, MachineOutput) {
    let (a, b) = std::thread::scope(|scope| {
        let b = scope.spawn(|| run(Side::B));
        (run(Side::A), b.join().unwrap())
    });
    match (a, b) {
        (Ok(a), Ok(b)) => (a, b),
        (a, b) => {
            let text = |of: Result<MachineOutput, LabError>| {
                of.map_or_else(|error| excerpt(&error.to_string()), shown)
            };
            panic!("machine a: {}\nmachine b: {}", text(a), text(b))
        }
    }
}

/// How a machine ended, for a reader.
fn shown(output: MachineOutput) -> String {
    format!("exit code {}\n{}\n{}", output.code, excerpt(&output.stdout), excerpt(&output.stderr))
}

const EXCERPT_HEAD: usize = 40;
const EXCERPT_TAIL: usize = 10;

/// What a reader needs of a long text: where a panic begins, or the text if there is none, and the end.
fn excerpt(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.iter().position(|line| line.contains("panicked at")).unwrap_or(0);
    let head = (from + EXCERPT_HEAD).min(lines.len());
    let tail = head.max(lines.len().saturating_sub(EXCERPT_TAIL));
    let left_out = |count| (count > 0).then(|| format!("[{count} lines left out]"));
    let mut kept: Vec<String> = left_out(from).into_iter().collect();
    kept.extend(lines[from..head].iter().map(ToString::to_string));
    kept.extend(left_out(tail - head));
    kept.extend(lines[tail..].iter().map(ToString::to_string));
    kept.join("\n")
}

#[test]
fn an_excerpt_has_the_panic_and_the_end() {
    assert_eq!(excerpt("one\ntwo\n"), "one\ntwo");
    let long = |from: usize, to: usize| (from..to).map(|n| format!("{n}\n")).collect::<String>();
    let text = format!("{}thread 't' panicked at t.rs:1:\n{}", long(0, 1000), long(1000, 9000));
    let kept = excerpt(&text);
    assert!(kept.starts_with("[1000 lines left out]\nthread 't' panicked at t.rs:1:\n1000\n"), "{kept}");
    assert!(
        kept.ends_with(
            "\n1038\n[7951 lines left out]\n8990\n8991\n8992\n8993\n8994\n8995\n8996\n8997\n8998\n8999"
        ),
        "{kept}"
    );
}

/// What a machine did. One whose kernel panicked is started once more: the CPU is emulated. The emulator does not keep
/// what Linux expects when it rewrites its own code on one CPU while another one runs it.
fn ran(machine: &Machine) -> MachineOutput {
    match machine.run() {
        Err(LabError::Ended { tail, .. }) if tail.contains("Kernel panic") => {
            eprintln!("the machine's kernel panicked; it is started once more: {tail}");
            machine.run().unwrap()
        }
        other => other.unwrap(),
    }
}

fn succeeded(output: &MachineOutput) {
    assert_eq!(output.code, 0, "stdout:\n{}\nstderr:\n{}", excerpt(&output.stdout), excerpt(&output.stderr));
}

/// Verbs and rdma_cm move bytes between the two ends of a link, and they cross that link.
fn soft_roce_moves_bytes(kernel: MachineKernel) {
    let _places = places(1);
    let script = "
        uname -r
        rdma link
        ibv_devinfo -d rx0a | grep active_mtu
        before=$(cat /sys/class/net/l0b/statistics/rx_bytes)
        rdma-perf bw rx0a rx0b 10.9.0.2 65536 100
        after=$(cat /sys/class/net/l0b/statistics/rx_bytes)
        echo crossed=$((after - before))
        rping -s -a 10.9.1.2 -C 2 & server=$!
        for step in $(seq 100); do
            rping -c -a 10.9.1.2 -C 2 -v && break
            test $step -lt 100 || exit 1
            sleep 1
        done
        wait $server
        ip link set l0a down
        for step in $(seq 600); do
            grep -q DOWN /sys/class/infiniband/rx0a/ports/1/state && break
            sleep 0.1
        done
        echo state=$(cat /sys/class/infiniband/rx0a/ports/1/state)";
    let output = ran(&shell(kernel, script));
    succeeded(&output);
    let text = &output.stdout;
    assert!(text.starts_with(&format!("{}.", kernel.series())), "{text}");
    for device in ["rx0a", "rx0b", "rx1a", "rx1b"] {
        assert!(text.contains(&format!("link {device}/1 state ACTIVE")), "{text}");
    }
    assert!(text.contains("4096 (5)"), "{text}");
    let crossed: u64 = value(text, "crossed").parse().unwrap();
    assert!(crossed > 100 * 65536, "{text}");
    assert!(value(text, "bw_mb_s").parse::<f64>().unwrap() > 0.0, "{text}");
    assert!(text.contains("ping data: rdma-ping-1"), "{text}");
    assert!(text.contains("state=1: DOWN"), "{text}");
}

fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let found = text.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no {key}= in:\n{text}"))
}

#[test]
fn soft_roce_moves_bytes_on_6_1() {
    soft_roce_moves_bytes(MachineKernel::Debian12);
}

#[test]
fn soft_roce_moves_bytes_on_6_12() {
    soft_roce_moves_bytes(MachineKernel::Backports);
}

#[test]
fn two_machines_are_joined_by_links_with_soft_roce() {
    let _places = places(2);
    let wires = tempfile::tempdir().unwrap();
    let serves = "rping -s -a 10.9.1.2 -C 2";
    let asks = "
        rdma link
        for step in $(seq 100); do
            timeout 20 rping -c -a 10.9.1.2 -C 2 -v && exit
            sleep 1
        done
        exit 1";
    // Both run at once on the test machine's two cores, so one CPU each.
    let (a, b) = both(|side| {
        let script = if side == Side::A { asks } else { serves };
        let machine = shell(MachineKernel::Backports, script).wires(wires.path(), side);
        machine.cpus(1).memory_mb(512).deadline(Duration::from_secs(300)).run()
    });
    succeeded(&a);
    succeeded(&b);
    assert!(
        a.stdout.contains("link rx1/1 state ACTIVE") && a.stdout.contains("ping data: rdma-ping-1"),
        "{a:?}"
    );
}

#[test]
fn output_and_exit_code_arrive_whole_and_apart() {
    let _places = places(1);
    let results = tempfile::tempdir().unwrap();
    let script = "
        seq 20000
        echo complaint >/dev/stderr
        echo \"$GREETING\" >\"$RESULTS/greeting\"
        sleep 1000 &
        exit 7";
    let machine = shell(MachineKernel::Debian12, script).links(0).results(results.path());
    let machine = machine.env("GREETING", "it's $here").env("RESULTS", results.path().to_str().unwrap());
    let output = ran(&machine);
    assert_eq!(output.code, 7, "{}", output.stderr);
    assert_eq!(output.stdout.lines().count(), 20_000);
    assert!(output.stdout.ends_with("19999\n20000\n"));
    assert_eq!(output.stderr, "complaint\n");
    assert_eq!(std::fs::read_to_string(results.path().join("greeting")).unwrap(), "it's $here\n");
}

#[test]
fn a_machine_that_hangs_or_dies_is_an_error_and_leaves_nothing() {
    let _places = places(2);
    let died = shell(MachineKernel::Debian12, "echo b >/proc/sysrq-trigger; sleep 1000").links(0).run();
    assert!(matches!(died, Err(LabError::Ended { .. })), "{died:?}");
    let hangs = shell(MachineKernel::Debian12, "sleep 1000").links(0).deadline(Duration::from_secs(5)).run();
    assert!(matches!(hangs, Err(LabError::Deadline { .. })), "{hangs:?}");
    assert_eq!(machines_of_this_process(), Vec::<PathBuf>::new());
}

fn machines_of_this_process() -> Vec<PathBuf> {
    let prefix = format!("lr{}-", std::process::id());
    let entries = std::fs::read_dir(linerate_lab::lab::root()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| starts_with(path, &prefix)).collect()
}

fn starts_with(path: &Path, prefix: &str) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
}

#[test]
fn a_guest_moves_inside_of_a_machine_and_a_cut_link_is_survived() {
    let _places = places(2);
    let output = ran(&inside(MachineKernel::Backports, "inside::a_guest_moves_over_tcp"));
    succeeded(&output);
}

#[test]
fn a_kernel_without_pagemap_scan_refuses_direct_mode() {
    let _places = places(1);
    let output = ran(&inside(MachineKernel::Debian12, "inside::direct_mode_is_refused"));
    succeeded(&output);
}

/// Runs a test program of `linerate_memory` in a machine with two NUMA nodes and returns what they said.
fn memory_tests(kernel: MachineKernel, program: &str, tests: &str) -> String {
    let _places = places(1);
    let program = unit_tests(program);
    let target = program.ancestors().nth(2).unwrap();
    let script = format!(
        "uname -r
        cat /sys/devices/system/node/online
        '{}' --include-ignored --test-threads=1 --nocapture {tests}",
        program.display()
    );
    let machine = shell(kernel, &script).links(0).kernel_parameter("numa=fake=2");
    let output = ran(&machine.share(target));
    println!("{}{}", output.stdout, output.stderr);
    succeeded(&output);
    output.stdout
}

/// On this kernel another query misses written pages whose page-table entries were emptied: the probe sees that, and
/// that the query in use misses none.
#[test]
fn no_written_page_is_missed_on_6_12_and_the_probe_would_see_one() {
    let tests = "probe::tests::the_probe_finds_written_pages_that_another_query_misses";
    let output = memory_tests(MachineKernel::Backports, "linerate_memory", tests);
    assert!(output.contains("1 passed") && output.contains("(Move, Reported)"), "{output}");
    let output = memory_tests(MachineKernel::Backports, "emptied", "written");
    assert!(output.contains("4 passed"), "{output}");
}

#[test]
fn a_kernel_without_pagemap_scan_is_named_by_the_probe() {
    let test = "probe::tests::a_kernel_that_is_too_old_is_named";
    let output = memory_tests(MachineKernel::Debian12, "linerate_memory", test);
    assert!(output.contains("1 passed"), "{output}");
}

/// What the tests' own machine has not: bonds and VLANs of the kernel, and cards in PCIe slots.
#[test]
fn the_doctor_finds_faults_of_bonds_vlans_and_pcie_slots() {
    let _places = places(1);
    let machine = inside(MachineKernel::Backports, "ports::bonds_vlans_and_slots");
    let shared = Slot { speed: "2_5", width: 1, ports: 2 };
    let wide = Slot { speed: "8", width: 4, ports: 1 };
    let output = ran(&machine.slot(shared).slot(wide).memory_mb(1024));
    succeeded(&output);
}

/// Two hosts with a kernel each: by RDMA alone with a cable pulled, and back with an adapter that gets nothing through
/// any more.
#[test]
fn a_guest_moves_between_two_machines_by_rdma_survives_a_cut_and_falls_back_to_tcp() {
    pair_of_machines(MachineKernel::Backports, ["pair::host_a", "pair::host_b"]);
}

/// Its huge pages are there once at the destination, and given back at the source.
#[test]
fn a_guest_in_huge_pages_moves_between_two_machines_by_rdma_and_its_memory_is_there_once() {
    pair_of_machines(
        MachineKernel::Backports,
        ["huge::guest_in_huge_pages_leaves", "huge::guest_in_huge_pages_arrives"],
    );
}

/// A benchmark by RDMA fails there and says of which ports the MTUs differ. A migration, whose bytes go one way,
/// arrives with a warning.
#[test]
fn ports_of_different_mtus_are_found() {
    let tests = ["pair::rdma_over_a_path_with_a_smaller_mtu", "pair::has_the_smaller_mtu"];
    pair_with_mtus([9000, 1500], MachineKernel::Backports, tests);
}

/// 200 moves, of which the first 20 lose a cable during the copy: RDMA is back on that link each time, and both ends
/// agree on what arrived. RDMA_KERNEL=6.1: the second machine has Debian 12's kernel.
#[test]
#[ignore = "an hour: make rdma-moves"]
fn a_guest_moves_by_rdma_many_times() {
    let kernel = std::env::var("RDMA_KERNEL").unwrap_or_default();
    let kernel = if kernel.is_empty() { "6.12" } else { &kernel };
    let kernel = MachineKernel::from_series(kernel).expect("RDMA_KERNEL is 6.1 or 6.12");
    pair_of_machines(
        kernel,
        ["pair::guest_moves_back_and_forth_from_host_a", "pair::guest_moves_back_and_forth_from_host_b"],
    );
}

/// There by RDMA from RAM to RAM with a cable pulled, and back, since the older kernel cannot track, by QEMU's own
/// stream over RDMA.
#[test]
#[ignore = "minutes more: make rdma-check"]
fn a_guest_goes_by_rdma_to_debian_12s_kernel_and_back() {
    pair_of_machines(
        MachineKernel::Debian12,
        ["pair::sends_to_an_older_kernel", "pair::has_an_older_kernel"],
    );
}

/// By the destination, in the middle of a copy by RDMA. The guest stays where it is, and the destination keeps nothing.
#[test]
#[ignore = "minutes more: make rdma-check"]
fn a_guest_stays_on_a_host_that_is_revoked_in_the_middle_of_a_copy_by_rdma() {
    pair_of_machines(
        MachineKernel::Backports,
        ["revoked::guest_stays_on_the_host_that_is_revoked", "revoked::destination_revokes_the_source"],
    );
}

/// The folder that two machines share. With RDMA_LOG it is that one and stays, with a line for each move and the
/// agents' logs.
enum Marks {
    Kept(PathBuf),
    Passing(tempfile::TempDir),
}

impl Marks {
    fn new() -> Marks {
        match std::env::var_os("RDMA_LOG").filter(|folder| !folder.is_empty()) {
            Some(folder) => {
                // What an earlier run left there would be taken for this one's.
                let _ = std::fs::remove_dir_all(&folder);
                std::fs::create_dir_all(&folder).unwrap();
                Marks::Kept(PathBuf::from(folder).canonicalize().unwrap())
            }
            None => Marks::Passing(tempfile::tempdir().unwrap()),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Marks::Kept(path) => path,
            Marks::Passing(folder) => folder.path(),
        }
    }
}

/// A test in each of two machines that two links join; the first has the newer kernel.
fn pair_of_machines(second: MachineKernel, tests: [&str; 2]) {
    pair_with_mtus([9000; 2], second, tests);
}

/// The same with these MTUs of the two machines' ports.
fn pair_with_mtus(mtus: [u32; 2], second: MachineKernel, tests: [&str; 2]) {
    let _places = places(2);
    let number = |name: &str, usual| {
        std::env::var(name).map_or(usual, |text| text.parse().expect("a number of moves"))
    };
    let (moves, cuts) = (number("RDMA_MOVES", 200), number("RDMA_CUTS", 20));
    let (wires, marks) = (tempfile::tempdir().unwrap(), Marks::new());
    let (a, b) = both(|side| {
        let (kernel, test, mtu) = match side {
            Side::A => (MachineKernel::Backports, tests[0], mtus[0]),
            Side::B => (second, tests[1], mtus[1]),
        };
        let machine = inside(kernel, test).links(2).wires(wires.path(), side).mtu(mtu);
        let machine = machine.cpus(1).memory_mb(1024).deadline(Duration::from_secs(900 + 60 * moves));
        let machine = machine.env("PAIR_MOVES", &moves.to_string()).env("PAIR_CUTS", &cuts.to_string());
        let machine = machine.env("PAIR_KERNEL", second.series());
        let output = machine.results(marks.path()).env("PAIR_FOLDER", marks.path().to_str().unwrap()).run();
        if output.is_err() {
            // Whatever became of the machine, the other one shall not wait for it.
            std::fs::write(marks.path().join(pair::FAILED), "").unwrap();
        }
        output
    });
    assert!((a.code, b.code) == (0, 0), "machine a: {}\nmachine b: {}", shown(a), shown(b));
}

/// Part of a script: waits until each of the addresses answers.
fn until_answers(addresses: &str) -> String {
    format!(
        "for to in {addresses}; do
            for step in $(seq 100); do
                ping -c 1 -W 5 $to >/dev/null && break
                test $step -lt 100 || exit 1
                sleep 1
            done
        done"
    )
}

/// The transport's own tests, which need a device: `crates/net/src/rdma/tests.rs`.
fn the_transport(kernel: MachineKernel, cpus: u32) {
    let _places = places(1);
    let program = unit_tests("linerate_net");
    // The kernel resolves a neighbour for rdma_cm only slowly if it was not asked for it before; agents have, by TCP. A
    // link that was cut has forgotten it; and privileges must not change in a process that has the device open.
    let script = format!(
        "{}
        run='{} --ignored --test-threads=1'
        $run rdma::tests --skip measure --skip in_the_middle --skip registration_that
        setpriv --bounding-set -ipc_lock $run registration_that
        $run in_the_middle",
        until_answers("10.9.0.2 10.9.1.2"),
        program.display()
    );
    let machine = shell(kernel, &script).share(program.parent().unwrap()).cpus(cpus);
    let output = ran(&machine);
    succeeded(&output);
    // A name that fits no test is a success to the program.
    let ran = output.stdout.lines().filter(|line| line.starts_with("test result: ok."));
    let ran: Vec<&str> = ran.filter(|line| !line.contains(" 0 passed")).collect();
    assert_eq!(ran.len(), 3, "{}", output.stdout);
}

/// The same tests under a checker of memory: nothing is read or written that is not there, no kernel call and no
/// library is given uninitialised bytes. A fault on purpose must be found first. Takes minutes, because the checker
/// emulates a CPU on an emulated one: `make rdma-check`.
#[test]
#[ignore = "takes minutes: make rdma-check"]
fn the_rdma_transport_under_valgrind() {
    let _places = places(1);
    let program = unit_tests("linerate_net");
    // Left out: what measures, what changes privileges, what moves much, and what cuts a link or waits at an instant
    // that is long past by then.
    let script = format!(
        "{}
        checked() {{
            valgrind --fair-sched=yes --error-exitcode=99 --num-callers=25 --gen-suppressions=all --leak-check=full \
                --errors-for-leak-kinds=definite '{}' --ignored --test-threads=1 \"$@\"
        }}
        checked planted 2>/tmp/planted && {{ echo 'the planted fault was not found'; exit 1; }}
        grep -q 'definitely lost: [1-9]' /tmp/planted || {{ cat /tmp/planted; exit 1; }}
        checked rdma::tests --skip planted \
            --skip measure --skip in_the_middle --skip registration_that --skip without_a_slot --skip staging_memory \
            --skip with_huge_pages",
        until_answers("10.9.0.2 10.9.1.2"),
        program.display()
    );
    let machine = shell(MachineKernel::Backports, &script).share(program.parent().unwrap());
    let machine = machine.env("RDMA_TESTS_SHORT", "1");
    let output = ran(&machine.deadline(Duration::from_secs(1800)));
    println!("{}{}", output.stdout, output.stderr);
    succeeded(&output);
    assert!(output.stdout.contains("test result: ok."), "{}", output.stdout);
    assert!(output.stderr.contains("ERROR SUMMARY: 0 errors"), "{}", output.stderr);
}

/// The newest program of a crate's unit tests beside this one; `cargo test --workspace` has just built it.
fn unit_tests(of: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let entries = std::fs::read_dir(program.parent().unwrap()).unwrap();
    let is_program = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix(of).and_then(|rest| rest.strip_prefix('-')).is_some_and(|hash| !hash.contains('.'))
    };
    let found = entries.map(|entry| entry.unwrap().path()).filter(is_program);
    found.max_by_key(|path| path.metadata().and_then(|about| about.modified()).unwrap()).expect(
        "built by `cargo test --workspace`, or by `cargo test --no-run` with -p of linerate-net, -memory and -agent",
    )
}

#[test]
fn rdma_transport_moves_fences_and_reports_errors_on_6_1() {
    the_transport(MachineKernel::Debian12, 1);
}

#[test]
fn rdma_transport_moves_fences_and_reports_errors_on_6_12() {
    the_transport(MachineKernel::Backports, 2);
}

/// What the agent's own tests of this name said, which need a device.
fn agent_tests(named: &str) -> String {
    let _places = places(1);
    let program = unit_tests("linerate_agent");
    let script = format!(
        "{}
        '{}' --ignored --test-threads=1 {named}",
        until_answers("10.9.0.2"),
        program.display()
    );
    let machine = shell(MachineKernel::Backports, &script).share(program.parent().unwrap());
    let output = ran(&machine);
    succeeded(&output);
    output.stdout
}

/// At both ends of a session.
#[test]
fn queue_pairs_count_as_connections_and_end_when_the_other_host_is_revoked() {
    let output = agent_tests("queue_pairs_of_a_session");
    assert!(output.contains(" 3 passed"), "{output}");
}

/// Neither who knows no token nor a host with a session of its own. The transport's tests show that no key of another
/// session can be used.
#[test]
fn nobody_opens_a_queue_pair_of_a_session_without_its_token() {
    let output = agent_tests("a_queue_pair_needs_the_token_of_its_session_and_has_no_keys_of_another");
    assert!(output.contains(" 1 passed"), "{output}");
}

/// `linerate bench` measures queue pairs too.
#[test]
fn a_ping_pong_goes_over_rdma() {
    let _places = places(1);
    let program = linerate_lab::agent::binary().unwrap();
    let script = format!(
        "{}
        for test in 'pingpong --sizes 4,64KiB --repetitions 50' 'bandwidth --time 2s'; do
            {} bench $test --local 10.9.0.2 --transport rdma --json
            echo ====
        done",
        until_answers("10.9.0.2"),
        program.display()
    );
    let output = ran(&shell(MachineKernel::Backports, &script).share(program.parent().unwrap()));
    succeeded(&output);
    let documents = output.stdout.split("====").map(str::trim).filter(|text| !text.is_empty());
    let documents: Vec<serde_json::Value> =
        documents.map(|text| serde_json::from_str(text).unwrap()).collect();
    let [pingpong, bandwidth] = &documents[..] else { panic!("{output:?}") };
    let rows = pingpong["pingpong"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [4, 65536]);
    assert!(rows.iter().all(|row| row["latency_us"].as_f64().unwrap() > 0.0), "{pingpong:#}");
    assert_eq!(bandwidth["transport"], "rdma");
    assert!(bandwidth["bandwidth"][0]["links"][0]["out_bytes"].as_u64().unwrap() > 0, "{bandwidth:#}");
}
