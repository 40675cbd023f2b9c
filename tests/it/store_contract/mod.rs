//! The public contract suite, stamped on every store of the crate.

mod broken;

mod memory {
    use tower_redis_lock::store::MemoryStore;

    tower_redis_lock::store_contract!(|| async { MemoryStore::new() });
}

mod redis_resp2 {
    use tower_redis_lock::RedisStore;

    use crate::support::redis_server::RedisServer;

    async fn make_store() -> (RedisStore, RedisServer) {
        let server = RedisServer::start().await;
        (RedisStore::connect(&server.url()).await.expect("a healthy server"), server)
    }

    tower_redis_lock::store_contract!(make_store);
}

// B04
mod redis_resp3 {
    use tower_redis_lock::RedisStore;

    use crate::support::redis_server::RedisServer;

    async fn make_store() -> (RedisStore, RedisServer) {
        let server = RedisServer::start().await;
        let url = format!("{}?protocol=resp3", server.url());
        (RedisStore::connect(&url).await.expect("a healthy server"), server)
    }

    tower_redis_lock::store_contract!(make_store);
}

mod redis_from_a_pool {
    use tower_redis_lock::RedisStore;
    use tower_redis_lock::bb8_redis::{RedisConnectionManager, bb8};

    use crate::support::redis_server::RedisServer;

    async fn make_store() -> (RedisStore, RedisServer) {
        let server = RedisServer::start().await;
        let manager = RedisConnectionManager::new(server.url()).expect("a valid URL");
        let pool = bb8::Pool::builder().max_size(2).build(manager).await.expect("a pool");
        (RedisStore::from_pool(pool), server)
    }

    tower_redis_lock::store_contract!(make_store);
}

// B50
mod redis_cluster_of_one_node {
    use tower_redis_lock::RedisStore;

    use crate::support::eventually::{eventually, secs};
    use crate::support::redis_server::RedisServer;

    async fn make_store() -> (RedisStore, RedisServer) {
        let server = RedisServer::start_with(&["--cluster-enabled", "yes"]).await;
        let () = server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
        eventually("the cluster to be up", secs(20), async || {
            let info: String = server.command(&["CLUSTER", "INFO"]).await;
            info.contains("cluster_state:ok")
        })
        .await;
        (RedisStore::connect(&server.url()).await.expect("a healthy server"), server)
    }

    tower_redis_lock::store_contract!(make_store);
}
