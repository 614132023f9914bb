// Package top is the screen of carillon top: what is wrong, what comes, what runs,
// and on which nodes, kept up to date while somebody looks at it.
//
// The Model is pure. It takes messages (a key, a new size, a board, an answer), keeps
// its state, draws it as lines of styled text, and says by commands what it wants
// done; it knows no terminal, no clock and no network. A Program does what it wants,
// with a client and a terminal.
//
//	keys, sizes ─┐                    ┌─► Picture ─► terminal
//	boards ──────┼─► Model.Update ────┤
//	answers ─────┘                    └─► commands ─► client ─► answers
//
// What it costs the cluster: one board a second, which nodes put together from
// memory, at most twice a second however many screens are open, and what is asked for
// by a key. It follows no events: a stream of them has the server read every revision
// of etcd, which is far more than a screen needs.
package top
