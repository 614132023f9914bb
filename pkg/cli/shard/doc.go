// Package shard is "carillon shard": which node owns which shard, since when, and how far it is.
package shard
