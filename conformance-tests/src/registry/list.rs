//! The one list of all cases, in parts, each of which hands what it got to the next.

use super::Case;

#[macro_use]
mod faults;
#[macro_use]
mod operators;
#[macro_use]
mod work;

work! { $ }
