//! `/statusz`: all that an operator wants to know of one proxy, on one page, when there is no time to set anything up.
//!
//! [`Status`] is the data (`?format=json`), [`html`] makes a page of it. Its head, the [`Overview`], is also what the command
//! `status` prints. The page needs nothing from anywhere: no script, no
//! style sheet, no image.

mod chart;
mod data;
mod head;
mod overview;
mod page;
mod parts;
mod seen;
mod status;

pub use data::Status;
pub use overview::Overview;
pub use page::html;
pub use seen::facts;
