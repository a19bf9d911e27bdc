//! Facts as JSON, for `#[serde(with)]`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Condition, Fact, Topic};

#[derive(Serialize, Deserialize)]
struct Fields {
    fact: Topic,
    condition: Condition,
    tried: String,
    seen: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    said: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    look: Vec<String>,
    r#do: Vec<String>,
}

pub fn serialize<S: Serializer>(facts: &[Fact], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(facts.iter().cloned().map(Fields::from))
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Fact>, D::Error> {
    Ok(Vec::<Fields>::deserialize(deserializer)?.into_iter().map(Fact::from).collect())
}

impl From<Fact> for Fields {
    fn from(fact: Fact) -> Self {
        let Fact { topic: fact, verdict: condition, tried, seen, said, advice, looks: look, commands: r#do, took: _ } =
            fact;
        Self { fact, condition, tried, seen, said, advice, look, r#do }
    }
}

impl From<Fields> for Fact {
    fn from(fields: Fields) -> Self {
        let Fields { fact, condition, tried, seen, said, advice, look, r#do } = fields;
        Self { said, advice, looks: look, commands: r#do, ..Self::new(fact, condition, tried, seen) }
    }
}
