//! The sample catalogue: families of products that differ by brand, model and variant.

/// Products of one kind. Every brand has every model in every variant.
pub(super) struct Family {
    pub(super) category: &'static str,
    /// Begins every product id.
    pub(super) prefix: &'static str,
    /// Begins every name.
    pub(super) noun: &'static str,
    pub(super) brands: &'static [&'static str],
    pub(super) models: &'static [&'static str],
    /// What the variants differ by: a name and its values, cheapest first.
    pub(super) variants: &'static [Variant],
    /// Same for all of the family.
    pub(super) attributes: &'static [(&'static str, &'static str)],
    /// In whole units of the currency: of the cheapest, more for every later model, more for every later variant.
    pub(super) price: Price,
}

pub(super) struct Variant {
    pub(super) name: &'static str,
    pub(super) values: &'static [&'static str],
    /// Whether a later value costs more.
    pub(super) is_priced: bool,
}

pub(super) struct Price {
    pub(super) from: i64,
    pub(super) per_model: i64,
    pub(super) per_variant: i64,
}

const fn graded(name: &'static str, values: &'static [&'static str]) -> Variant {
    Variant { name, values, is_priced: true }
}

const fn colors(values: &'static [&'static str]) -> Variant {
    Variant { name: "color", values, is_priced: false }
}

const fn price(from: i64, per_model: i64, per_variant: i64) -> Price {
    Price { from, per_model, per_variant }
}

pub(super) const FAMILIES: &[Family] = &[
    Family {
        category: "smartphones",
        prefix: "phone",
        noun: "Smartphone",
        brands: &["Aurora", "Baikal", "Cedar", "Delta", "Ember", "Fjord", "Glacier", "Horizon"],
        models: &["Mini", "S1", "S2", "S3", "X1", "X2", "X3", "Pro", "Max", "Ultra"],
        variants: &[
            graded("storage", &["128GB", "256GB", "512GB"]),
            colors(&["black", "white", "blue", "green"]),
        ],
        attributes: &[("display", "OLED"), ("sim", "nano + eSIM"), ("warranty", "24 months")],
        price: price(12_990, 9_500, 6_000),
    },
    Family {
        category: "tablets",
        prefix: "tablet",
        noun: "Tablet",
        brands: &["Aurora", "Baikal", "Delta", "Fjord", "Horizon"],
        models: &["Tab 8", "Tab 10", "Tab 11", "Tab 11 Pro", "Tab 12", "Tab 13 Pro"],
        variants: &[graded("storage", &["64GB", "128GB", "256GB"]), colors(&["grey", "silver", "gold"])],
        attributes: &[("display", "IPS"), ("stylus", "optional"), ("warranty", "12 months")],
        price: price(14_990, 8_000, 5_000),
    },
    Family {
        category: "laptops",
        prefix: "laptop",
        noun: "Laptop",
        brands: &["Cedar", "Delta", "Granite", "Kestrel", "Lynx", "Taiga"],
        models: &["Air 13", "Air 14", "Book 14", "Book 15", "Studio 16", "Play 17"],
        variants: &[
            graded("memory", &["8GB", "16GB", "32GB"]),
            graded("storage", &["256GB", "512GB", "1TB"]),
        ],
        attributes: &[("keyboard", "RU/EN"), ("warranty", "24 months")],
        price: price(39_990, 15_000, 9_000),
    },
    Family {
        category: "smartwatches",
        prefix: "watch",
        noun: "Smartwatch",
        brands: &["Aurora", "Ember", "Fjord", "Pulse", "Stride"],
        models: &["Fit", "Fit 2", "Active", "Active Pro", "Titan"],
        variants: &[
            graded("size", &["41mm", "45mm"]),
            colors(&["black", "silver", "pink", "blue", "orange"]),
        ],
        attributes: &[("water", "5 ATM"), ("battery", "7 days"), ("warranty", "12 months")],
        price: price(4_990, 6_000, 2_000),
    },
    Family {
        category: "headphones",
        prefix: "headphones",
        noun: "Headphones",
        brands: &["Acorn", "Echo Hill", "Nocturne", "Pulse", "Sonata", "Timbre"],
        models: &["Buds", "Buds 2", "Buds Pro", "Open", "Sport", "Studio", "Studio Pro"],
        variants: &[colors(&["black", "white", "red", "blue", "sand"])],
        attributes: &[("connection", "Bluetooth 5.3"), ("warranty", "12 months")],
        price: price(1_490, 2_900, 0),
    },
    Family {
        category: "cases",
        prefix: "case",
        noun: "Case for",
        brands: &["Aurora", "Baikal", "Cedar", "Delta", "Ember", "Fjord", "Glacier", "Horizon"],
        models: &["Mini", "S1", "S2", "S3", "X1", "X2", "X3", "Pro", "Max", "Ultra"],
        variants: &[graded("material", &["silicone", "leather"]), colors(&["black", "red", "clear"])],
        attributes: &[("warranty", "6 months")],
        price: price(490, 60, 900),
    },
    Family {
        category: "chargers",
        prefix: "charger",
        noun: "Charger",
        brands: &["Ampere", "Joule", "Ohm", "Volta", "Watt & Co"],
        models: &["20W", "30W", "45W", "65W", "100W", "140W"],
        variants: &[graded("ports", &["1", "2", "3"]), colors(&["white", "black"])],
        attributes: &[("plug", "EU"), ("warranty", "12 months")],
        price: price(790, 900, 600),
    },
    Family {
        category: "cables",
        prefix: "cable",
        noun: "Cable",
        brands: &["Ampere", "Joule", "Ohm", "Volta"],
        models: &["USB-C to USB-C", "USB-C to Lightning", "USB-A to USB-C", "HDMI 2.1"],
        variants: &[graded("length", &["0.5m", "1m", "2m", "3m"]), colors(&["white", "black", "braided"])],
        attributes: &[("warranty", "6 months")],
        price: price(290, 150, 200),
    },
    Family {
        category: "power-banks",
        prefix: "powerbank",
        noun: "Power bank",
        brands: &["Ampere", "Joule", "Ohm", "Stride", "Volta"],
        models: &["Slim", "Go", "Trek", "Trek Pro"],
        variants: &[graded("capacity", &["5000mAh", "10000mAh", "20000mAh"]), colors(&["black", "white"])],
        attributes: &[("output", "22.5W"), ("warranty", "12 months")],
        price: price(1_290, 700, 900),
    },
    Family {
        category: "smart-home",
        prefix: "home",
        noun: "Smart",
        brands: &["Acorn", "Echo Hill", "Hearth", "Lumen"],
        models: &["Lamp", "Socket", "Speaker", "Speaker Max", "Camera", "Thermostat"],
        variants: &[colors(&["white", "black", "grey"])],
        attributes: &[("protocol", "Matter"), ("warranty", "12 months")],
        price: price(990, 1_800, 0),
    },
    Family {
        category: "Кнопочные телефоны",
        prefix: "feature-phone",
        noun: "Телефон",
        brands: &["Байкал", "Заря", "Искра", "Сигнал"],
        models: &["Классик", "Классик 2", "Слайдер", "Раскладушка", "Бабушкин", "Дачный", "Походный"],
        variants: &[graded("sim", &["1", "2"]), colors(&["чёрный", "синий", "красный"])],
        attributes: &[("аккумулятор", "1800 мА·ч"), ("гарантия", "12 месяцев")],
        price: price(1_290, 350, 300),
    },
];
