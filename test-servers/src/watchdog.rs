//! The end of a server, also when the process that started it is killed.
//!
//! Nothing of ours runs after SIGKILL, and asking the kernel to kill a child with its parent needs
//! `unsafe` code between fork and exec. So a small shell process outlives us: it reads from a pipe
//! whose only writer we are, and the pipe ends when we do, in whatever way. It then ends the
//! servers it was told of and removes their directory. An orderly end takes the same path, so it
//! is exercised by every test.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::unistd::Pid;

/// `$1` is the directory, `$2` what is to be done in it when the servers have ended. The shell also
/// makes the directory, so that nothing is left of a process that is killed before it has a
/// watchdog. It may be a disk of its own by then.
///
/// Every line read is an order with the process groups it is for; the last one counts. To `kill`,
/// a server is frozen first so that its list of children is exact: PostgreSQL's lead process
/// groups of their own. To `await` is to give a program that is about to end ten seconds for it.
const END_OF_SERVER: &str = r#"
mkdir -m 700 -- "$1" || exit
# Nobody may be left to read it.
trap '' PIPE
echo made
trap - PIPE
exec >/dev/null
order= groups=
while read -r line_order line_groups; do order=$line_order groups=$line_groups; done
exec 2>/dev/null
tries=0
for group in $groups; do
    while [ "$order" = await ] && [ $tries -lt 100 ] && kill -s 0 -- "-$group"; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill -s STOP -- "-$group"
    children=$(cat /proc/"$group"/task/*/children)
    kill -s KILL -- "-$group" $children
done
cd "$1" && eval "$2"
cd /
umount -l -- "$1"
tries=0
while ! rm -rf -- "$1" && [ $tries -lt 100 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
"#;

/// `$1` is the container's name. Only the `docker` command can act for us once we are gone.
const END_OF_CONTAINER: &str = r#"
while read -r line; do :; done
docker rm --force --volumes "$1"
"#;

/// How a process group is ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Kill,
    /// It is left to end by itself, and killed only if it does not.
    Await,
}

#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
    orders: Option<ChildStdin>,
}

impl Watchdog {
    /// Makes `directory`, watches over servers that work in it, and in the end runs `sweep`, a
    /// shell script, in it and removes it.
    pub(crate) fn over_directory(directory: &Path, sweep: &str) -> io::Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", END_OF_SERVER, "watchdog"]);
        shell.arg(directory).arg(sweep).stdout(Stdio::piped());
        let mut watchdog = Self::start(shell)?;
        let mut answer = String::new();
        if let Some(output) = watchdog.shell.stdout.take() {
            BufReader::new(output).read_line(&mut answer)?;
        }
        if answer.is_empty() {
            let text = format!("cannot make {}", directory.display());
            return Err(io::Error::other(text));
        }
        Ok(watchdog)
    }

    pub(crate) fn over_container(name: &str) -> io::Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", END_OF_CONTAINER, "watchdog", name]);
        shell.stdout(Stdio::null());
        Self::start(shell)
    }

    fn start(mut shell: Command) -> io::Result<Self> {
        let mut shell = shell
            // Out of our group, so that Ctrl-C does not end it before its work.
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let orders = shell.stdin.take();
        Ok(Self { shell, orders })
    }

    /// From now on exactly these process groups are ended with us, in this way.
    pub(crate) fn guard(&mut self, end: End, groups: &[Pid]) -> io::Result<()> {
        let mut order = match end {
            End::Kill => "kill".to_owned(),
            End::Await => "await".to_owned(),
        };
        for group in groups {
            order.push_str(&format!(" {group}"));
        }
        order.push('\n');
        match &mut self.orders {
            Some(orders) => orders.write_all(order.as_bytes()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Lets it do its work now, without waiting for it.
    pub(crate) fn release(&mut self) {
        self.orders = None;
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.release();
        // Its work is done when it ends. An error here means that it has ended before.
        let _ = self.shell.wait();
    }
}
