//! Character devices and what is connected to them. Sockets and files are made anew in the guest's run-time folder.
//! Nothing connects outwards (a client of a monitor's socket, joined to the guest's serial port, would give the guest
//! the monitor).

use super::{Builder, IncomingError, check_id, only_keys, refused};
use crate::argv::Argument;
use crate::options::{Options, escape};
use crate::read::parsed;

impl Builder<'_> {
    pub(super) fn chardev(&mut self, value: &str) -> Result<(), IncomingError> {
        let options = self.parse("chardev", value, Some("backend"))?;
        let id = options.get("id").unwrap_or_default().to_owned();
        check_id("chardev", &id)?;
        if connects(&options) && self.is_for_monitors_only(&id) {
            self.note(format!("the monitor on {id} is not connected to anything here"));
            return Ok(());
        }
        let mut made = self.back_end(&options, &id)?;
        if options.is_on("mux") {
            made.set("mux", "on");
        }
        self.emit("chardev", &made.to_string())
    }

    fn back_end(&mut self, options: &Options, id: &str) -> Result<Options, IncomingError> {
        let backend = options.get("backend").unwrap_or_default();
        match backend {
            "null" | "pty" | "vc" | "ringbuf" => Ok(Options::from_pairs(&[("backend", backend), ("id", id)])),
            "file" | "stdio" => {
                let path = self.options.runtime_dir.join(format!("{id}.log")).display().to_string();
                self.note(format!("what the guest writes to {id} goes to {path}"));
                Ok(Options::from_pairs(&[("backend", "file"), ("id", id), ("path", &path), ("append", "on")]))
            }
            "socket" => self.socket_chardev(options, id),
            "spicevmc" | "spiceport" | "qemu-vdagent" | "dbus" => {
                self.note(format!("{id} belongs to a display and is connected to nothing here"));
                Ok(Options::from_pairs(&[("backend", "null"), ("id", id)]))
            }
            other => Err(refused(
                "chardev",
                other,
                "only null, pty, vc, ringbuf, file, stdio and sockets that serve are",
            )),
        }
    }

    fn socket_chardev(&mut self, options: &Options, id: &str) -> Result<Options, IncomingError> {
        if !options.is_on("server") {
            let why = "it connects to a socket of the source's host instead of serving one: start the guest without it, or with server=on,wait=off";
            return Err(refused("chardev", id, why));
        }
        // A descriptor was passed by the program that started QEMU (libvirt): its monitor, a UNIX socket.
        if options.get("path").is_none() && options.get("fd").is_none() {
            self.note(format!("{id} was a network port at the source and is connected to nothing here"));
            return Ok(Options::from_pairs(&[("backend", "null"), ("id", id)]));
        }
        let path = self.socket(&format!("{id}.sock"))?.display().to_string();
        let pairs = [("backend", "socket"), ("id", id), ("path", &path), ("server", "on"), ("wait", "off")];
        Ok(Options::from_pairs(&pairs))
    }

    pub(super) fn monitor_of_chardev(&mut self, value: &str) -> Result<(), IncomingError> {
        let options = self.parse("mon", value, Some("chardev"))?;
        only_keys("mon", &options, &["chardev", "mode", "pretty", "id", "default"])?;
        let id = options.get("chardev").unwrap_or_default();
        if self.is_for_monitors_only(id) && self.chardev_of(id).is_some_and(|chardev| connects(&chardev)) {
            return Ok(());
        }
        self.emit("mon", &options.to_string())
    }

    fn chardev_of(&self, id: &str) -> Option<Options> {
        parsed(self.arguments, "chardev", Some("backend")).find(|chardev| chardev.get("id") == Some(id))
    }

    /// A monitor names it, and nothing else does: what manages the guest at the source listens there (Proxmox's
    /// qmeventd).
    fn is_for_monitors_only(&self, id: &str) -> bool {
        let names = |argument: &Argument| {
            let value = argument.value.as_deref().unwrap_or_default();
            let whole = value.split("chardev:").nth(1) == Some(id);
            let keyed =
                |options: Options| options.pairs().any(|(key, value)| key == "chardev" && value == id);
            let implied = (argument.name == "mon").then_some("chardev");
            whole || Options::parse(value, implied).is_ok_and(keyed)
        };
        let (monitors, others): (Vec<_>, Vec<_>) =
            self.arguments.iter().partition(|argument| argument.name == "mon");
        monitors.into_iter().any(names) && !others.into_iter().any(names)
    }

    /// `-serial`, `-parallel`, `-debugcon` in their short forms.
    pub(super) fn serial(&mut self, option: &str, value: &str) -> Result<(), IncomingError> {
        self.serials += 1;
        let name = format!("{option}{}", self.serials);
        if let Some(id) = value.strip_prefix("chardev:") {
            check_id(option, id)?;
            return self.emit(option, value);
        }
        let kind = value.trim_start_matches("mon:").split([':', ',']).next().unwrap_or_default();
        match kind {
            "none" | "null" | "pty" | "vc" => self.emit(option, kind),
            "stdio" | "file" => {
                let path = self.options.runtime_dir.join(format!("{name}.log")).display().to_string();
                self.note(format!("-{option} goes to {path}"));
                self.emit(option, &format!("file:{path}"))
            }
            "unix" if serves(value) => {
                let path = self.socket(&format!("{name}.sock"))?.display().to_string();
                self.emit(option, &format!("unix:{},server=on,wait=off", escape(&path)))
            }
            "tcp" | "telnet" | "websocket" | "udp" => {
                self.note(format!(
                    "-{option} was a network port at the source and is connected to nothing here"
                ));
                self.emit(option, "null")
            }
            _ => Err(refused(
                option,
                value,
                "only none, null, pty, vc, stdio, file and sockets that serve are",
            )),
        }
    }
}

/// A client of a socket.
fn connects(chardev: &Options) -> bool {
    chardev.get("backend") == Some("socket") && !chardev.is_on("server")
}

fn serves(value: &str) -> bool {
    Options::parse(value, Some("path")).is_ok_and(|options| options.is_on("server"))
}
