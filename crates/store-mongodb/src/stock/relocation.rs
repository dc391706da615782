//! The stock of a product that leaves or enters the catalogue. It stands in the product's document while there is one, and in
//! `unlisted_stock` otherwise; it moves in the transaction that deletes or creates the document.

use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, doc};
use mw_domain::ProductId;

use crate::MongoStore;
use crate::documents::Shape;
use crate::documents::ids::to_bson_id;
use crate::driver::transaction::Stop;
use crate::stock::entries::StockArray;

impl MongoStore {
    /// Keeps the stock of a product whose document is deleted in this transaction.
    pub(crate) async fn unlist_stock(
        &self,
        session: &mut ClientSession,
        product_id: &ProductId,
        deleted: &Document,
    ) -> Result<(), Stop> {
        let array = StockArray::of_document(deleted, self.options.shape);
        let Some(Bson::Array(entries)) = deleted.get(array.field()).filter(|it| !is_empty(it)) else {
            return Ok(());
        };
        let id = to_bson_id(product_id.as_str());
        let document = doc! { "_id": id.clone(), array.field(): entries.clone() };
        let unlisted = &self.sales.unlisted_stock;
        unlisted.replace_one(doc! { "_id": id }, document).upsert(true).session(session).await?;
        Ok(())
    }

    /// The stock of a product whose document is created in this transaction, as the array field to put into it and its entries.
    pub(crate) async fn list_stock(
        &self,
        session: &mut ClientSession,
        product_id: &ProductId,
        shape: Shape,
    ) -> Result<Option<(&'static str, Bson)>, Stop> {
        let filter = doc! { "_id": to_bson_id(product_id.as_str()) };
        let unlisted = &self.sales.unlisted_stock;
        // A transaction that moves units of the product while it has no document writes here: of the two one begins again. Without
        // this write both would commit, and the units would stand beside the product.
        let step = doc! { "$set": { "listed": true } };
        unlisted.update_one(filter.clone(), step).upsert(true).session(&mut *session).await?;
        let Some(document) = unlisted.find_one_and_delete(filter).session(session).await? else {
            return Ok(None);
        };
        let from = StockArray::of_document(&document, shape);
        let to = StockArray::of_shape(shape);
        let Some(Bson::Array(mut entries)) = document.get(from.field()).cloned() else { return Ok(None) };
        for entry in entries.iter_mut().filter_map(Bson::as_document_mut) {
            if let Some(zone) = entry.remove(from.zone_field()) {
                entry.insert(to.zone_field(), zone);
            }
        }
        Ok(Some((to.field(), Bson::Array(entries))))
    }
}

fn is_empty(value: &Bson) -> bool {
    value.as_array().is_none_or(Vec::is_empty)
}
