// Package wording says in words what records mean: how a run ended, why a node does not work, what is missing in a list. The
// command line and the Web UI share it, so both say the same. It is pure, and knows neither colors nor layouts.
package wording
