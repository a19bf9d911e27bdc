use super::super::tests::lab::{Lab, Servers};
use super::*;
