// Package daemon creates the components of a node and runs them. It is the only
// package that imports all of them.
//
//	lock the data directory ─► listen ─► etcd (embedded, or dialled) ─► cluster, token
//	   ─► run: mirrors of nodes/ and owners/, presence, election, keeper, engine, executor, guardian, API
//	   ─► ctx ends: drain ─► stop the components ─► leave ─► stop listening
//
// Losing etcd, the session or the leadership is normal: the components
// wait and continue, and the process does not exit (G18). Start and Run return an error only when
// continuing would be wrong: another node holds the name, another daemon uses the data
// directory, etcd is too old, or the data directory belongs to another cluster.
package daemon
