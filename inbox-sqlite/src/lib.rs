//! An inbox store in an SQLite file: durable without a server.
