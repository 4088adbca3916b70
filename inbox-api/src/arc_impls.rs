//! `Arc<S>` is a store wherever `S` is, so that generic code takes `Arc<dyn Inbox>` as well.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    Begun, Capabilities, ClaimRequest, Claims, Due, Edit, Extended, Filter, HandlerName,
    Intervention, Key, Lease, LeaseTerms, Listing, Message, Migration, Operate, OperatorName, Page,
    Progress, PurgeRequest, Receipt, Record, Result, Schema, Settled, Settlement, Slice,
    Statistics, Store, Subscription,
};

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        (**self).receive(messages).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        (**self).claim(request).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        (**self).settle(settlements).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        (**self).extend(leases, length).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        (**self).begin(message, terms).await
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        (**self).subscribe(handlers).await
    }

    async fn close(&self) {
        (**self).close().await;
    }
}

#[async_trait]
impl<S: Schema + ?Sized> Schema for Arc<S> {
    fn ddl(&self) -> String {
        (**self).ddl()
    }

    fn exists_query(&self) -> String {
        (**self).exists_query()
    }

    fn expected_version(&self) -> u32 {
        (**self).expected_version()
    }

    fn works_from(&self) -> u32 {
        (**self).works_from()
    }

    async fn version(&self) -> Result<Option<u32>> {
        (**self).version().await
    }

    async fn exists(&self) -> Result<bool> {
        (**self).exists().await
    }

    async fn create(&self) -> Result<()> {
        (**self).create().await
    }

    async fn migrate(&self) -> Result<Migration> {
        (**self).migrate().await
    }

    async fn remove(&self) -> Result<()> {
        (**self).remove().await
    }
}

#[async_trait]
impl<S: Operate + ?Sized> Operate for Arc<S> {
    fn signed_by(&self, operator: &OperatorName) -> Arc<dyn Operate> {
        (**self).signed_by(operator)
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        (**self).get(key).await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        (**self).list(filter, page).await
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        (**self).count(filter).await
    }

    async fn statistics(&self) -> Result<Statistics> {
        (**self).statistics().await
    }

    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention> {
        (**self).replay(key, edit).await
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        (**self).replay_slice(filter, slice).await
    }

    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention> {
        (**self).reschedule(key, due).await
    }

    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress> {
        (**self).reschedule_slice(filter, slice, due).await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        (**self).discard(key).await
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        (**self).discard_slice(filter, slice).await
    }

    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress> {
        (**self).clear_slice(handler, slice).await
    }

    async fn pause(&self, handler: &HandlerName) -> Result<()> {
        (**self).pause(handler).await
    }

    async fn resume(&self, handler: &HandlerName) -> Result<()> {
        (**self).resume(handler).await
    }

    async fn paused(&self) -> Result<Vec<HandlerName>> {
        (**self).paused().await
    }

    async fn purge(&self, request: &PurgeRequest) -> Result<u64> {
        (**self).purge(request).await
    }

    async fn expired(&self, request: &PurgeRequest) -> Result<Listing> {
        (**self).expired(request).await
    }

    async fn purge_archived(&self, request: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        (**self).purge_archived(request, keys).await
    }

    async fn drop_payloads(&self, request: &PurgeRequest) -> Result<u64> {
        (**self).drop_payloads(request).await
    }
}
