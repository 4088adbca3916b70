//! A password in a URL, which must not be told.

/// What stands for a password in the corpora of URLs.
pub const SECRET: &str = "hunter2";

/// Whether the secret is where a password is, and nowhere else: between the scheme and the last `@`. With
/// `is_read`, the password as the URL's grammar has it: before the end of the host's part.
#[must_use]
pub fn has_secret(url: &str, is_read: bool) -> bool {
    let Some((scheme, behind)) = url.split_once("://") else {
        return false;
    };
    let Some((login, place)) = behind.rsplit_once('@') else {
        return false;
    };
    let Some((user, password)) = login.split_once(':') else {
        return false;
    };
    let others = [scheme, user, place];
    password.contains(SECRET)
        && !others.into_iter().any(|other| other.contains(SECRET))
        && !(is_read && login.contains(['/', '?', '#', '\\']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_before_the_last_at_sign() {
        assert!(has_secret("postgres://app:hunter2@h/d", true));
        assert!(has_secret("postgres://app:a?hunter2@h/d", false));
        assert!(!has_secret("postgres://app:a?hunter2@h/d", true));
        for none in [
            "postgres://hunter2:x@h/d",
            "postgres://a:b@hunter2/d",
            "a:hunter2@h",
        ] {
            assert!(!has_secret(none, false), "{none}");
        }
    }
}
