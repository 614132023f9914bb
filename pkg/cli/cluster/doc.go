// Package cluster implements "carillon cluster": status, settings, freezes, members of etcd, the format of
// records, and join tokens.
package cluster
