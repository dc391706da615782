//! The schemas of scalars in the OpenAPI document.

use std::borrow::Cow;

use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::openapi::{RefOr, schema};
use utoipa::{PartialSchema, ToSchema};

fn string() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(schema::SchemaType::new(Type::String))
}

fn format(format: KnownFormat) -> SchemaFormat {
    SchemaFormat::KnownFormat(format)
}

fn uuid() -> SchemaFormat {
    SchemaFormat::Custom("uuid".to_owned())
}

macro_rules! scalars {
    ($($(#[$doc:meta])* $name:ident => $schema:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                $schema.build().into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }
        }
    )*};
}

scalars! {
    /// `user_id`, `product_id`, `session_id` and `geo_zone`.
    Name => string()
        .pattern(Some("^[A-Za-z0-9._:~-]{1,128}$"))
        .description(Some("The shop's own id"));
    CategoryName => string()
        .min_length(Some(1))
        .max_length(Some(128))
        .description(Some("A category in any script, without control characters"));
    Uuid => string().format(Some(uuid()));
    OrderRef => string()
        .format(Some(uuid()))
        .description(Some("In a path also the 24-digit hexadecimal ObjectId of an order made before the move"));
    Time => string().format(Some(format(KnownFormat::DateTime))).description(Some("RFC 3339 in UTC"));
    CalendarDate => string().format(Some(format(KnownFormat::Date)));
    Amount => string()
        .pattern(Some(r"^[0-9]{1,12}(\.[0-9]{1,2})?$"))
        .description(Some("An exact decimal, 0 to 999999999999.99; never a float"))
        .examples(["1999.90"]);
}
