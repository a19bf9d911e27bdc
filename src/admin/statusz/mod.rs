//! `/statusz`: all that an operator needs to know about one proxy, on one page, without any set-up.
//!
//! [`Status`] is the data (`?format=json`), [`html`] renders it as a page. Its head, the [`Overview`], is also the
//! output of the command `status`. The page is self-contained: no script, no external style sheet, no external image.

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
