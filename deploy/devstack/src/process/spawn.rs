//! Starts child processes that end with this one.

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

/// Spawns a command whose process gets `orphan_signal` when this process dies.
///
/// The kernel sends that signal when the *thread* that forked ends. So one thread, which lives as long as this
/// process, spawns every child.
///
/// # Errors
/// The system's error.
pub(super) fn spawn(mut command: Command, orphan_signal: Signal) -> io::Result<Child> {
    type Order = (Command, SyncSender<io::Result<Child>>);
    static ORDERS: OnceLock<Sender<Order>> = OnceLock::new();
    signal_when_orphaned(&mut command, orphan_signal);
    let orders = ORDERS.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, reply) in inbox {
                // Fails when the caller is gone.
                let _ = reply.send(command.spawn());
            }
        });
        orders
    });
    let ended = || io::Error::other("the thread that starts processes has ended");
    let (reply, result) = sync_channel(1);
    orders.send((command, reply)).map_err(|_| ended())?;
    result.recv().map_err(|_| ended())?
}

fn signal_when_orphaned(command: &mut Command, signal: Signal) {
    let parent = Pid::this();
    let in_child = move || {
        // The standard library runs this after the change of account, which would clear the setting.
        set_pdeathsig(signal)?;
        // The parent may have died before that line; then no signal would come.
        if getppid() == parent { Ok(()) } else { Err(io::Error::from(Errno::ESRCH)) }
    };
    // SAFETY: between fork and exec the closure makes two system calls, allocates nothing and takes no lock.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(in_child);
    }
}

/// Makes the command's process the leader of a new session, so that it outlives this process and its terminal.
pub fn detach(command: &mut Command) {
    let in_child = || setsid().map(drop).map_err(io::Error::from);
    // SAFETY: between fork and exec the closure makes one system call, allocates nothing and takes no lock.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(in_child);
    }
}
