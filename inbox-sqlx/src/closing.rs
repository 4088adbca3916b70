//! Connections that are closed rather than given back.

use tokio::runtime::Builder;

/// Drops `owner`, and closes the connection of a pool that it owns.
///
/// The driver gives a connection back in a task, which first waits for the server without limit: a
/// silent one would keep its place in the pool for as long as the operating system keeps trying. So
/// the task goes to a runtime that ends without having run it, which the driver provides for: the
/// connection is closed and its place is free.
pub fn close_all_of<T>(owner: T) {
    let Ok(nowhere) = Builder::new_current_thread().build() else {
        return drop(owner);
    };
    let entered = nowhere.enter();
    drop(owner);
    drop(entered);
    nowhere.shutdown_background();
}
