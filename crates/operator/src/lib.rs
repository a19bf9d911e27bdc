//! Commands that tell an operator whether pods are protected, and how to fix it if they are not.

#![forbid(unsafe_code)]

pub mod ask;
pub mod check;
pub mod doctor;
pub mod explain;
pub mod finding;
pub mod pages;
pub mod startup_taint;
