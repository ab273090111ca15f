//! The plugins, one file each.
