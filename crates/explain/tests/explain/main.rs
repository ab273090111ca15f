//! Explanations and fixes over objects: a table of situations with what is said of each, and random clusters on which
//! every fix is tried again and compared with all that could have been found.

mod fixture;
mod random;
mod simulations;
mod situations;
