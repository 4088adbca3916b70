//! What every operation works with, but for a connection: the statements, the options, and what the server
//! takes.

use inbox_api::{Bytes, Error, ErrorKind, Invalid, Message, check_size};

use crate::{
    json,
    multi_statement::PACKET_OVERHEAD,
    options::{MySqlOptions, PayloadType},
    procedures::Procedure,
    rows,
    server::Server,
    statement::{Secrecy, Statement},
    statements::Statements,
};

/// The most rows of one statement.
pub(crate) const CHUNK_ROWS: usize = 1000;
/// What a message's texts take in addition to payload and headers, generously.
const ROW_OVERHEAD: usize = 8192;
/// A payload that is only too large because of the server's setting.
const IN_PACKET: &str = "payload, with what else is in one of the server's max_allowed_packet,";
/// Payloads and headers may be part of a statement's text when packets take so many bytes: in
/// hexadecimal it takes twice as many as they have.
const ROOM_FOR_TEXT: usize = 2 * 1024 * 1024;

/// Statements and settings.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) sql: Statements,
    pub(crate) options: MySqlOptions,
    pub(crate) server: Server,
}

impl Context {
    pub(crate) fn new(options: MySqlOptions, server: Server) -> Self {
        Self {
            sql: Statements::new(&options),
            options,
            server,
        }
    }

    /// Those that there are.
    pub(crate) fn procedures(&self) -> [&Procedure; 2] {
        [&self.sql.begin_procedure, &self.sql.settle_procedure]
    }

    /// The server's time, as SQL.
    pub(crate) fn now(&self) -> String {
        let offset = self.options.clock.micros();
        self.sql.expand(&format!("{{now}} + {offset}"))
    }

    /// How payloads, results and headers are sent in a session of the store's own, which logs no
    /// statements.
    pub(crate) fn secrecy_of_own(&self) -> Secrecy {
        if self.server.max_packet >= ROOM_FOR_TEXT {
            Secrecy::Inline
        } else {
            Secrecy::Bind
        }
    }

    /// The largest value that fits into one of the server's packets, in bytes.
    pub(crate) fn most_in_packet(&self) -> usize {
        let taken = PACKET_OVERHEAD + ROW_OVERHEAD;
        self.server.max_packet.saturating_sub(taken)
    }

    /// The largest payload and the largest result that this store and this server take.
    pub(crate) fn payload_limit(&self) -> usize {
        self.options.payload_limit.min(self.most_in_packet())
    }

    /// Fails unless this store and this server take the payload, with so many other bytes.
    pub(crate) fn check_payload(&self, payload: &Bytes, others: usize) -> Result<(), Invalid> {
        check_size("payload", payload.len(), self.options.payload_limit)?;
        let limit = self.most_in_packet().saturating_sub(others);
        check_size(IN_PACKET, payload.len(), limit)?;
        if self.options.payload_type == PayloadType::Json && !json::fits(payload) {
            return Err(Invalid::Malformed {
                what: "payload",
                expected: "JSON of at most 30 levels with keys of at most 65535 bytes, since this inbox's payload \
                           column is of that type",
            });
        }
        Ok(())
    }

    /// The same of headers that are set without a payload.
    pub(crate) fn check_headers(&self, bytes: usize) -> Result<(), Invalid> {
        check_size("headers", bytes, self.most_in_packet())
    }

    pub(crate) fn check_message(&self, message: &Message) -> Result<(), Invalid> {
        let headers = message.headers();
        // Without any it is no more than what is set aside for a message in any case.
        let other_bytes = if headers.is_empty() {
            0
        } else {
            headers.to_json().len()
        };
        self.check_payload(message.payload(), other_bytes)
    }

    pub(crate) fn check_result(&self, result: &Bytes) -> Result<(), Invalid> {
        check_size("result", result.len(), self.payload_limit())
    }

    /// Adds the payload as its column takes it.
    pub(crate) fn push_payload(
        &self,
        statement: &mut Statement,
        payload: &Bytes,
        secrecy: Secrecy,
    ) {
        match self.options.payload_type {
            PayloadType::LongBlob => {
                statement.secret(payload, secrecy);
            }
            PayloadType::Json => {
                statement
                    .push("CONVERT(")
                    .secret(payload, secrecy)
                    .push(" USING utf8mb4)");
            }
        }
    }

    /// The error of a row that cannot be read.
    pub(crate) fn corrupt(&self, seq: i64, reason: String) -> Error {
        let found = rows::corrupt_row(self.options.inbox.as_str(), seq, reason);
        let context = format!("{}: {}", found.place, found.reason);
        Error::new(ErrorKind::Corrupt, context)
    }
}
