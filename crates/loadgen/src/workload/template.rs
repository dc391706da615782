//! Texts with `{variables}`: the paths and bodies of a workload.
//!
//! A brace is a variable only as `{name}`; any other brace is text, so that JSON needs no escaping.

/// The variables of templates. A variable has one value for all calls of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variable {
    Product,
    Product2,
    Wish,
    Category,
    Zone,
    User,
    Buyer,
    Session,
    Quantity,
    Order,
    OrderUser,
}

impl Variable {
    const ALL: [(&'static str, Self); 11] = [
        ("product", Self::Product),
        ("product2", Self::Product2),
        ("wish", Self::Wish),
        ("category", Self::Category),
        ("zone", Self::Zone),
        ("user", Self::User),
        ("buyer", Self::Buyer),
        ("session", Self::Session),
        ("quantity", Self::Quantity),
        ("order", Self::Order),
        ("order_user", Self::OrderUser),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, variable)| *variable)
    }

    /// As a bit, for sets of variables.
    pub(crate) fn bit(self) -> u16 {
        1 << self as u16
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(Vec<u8>),
    Value(Variable),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Template(pub(crate) Vec<Piece>);

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut template = Self::default();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let (before, from) = rest.split_at(open);
            template.push_text(before);
            if let Some(name) = name_at(from) {
                let variable = Variable::named(name).ok_or_else(|| unknown(name))?;
                template.0.push(Piece::Value(variable));
                rest = from.get(name.len() + 2..).unwrap_or_default();
            } else {
                template.push_text("{");
                rest = from.get(1..).unwrap_or_default();
            }
        }
        template.push_text(rest);
        Ok(template)
    }

    pub(crate) fn push_text(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Text(last)) => last.extend_from_slice(text.as_bytes()),
            _ => self.0.push(Piece::Text(text.as_bytes().to_vec())),
        }
    }

    pub(crate) fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The set of its variables, by bits.
    pub(crate) fn variables(&self) -> u16 {
        self.0.iter().fold(0, |set, piece| match piece {
            Piece::Text(_) => set,
            Piece::Value(variable) => set | variable.bit(),
        })
    }
}

fn name_at(from: &str) -> Option<&str> {
    let (name, _) = from.strip_prefix('{')?.split_once('}')?;
    let is_name = !name.is_empty() && name.bytes().all(|it| matches!(it, b'a'..=b'z' | b'0'..=b'9' | b'_'));
    is_name.then_some(name)
}

fn unknown(name: &str) -> String {
    let known: Vec<String> = Variable::ALL.iter().map(|(known, _)| format!("{{{known}}}")).collect();
    format!("there is no variable {{{name}}}; there are {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Piece {
        Piece::Text(text.as_bytes().to_vec())
    }

    #[test]
    fn variables_are_found_among_braces_of_json() {
        assert_eq!(
            Template::parse(r#"{"lines":[{"product_id":"{product}","quantity":{quantity}}]}"#).unwrap().0,
            [
                text(r#"{"lines":[{"product_id":""#),
                Piece::Value(Variable::Product),
                text(r#"","quantity":"#),
                Piece::Value(Variable::Quantity),
                text("}]}"),
            ]
        );
        assert_eq!(Template::parse("{}").unwrap().0, [text("{}")]);
        assert_eq!(Template::parse("").unwrap().0, []);
    }

    #[test]
    fn an_unknown_variable_is_refused_with_the_known_ones() {
        let message = Template::parse("/v1/products/{produkt}").unwrap_err();
        assert!(
            message.starts_with("there is no variable {produkt}; there are {product}, {product2}"),
            "{message}"
        );
    }

    #[test]
    fn every_variable_is_found_by_its_name() {
        for (name, variable) in Variable::ALL {
            assert_eq!(
                Template::parse(&format!("{{{name}}}")).unwrap().0,
                [Piece::Value(variable)],
                "{name}"
            );
        }
    }

    #[test]
    fn the_set_of_variables_is_known() {
        let set = Template::parse("{user}{order}{user}").unwrap().variables();
        assert_eq!(set, Variable::User.bit() | Variable::Order.bit());
    }
}
