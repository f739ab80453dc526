//! Starts child processes that end when we end.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread;

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid, setsid};

/// Makes the command's process get `signal` when the thread that spawns it ends, which [`spawn`]'s never does
/// before the process.
fn die_with_us(command: &mut Command, signal: Signal) {
    let us = Pid::this();
    let in_child = move || {
        // After the change of account, which would clear it: the standard library runs this last.
        set_pdeathsig(signal)?;
        // Had we died before that line, no signal would ever come.
        if getppid() == us { Ok(()) } else { Err(io::Error::from(Errno::ESRCH)) }
    };
    // SAFETY: between fork and exec the closure makes two system calls, allocates nothing and takes no lock.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(in_child);
    }
}

/// Spawns a command such that its process dies with ours, whichever thread asks.
///
/// The kernel's parent-death signal is bound to the *thread* that forked, and a test's or a runtime's threads come and
/// go. So one thread that lives as long as the process spawns every child.
///
/// # Errors
/// What the system says.
pub(super) fn spawn(mut command: Command, orphan_signal: Signal) -> io::Result<Child> {
    die_with_us(&mut command, orphan_signal);
    spawn_on_lasting_thread(command)
}

fn spawn_on_lasting_thread(command: Command) -> io::Result<Child> {
    type Order = (Command, SyncSender<io::Result<Child>>);
    static ORDERS: OnceLock<Sender<Order>> = OnceLock::new();
    let gone = || io::Error::other("the thread that starts processes is gone");
    let orders = ORDERS.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                // The one who asked has gone; the child's handle is dropped with the answer.
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let (answer, answered) = sync_channel(1);
    orders.send((command, answer)).map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}

/// Makes the command's process the leader of a new session: it outlives us and our terminal.
pub fn detach(command: &mut Command) {
    let in_child = || setsid().map(drop).map_err(io::Error::from);
    // SAFETY: between fork and exec the closure makes one system call, allocates nothing and takes no lock.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(in_child);
    }
}
