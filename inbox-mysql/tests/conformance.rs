//! The conformance suite, over the store on MariaDB. On MySQL: `mysql.rs`.

mod common;

use common::harness::Database;
use test_servers::Kind;

conformance_tests::conformance!(Database(Kind::Mariadb));
