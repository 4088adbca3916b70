//! Handle each message once: an inbox for consumers of at-least-once deliveries.
