// Package shard implements "carillon shard": the owners of shards and their watermarks.
package shard
