//! Who somebody is, by the word of an OpenID Connect issuer.
