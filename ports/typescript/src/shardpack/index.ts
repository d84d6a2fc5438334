// Sharded datasets: spec/shardpack.md.
export {};
