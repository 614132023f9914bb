// Package daemon wires one node's parts together and runs them. It is the only
// package that sees everything.
//
//	lock the data directory ─► etcd (embedded, or dialled) ─► cluster, token ─► listen
//	   ─► run: mirrors of nodes/ and owners/, presence, election, keeper, engine, executor, guardian, API
//	   ─► asked to stop: drain ─► stop the parts ─► leave ─► stop listening
//
// Losing etcd, the session or the leadership is normal life here: the parts
// wait and go on, the process does not exit. It ends with an error only when
// going on would be wrong: the name is taken by another node, the data
// directory by another daemon, or etcd is too old.
package daemon
