// Package top is the screen of "carillon top". It shows problems, future ticks, active runs and nodes, and
// keeps them up to date.
//
// The Model is pure. It receives messages (a key, a new size, a board, an answer), updates its state, draws
// that state as lines of styled text, and returns commands for what must be done. It depends on no terminal,
// clock or network. A Program executes the commands with a client and a terminal.
//
//	keys, sizes ─┐                    ┌─► Picture ─► terminal
//	boards ──────┼─► Model.Update ────┤
//	answers ─────┘                    └─► commands ─► client ─► answers
//
// The screen costs the cluster one board per second, plus what the user requests with a key. Nodes make a board
// from memory, at most twice a second, however many screens are open. The screen follows no events, because for
// a stream of events the server reads every revision of etcd, which is far more than a screen needs.
package top
