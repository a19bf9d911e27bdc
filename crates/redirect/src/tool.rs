//! [`Tool`]: `nft` or `iptables`.
//!
//! Both install the same plan.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::plan::Plan;
use strum::{Display, EnumString, VariantNames};

use super::{Error, State, iptables, nft};

/// The tool that installs rules. The flag has the variants' names in lowercase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Tool {
    /// `nft`.
    Nft,
    /// `iptables-restore`, `iptables-save` and their IPv6 variants.
    Iptables,
}

impl Tool {
    /// The first usable tool, in order of preference. One that fails now is not passed over: its rules may be in force, and those
    /// of the next one would be added to them.
    pub(super) async fn first_usable() -> Result<Option<Self>, Error> {
        match Self::Nft.if_usable().await? {
            None => Self::Iptables.if_usable().await,
            usable => Ok(usable),
        }
    }

    /// All usable tools, also those that fail now: this one first, then in order of preference.
    pub(super) async fn all_usable(first: Option<Self>) -> Vec<Self> {
        let first = first.unwrap_or(Self::Nft);
        let mut usable = Vec::new();
        for tool in [first, first.other()] {
            usable.extend(tool.if_usable().await.unwrap_or(Some(tool)));
        }
        usable
    }

    /// This tool, unless it is not installed or the kernel lacks what it needs. Fails where it only fails now. Once it has worked,
    /// it stays the tool of this process.
    pub(super) async fn if_usable(self) -> Result<Option<Self>, Error> {
        static HAS_WORKED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
        let has_worked = &HAS_WORKED[self as usize];
        if !has_worked.load(Relaxed) {
            let probed = match self {
                Self::Nft => nft::probe().await,
                Self::Iptables => iptables::probe().await,
            };
            match probed {
                Ok(()) => has_worked.store(true, Relaxed),
                Err(error) if error.is_passing() => return Err(error),
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(self))
    }

    /// Whether rules may be in force that only `nft` shows, which is not usable here.
    pub(super) async fn may_hide_rules() -> Result<bool, Error> {
        Ok(Self::Nft.if_usable().await?.is_none() && nft::may_have_table())
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::Nft => Self::Iptables,
            Self::Iptables => Self::Nft,
        }
    }

    pub(super) async fn install(self, plan: &Plan) -> Result<(), Error> {
        match self {
            Self::Nft => nft::install(plan).await,
            Self::Iptables => iptables::install(plan).await,
        }
    }

    /// Adds the chains of a plan to what is there, until the next installation.
    pub(super) async fn add(self, plan: &Plan) -> Result<(), Error> {
        match self {
            Self::Nft => nft::add(plan).await,
            Self::Iptables => iptables::add(plan).await,
        }
    }

    /// Lets the tool and the kernel check the rules, without installing them.
    pub(super) async fn try_out(self, plan: &Plan) -> Result<(), Error> {
        match self {
            Self::Nft => nft::try_out(plan).await,
            Self::Iptables => iptables::try_out(plan).await,
        }
    }

    pub(super) async fn remove(self) -> Result<(), Error> {
        match self {
            Self::Nft => nft::remove().await,
            Self::Iptables => iptables::remove().await,
        }
    }

    pub(super) async fn state(self, plan: &Plan) -> Result<State, Error> {
        match self {
            Self::Nft => nft::state(plan).await,
            Self::Iptables => iptables::state(plan).await,
        }
    }

    /// Whether exactly this plan is installed.
    pub(super) async fn has(self, plan: &Plan) -> Result<bool, Error> {
        Ok(self.state(plan).await? == State::Installed)
    }

    /// Packets that the bound on new connections dropped since it was installed. `None` if there is no bound.
    pub(super) async fn dropped(self) -> Result<Option<u64>, Error> {
        match self {
            Self::Nft => nft::dropped().await,
            Self::Iptables => iptables::dropped().await,
        }
    }

    /// Our installed rules. `None` if there are none.
    pub(super) async fn listing(self) -> Result<Option<String>, Error> {
        match self {
            Self::Nft => nft::listing().await,
            Self::Iptables => iptables::listing().await,
        }
    }

    pub(super) fn text(self, plan: &Plan) -> String {
        match self {
            Self::Nft => nft::ruleset(plan),
            Self::Iptables => iptables::text(plan),
        }
    }
}
