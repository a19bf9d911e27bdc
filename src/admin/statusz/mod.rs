//! `/statusz`: all that an operator wants to know of one proxy, on one page, when there is no time to set anything up.
//!
//! [`Status`] is the data (`?format=json`), [`html`] makes a page of it. The page needs nothing from anywhere: no script, no
//! style sheet, no image.

mod chart;
mod data;
mod page;
mod status;
mod units;

pub use data::Status;
pub use page::html;
