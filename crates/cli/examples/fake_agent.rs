//! Plays recorded migrations over a UNIX socket, to look at the display without a hypervisor:
//! `cargo run -p linerate --example fake_agent /tmp/fake.sock`, then
//! `linerate --socket /tmp/fake.sock migrate web --to beta`.

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "what tests look at, is not looked at here")]
mod support;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().unwrap_or_else(|| "/tmp/linerate-fake.sock".into());
    let pace: f64 = arguments.next().and_then(|pace| pace.parse().ok()).unwrap_or(1.0);
    let (serving, _seen) = support::serve(socket.as_ref(), pace)?;
    serving.await
}
